//! Rules that no packet matches, as many as a packet is to go through.

use std::fmt::Write as _;

use ringway_testnet::Namespace;

use crate::harness::named_enum::named;
use crate::{Result, programs};

named! {
    /// The program that keeps the rules.
    pub(super) enum Firewall {
        Nft = "nft",
        /// iptables, which writes rules of nftables.
        IptablesNft = "iptables-nft",
        /// iptables with tables of its own. Once they are there they stay with the namespace, so it
        /// comes last.
        IptablesLegacy = "iptables-legacy",
    }
}

impl Firewall {
    /// Puts so many rules, and nothing else, where packets come in to sockets of a namespace.
    pub(super) fn fill(self, namespace: &Namespace, count: u32) -> Result<()> {
        if self == Self::Nft {
            let mut command = namespace.tool("nft")?;
            command.args(["-f", "-"]);
            return programs::feed(command, "nft", &nft(count));
        }
        let program = format!("{self}-restore");
        let mut command = namespace.tool(&program)?;
        // Else it locks, and leaves, /run/xtables.lock of the machine.
        command.env("XTABLES_LOCKFILE", namespace.directory().join("xtables.lock"));
        programs::feed(command, &program, &iptables(count))
    }

    /// Takes the rules away again.
    pub(super) fn clear(self, namespace: &Namespace) -> Result<()> {
        match self {
            Self::IptablesLegacy => self.fill(namespace, 0),
            _ => programs::run(namespace, "nft", &["flush", "ruleset"]),
        }
    }
}

/// Addresses that are nobody's (RFC 2544, section C.2.2).
fn nobody(n: u32) -> String {
    format!("198.18.{}.{}", n / 250, n % 250)
}

fn nft(count: u32) -> String {
    let mut text = "flush ruleset\ntable ip lab { chain in {\n  type filter hook input priority 0; policy accept;\n"
        .to_owned();
    for n in 0..count {
        let _ = writeln!(text, "  ip saddr {} drop", nobody(n));
    }
    text + "}\n}\n"
}

fn iptables(count: u32) -> String {
    let mut text = "*filter\n:INPUT ACCEPT [0:0]\n".to_owned();
    for n in 0..count {
        let _ = writeln!(text, "-A INPUT -s {} -j DROP", nobody(n));
    }
    text + "COMMIT\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_asked_for() {
        for count in [0, 50, 500] {
            assert_eq!(nft(count).matches(" drop").count(), count as usize);
            assert_eq!(iptables(count).matches("-j DROP").count(), count as usize);
        }
        assert!(iptables(500).contains("-s 198.18.1.249 "));
    }
}
