//! The contents of an archive, for anybody who is asked to send one.

use serde::Serialize;

use crate::Collection;

/// Files of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Class {
    pub holds: &'static str,
    /// Details that you may not want to show to others; absent: nothing identifies anybody.
    pub mind: Option<&'static str>,
    /// Files, or directories with all below them.
    #[serde(skip)]
    paths: &'static [&'static str],
}

/// Every file of a collection belongs to the first of these that names it.
pub const CLASSES: [Class; 14] = [
    class(
        "the kernel's command line",
        Some("passwords and keys, where somebody put them there"),
        &["/proc/cmdline"],
    ),
    class(
        "mounted file systems",
        Some("paths, names of servers and users"),
        &["/proc/self/mountinfo"],
    ),
    class(
        "UDP sockets",
        Some("addresses and ports, ids of users"),
        &["/proc/net/udp", "/proc/net/udp6"],
    ),
    class("the host's name", Some("it"), &["/proc/sys/kernel/hostname"]),
    class("settings, but for keys", None, &["/proc/sys"]),
    class("counters of protocols", None, &["/proc/net"]),
    class(
        "kernel, processors, memory, interrupts",
        None,
        &[
            "/proc/interrupts",
            "/proc/irq",
            "/proc/loadavg",
            "/proc/meminfo",
            "/proc/softirqs",
            "/proc/stat",
            "/proc/version",
        ],
    ),
    class("devices", Some("names of interfaces"), &["/sys", "/ethtool"]),
    class(
        "interfaces, addresses, routes, neighbours",
        Some("IP and MAC addresses of this host and of others beside it"),
        &["/netlink/network.json"],
    ),
    class(
        "TCP sockets, summed up",
        Some("addresses that it listens on, and those it has most connections with"),
        &["/netlink/sockets.json"],
    ),
    class("queues, AF_XDP sockets, counters of devices", None, &["/netlink"]),
    class(
        "rules of nftables",
        Some("addresses, comments; elements of sets are left out"),
        &["/tools/nft.json"],
    ),
    class(
        "processes: nearly out of files, irqbalance, those that poll",
        Some("names and ids; of irqbalance its arguments"),
        &["/tools/processes.json"],
    ),
    class(
        "when and where it was collected",
        Some("the own address of an SSH session, the name of a network namespace"),
        &["/tools/session.json", "/tools/origin.json"],
    ),
];

const fn class(
    holds: &'static str,
    mind: Option<&'static str>,
    paths: &'static [&'static str],
) -> Class {
    Class { holds, mind, paths }
}

/// The class of a file; `None`: no collection holds it.
fn of(path: &str) -> Option<&'static Class> {
    let below = |start: &&str| {
        path.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    CLASSES.iter().find(|class| class.paths.iter().any(below))
}

impl Collection {
    /// The classes that it holds, and the number of files of each, of both samples.
    pub fn contents(&self) -> Vec<(&'static Class, usize)> {
        let files = || self.before.files().keys().chain(self.after.files().keys());
        let count = |class: &Class| files().filter(|path| of(path) == Some(class)).count();
        CLASSES.iter().map(|class| (class, count(class))).filter(|(_, n)| *n > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gather, testing::healthy};

    /// A collected file that belongs to no class would not be listed.
    #[test]
    fn the_list_is_what_is_in_an_archive() {
        let after = gather();
        let collection = Collection { before: gather(), after, seconds: 1.0 };
        for collection in [collection, healthy().collection] {
            let files = || collection.before.files().keys().chain(collection.after.files().keys());
            let untold: Vec<_> = files().filter(|path| of(path).is_none()).collect();
            assert_eq!(untold, Vec::<&String>::new());
            let told: usize = collection.contents().iter().map(|(_, count)| count).sum();
            assert_eq!(told, files().count());
        }
        assert_eq!(of("/proc/cmdline").and_then(|class| class.mind), CLASSES[0].mind);
        assert!(of("/etc/shadow").is_none() && of("/proc/cmdlines").is_none());
    }

    #[test]
    fn the_documentation_lists_them() {
        let text = include_str!("../../docs/doctor.md");
        for Class { holds, mind, .. } in CLASSES {
            let row = format!("| {holds} | {} |", mind.unwrap_or("-"));
            assert!(text.contains(&row), "{row}");
        }
    }
}
