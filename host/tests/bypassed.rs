//! What packets meet in the kernel, of a live network namespace. Needs root.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use ringway_host::bypassed::{Bypassed, KernelPath, for_bridge, for_route};
use ringway_host::netlink::{bridge, links};
use ringway_testnet::{End, Namespace, VethOptions, root_or_skip, veth};

/// A bridge `br0` with ports `p1` and `p2`, and an interface `out` beside it.
struct Net {
    ns: Namespace,
    bridge: u32,
    routed: Vec<u32>,
}

impl Net {
    /// Skips the test without root.
    fn of(test: &str) -> Option<Self> {
        root_or_skip(test).then(Self::new)
    }

    fn new() -> Self {
        let ns = Namespace::new("bypassed").unwrap();
        ringway_testnet::bridge(&ns, "br0", &[]).unwrap();
        for name in ["p1", "p2", "out"] {
            let mut end = End::new(&ns, name);
            if name != "out" {
                end = end.port_of("br0");
            }
            let far = End::new(&ns, &format!("{name}-far"));
            veth(&far, &end, &VethOptions::default()).unwrap();
        }
        let index = |name: &str| ns.run(|| links::by_name(name).unwrap().ifindex).unwrap();
        Self { bridge: index("br0"), routed: vec![index("br0"), index("out")], ns }
    }

    fn sh(&self, line: &str) {
        let output = self.ns.command("sh").args(["-ec", line]).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn bridged(&self) -> Vec<Bypassed> {
        self.ns
            .run(|| {
                let ports = bridge::ports_of(self.bridge).unwrap();
                let indices: Vec<u32> = ports.iter().map(|port| port.ifindex).collect();
                let bridge = bridge::bridge(self.bridge).unwrap().unwrap();
                for_bridge(&KernelPath::read(&indices).unwrap(), &bridge, &ports)
            })
            .unwrap()
    }

    fn routed(&self) -> Vec<Bypassed> {
        let read = || for_route(&KernelPath::read(&self.routed).unwrap(), &self.routed);
        self.ns.run(read).unwrap()
    }

    /// Does what each says, behind its words.
    fn mend(&self, bypassed: &[Bypassed]) {
        let fixes = bypassed.iter().map(|one| one.fix.to_string());
        for fix in fixes.collect::<BTreeSet<_>>() {
            self.sh(fix.split_once(": ").unwrap().1);
        }
    }
}

fn whats(bypassed: &[Bypassed]) -> Vec<&str> {
    bypassed.iter().map(|one| one.what.as_str()).collect()
}

#[test]
fn what_frames_of_a_bridge_meet() {
    let Some(net) = Net::of("what_frames_of_a_bridge_meet") else { return };
    assert_eq!(net.bridged(), []);
    // A chain that does nothing is not met.
    net.sh("nft add table bridge t
            nft 'add chain bridge t every { type filter hook forward priority 0; }'
            nft add chain bridge t some
            nft add rule bridge t some counter
            nft add table netdev n
            nft 'add chain netdev n in { type filter hook ingress device p1 priority 0; }'
            nft 'add chain netdev n far { type filter hook ingress device p1-far priority 0; }'
            nft add rule netdev n far counter");
    assert_eq!(net.bridged(), []);
    net.sh("nft add rule bridge t every jump some
            nft add rule netdev n in counter
            nft add rule netdev n in counter
            tc qdisc add dev p2 root tbf rate 1mbit burst 10k latency 10ms
            tc qdisc add dev p1 clsact");
    let bypassed = net.bridged();
    let expected = [
        "1 rule of the nft chain bridge t every",
        "2 rules of the nft chain netdev n in at p1",
        "the queueing discipline tbf of p2",
    ];
    assert_eq!(whats(&bypassed), expected);
    // Nothing routed meets them.
    assert_eq!(net.routed(), []);
    net.mend(&bypassed);
    assert_eq!(net.bridged(), []);
    net.sh("tc filter add dev p1 egress bpf bytecode '1,6 0 0 4294967295'");
    assert_eq!(whats(&net.bridged()), ["filters or BPF programs of tc at the egress of p1"]);
}

#[test]
fn frames_of_a_bridge_meet_ip_rules_where_br_netfilter_says_so() {
    let Some(net) = Net::of("frames_of_a_bridge_meet_ip_rules_where_br_netfilter_says_so") else {
        return;
    };
    net.sh("nft add table inet f
            nft 'add chain inet f forward { type filter hook forward priority 0; policy drop; }'
            nft 'add chain inet f input { type filter hook input priority 0; policy drop; }'
            for f in /proc/sys/net/bridge/bridge-nf-call-*; do test ! -e $f || echo 0 >$f; done");
    assert_eq!(net.bridged(), []);
    net.sh("ip link set br0 type bridge nf_call_ip6tables 1");
    let bypassed = net.bridged();
    let what = "the policy drop of the nft chain inet f forward, by br_netfilter of br0";
    assert_eq!(whats(&bypassed), [what]);
    if std::path::Path::new("/proc/sys/net/bridge").exists() {
        net.mend(&bypassed);
        assert_eq!(net.bridged(), []);
        net.sh("sysctl -qw net.bridge.bridge-nf-call-iptables=1");
        assert_eq!(whats(&net.bridged()), [what]);
    }
}

#[test]
fn what_routed_packets_meet() {
    let Some(net) = Net::of("what_routed_packets_meet") else { return };
    assert_eq!(net.routed(), []);
    net.sh("nft add table ip n
            nft 'add chain ip n post { type nat hook postrouting priority 100; }'
            nft add rule ip n post masquerade
            nft add table ip6 n
            nft 'add chain ip6 n out { type filter hook output priority 0; policy drop; }'
            nft 'add chain ip6 n forward { type filter hook forward priority 0; policy drop; }'
            nft add rule ip6 n forward counter
            ip rule add from 10.0.0.0/8 lookup 7 priority 700
            ip -6 rule add fwmark 1 blackhole priority 701");
    let mut bypassed = net.routed();
    let mut expected = vec![
        "1 rule of the nft chain ip n post",
        "1 rule and the policy drop of the nft chain ip6 n forward",
        "the routing rule of IPv4 with priority 700, which leads to table 7",
        "the routing rule of IPv6 with priority 701",
    ];
    assert_eq!(whats(&bypassed), expected);
    net.mend(&bypassed);
    assert_eq!(net.routed(), []);

    net.sh("ip xfrm policy add src 10.0.0.0/8 dst 10.1.0.0/16 dir fwd action block");
    expected = vec!["1 IPsec policy"];
    bypassed = net.routed();
    assert_eq!(whats(&bypassed), expected);
    net.sh("ip xfrm policy flush");
    if net.ns.ip("link add red type vrf table 9\nlink set out master red\n").is_ok() {
        let found = net.routed();
        assert!(whats(&found).contains(&"the VRF red of out"), "{found:?}");
    }
}
