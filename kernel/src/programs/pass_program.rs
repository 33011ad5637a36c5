//! A user's own XDP program behind Ringway's, for what Ringway passes on (`[node] on_pass`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::MapType;
use ringway_abi::Slot;
use ringway_abi::raw::rw_settings;
use ringway_bpf_sys::{self as bpf, PASS, Program};

use crate::gateway::Gateway;
use crate::maps::{self, Map};
use crate::pins::is_a;
use crate::{Error, Result};

/// Whether a pinned program can stand behind Ringway's; its name.
///
/// # Errors
/// There is none, it is no XDP program, or not one that takes packets of several buffers.
pub fn check_on_pass(path: &Path) -> Result<String> {
    let (program, name) = open(path)?;
    // The kernel tells only by refusing to mix them in one array.
    let array = Map::from(maps::create(MapType::ProgArray, "rw_on_pass", (4, 4), 1, 0)?);
    let ours = Program { name: "rw_frags", instructions: &PASS, frags: true }.load();
    let ours = ours.map_err(|e| refused(path, format!("not tried: {}", e.source)))?;
    array.put_fd(0, ours.as_fd())?;
    put(&array, 0, program.as_fd(), path)?;
    Ok(name)
}

impl Gateway {
    /// Puts a pinned program behind the gateway's stages, or takes away the one that is there: it
    /// decides about every packet that would have been passed to the kernel.
    ///
    /// # Errors
    /// As those of [`check_on_pass`].
    pub fn set_on_pass(&mut self, path: Option<&Path>) -> Result<()> {
        let (slot, bit) = (Slot::OnPass as u32, 1 << Slot::OnPass as u32);
        match path {
            Some(path) => {
                let (program, _) = open(path)?;
                put(&self.maps().slots, slot, program.as_fd(), path)?;
                self.set_stages(|stages| stages | bit)
            }
            None => {
                self.set_stages(|stages| stages & !bit)?;
                self.maps().slots.remove(&slot)
            }
        }
    }

    pub(crate) fn set_stages(&self, change: impl Fn(u32) -> u32) -> Result<()> {
        let settings = self.maps().settings.get(0)?;
        let stages = change(settings.stages);
        if stages == settings.stages {
            return Ok(());
        }
        self.maps().settings.put(&0, &rw_settings { stages, ..settings })
    }
}

fn refused(path: &Path, why: impl Into<String>) -> Error {
    Error::OnPass { path: path.to_owned(), why: why.into() }
}

fn put(array: &Map<u32, u32>, slot: u32, program: BorrowedFd<'_>, path: &Path) -> Result<()> {
    array.put_fd(slot, program).map_err(|_| {
        refused(
            path,
            "the program was not loaded as ours are, with packets of several buffers: compile it with \
             SEC(\"xdp.frags\") and load it with libbpf (bpftool prog load FILE.o PATH)",
        )
    })
}

/// The pinned program and its name.
fn open(path: &Path) -> Result<(OwnedFd, String)> {
    let fd = bpf::open_pinned(path).map_err(|source| {
        refused(
            path,
            format!("cannot be opened ({source}): pin it with bpftool prog load FILE.o PATH"),
        )
    })?;
    let info = bpf::info(fd.as_fd()).ok();
    // What is pinned there may be a map or a link, which have other facts.
    let xdp = info.filter(|info| is_a("bpf-prog", fd.as_fd()) && info.is_xdp());
    let Some(info) = xdp else {
        return Err(refused(path, "what is pinned there is no XDP program: pin one"));
    };
    Ok((fd, info.name()))
}
