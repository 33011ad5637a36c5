//! The faults: what is planted, and which check must find it.

use std::fmt;

pub struct Fault {
    pub name: &'static str,
    pub steps: &'static [Step],
    /// The check that must find it.
    pub check: &'static str,
}

/// One of the two hosts.
#[derive(Clone, Copy)]
pub enum Side {
    /// 10.9.0.1 on `va`: the doctor looks at it.
    Patient,
    /// 10.9.0.2 on `vb`.
    Peer,
}
use Side::{Patient, Peer};

/// An action on the patient, or by its peer.
#[derive(Clone, Copy)]
pub enum Step {
    /// A setting of the patient: path below /proc/sys, value.
    Sysctl(&'static str, &'static str),
    /// A line of `ip -batch`.
    Ip(Side, &'static str),
    /// A script of nft.
    Nft(Side, &'static str),
    /// As many rules in one chain of the patient.
    Rules(usize),
    /// The patient's segmentation offloads, off.
    NoSegmentation,
    /// An XDP program in generic mode, on `va`.
    GenericXdp,
    /// A process of the patient that has opened all files that it may.
    FullProcess,
    /// A TCP socket of the patient that listens, with this backlog, and never accepts.
    Listen(i32),
    /// A UDP socket of the patient that nobody reads.
    Unread,
    /// As many TCP connections of the patient to that socket.
    Connect(usize),
    /// One datagram of the patient, until its next hop has not answered.
    GivesUp { next_hop: &'static str, to: &'static str },
    /// Begins TCP connections to an address again and again while the doctor looks.
    Knocks(Side, &'static str),
    /// Sends datagrams from one address to another while the doctor looks.
    Sends(Side, &'static str, &'static str),
    /// Takes the peer's link down and up while the doctor looks.
    Flaps,
}
use Step::{
    Connect, Flaps, FullProcess, GenericXdp, GivesUp, Ip, Knocks, Listen, Nft, NoSegmentation,
    Rules, Sends, Sysctl, Unread,
};

impl Step {
    /// Whether it goes on while the doctor looks.
    pub fn is_traffic(self) -> bool {
        matches!(self, Knocks(..) | Sends(..) | Flaps)
    }
}

/// Where the patient's sockets are.
pub const TCP: &str = "10.9.0.1:8080";
pub const UDP: &str = "10.9.0.1:5353";
const ANY: &str = "0.0.0.0";

pub const FAULTS: [Fault; 44] = [
    fault("somaxconn", &[Sysctl("net/core/somaxconn", "16")], FLOORS),
    fault("syncookies", &[Sysctl("net/ipv4/tcp_syncookies", "0")], "tcp-syncookies"),
    fault("syn-backlog", &[Sysctl("net/ipv4/tcp_max_syn_backlog", "8")], FLOORS),
    fault("window-scaling", &[Sysctl("net/ipv4/tcp_window_scaling", "0")], "tcp-options"),
    fault("sack", &[Sysctl("net/ipv4/tcp_sack", "0")], "tcp-options"),
    fault("timestamps", &[Sysctl("net/ipv4/tcp_timestamps", "0")], "tcp-options"),
    fault("receive-buffer", &[Sysctl("net/ipv4/tcp_rmem", "4096 16384 6291456")], FLOORS),
    fault("send-buffer", &[Sysctl("net/ipv4/tcp_wmem", "4096 4096 4194304")], FLOORS),
    fault("port-range", &[Sysctl("net/ipv4/ip_local_port_range", "40000 40010")], FLOORS),
    fault("time-wait-buckets", &[Sysctl("net/ipv4/tcp_max_tw_buckets", "10")], FLOORS),
    fault("no-segmentation", &[NoSegmentation], "offloads"),
    fault("accept-queue", &[Listen(4), Knocks(Peer, TCP)], "listen-overflows"),
    fault("unread-datagrams", &[Unread, Sends(Peer, ANY, UDP)], "udp-buffers"),
    fault("many-rules", &[Rules(1500)], "long-chains"),
    fault(
        "way-back-elsewhere",
        &[
            Sysctl("net/ipv4/conf/va/rp_filter", "1"),
            Ip(Peer, "address add 10.99.0.1/32 dev vb"),
            Sends(Peer, "10.99.0.1", UDP),
        ],
        "reverse-path",
    ),
    fault("process-out-of-files", &[FullProcess], "open-files"),
    fault("link-flaps", &[Flaps], "link-flaps"),
    fault(
        "ports-used-up",
        &[Sysctl("net/ipv4/ip_local_port_range", "40000 40019"), Listen(100), Connect(20)],
        "local-ports",
    ),
    fault("generic-xdp", &[GenericXdp], "xdp-generic"),
    fault(
        "bridge-behind-iptables",
        &[
            Ip(Patient, "link add br0 type bridge"),
            Sysctl("net/bridge/bridge-nf-call-iptables", "1"),
        ],
        "bridge-filter",
    ),
    fault(
        "filter-drops",
        &[
            Nft(
                Patient,
                "table ip t { chain c { type filter hook input priority 0; \
                 udp dport 5353 counter drop; }; }",
            ),
            Sends(Peer, ANY, UDP),
        ],
        "filter-drops",
    ),
    fault(
        "lost-segments",
        &[
            Nft(
                Peer,
                "table ip t { chain c { type filter hook input priority 0; tcp dport 8080 drop; }; }",
            ),
            Knocks(Patient, "10.9.0.2:8080"),
        ],
        "retransmissions",
    ),
    fault("no-arp", &[Sysctl("net/ipv4/conf/va/arp_ignore", "8")], BOUNDS),
    fault("ttl", &[Sysctl("net/ipv4/ip_default_ttl", "3")], BOUNDS),
    fault("retries", &[Sysctl("net/ipv4/tcp_retries2", "2")], BOUNDS),
    fault("syn-retries", &[Sysctl("net/ipv4/tcp_syn_retries", "1")], BOUNDS),
    fault("synack-retries", &[Sysctl("net/ipv4/tcp_synack_retries", "0")], BOUNDS),
    fault("abort-on-overflow", &[Sysctl("net/ipv4/tcp_abort_on_overflow", "1")], BOUNDS),
    fault("no-buffer-tuning", &[Sysctl("net/ipv4/tcp_moderate_rcvbuf", "0")], BOUNDS),
    fault("no-path-mtu", &[Sysctl("net/ipv4/ip_no_pmtu_disc", "1")], BOUNDS),
    fault("output-bytes", &[Sysctl("net/ipv4/tcp_limit_output_bytes", "1000")], BOUNDS),
    fault("notsent-lowat", &[Sysctl("net/ipv4/tcp_notsent_lowat", "1")], BOUNDS),
    fault(
        "tiny-segments",
        &[Sysctl("net/ipv4/tcp_min_snd_mss", "48"), Sysctl("net/ipv4/tcp_base_mss", "48")],
        BOUNDS,
    ),
    fault("fin-timeout", &[Sysctl("net/ipv4/tcp_fin_timeout", "600")], BOUNDS),
    fault("reordering", &[Sysctl("net/ipv4/tcp_reordering", "1")], BOUNDS),
    fault("no-tail-loss-probe", &[Sysctl("net/ipv4/tcp_early_retrans", "0")], BOUNDS),
    fault("reno", &[Sysctl("net/ipv4/tcp_congestion_control", "reno")], BOUNDS),
    fault("unix-datagrams", &[Sysctl("net/unix/max_dgram_qlen", "1")], BOUNDS),
    fault("no-ping", &[Sysctl("net/ipv4/icmp_echo_ignore_all", "1")], BOUNDS),
    fault("no-ipv6", &[Sysctl("net/ipv6/conf/all/disable_ipv6", "1")], BOUNDS),
    fault(
        "locked-mtu",
        &[Ip(Patient, "route add 10.50.0.0/16 via 10.9.0.2 mtu lock 300")],
        "route-mtu",
    ),
    fault(
        "dead-next-hop",
        &[
            // A second each by default.
            Sysctl("net/ipv4/neigh/va/retrans_time_ms", "50"),
            Ip(Patient, "route add 10.50.0.0/16 via 10.9.0.77"),
            GivesUp { next_hop: "10.9.0.77", to: "10.50.0.1:9" },
        ],
        "next-hop",
    ),
    fault(
        "wrong-neighbour",
        &[Ip(Patient, "neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:99 dev va nud permanent")],
        "fixed-neighbour",
    ),
    fault("no-route", &[Sends(Patient, ANY, "192.0.2.1:9"), Sends(Peer, ANY, UDP)], "no-route"),
];

const BOUNDS: &str = "sysctl-bounds";
const FLOORS: &str = "far-below-default";

const fn fault(name: &'static str, steps: &'static [Step], check: &'static str) -> Fault {
    Fault { name, steps, check }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sysctl(key, value) => write!(f, "{} = {value}", key.replace('/', ".")),
            Ip(side, line) => write!(f, "{side}ip {line}"),
            Nft(side, script) => write!(f, "{side}nft {script}"),
            Rules(count) => write!(f, "{count} rules in one chain"),
            NoSegmentation => write!(f, "ethtool -K va gso off tso off"),
            GenericXdp => write!(f, "an XDP program, generic"),
            FullProcess => write!(f, "a process with all its files open"),
            Listen(backlog) => write!(f, "a listener that never accepts, backlog {backlog}"),
            Unread => write!(f, "a UDP socket that nobody reads"),
            Connect(count) => write!(f, "{count} connections to it"),
            GivesUp { to, .. } => write!(f, "a datagram to {to}"),
            Knocks(side, to) => write!(f, "{side}connections to {to}"),
            Sends(side, _, to) => write!(f, "{side}datagrams to {to}"),
            Flaps => write!(f, "its link down and up"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Patient => Ok(()),
            Peer => write!(f, "peer: "),
        }
    }
}
