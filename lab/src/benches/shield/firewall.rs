//! Firewalls of the kernel that drop what comes from one source.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::{End, Namespace, VethOptions, enable_napi, veth};

use super::Defence;
use super::flood::{self, Attack, FROM, FROM_BITS, Target};
use crate::{Error, Result, programs};

/// Rules of iptables, the one that drops with them.
const RULES: u32 = 50;
/// Of one measurement.
const TIME: Duration = Duration::from_secs(1);

/// Nanoseconds that a drop by a firewall takes longer than one by a bare XDP program: packets go
/// through a veth pair as fast as they can, all on one processor.
pub(super) fn cost(defence: Defence, bare: BorrowedFd<'_>) -> Result<f64> {
    let (near, far) = (Namespace::new("attacker")?, Namespace::new("firewall")?);
    let target = Target { address: Ipv4Addr::new(192, 0, 2, 2), tcp: 80, udp: 7 };
    let address = |host: u8| format!("192.0.2.{host}/24");
    let (attacker, victim) = veth(
        &End::new(&near, "a0").address(address(1)),
        &End::new(&far, "v0").address(address(2)),
        &VethOptions::default(),
    )?;
    let ns = || -> Result<f64> {
        let over = |elapsed| elapsed >= TIME;
        let rate = flood::send(Attack::OneSource, &target, (&attacker, &victim), None, over)?;
        Ok(1e9 / rate.max(1.0))
    };
    let attach = || XdpLink::attach(bare, victim.ifindex, XdpMode::Native);
    let attached = far.run(attach)?.map_err(|error| Error::Load(error.into()))?;
    let by_xdp = ns()?;
    drop(attached);
    enable_napi(&far, &victim.name)?;
    fill(defence, &far, &victim.name, &of_attack())?;
    let before = far.run(delivered)??;
    let by_kernel = ns()?;
    let delivered = far.run(delivered)?? - before;
    if delivered > 1000 {
        let what = format!("{delivered} packets were not dropped");
        return Err(Error::NoFigure { who: defence.name().into(), what });
    }
    Ok(by_kernel - by_xdp)
}

/// Packets that IPv4 gave to a protocol in this thread's namespace: `InDelivers`, the ninth number
/// behind `Ip:` (/proc/net/snmp).
fn delivered() -> Result<u64> {
    let path = "/proc/thread-self/net/snmp";
    let read = |source| Error::Read { path: path.into(), source };
    let text = fs::read_to_string(path).map_err(read)?;
    let counts = text.lines().filter_map(|line| line.strip_prefix("Ip: ")).nth(1);
    let count = counts.and_then(|counts| counts.split(' ').nth(8)?.parse().ok());
    count.ok_or_else(|| read(std::io::ErrorKind::InvalidData.into()))
}

/// What matches a packet, in words of nft and of iptables.
pub(super) struct Matching {
    pub(super) nft: String,
    pub(super) iptables: String,
}

/// Where attacks come from.
pub(super) fn of_attack() -> Matching {
    let from = format!("{FROM}/{FROM_BITS}");
    Matching { nft: format!("ip saddr {from}"), iptables: format!("-s {from}") }
}

/// Puts a firewall into a namespace that drops what matches.
pub(super) fn fill(
    defence: Defence,
    namespace: &Namespace,
    interface: &str,
    matching: &Matching,
) -> Result<()> {
    let Matching { nft, iptables } = matching;
    let chain = |family: &str, hook: &str| {
        format!("table {family} lab {{ chain in {{ type filter hook {hook}; {nft} drop; }}; }}\n")
    };
    let (program, text) = match defence {
        Defence::NftNetdev => {
            let hook = format!("ingress device \"{interface}\" priority 0");
            ("nft", chain("netdev", &hook))
        }
        Defence::NftPrerouting => ("nft", chain("ip", "prerouting priority raw")),
        Defence::Iptables50 => ("iptables-nft-restore", iptables_rules(iptables)),
        _ => return Ok(()),
    };
    let mut command = namespace.tool(program).map_err(|e| Error::Unavailable(e.to_string()))?;
    if program == "nft" {
        command.args(["-f", "-"]);
    }
    programs::feed(command, program, &text)
}

/// The last one drops; those before are about addresses that are nobody's (RFC 2544, section
/// C.2.2).
fn iptables_rules(last: &str) -> String {
    let mut text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n".to_owned();
    for chain in ["INPUT", "FORWARD"] {
        for n in 1..RULES {
            let nobody = Ipv4Addr::new(198, 18, 0, n as u8);
            let _ = writeln!(text, "-A {chain} -s {nobody} -j DROP");
        }
        let _ = writeln!(text, "-A {chain} {last} -j DROP");
    }
    text + "COMMIT\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fiftieth_rule_drops() {
        let text = iptables_rules("-s 192.0.2.9");
        let rules: Vec<&str> = text.lines().filter(|line| line.starts_with("-A INPUT")).collect();
        assert_eq!((rules.len(), rules[49]), (50, "-A INPUT -s 192.0.2.9 -j DROP"));
    }
}
