//! Takes a node's packet path away: attachments, then everything else.

use std::path::Path;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, libbpf_sys as sys};
use ringway_abi::Slot;

use crate::gateway::open;
use crate::link::open_link;
use crate::load::log;
use crate::maps::{self, Map, MapName};
use crate::pins::{Pins, pin_error};
use crate::programs::capture;
use crate::{Error, Result};

/// What [`detach`] took away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// Interfaces that are free again.
    pub interfaces: Vec<String>,
    /// Ids of the programs.
    pub programs: Vec<u32>,
    /// Ids of the maps.
    pub maps: Vec<u32>,
}

impl Detached {
    /// What is still there of it, in words; waits up to `patience`, since the kernel frees
    /// programs and maps a little later. Empty: nothing is left.
    pub fn leftovers(&self, patience: Duration) -> Vec<String> {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.left_now();
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn left_now(&self) -> Vec<String> {
        let programs = self.programs.iter().filter(|id| exists(**id, sys::bpf_prog_get_next_id));
        let maps = self.maps.iter().filter(|id| exists(**id, sys::bpf_map_get_next_id));
        let programs = programs.map(|id| format!("program {id}"));
        programs.chain(maps.map(|id| format!("map {id}"))).collect()
    }
}

/// Asks for the id after the one before. Opening would be simpler, but a program array that is
/// opened while the kernel is about to empty it (kernel/bpf/arraymap.c, prog_array_map_clear: takes
/// a reference for work that is queued already) is never freed.
fn exists(id: u32, next_id: unsafe extern "C" fn(u32, *mut u32) -> i32) -> bool {
    let mut next = 0;
    // SAFETY: one of libbpf's, which write one integer; it outlives the call.
    let ret = unsafe { next_id(id.saturating_sub(1), &mut next) };
    ret == 0 && next == id
}

/// Takes away everything that is pinned for a node: its traffic stops being balanced and all its
/// connections end. Works whatever version made the pins. Fails when nothing is pinned, or when
/// a daemon looks after the node.
pub fn detach(bpffs: &Path, node: &str) -> Result<Detached> {
    log::install();
    let pins = Pins::new(bpffs, node)?;
    if !pins.any()? {
        return Err(pins.not_loaded());
    }
    let Some(_lock) = pins.lock()? else {
        return Err(Error::Busy { node: node.to_owned(), pid: open::daemon_pid(&pins) });
    };
    let _captures = capture::hold(&pins)?;
    let mut detached = Detached::default();
    for iface in pins.iface_names()? {
        let path = pins.link(&iface);
        if path.exists() {
            let link = open_link(&path)?;
            detached.programs.extend(link.info().map(|info| info.program));
            link.detach().map_err(pin_error("detach", &path))?;
        }
        detached.interfaces.push(iface);
    }
    note_losses(&pins, &mut detached)?;
    note_maps(&pins, &mut detached);
    pins.remove()?;
    Ok(detached)
}

fn note_losses(pins: &Pins, detached: &mut Detached) -> Result<()> {
    for name in pins.loss_names()? {
        let path = pins.loss(&name);
        let link = open_link(&path)?;
        detached.programs.extend(link.info().map(|info| info.program));
    }
    Ok(())
}

/// Remembers what should be gone afterwards. A map that cannot be opened is only not checked.
fn note_maps(pins: &Pins, detached: &mut Detached) {
    for name in MapName::ALL {
        let Ok(Some(map)) = maps::open_pinned(&pins.map(name.name())) else { continue };
        detached.maps.extend(map.info().map(|info| info.info.id));
        if *name == MapName::slots {
            let slots = Map::<u32, u32>::from(map);
            let programs =
                [Slot::Balance, Slot::Icmp, Slot::Forward].map(|slot| slots.find(&(slot as u32)));
            detached.programs.extend(programs.into_iter().flatten().flatten());
        }
    }
}
