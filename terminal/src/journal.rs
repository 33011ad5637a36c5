//! systemd's journal as the reader of stderr: each line begins with its priority, `<4>`
//! (sd-daemon(3)).

use std::{env, io};

/// Whether the journal reads this process's stderr.
pub fn reads_stderr() -> bool {
    let named = env::var("JOURNAL_STREAM").ok();
    let found = rustix::fs::fstat(io::stderr()).ok();
    let found = found.map(|found| format!("{}:{}", found.st_dev, found.st_ino));
    named.is_some() && named == found
}

/// Each line of a text with this priority (syslog(3)) in front.
pub fn marked(priority: u8, text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| [format!("<{priority}>").as_bytes(), line].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_priority() {
        assert_eq!(marked(4, b"first\n  second\n"), b"<4>first\n<4>  second\n");
    }
}
