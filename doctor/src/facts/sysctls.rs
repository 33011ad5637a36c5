//! Settings under /proc/sys, and commands that change them.

use super::Facts;
use super::missing::{THERE, set_elsewhere};
use crate::{Change, Unknown};

impl Facts {
    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str) -> Result<i64, Unknown> {
        self.number(&format!("/proc/sys/{key}"))
    }

    /// One of several numbers.
    pub fn sysctls<const N: usize>(&self, key: &str) -> Result<[i64; N], Unknown> {
        self.numbers(&format!("/proc/sys/{key}"))
    }

    /// The command that sets it, and the one that sets what it is now.
    pub fn set(&self, key: &str, to: impl ToString) -> Result<Change, Unknown> {
        let path = format!("/proc/sys/{key}");
        let now = self.text(&path)?;
        let there = |command: String| match set_elsewhere(&self.host, &path) {
            true => format!("{THERE} {command}"),
            false => command,
        };
        Ok(Change { fix: there(set(key, &to.to_string())), undo: there(set(key, now)) })
    }
}

/// In the form with slashes where a part of the key holds a dot, as names of VLAN devices do.
fn set(key: &str, value: &str) -> String {
    let name = if key.contains('.') { key.to_owned() } else { key.replace('/', ".") };
    let words: Vec<&str> = value.split_ascii_whitespace().collect();
    match words.as_slice() {
        [one] => format!("sysctl -w {name}={one}"),
        _ => format!("sysctl -w {name}=\"{}\"", words.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_a_shell_takes() {
        for (key, value, wanted) in [
            ("net/core/somaxconn", "16", "sysctl -w net.core.somaxconn=16"),
            ("net/ipv4/tcp_rmem", "1\t2\t3", "sysctl -w net.ipv4.tcp_rmem=\"1 2 3\""),
            ("net/ipv4/conf/eth0.5/rp_filter", "1", "sysctl -w net/ipv4/conf/eth0.5/rp_filter=1"),
        ] {
            assert_eq!(set(key, value), wanted);
        }
    }
}
