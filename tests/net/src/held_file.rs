//! A file that whoever opens it waits for, as on a disk that does not answer.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::mem::size_of;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use ringway_testnet::wait_for;

use crate::SOON;

/// fanotify(7) asks us whether the file may be opened, and we do not answer. Dropping it lets all
/// go on.
#[derive(Debug)]
pub struct HeldFile {
    events: File,
}

impl HeldFile {
    /// Holds the file, under whatever name it is opened; those of other names are not held.
    pub fn new(path: &Path) -> Result<HeldFile> {
        let flags =
            libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_TID;
        // SAFETY: two numbers.
        let fd = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
        ensure!(fd >= 0, "fanotify_init: {}", io::Error::last_os_error());
        // SAFETY: a new descriptor, which nobody else has.
        let events = unsafe { File::from_raw_fd(fd) };
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: an open descriptor, and a string that outlives the call.
        let marked = unsafe {
            libc::fanotify_mark(
                fd,
                libc::FAN_MARK_ADD,
                libc::FAN_OPEN_PERM,
                libc::AT_FDCWD,
                name.as_ptr(),
            )
        };
        ensure!(marked == 0, "fanotify_mark: {}", io::Error::last_os_error());
        Ok(HeldFile { events })
    }

    /// Waits until a thread opens the file; its number.
    pub fn opened(&self) -> Result<i32> {
        let event = wait_for("somebody to open the file", SOON, || {
            self.event().map_err(|error| error.to_string())
        })?;
        // SAFETY: the kernel has opened it for us; the one who waits has none yet.
        drop(unsafe { OwnedFd::from_raw_fd(event.fd) });
        Ok(event.pid)
    }

    fn event(&self) -> Result<libc::fanotify_event_metadata> {
        const LEN: usize = size_of::<libc::fanotify_event_metadata>();
        let mut bytes = [0; LEN];
        (&self.events).read_exact(&mut bytes).context("no event")?;
        // SAFETY: plain integers, for which every pattern of bits is valid.
        let event: libc::fanotify_event_metadata = unsafe { std::mem::transmute(bytes) };
        ensure!(event.fd >= 0, "an event without a file: {}", event.fd);
        Ok(event)
    }
}
