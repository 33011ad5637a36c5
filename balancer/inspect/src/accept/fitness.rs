//! Whether listeners and the kernel's settings let connections be opened here.

use std::net::SocketAddr;

use ringway_api::error::Error;
use ringway_host::Host;
use ringway_host::netlink::links::Link;
use ringway_host::netlink::listeners::{self, TcpListener};
use serde::Serialize;

use super::host;

/// What makes a listener get no connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// `None`: all of them.
    pub(super) listener: Option<SocketAddr>,
    pub(super) what: String,
    pub(super) remedy: String,
}

/// What the kernel of this network namespace agrees to with clients. The gateway promises the
/// options, so all of them have to be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Accepts {
    /// Smallest segment size of a client, in bytes.
    pub min_mss_ipv4: u16,
    pub min_mss_ipv6: u16,
    pub window_scaling: bool,
    pub selective_ack: bool,
    pub timestamps: bool,
}

/// Settings below net/ipv4 that have to be on, and why.
const SETTINGS: [(&str, &str); 4] = [
    ("tcp_syncookies", "the kernel then takes no cookie"),
    ("tcp_window_scaling", "gateways promise clients window scaling"),
    ("tcp_sack", "gateways promise clients selective acknowledgements"),
    ("tcp_timestamps", "gateways promise clients timestamps"),
];

/// By the settings of this network namespace. The sizes are the kernel's (bpf_sk_assign_tcp_reqsk).
///
/// # Errors
/// A setting cannot be read.
pub fn accepts() -> Result<Accepts, Error> {
    Ok(Accepts {
        min_mss_ipv4: 536,
        min_mss_ipv6: 1220,
        window_scaling: is_on("tcp_window_scaling")?,
        selective_ack: is_on("tcp_sack")?,
        timestamps: is_on("tcp_timestamps")?,
    })
}

/// All that keep connections from being opened here.
pub(super) fn problems(targets: &[SocketAddr], link: &Link) -> Result<Vec<Problem>, Error> {
    let mut problems = Vec::new();
    for (setting, why) in SETTINGS {
        if !is_on(setting)? {
            problems.push(Problem {
                listener: None,
                what: format!("net.ipv4.{setting} is 0: {why}"),
                remedy: format!("sysctl -w net.ipv4.{setting}=1"),
            });
        }
    }
    let found = listeners::all().map_err(host)?;
    let reachable = |one: &&TcpListener| {
        one.ifindex == 0 || one.ifindex == link.ifindex || Some(one.ifindex) == link.master
    };
    let found: Vec<TcpListener> = found.iter().filter(reachable).cloned().collect();
    problems.extend(targets.iter().filter_map(|target| of_listener(*target, &found)));
    Ok(problems)
}

fn of_listener(target: SocketAddr, found: &[TcpListener]) -> Option<Problem> {
    let taking: Vec<&TcpListener> = found.iter().filter(|one| one.takes(target)).collect();
    let own = taking.iter().filter(|one| !one.address.is_unspecified()).count();
    let mut chosen = taking.iter().filter(|one| own == 0 || !one.address.is_unspecified());
    if taking.is_empty() {
        return Some(Problem {
            listener: Some(target),
            what: format!("nobody listens at {target} in this network namespace"),
            remedy: "start its server; where that runs in another network namespace, run `ringway accept` \
                     there: `nsenter --net=/run/netns/NAME`"
                .into(),
        });
    }
    chosen.any(|one| one.mptcp).then(|| Problem {
        listener: Some(target),
        what: format!("the listener at {target} speaks Multipath TCP, of which the kernel opens no connections here"),
        remedy: "have its server listen without: GODEBUG=multipathtcp=0 for Go 1.24 or newer; any other: \
                 sysctl -w net.mptcp.enabled=0, then restart it"
            .into(),
    })
}

/// What a person should know, and nobody can tell for sure.
pub(super) fn advice() -> Vec<String> {
    let loose = Host::live().sysctl("net/netfilter/nf_conntrack_tcp_loose").ok().flatten();
    let strict = loose.is_some_and(|value| value.trim() == "0");
    let line = "net.netfilter.nf_conntrack_tcp_loose is 0: connection tracking sees no SYN and takes the ACK \
                for INVALID, which a firewall may drop; sysctl -w net.netfilter.nf_conntrack_tcp_loose=1";
    strict.then(|| line.to_owned()).into_iter().collect()
}

fn is_on(setting: &str) -> Result<bool, Error> {
    let value = Host::live().sysctl(&format!("net/ipv4/{setting}")).map_err(host)?;
    Ok(value.is_some_and(|value| value.trim() != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str, mptcp: bool) -> TcpListener {
        let address = address.parse().expect("an address");
        TcpListener { address, port: 80, v6_only: false, mptcp, ifindex: 0 }
    }

    #[test]
    fn the_listener_that_the_kernel_would_choose_counts() {
        let target = "203.0.113.9:80".parse().expect("an address");
        let what = |found: &[TcpListener]| of_listener(target, found).map(|problem| problem.what);
        assert!(what(&[]).is_some_and(|what| what.starts_with("nobody listens at 203.0.113.9:80")));
        assert!(what(&[listener("203.0.113.8", false)]).is_some());
        assert_eq!(what(&[listener("::", false)]), None);
        assert!(what(&[listener("::", true)]).is_some_and(|what| what.contains("Multipath TCP")));
        assert_eq!(what(&[listener("0.0.0.0", true), listener("203.0.113.9", false)]), None);
    }
}
