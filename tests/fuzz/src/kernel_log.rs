//! Has the kernel complained? Its log since the beginning, and the taint that a warning leaves
//! behind.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

/// What a warning, an oops, a bad page and a soft lockup set
/// (Documentation/admin-guide/tainted-kernels.rst).
const COMPLAINTS: u64 = 1 << 5 | 1 << 7 | 1 << 9 | 1 << 14;
const O_NONBLOCK: i32 = 0o4000;

/// The kernel as it was when this was made.
#[derive(Debug)]
pub struct KernelLog {
    log: Option<File>,
    taint: u64,
}

impl KernelLog {
    pub fn open() -> Self {
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open("/dev/kmsg");
        let log = file.and_then(|mut file| file.seek(SeekFrom::End(0)).map(|_| file));
        if let Err(error) = &log {
            eprintln!("The kernel's log cannot be read ({error}): only its taint is looked at.");
        }
        Self { log: log.ok(), taint: taint() }
    }

    /// What it has complained of since.
    pub fn complaints(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        let new = taint() & !self.taint & COMPLAINTS;
        if new != 0 {
            found.push(format!("tainted: {new:#x}"));
        }
        let mut record = [0; 8192];
        // One read, one record; EAGAIN at the end.
        while let Some(len) = self.log.as_mut().and_then(|log| log.read(&mut record).ok()) {
            let line = String::from_utf8_lossy(&record[..len]);
            let text =
                line.split_once(';').map_or("", |(_, text)| text).lines().next().unwrap_or("");
            if ["WARNING:", "BUG:", "Oops", "general protection"].iter().any(|w| text.contains(w)) {
                found.push(text.to_owned());
            }
        }
        found
    }
}

fn taint() -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/tainted").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
