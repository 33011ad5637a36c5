//! Settings under /proc/sys, and commands that change them.

use super::Facts;
use super::missing::set_elsewhere;
use crate::{Change, Fix, Unknown};

impl Facts {
    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str) -> Result<i64, Unknown> {
        self.number(&format!("/proc/sys/{key}"))
    }

    /// One of several numbers.
    pub fn sysctls<const N: usize>(&self, key: &str) -> Result<[i64; N], Unknown> {
        self.numbers(&format!("/proc/sys/{key}"))
    }

    /// What sets it, and what sets what it is now.
    pub fn set(&self, key: &str, to: impl ToString) -> Result<Change, Unknown> {
        let path = format!("/proc/sys/{key}");
        let now = self.text(&path)?;
        let in_first_namespace = set_elsewhere(&self.host, &path);
        let set = |value: &str| match Fix::sysctl(key, value) {
            Fix::Sysctl { key, value, .. } => Fix::Sysctl { key, value, in_first_namespace },
            other => other,
        };
        Ok(Change { fix: set(&to.to_string()), undo: set(now) })
    }
}
