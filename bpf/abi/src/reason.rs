//! The text of `ringway reasons`: the meaning of every reason, its cause and the next command.

use std::fmt;

use crate::raw::{Reason, Verdict};

crate::numbered!(Reason, "reason");

/// Everything worth saying about a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Name in output, metrics and tests: kebab-case, never changed once released.
    pub name: &'static str,
    /// Verdicts that the packet path gives with it.
    pub verdicts: &'static [Verdict],
    /// What happened to the packet.
    pub meaning: &'static str,
    /// Why that happens.
    pub cause: &'static str,
    /// The next command or change; empty when nothing needs doing.
    pub next: &'static str,
}

impl Reason {
    /// Name in output, metrics and tests: kebab-case.
    pub const fn name(self) -> &'static str {
        self.explain().name
    }

    /// What happened to the packet.
    pub const fn meaning(self) -> &'static str {
        self.explain().meaning
    }

    /// Why that happens.
    pub const fn cause(self) -> &'static str {
        self.explain().cause
    }

    /// The next command or change, if any.
    pub const fn next(self) -> Option<&'static str> {
        let next = self.explain().next;
        if next.is_empty() { None } else { Some(next) }
    }

    /// Verdicts that the packet path gives with this reason.
    pub const fn verdicts(self) -> &'static [Verdict] {
        self.explain().verdicts
    }

    /// Whether only the shield drops for it.
    pub const fn is_shields(self) -> bool {
        let number = self as u32;
        Self::TcpFlags as u32 <= number && number <= Self::ChallengeMet as u32
    }

    /// The reason with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|reason| reason.name() == name)
    }

    /// The table. Exhaustive on purpose: a reason added to abi.h must be explained here.
    pub const fn explain(self) -> Explanation {
        match self {
            Self::None => Explanation {
                name: "none",
                verdicts: &[],
                meaning: "Nothing was recorded.",
                cause: "Never counted. A packet here is a bug in the packet path.",
                next: "ringway status --ledger",
            },
            Self::NotIp => Explanation {
                name: "not-ip",
                verdicts: &[Verdict::Pass],
                meaning: "Neither IPv4 nor IPv6: ARP, LLDP, spanning tree and the like.",
                cause: "Ordinary traffic of the link; the kernel handles it.",
                next: "",
            },
            Self::Vlan => Explanation {
                name: "vlan",
                verdicts: &[Verdict::Pass],
                meaning: "The frame carries a VLAN tag that belongs to none of our interfaces, or more than two tags.",
                cause: "Another network on the same wire. To serve it, name its VLAN device in [node] interfaces, beside the device below it.",
                next: "ip -d link show type vlan",
            },
            Self::NoService => Explanation {
                name: "no-service",
                verdicts: &[Verdict::Pass],
                meaning: "Not addressed to any service's address and port.",
                cause: "Ordinary traffic of the node. When it should have reached a service, the address, port or protocol differs from the configuration.",
                next: "ringway status",
            },
            Self::Icmp => Explanation {
                name: "icmp",
                verdicts: &[Verdict::Pass],
                meaning: "ICMP or ICMPv6 to a service address that is neither an echo request nor an error about a service's packet.",
                cause: "Ordinary traffic of the link, or of the node where its kernel owns the address.",
                next: "",
            },
            Self::OtherProtocol => Explanation {
                name: "other-protocol",
                verdicts: &[Verdict::Pass],
                meaning: "To a service address, but neither TCP nor UDP.",
                cause: "A protocol that is not balanced (SCTP, GRE, ESP) or a probe.",
                next: "",
            },
            Self::OnPass => Explanation {
                name: "on-pass",
                verdicts: &[Verdict::Pass],
                meaning: "Handed to a program of the user's own (on_pass), which decides instead of the kernel.",
                cause: "Somebody has put an XDP program after Ringway's, into the place called on_pass: it gets every packet that would have been passed.",
                next: "ringway status",
            },
            Self::NoStage => Explanation {
                name: "no-stage",
                verdicts: &[Verdict::Pass],
                meaning: "None of Ringway's programs that decide about packets is in place; passed untouched.",
                cause: "The gateway is between loading and its first configuration, or a program was taken out of the node's program table (map slots) by hand.",
                next: "ringway status",
            },
            Self::OtherHost => Explanation {
                name: "other-host",
                verdicts: &[Verdict::Pass],
                meaning: "The frame is addressed to another machine's MAC address.",
                cause: "Flooding by a switch or bridge, promiscuous mode, or a neighbour that still knows the former owner of the address; given to `ringway explain`, perhaps an answer that was captured at the client.",
                next: "ip neighbour show",
            },
            Self::Malformed => Explanation {
                name: "malformed",
                verdicts: &[Verdict::Drop],
                meaning: "A header is cut short, its lengths disagree, or an IPv6 packet has an IPv4-mapped address; or what Ringway itself would have to answer, or a SYN that would open a flow, has a bad checksum; or an error names an MTU below 576 (IPv6: 1280).",
                cause: "A broken or hostile sender, or a path that cuts or damages packets.",
                next: "ringway status --ledger",
            },
            Self::IpOptions => Explanation {
                name: "ip-options",
                verdicts: &[Verdict::Drop],
                meaning: "To a service address, with IPv4 options whose lengths disagree.",
                cause: "A probe or a broken sender. Options in order are stepped over.",
                next: "ringway top --view reasons",
            },
            Self::Ipv6Extension => Explanation {
                name: "ipv6-extension",
                verdicts: &[Verdict::Drop],
                meaning: "To a service address, with an IPv6 extension header that cannot be stepped over.",
                cause: "An authentication header (it covers the addresses), one for mobility, host identity or Shim6; more than eight headers, or 512 bytes of them.",
                next: "ringway top --view reasons",
            },
            Self::Fragment => Explanation {
                name: "fragment",
                verdicts: &[Verdict::Drop],
                meaning: "A fragment to a service address, neither TCP nor UDP; or under nat of a UDP datagram without checksum.",
                cause: "Large pings, or a probe. Only fragments of TCP and UDP are balanced; under nat a backend may put those of two clients together, which a checksum must tell.",
                next: "ringway top --view reasons",
            },
            Self::FragmentEarly => Explanation {
                name: "fragment-early",
                verdicts: &[Verdict::Drop],
                meaning: "A fragment to a service address, whose datagram's first fragment, which has the ports, has not come by yet.",
                cause: "The fragments came out of order, the first was lost or dropped, it is older than 30 s, or so many others came since that it is forgotten (32 768 datagrams are remembered).",
                next: "ip link show dev IFACE",
            },
            Self::OutOfState => Explanation {
                name: "out-of-state",
                verdicts: &[Verdict::Drop],
                meaning: "A TCP segment that a connection's handshake does not allow: until the backend has answered the SYN, nothing but the handshake passes; until the client has acknowledged that, only data that follows the backend's SYN-ACK.",
                cause: "The nat port of this connection belonged to another one before, and the backend or a client still sends to that; or somebody forges segments.",
                next: "ringway top --view reasons",
            },
            Self::ResetStray => Explanation {
                name: "reset-stray",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "A backend's segment, neither SYN-ACK nor RST, in answer to a SYN: answered with a RST, and not sent on.",
                cause: "The backend still has a connection on this nat port, of a client whose flow was evicted or has expired. The RST ends it, so that it never meets the port's next client.",
                next: "",
            },
            Self::SourceRoute => Explanation {
                name: "source-route",
                verdicts: &[Verdict::Drop],
                meaning: "To a service address, but the packet says itself where it goes next: an IPv4 source route, or an IPv6 routing header with segments left.",
                cause: "A probe, or segment routing that should have ended before this node. Such a packet's last address is not the one it carries.",
                next: "ringway top --view reasons",
            },
            Self::TtlExpired => Explanation {
                name: "ttl-expired",
                verdicts: &[Verdict::Drop],
                meaning: "The TTL or hop limit would reach zero here, and the sender could not be told: a later fragment, an ICMP error, or no unicast source.",
                cause: "A traceroute towards the service, or a routing loop.",
                next: "tracepath -n BACKEND",
            },
            Self::NoBackend => Explanation {
                name: "no-backend",
                verdicts: &[Verdict::Drop],
                meaning: "No backend of the service takes new connections, and when_none_healthy is \"drop\".",
                cause: "All health checks fail, or the check itself is wrong; or every backend that is up is drained or has weight 0.",
                next: "ringway status",
            },
            Self::NoNeighbour => Explanation {
                name: "no-neighbour",
                verdicts: &[Verdict::Drop],
                meaning: "The MAC address of the backend's next hop is not known.",
                cause: "The backend or its router does not answer ARP or neighbour discovery, or no route leads there by one of the node's interfaces.",
                next: "ip route get BACKEND; ip neighbour show",
            },
            Self::NatExhausted => Explanation {
                name: "nat-exhausted",
                verdicts: &[Verdict::Drop],
                meaning: "No free nat port towards this backend.",
                cause: "More simultaneous flows to one backend than addresses times ports, long idle timeouts, or a flood of SYNs or datagrams.",
                next: "ringway status; then widen [nat] ports, add [nat] addresses or shorten [nat] timeouts; under a flood: ringway shield status",
            },
            Self::NatConflict => Explanation {
                name: "nat-conflict",
                verdicts: &[Verdict::Drop],
                meaning: "source = \"client\": the same client address and port is in use towards this backend by another service.",
                cause: "One client uses the same source port for two services that share the backend.",
                next: "give the services different backend ports",
            },
            Self::FlowTableFull => Explanation {
                name: "flow-table-full",
                verdicts: &[Verdict::Drop],
                meaning: "No room for another flow in the flow's bucket.",
                cause: "More simultaneous flows than [nat] flows allows for, or a flood of new connections.",
                next: "ringway status; then raise [nat] flows",
            },
            Self::Hairpin => Explanation {
                name: "hairpin",
                verdicts: &[Verdict::Drop],
                meaning: "source = \"client\": the client is itself a backend of the service.",
                cause: "Its answer would reach itself directly, not through the node.",
                next: "use source = \"node\" for this service",
            },
            Self::TooBig => Explanation {
                name: "too-big",
                verdicts: &[Verdict::Drop],
                meaning: "Longer than the MTU of the way out, and the sender could not be told: IPv4 that may be fragmented (Ringway makes no fragments), or IPv6 of at most 1280 bytes.",
                cause: "Jumbo frames or unsegmented TCP on the way in, a smaller MTU on the way out.",
                next: "ip link show; ethtool -K IFACE gro off lro off; where the sender is at the far end of a veth pair, or in generic mode, there: ethtool -K IFACE tso off gso off",
            },
            Self::Loop => Explanation {
                name: "loop",
                verdicts: &[Verdict::Drop],
                meaning: "The packet would open a flow, or asks for an answer, and its source is a service address or, \
                          where it is under dsr or asks for an answer, an address of this node; or the frame came from the backend that it would go to.",
                cause: "What we sent has come back. Under dsr: a backend that lacks the service \
                        address forwards. Else a routing loop, or a forged source.",
                next: "on the backend: ip address show dev lo; sysctl net.ipv4.ip_forward",
            },
            Self::ResetFailed => Explanation {
                name: "reset-failed",
                verdicts: &[Verdict::Drop],
                meaning: "A reset was due but the packet could not be turned into one.",
                cause: "The driver leaves no room to shorten or lengthen the packet.",
                next: "ringway status --ledger",
            },
            Self::NoFlow => Explanation {
                name: "no-flow",
                verdicts: &[Verdict::Drop],
                meaning: "A TCP reset of a flow that is not known; a reset is never answered.",
                cause: "The flow had already ended or had been idle for too long.",
                next: "ringway top --view reasons",
            },
            Self::NoDevice => Explanation {
                name: "no-device",
                verdicts: &[Verdict::Drop],
                meaning: "No device is in the interface slot of the way out.",
                cause: "The interface towards the backend or client has vanished; or, under dsr-l2, is a bridge, VLAN device or the like, which native XDP cannot redirect into.",
                next: "ip link show; ringway status",
            },
            Self::NoState => Explanation {
                name: "no-state",
                verdicts: &[Verdict::Drop, Verdict::Aborted],
                meaning: "One of the packet path's own tables has no entry where there must be one.",
                cause: "A table was changed by hand, or a bug.",
                next: "ringway status --ledger; then restart ringway run",
            },
            Self::NatForward => Explanation {
                name: "nat-forward",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "From a client, sent to its backend.",
                cause: "The service works.",
                next: "",
            },
            Self::NatReply => Explanation {
                name: "nat-reply",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "From a backend, sent to its client.",
                cause: "The service works.",
                next: "",
            },
            Self::ResetNoBackend => Explanation {
                name: "reset-no-backend",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Answered with a TCP reset: no backend of the service takes new connections.",
                cause: "All health checks fail, or the check itself is wrong; or every backend that is up is drained or has weight 0.",
                next: "ringway status",
            },
            Self::ResetBackendDown => Explanation {
                name: "reset-backend-down",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Answered with a TCP reset: the backend of this connection is down or was removed.",
                cause: "The client should connect again and will reach another backend.",
                next: "ringway status",
            },
            Self::ResetNoFlow => Explanation {
                name: "reset-no-flow",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Answered with a TCP reset: the segment belongs to no known connection.",
                cause: "The connection was idle for longer than [nat] timeouts.established, or began before the gateway did.",
                next: "ringway status; then raise [nat] timeouts.established or use TCP keepalive",
            },
            Self::ArpReply => Explanation {
                name: "arp-reply",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "An ARP request for a service address, answered.",
                cause: "announce = \"arp\".",
                next: "",
            },
            Self::NdReply => Explanation {
                name: "nd-reply",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "A neighbour solicitation for a service address, answered.",
                cause: "announce = \"arp\".",
                next: "",
            },
            Self::DsrL2 => Explanation {
                name: "dsr-l2",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Sent to a backend with another destination MAC address; the packet itself is the client's.",
                cause: "forward = \"dsr-l2\".",
                next: "",
            },
            Self::DsrIpip => Explanation {
                name: "dsr-ipip",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Sent to a backend inside an IP header of its own.",
                cause: "forward = \"dsr-ipip\".",
                next: "",
            },
            Self::DsrGue => Explanation {
                name: "dsr-gue",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Sent to a backend inside a UDP datagram (GUE variant 1).",
                cause: "forward = \"dsr-gue\".",
                next: "",
            },
            Self::NoHeadroom => Explanation {
                name: "no-headroom",
                verdicts: &[Verdict::Drop],
                meaning: "The outer header of a tunnel did not fit in front of the packet.",
                cause: "The driver leaves less than the 256 bytes before a packet that XDP programs count on.",
                next: "write xdp_mode = \"generic\" in [node], or forward = \"dsr-l2\"",
            },
            Self::PassRewritten => Explanation {
                name: "pass-rewritten",
                verdicts: &[Verdict::Pass],
                meaning: "A service's packet, rewritten for its receiver and handed to the kernel, which routes it there.",
                cause: "The way leaves by a device that redirected frames cannot enter: WireGuard or tun, or with xdp_mode = \"native\" a bridge, a VLAN device, an Ethernet tunnel. It costs the kernel's own forwarding.",
                next: "ringway check --host names the device; for a bridge and the like xdp_mode = \"auto\" or the bridge's ports are faster (docs/bridges.md)",
            },
            Self::EchoReply => Explanation {
                name: "echo-reply",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "A ping of a service address, answered.",
                cause: "Somebody looks whether the service address is there. The answer comes from Ringway, whether or not the node's kernel owns the address, and says nothing about backends.",
                next: "",
            },
            Self::IcmpToBackend => Explanation {
                name: "icmp-to-backend",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "An ICMP error about what a client got, sent to the backend it came from.",
                cause: "Path MTU discovery, or a client that has gone.",
                next: "",
            },
            Self::IcmpToClient => Explanation {
                name: "icmp-to-client",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "An ICMP error about what a backend was sent, translated and sent to the client.",
                cause: "A backend without a socket on the service's UDP port, or a router before it that could not go on.",
                next: "",
            },
            Self::IcmpNoFlow => Explanation {
                name: "icmp-no-flow",
                verdicts: &[Verdict::Drop],
                meaning: "An ICMP error to a service address about a packet of no known flow.",
                cause: "The flow has ended, the error quotes a later fragment, or it is forged.",
                next: "ringway top --view reasons",
            },
            Self::SentTooBig => Explanation {
                name: "sent-too-big",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "Longer than the way out allows; the sender was told the size that fits (fragmentation needed, packet too big).",
                cause: "Path MTU discovery: a smaller MTU on the way out, or the outer header of a tunnel; or senders on this machine (containers behind veth) that leave segmentation to a network card (TSO).",
                next: "from senders beyond a network card: nothing to do, unless ICMP is dropped on the way; from local ones, inside: ethtool -K IFACE tso off gso off",
            },
            Self::SentTimeExceeded => Explanation {
                name: "sent-time-exceeded",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "The TTL or hop limit would reach zero here; the sender was told.",
                cause: "A traceroute towards the service, or a routing loop.",
                next: "tracepath -n BACKEND",
            },
            Self::TrackFull => Explanation {
                name: "track-full",
                verdicts: &[Verdict::Drop],
                meaning: "A new connection could not be given a record, and its slot's former owner takes no new ones.",
                cause: "The ring of the service has just changed and the table of tracked flows is full of busy ones. The client tries again.",
                next: "ringway status; then raise [flows] tracked",
            },
            Self::TrackQuota => Explanation {
                name: "track-quota",
                verdicts: &[Verdict::Drop],
                meaning: "A new connection could not be given a record: its source prefix (/24, /64) has opened too many in this second.",
                cause: "A flood, or very many clients behind one prefix, while the ring of the service changes and the former backends are drained. The client tries again.",
                next: "ringway status; then raise [flows] new_per_prefix",
            },
            Self::IcmpLimited => Explanation {
                name: "icmp-limited",
                verdicts: &[Verdict::Drop],
                meaning: "Too big, out of time, or a ping; the sender got no answer because it, or everyone together, had got enough of that kind.",
                cause: "A flood, a sender that ignores what it is told, or a routing loop.",
                next: "ringway status --ledger",
            },
            Self::ResetLimited => Explanation {
                name: "reset-limited",
                verdicts: &[Verdict::Drop],
                meaning: "A TCP reset was due and was not sent: this source prefix (/24, /56), or everyone together, got enough of them in this second.",
                cause: "A flood of segments of unknown connections, or very many clients of a service without backends. The client tries again, and gets its reset then.",
                next: "ringway status --ledger",
            },
            Self::WrongInterface => Explanation {
                name: "wrong-interface",
                verdicts: &[Verdict::Drop],
                meaning: "A backend's packet by an interface that does not lead to that backend, or a client's packet by an interface that faces backends.",
                cause: "A forged source address; or a backend whose answers take another way than its requests; or a client on an interface that was declared to face backends; or a backend that has just moved to another interface, for a moment.",
                next: "ip route get BACKEND; then in [node] interfaces: { name = \"IFACE\", faces = \"backends\" } for each interface that a backend's answers come by; faces = \"both\" for one that clients are on, too",
            },
            Self::MartianSource => Explanation {
                name: "martian-source",
                verdicts: &[Verdict::Drop],
                meaning: "To a service address, from an address that no host can have: 0.0.0.0/8, 127.0.0.0/8, 224.0.0.0/3, ::, ::1 or ff00::/8.",
                cause: "A forged source address, or a broken sender.",
                next: "ringway capture --reason martian-source",
            },
            Self::NoTunnel => Explanation {
                name: "no-tunnel",
                verdicts: &[Verdict::Pass],
                meaning: "Not a tunnel packet to this host; passed untouched (`ringway decap`).",
                cause: "Ordinary traffic of the backend. When it came from a gateway, its outer destination is none of the addresses that decap was told, or its UDP port is another than --gue-port.",
                next: "ringway decap --status -i IFACE",
            },
            Self::TunnelOther => Explanation {
                name: "tunnel-other",
                verdicts: &[Verdict::Pass],
                meaning: "A tunnel packet to this host of a kind that is not opened here: a fragment, one with IPv4 options or an IPv6 routing header, a GUE control message, option or version; passed untouched.",
                cause: "The path between gateway and backend fragments tunnel packets (its MTU is smaller than either knows), or something else than a gateway sends to this port.",
                next: "Raise the MTU of the path, or look at who sends: tcpdump -ni IFACE",
            },
            Self::InnerElsewhere => Explanation {
                name: "inner-elsewhere",
                verdicts: &[Verdict::Pass],
                meaning: "A tunnel packet to this host whose content is for an address that this host does not have; passed untouched, tunnel header and all.",
                cause: "The service address is missing on the backend.",
                next: "ip address add SERVICE/32 dev lo",
            },
            Self::EcnConflict => Explanation {
                name: "ecn-conflict",
                verdicts: &[Verdict::Drop],
                meaning: "A tunnel packet that a router on the way marked for congestion, holding a packet whose sender does not understand such marks; dropped as RFC 6040 demands.",
                cause: "Congestion between gateway and backend, and a gateway that lets the outer header be marked although the inner one cannot carry it.",
                next: "ringway decap -i IFACE --status",
            },
            Self::DecapIpip => Explanation {
                name: "decap-ipip",
                verdicts: &[Verdict::Pass],
                meaning: "Taken out of its IP-in-IP packet and given to the kernel.",
                cause: "A request by way of dsr-ipip.",
                next: "",
            },
            Self::DecapGue => Explanation {
                name: "decap-gue",
                verdicts: &[Verdict::Pass],
                meaning: "Taken out of its UDP packet (GUE or FOU) and given to the kernel.",
                cause: "A request by way of dsr-gue.",
                next: "",
            },
            Self::SynChallenged => Explanation {
                name: "syn-challenged",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "The shield answered a SYN with one that no TCP stack accepts: a sender that is really there replies with a RST, and its next SYN passes.",
                cause: "The service has syn = \"challenge\", or syn = \"backend\" and not every backend takes cookies, is under attack (or [shield.syn] says always), and this source is not learnt.",
                next: "ringway shield status",
            },
            Self::SynAnswered => Explanation {
                name: "syn-answered",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "The shield answered a SYN in the service's name, with a cookie: a sender that is really there brings it back, and is connected then.",
                cause: "The service has syn = \"proxy\" or \"backend\", and is under attack (or [shield.syn] says always).",
                next: "ringway shield status",
            },
            Self::ResetNoStamps => Explanation {
                name: "reset-no-stamps",
                verdicts: &[Verdict::Tx, Verdict::Redirect],
                meaning: "A backend answered a SYN without the TCP time stamps that its client had been promised: both were sent a RST.",
                cause: "The service has syn = \"proxy\", and the backend has had no time stamps since its last check, which saw them: net.ipv4.tcp_timestamps was changed, or its address has passed to another system. The next check corrects the promise.",
                next: "ringway shield status",
            },
            Self::TcpFlags => Explanation {
                name: "tcp-flags",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a TCP segment with flags that no segment has: none at all, SYN with FIN or RST, FIN with RST, or neither SYN, RST nor ACK.",
                cause: "A scanner or a flood; no TCP stack sends this.",
                next: "ringway capture --reason tcp-flags",
            },
            Self::Land => Explanation {
                name: "land",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet whose source and destination are the same address.",
                cause: "A forged source.",
                next: "ringway capture --reason land",
            },
            Self::FragmentTiny => Explanation {
                name: "fragment-tiny",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a first fragment too short for the ports and flags of its datagram, or a fragment without content.",
                cause: "An attempt to get past filters (RFC 1858 section 3); no stack cuts a datagram like this.",
                next: "ringway capture --reason fragment-tiny",
            },
            Self::FragmentOverlap => Explanation {
                name: "fragment-overlap",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a later fragment that begins within the first bytes of layer 4, or reaches beyond the longest datagram.",
                cause: "An attempt to overwrite the ports or flags of the first fragment, or to overflow a receiver (RFC 1858 section 4, RFC 3128).",
                next: "ringway capture --reason fragment-overlap",
            },
            Self::Blocked => Explanation {
                name: "blocked",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet whose source is in a block list, or was blocked at run time.",
                cause: "A list in [shield], or `ringway block`.",
                next: "ringway blocked; then: ringway allow SOURCE",
            },
            Self::Rule => Explanation {
                name: "rule",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet because the first of its rules that matches says so.",
                cause: "A rule in [shield] with action = \"drop\".",
                next: "ringway shield status",
            },
            Self::RuleLimit => Explanation {
                name: "rule-limit",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet because those that its rule matches were over the rule's rate.",
                cause: "A rule in [shield] with action = \"limit\".",
                next: "ringway shield status",
            },
            Self::ServiceLimit => Explanation {
                name: "service-limit",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet because its service, or the service's address, gets more than its rate, and neither an established flow nor a source that was learnt speaks for the packet.",
                cause: "An attack, or `packets` or `destination` of the limits in [shield] below what clients need.",
                next: "ringway shield status",
            },
            Self::NewFlowLimit => Explanation {
                name: "new-flow-limit",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet that opens a flow because its service gets more new flows than their rate.",
                cause: "A flood of SYNs or of UDP from many sources, or `new_flows` of the limits in [shield] below what clients need.",
                next: "ringway shield status",
            },
            Self::SourceLimit => Explanation {
                name: "source-limit",
                verdicts: &[Verdict::Drop],
                meaning: "The shield dropped a packet because its source prefix sends more to the service than the rate of one source.",
                cause: "A flood from few sources, or many clients behind one address (carrier-grade NAT, a proxy).",
                next: "ringway shield status names the sources; then: ringway allow SOURCE, or ringway block SOURCE",
            },
            Self::ChallengeMet => Explanation {
                name: "challenge-met",
                verdicts: &[Verdict::Drop],
                meaning: "The shield took a RST that answers its challenge: its sender is really there, and its next SYN passes.",
                cause: "A client whose SYN was challenged; it repeats its SYN, most systems after a second.",
                next: "ringway explain -i INTERFACE 'tcp CLIENT:PORT > SERVICE:PORT' shows that its next SYN passes",
            },
            Self::Bridged => Explanation {
                name: "bridged",
                verdicts: &[Verdict::Redirect],
                meaning: "Forwarded from one port of a bridge to another, past the kernel's bridge.",
                cause: "[forward] in bridge mode, and the bridge knows source and destination.",
                next: "",
            },
            Self::Routed => Explanation {
                name: "routed",
                verdicts: &[Verdict::Redirect],
                meaning: "Forwarded by the kernel's route, past its stack.",
                cause: "[forward] in route mode, and the route leads out by another interface of it.",
                next: "",
            },
            Self::ForwardStale => Explanation {
                name: "forward-stale",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: nobody has kept the forwarding tables for five seconds, so they may be wrong.",
                cause: "The daemon was stopped or hangs; it has just started, and reads them; or something forbids forwarding for now, which `ringway status` tells.",
                next: "ringway status",
            },
            Self::ForwardPort => Explanation {
                name: "forward-port",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: the interface, or the one that it would leave by, does not forward this now.",
                cause: "Spanning tree blocks the port, it is down or not part of the bridge; the frame would leave by the port it came in by; both ports are isolated; or a frame of native XDP would leave by a generic one.",
                next: "bridge -d link show; ringway status",
            },
            Self::ForwardTooLong => Explanation {
                name: "forward-too-long",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: longer than the way out takes. The kernel cuts it, tells its sender, or drops it.",
                cause: "The MTU differs between interfaces, a path's is smaller, or a sender on this machine leaves it to a device to cut its segments.",
                next: "ip link show; ip route get DESTINATION",
            },
            Self::ForwardUnfinished => Explanation {
                name: "forward-unfinished",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: its checksum is unfinished, or may be; native XDP cannot have a device finish it.",
                cause: "A sender on this machine (container, virtual machine) leaves checksums to a device.",
                next: "inside the container: ethtool -K eth0 tx off",
            },
            Self::BridgeGroup => Explanation {
                name: "bridge-group",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the bridge: to a group address (broadcast, multicast, spanning tree), which it floods or takes itself.",
                cause: "Ordinary traffic of the link.",
                next: "",
            },
            Self::BridgeSource => Explanation {
                name: "bridge-source",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the bridge, which learns from it: its source is not known at this port.",
                cause: "A host's first frame, or one that has moved here; else the bridge does not learn at this port, or knows more hosts than 65 536.",
                next: "bridge fdb show",
            },
            Self::BridgeDestination => Explanation {
                name: "bridge-destination",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the bridge: its destination is not known behind another port of [forward]. The bridge takes it, floods it, or has another port for it.",
                cause: "It is to this host itself, to one that has been silent longer than the bridge remembers, or behind a port that is not in [forward].",
                next: "bridge fdb show",
            },
            Self::BridgeVlan => Explanation {
                name: "bridge-vlan",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the bridge: its VLAN is not allowed at one of the ports, or a tag would have to be added or removed.",
                cause: "The bridge filters VLANs.",
                next: "bridge vlan show",
            },
            Self::RouteUncommon => Explanation {
                name: "route-uncommon",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: not to this host's MAC address, not IP, with IPv4 options or IPv6 hop-by-hop options, or with addresses that are not forwarded (multicast, loopback, link-local).",
                cause: "Ordinary traffic of the link.",
                next: "",
            },
            Self::RouteHopLimit => Explanation {
                name: "route-hop-limit",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel, which tells its sender: its TTL or hop limit ends here.",
                cause: "A traceroute, or a routing loop.",
                next: "",
            },
            Self::RouteSource => Explanation {
                name: "route-source",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel, which judges its source: it is an address of this host, or rp_filter does not take it.",
                cause: "The source is forged, or routes differ by direction; the kernel drops it where rp_filter says so.",
                next: "ip route get SOURCE; sysctl net.ipv4.conf.IFACE.rp_filter",
            },
            Self::RouteNone => Explanation {
                name: "route-none",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: it is to this host, no route leads there, or the interface does not forward.",
                cause: "Ordinary traffic of this host; or a missing route, or forwarding is off.",
                next: "ip route get DESTINATION; sysctl net.ipv4.ip_forward",
            },
            Self::RouteNeighbour => Explanation {
                name: "route-neighbour",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel, which asks for it: the MAC address of the next hop is not known.",
                cause: "The first packet to a host, or the host does not answer.",
                next: "ip neighbour show",
            },
            Self::RouteElsewhere => Explanation {
                name: "route-elsewhere",
                verdicts: &[Verdict::Pass],
                meaning: "Left to the kernel: the route leads out by an interface that is not in [forward], or back by the one it came in by.",
                cause: "Another interface has to be named; or a host does not know of a shorter way.",
                next: "ip route get DESTINATION",
            },
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::raw::RW_REASON_SPACE;

    #[test]
    fn names_are_unique_kebab_case_and_found_again() {
        let names: HashSet<&str> = Reason::all().map(Reason::name).collect();
        assert_eq!(names.len(), Reason::all().count());
        for reason in Reason::all() {
            let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(reason.name().chars().all(kebab), "{reason}");
            assert_eq!(Reason::by_name(reason.name()), Some(reason));
        }
        assert_eq!(Reason::by_name("no-such-reason"), None);
    }

    #[test]
    fn every_reason_is_explained() {
        for reason in Reason::all() {
            let text = reason.explain();
            assert!(text.meaning.ends_with('.'), "{reason}: {}", text.meaning);
            assert!(text.cause.ends_with('.'), "{reason}: {}", text.cause);
            assert!(reason == Reason::None || !text.verdicts.is_empty(), "{reason}");
            let dropped =
                text.verdicts.iter().any(|v| matches!(v, Verdict::Drop | Verdict::Aborted));
            assert!(!dropped || reason.next().is_some(), "{reason}: what to do about it?");
        }
    }

    #[test]
    fn every_reason_has_room_in_the_ledger() {
        for reason in Reason::all() {
            let beyond = reason as u32 >= RW_REASON_SPACE;
            assert!(!beyond || reason.verdicts().len() == 1, "{reason}");
        }
        assert!((Reason::all().last().unwrap() as u32) < 2 * RW_REASON_SPACE);
    }
}
