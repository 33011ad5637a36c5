//! Pictures of machines with known traffic.

use ringway_host::Interface;
use ringway_host::netlink::links::{VlanTag, Xdp, XdpMode};

use super::*;
use crate::testing::{Machine, healthy};

const LO: u32 = 1;
const ETH0: u32 = 2;
const VLAN: u32 = 9;
const V4: u16 = 0x0800;
const ARP: u16 = 0x0806;

fn seen(at: SeenAt, ifindex: u32, protocol: u16, packets: u64) -> Seen {
    let (reason, function) = (String::new(), String::new());
    // Of two processors.
    let by_cpu = vec![packets - packets / 4, packets / 4];
    Seen { at, ifindex, protocol, reason, function, packets: by_cpu, segments: packets }
}

fn lost(ifindex: u32, protocol: u16, packets: u64, reason: &str, function: &str) -> Seen {
    Seen {
        reason: reason.into(),
        function: function.into(),
        ..seen(SeenAt::Lost, ifindex, protocol, packets)
    }
}

/// A card that received a thousand packets, of which IP got none yet.
fn quiet() -> Machine {
    let machine = healthy().stats("veth0", |stats| {
        (stats.rx_packets, stats.tx_packets) = (0, 0);
    });
    machine.stats("eth0", |stats| stats.rx_packets = 1000)
}

/// A thousand packets and ten that the ring had no room for: 980 of IP and five of ARP reach the
/// stack, fifteen were joined.
fn traffic() -> Vec<Seen> {
    vec![
        Seen { segments: 995, ..seen(SeenAt::Received, ETH0, V4, 980) },
        seen(SeenAt::Received, ETH0, ARP, 5),
        seen(SeenAt::PassedOn, ETH0, V4, 200),
        lost(ETH0, V4, 30, "NETFILTER_DROP", "nft_do_chain"),
        lost(ETH0, V4, 100, "NO_SOCKET", "__udp4_lib_rcv"),
        lost(ETH0, V4, 50, "SOCKET_RCVBUFF", "udp_queue_rcv_one_skb"),
        lost(ETH0, V4, 7, "PACKET_SOCK_ERROR", "packet_rcv"),
    ]
}

fn traced(seen: Vec<Seen>, delivered: u64) -> Machine {
    let machine = quiet().stats("eth0", |stats| stats.rx_missed_errors = 10);
    machine.counts("Ip", "InDelivers", delivered).json(TRACE, Trace { seen, uncounted: 0 })
}

fn picture(machine: &Machine) -> Path {
    path(&machine.facts(), "eth0").unwrap()
}

fn lost_at(path: &Path, step: Step) -> u64 {
    path.steps.iter().find(|one| one.step == step).map_or(0, |one| one.lost)
}

#[test]
fn everything_is_accounted_for() {
    let path = picture(&traced(traffic(), 750));
    let PacketBalance { received, lost, taken_by_xdp, joined, passed_on, delivered, rest, .. } =
        path.balance;
    assert_eq!((received, lost, taken_by_xdp, joined), (1010, 190, 0, 15), "{path:#?}");
    assert_eq!((passed_on, delivered, rest), (Some(200), Some(605), Some(0)), "{path:#?}");
    let by_step = [Step::Ring, Step::Ip, Step::Protocol, Step::Socket].map(|s| lost_at(&path, s));
    assert_eq!(by_step, [10, 30, 100, 50]);
    // A copy for a tap is reported, and is no packet.
    assert_eq!(lost_at(&path, Step::Copy), 0);
    assert!(path.steps.iter().any(|one| one.step == Step::Copy && one.losses[0].packets == 7));
}

#[test]
fn what_is_missing_is_told() {
    // A hundred packets that no step knows of.
    let path = picture(&traced(traffic(), 650));
    assert_eq!(path.balance.rest, Some(100));
    assert!(path.notes.iter().any(|note| note.starts_with("not accounted for")));
}

#[test]
fn other_interfaces_are_told_apart() {
    let mut all = traffic();
    all.push(seen(SeenAt::Received, LO, V4, 40));
    all.push(lost(LO, V4, 4, "NETFILTER_DROP", "nft_do_chain"));
    all.push(lost(LO, V4, 6, "NO_SOCKET", "__udp4_lib_rcv"));
    let path = picture(&traced(all, 750 + 36));
    assert_eq!((path.balance.lost, path.balance.rest), (190, Some(0)), "{path:#?}");
}

#[test]
fn lost_on_the_way_on() {
    // Twenty of those passed on found the other queue full; five had no neighbour and never came so
    // far.
    let mut all = traffic();
    all.push(lost(ETH0, V4, 20, "QDISC_DROP", "__dev_queue_xmit"));
    all.push(lost(ETH0, V4, 5, "NEIGH_FAILED", "neigh_invalidate"));
    let path = picture(&traced(all, 745));
    assert_eq!((path.balance.passed_on, path.balance.rest), (Some(180), Some(0)), "{path:#?}");
    assert_eq!(lost_at(&path, Step::Ip), 55);
}

#[test]
fn early_losses_and_own_packets() {
    let mut all = traffic();
    let near = |reason: &str, function: &str| Seen {
        at: SeenAt::LostNear,
        ..lost(ETH0, V4, 3, reason, function)
    };
    all.push(near("CPU_BACKLOG", "enqueue_to_backlog"));
    all.push(near("QDISC_DROP", "__dev_queue_xmit"));
    let path = picture(&traced(all, 750));
    // Of those that seemed joined three were lost.
    assert_eq!((path.balance.lost, path.balance.joined, path.balance.rest), (193, 12, Some(0)));
    assert_eq!(lost_at(&path, Step::Stack), 3);
    assert_eq!(path.sent.losses.iter().find(|l| l.what == "QDISC_DROP").unwrap().packets, 3);
}

#[test]
fn verdicts_of_xdp() {
    let counters = |n: u64| {
        format!(
            r#"{{"rx_queue_0_xdp_drops": {n}, "rx_queue_1_xdp_drops": {n}, "rx_queue_0_xdp_tx_errors": {n}, "tx_queue_0_xdp_tx": {n}}}"#
        )
    };
    let path = "/ethtool/eth0/statistics.json";
    let machine = traced(Vec::new(), 0).put(path, &counters(0)).then(path, &counters(250));
    let found = picture(&machine);
    assert_eq!((found.balance.taken_by_xdp, found.balance.lost), (500, 10));
    // mlx5 counts them once more, of all queues.
    let both = r#"{"rx_xdp_drop": 500, "rx0_xdp_drop": 250, "rx1_xdp_drop": 250}"#;
    let machine = machine.put(path, r#"{"rx_xdp_drop": 0, "rx0_xdp_drop": 0, "rx1_xdp_drop": 0}"#);
    assert_eq!(picture(&machine.then(path, both)).balance.taken_by_xdp, 500);
    let silent = traced(Vec::new(), 0).network(|network| {
        network.interfaces[1].link.xdp = vec![Xdp { program: 5, mode: XdpMode::Native }];
    });
    assert!(picture(&silent).notes[0].contains("XDP program 5"));
}

#[test]
fn counters_alone() {
    let machine = quiet()
        .stats("veth0", |stats| stats.rx_packets = 60)
        .counts("Ip", "InReceives", 1060)
        .counts("Ip", "ForwDatagrams", 200)
        .counts("Ip", "InDelivers", 800)
        .counts("Udp", "NoPorts", 100)
        .counts("Udp", "RcvbufErrors", 50)
        .counts("Ip", "InHdrErrors", 10);
    let found = picture(&machine);
    assert!(!found.traced && found.notes[0].contains("losses by reason are not known"));
    let PacketBalance { received, others, lost, passed_on, delivered, rest, .. } = found.balance;
    assert_eq!((received, others, lost), (1000, Some(60), 160));
    assert_eq!((passed_on, delivered, rest), (Some(200), Some(650), Some(50)));
    let protocol = found.steps.iter().find(|one| one.step == Step::Protocol).unwrap();
    assert_eq!((protocol.packets, protocol.scope), (Some(800), Scope::Namespace));
}

/// Unknown is never 0.
#[test]
fn what_cannot_be_known_is_not_reckoned() {
    for machine in [quiet(), traced(traffic(), 750)] {
        let found = picture(&machine.remove("/proc/net/snmp"));
        assert_eq!((found.balance.rest, found.balance.delivered), (None, None));
    }
}

#[test]
fn a_port_hands_up() {
    let machine = traced(traffic(), 0).network(|network| {
        network.interfaces[1].link.master = Some(3);
    });
    let found = picture(&machine);
    assert_eq!((found.balance.handed_up, found.balance.delivered), (Some(605), None));
    assert_eq!(found.balance.rest, Some(0));
    assert!(found.notes[0].contains("port of veth0"));
}

/// A VLAN device with forty packets of the card's, which had them with or without their tags.
fn with_vlan(tagged: bool) -> Machine {
    let mut all = traffic();
    if tagged {
        all[0] = Seen { segments: 955, ..seen(SeenAt::Received, ETH0, V4, 940) };
        all.push(seen(SeenAt::Received, ETH0, 0x8100, 40));
    }
    // Five of the VLAN's have no socket.
    all.push(lost(VLAN, V4, 5, "NO_SOCKET", "__udp4_lib_rcv"));
    let machine = traced(all, 750).interface(2, VLAN, "eth0.7", |vlan| {
        vlan.link.kind = Some("vlan".into());
        vlan.link.vlan = Some(VlanTag { id: 7, protocol: 0x8100 });
        (vlan.link.lower, vlan.link.lower_elsewhere) = (Some(ETH0), false);
    });
    machine.both_stats("eth0.7", "veth0").stats("eth0.7", |stats| stats.rx_packets += 40)
}

#[test]
fn packets_go_on_to_a_vlan_device() {
    for tagged in [false, true] {
        let found = picture(&with_vlan(tagged));
        let upper = &found.uppers[0];
        assert_eq!((upper.interface.as_str(), upper.vlan, upper.packets), ("eth0.7", Some(7), 40));
        let PacketBalance { handed_up, delivered, rest, .. } = found.balance;
        assert_eq!((handed_up, delivered, rest), (Some(40), Some(565), Some(0)), "{found:#?}");
        let at_ip = found.steps.iter().find(|one| one.step == Step::Ip).unwrap();
        assert_eq!(at_ip.packets, Some(940), "{tagged}");
    }
}

#[test]
fn a_vlan_device_has_its_packets_from_below() {
    let found = path(&with_vlan(false).facts(), "eth0.7").unwrap();
    assert_eq!(found.below.as_ref().unwrap().interface, "eth0");
    let first = &found.steps[0];
    assert_eq!((first.step, first.packets), (Step::Upon, Some(40)));
    let PacketBalance { received, lost, delivered, rest, .. } = found.balance;
    assert_eq!((received, lost, delivered, rest), (40, 5, Some(35), Some(0)), "{found:#?}");
    // In another namespace nobody sees it.
    let elsewhere = with_vlan(false).network(|network| {
        network.interfaces.iter_mut().for_each(|one| one.link.lower_elsewhere = true);
    });
    let found = path(&elsewhere.facts(), "eth0.7").unwrap();
    assert!(found.below.is_none() && found.notes.iter().any(|n| n.contains("another network")));
}

/// Its own counters are no others' packets.
#[test]
fn a_vlan_device_without_a_trace() {
    let machine = with_vlan(false).remove(TRACE).counts("Ip", "InReceives", 1000);
    let of = |name| path(&machine.facts(), name).unwrap().balance;
    assert_eq!((of("eth0").received, of("eth0").others), (1010, Some(0)));
    assert_eq!((of("eth0.7").received, of("eth0.7").others), (40, Some(960)));
}

/// Packets of a bond's members are the bond's at once: no tracepoint sees them there.
#[test]
fn a_bond_has_the_packets_of_its_members() {
    let bond = |bond: &mut Interface| bond.link.kind = Some("bond".into());
    let machine = traced(traffic(), 750)
        .interface(2, VLAN, "bond0", bond)
        .network(|network| network.interfaces[1].link.master = Some(VLAN));
    let machine =
        machine.both_stats("bond0", "veth0").stats("bond0", |stats| stats.rx_packets += 1000);
    let found = path(&machine.facts(), "bond0").unwrap();
    let stack = found.steps.iter().find(|one| one.step == Step::Stack).unwrap();
    assert!(stack.packets > Some(500), "{found:#?}");
    assert!(found.notes.iter().any(|note| note.contains("its ports") && note.contains("eth0")));
    assert_eq!(picture(&machine).balance.delivered, None);
}

#[test]
fn queues_and_processors() {
    let found = picture(&traced(traffic(), 750));
    let queues: Vec<_> = found.queues.iter().map(|q| (q.queue, q.packets, q.irq)).collect();
    assert_eq!(queues[2], (2, Some(49_000), Some(42)), "{queues:?}");
    assert_eq!((queues.len(), found.queues[1].interrupts[&1]), (4, 2000));
    let received: Vec<_> = found.processors.iter().map(|cpu| cpu.received).collect();
    assert_eq!(received, [Some(739), Some(246), Some(0), Some(0)]);
    assert!(found.processors.iter().all(|cpu| cpu.polled > 0 && cpu.interrupts == 2000));
}

#[test]
fn interfaces_that_are_not_there() {
    let error = |machine: Machine, name| path(&machine.facts(), name).unwrap_err();
    let none = error(healthy(), "eth9").to_string();
    assert!(none.contains("eth9") && none.contains("lo, eth0, veth0"), "{none}");
    let gone =
        healthy().network(|network| network.interfaces.retain(|one| one.link.name != "eth0"));
    assert_eq!(error(gone, "eth0"), Error::Vanished("eth0".into()));
    // As many packets as before are not fewer.
    let anew = healthy()
        .put("/netlink/stats.json", &healthy().collection.after.files()["/netlink/stats.json"]);
    assert!(path(&anew.facts(), "eth0").is_ok());
    assert_eq!(
        error(anew.stats("eth0", |s| s.rx_packets = 5), "eth0"),
        Error::Vanished("eth0".into())
    );
    assert!(matches!(error(Machine::unknown(), "eth0"), Error::Unknown(_)));
}
