//! The address by which the user of this process came in by SSH.

use std::fs;
use std::net::IpAddr;

use crate::Sample;

/// Its path in a sample. It holds an address of this host, or null.
pub const SESSION: &str = "/tools/session.json";
/// Parents that are asked.
const MOST: usize = 32;

/// sshd puts it into the environment of its children. sudo removes it from that of its own, so
/// parents are read, too. The client's address beside it is left out.
pub fn add(sample: &mut Sample) {
    let mut pid = std::process::id();
    let (mut found, mut unread) = (None, false);
    for _ in 0..MOST {
        match fs::read(format!("/proc/{pid}/environ")) {
            Ok(variables) => found = found.or_else(|| server(&variables)),
            Err(_) => unread = true,
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        match parent.and_then(|parent| parent.trim().parse().ok()) {
            Some(parent) if parent > 1 => pid = parent,
            _ => break,
        }
    }
    match (found, unread) {
        (None, true) => sample.miss(SESSION, "who runs this root alone may see: run it as root"),
        (found, _) => sample.put_json::<_, String>(SESSION, Ok(found)),
    }
}

/// `SSH_CONNECTION=CLIENT PORT SERVER PORT`
fn server(variables: &[u8]) -> Option<IpAddr> {
    let lines = variables.split(|byte| *byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    let mut lines = lines.filter_map(|one| one.strip_prefix("SSH_CONNECTION="));
    lines.next()?.split(' ').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sshd_tells() {
        let variables = b"A=b\0SSH_CONNECTION=198.51.100.7 50000 192.0.2.1 22\0C=d\0";
        assert_eq!(server(variables), Some([192, 0, 2, 1].into()));
        assert_eq!(server(b"SSH_CONNECTION=\0"), None);
        let mut sample = Sample::default();
        add(&mut sample);
        assert!(sample.files().contains_key(SESSION) || sample.why_not(SESSION).is_some());
    }
}
