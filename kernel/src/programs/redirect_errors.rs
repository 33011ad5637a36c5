//! The programs that count what the kernel drops after our verdict
//! (bpf/trace/redirect_errors.bpf.c): attached to the kernel's tracepoints, pinned, and told which
//! root programs are ours.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use libbpf_rs::Program;

use crate::load;
use crate::maps::{self, Maps};
use crate::objects::redirect_errors::RedirectErrorsSkelBuilder;
use crate::pins::{Pins, pin_error};
use crate::{Error, Result};

const REDIRECT_ERRORS: &str = "ringway_lost_*";

/// Attaches them, in place of those of an earlier daemon: what is lost between the two, some
/// milliseconds, is not counted. All or none.
pub(crate) fn count(maps: &Maps, pins: &Pins) -> Result<()> {
    pins.remove_losses()?;
    let outcome = attach(maps, pins);
    if outcome.is_err() {
        pins.remove_losses()?;
    }
    outcome
}

fn attach(maps: &Maps, pins: &Pins) -> Result<()> {
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<RedirectErrorsSkelBuilder>(REDIRECT_ERRORS, &mut storage)?;
    maps::reuse(&mut open.maps.ledger, &maps.ledger)?;
    maps::reuse(&mut open.maps.roots, &maps.roots)?;
    let loaded = load::load(REDIRECT_ERRORS, open)?;
    pins.create_losses()?;
    let programs = &loaded.progs;
    for program in [
        &programs.ringway_lost_redirect,
        &programs.ringway_lost_batch,
        &programs.ringway_lost_back,
        &programs.ringway_lost_tx,
    ] {
        let name = program.name().to_string_lossy().into_owned();
        let path = pins.loss(&name);
        let mut link = program.attach().map_err(|source| Error::Trace { program: name, source })?;
        link.pin(&path).map_err(|e| pin_error("pin", &path)(std::io::Error::other(e)))?;
    }
    Ok(())
}

/// What this root program sends is accounted to the slot. Before it is attached.
pub(crate) fn know_root(maps: &Maps, root: BorrowedFd<'_>, slot: u32) -> Result<()> {
    maps.roots.put(&root_id(root)?, &slot)
}

/// Forgets programs that the slot had before.
pub(crate) fn forget_earlier(maps: &Maps, root: BorrowedFd<'_>, slot: u32) -> Result<()> {
    let own = root_id(root)?;
    forget(maps, |id, at| at == slot && id != own)
}

/// Forgets programs, each by its id and slot.
pub(crate) fn forget(maps: &Maps, which: impl Fn(u32, u32) -> bool) -> Result<()> {
    for (id, slot) in maps.roots.entries()? {
        if which(id, slot) {
            maps.roots.remove(&id)?;
        }
    }
    Ok(())
}

/// Id of a root program.
pub(crate) fn root_id(root: BorrowedFd<'_>) -> Result<u32> {
    Program::id_from_fd(root).map_err(|error| Error::System {
        action: "get a program's id",
        source: std::io::Error::other(error),
    })
}
