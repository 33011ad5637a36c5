//! One thread of another process, stopped.

use std::io;

use anyhow::{Context, Result, ensure};

/// Stops a thread while it lives; the others of its process go on.
#[derive(Debug)]
pub struct Frozen {
    thread: i32,
}

impl Frozen {
    /// The thread of this number; a process's first thread has the process's.
    pub fn thread(thread: u32) -> Result<Frozen> {
        let thread = i32::try_from(thread)?;
        trace(libc::PTRACE_SEIZE, thread).context("PTRACE_SEIZE")?;
        let frozen = Frozen { thread };
        trace(libc::PTRACE_INTERRUPT, thread).context("PTRACE_INTERRUPT")?;
        let mut status = 0;
        // SAFETY: writes one integer, which outlives the call.
        let found = unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
        ensure!(found == thread && libc::WIFSTOPPED(status), "not stopped: {status:#x}");
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // A thread that has ended meanwhile is let go by the kernel.
        let _ = trace(libc::PTRACE_DETACH, self.thread);
    }
}

fn trace(request: libc::c_uint, thread: i32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: none of the requests used here reads or writes memory of ours.
    match unsafe { libc::ptrace(request, thread, none, none) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
