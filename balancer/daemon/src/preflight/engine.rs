//! Rules about interfaces whose queues a packet program in user space reads (`ringway engine`): looked at when they are open.

use std::collections::BTreeSet;

use ringway_doctor::Program;
use ringway_host::ethtool::Channels;
use ringway_host::netlink::links::Link;
use ringway_host::netlink::xdp_features::{self, Features};

use super::facts::Facts;
use super::host::machine;
use super::{Report, State};

/// An AF_XDP socket's queue, as it was obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Of which interface.
    pub interface: String,
    /// Its number.
    pub number: u32,
    /// The program runs in the driver.
    pub native: bool,
    /// The driver puts packets into the program's memory itself.
    pub zero_copy: bool,
    /// That it is generic, or copied, is what was asked for.
    pub chosen: bool,
    /// The driver is to work within the program's calls.
    pub busy_poll: bool,
    /// Packets may be longer than a frame.
    pub several_frames: bool,
    /// Bytes of a packet that a frame has room for.
    pub room_bytes: u32,
    /// What its driver can do; none where the kernel does not tell.
    pub driver: Option<Features>,
}

/// Bytes of a frame, unless twice as many are asked for.
const SMALL_FRAME: u32 = 2048;

/// Ethernet's header, and a tag.
const FRAMING: u32 = 18;

/// Every rule, interface by interface.
pub fn check(queues: &[Queue], facts: &Facts, report: &mut Report) {
    let names: BTreeSet<&str> = queues.iter().map(|queue| queue.interface.as_str()).collect();
    for name in names {
        let Some(link) = facts.link(name) else { continue };
        let of_link = || queues.iter().filter(|queue| queue.interface == name);
        // One program and one driver: alike for all of them.
        let Some(first) = of_link().next() else { continue };
        copies(first, facts, link, report);
        unread(&of_link().map(|queue| queue.number).collect(), facts, link, report);
        merged(first, facts, link, report);
        mtu(first, link, report);
        busy_poll(first, facts, link, report);
        metadata(first, link, report);
        if link.kind.as_deref() == Some("veth") {
            far_end(facts, link, report);
        }
    }
}

fn copies(queue: &Queue, facts: &Facts, link: &Link, report: &mut Report) {
    let driver = facts.drivers.get(&link.name).map_or("unknown", String::as_str);
    let features = facts.features.get(&link.name);
    let (state, reason, fix) = match (queue.native, features) {
        _ if queue.zero_copy => {
            let reason = format!("zero-copy: driver {driver} puts packets where the program is");
            return report.ok("copy-mode", &link.name, reason);
        }
        (native, _) if queue.chosen => {
            let how = if native { "copied" } else { "generic and copied" };
            return report.ok("copy-mode", &link.name, format!("{how}, as it was asked for"));
        }
        (false, Some(features)) if features.native() => (
            State::Warn,
            format!("generic and copied, though driver {driver} has native XDP"),
            "write `,native` behind the port: what is in its way is said then",
        ),
        (false, _) => {
            let reason = "generic: copied, and behind the driver";
            return report.ok("copy-mode", &link.name, reason);
        }
        (true, Some(features)) if features.zero_copy() => (
            State::Warn,
            format!("copied, though driver {driver} has zero-copy"),
            "write `,zero-copy` behind the port: what is in its way is said then",
        ),
        (true, Some(_)) => {
            let reason = format!("copied: driver {driver} has no zero-copy");
            return report.ok("copy-mode", &link.name, reason);
        }
        (true, None) => (
            State::Unknown,
            format!(
                "copied; whether driver {driver} has zero-copy cannot be asked before Linux 6.3"
            ),
            "",
        ),
    };
    report.push("copy-mode", &link.name, state, reason, fix);
}

/// The NIC spreads packets over all queues, whoever reads them.
fn unread(read: &BTreeSet<u32>, facts: &Facts, link: &Link, report: &mut Report) {
    let count = facts.channels.get(&link.name).map_or(link.rx_queues, |channels| channels.rx);
    let list =
        |queues: Vec<u32>| queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let reads = list(read.iter().copied().collect());
    let unread: Vec<u32> = (0..count).filter(|queue| !read.contains(queue)).collect();
    if unread.is_empty() {
        let reason = format!("all are read ({reads})");
        return report.ok("queues", &link.name, reason);
    }
    let reason = format!(
        "it has {count}, and {reads} is read here: what the NIC puts into {} goes to the kernel",
        list(unread)
    );
    let mut fix = format!("af_xdp:{}:all reads all", link.name);
    // Those above are what a driver gives up.
    if let Some(channels) = facts.channels.get(&link.name)
        && read.iter().copied().eq(0..read.len() as u32)
    {
        fix += &format!("; or {}", fewer(facts, link, channels, read.len()));
    }
    report.push("queues", &link.name, State::Warn, reason, fix);
}

/// What leaves an interface so many receive queues.
fn fewer(facts: &Facts, link: &Link, channels: &Channels, queues: usize) -> String {
    let own = format!("ethtool -L {} {} {queues}", link.name, channels.word());
    if link.kind.as_deref() != Some("veth") {
        return own;
    }
    // drivers/net/veth.c, veth_set_channels: under XDP not fewer than the far end sends by.
    let seen = machine(facts, Program::default());
    let network = seen.network().ok();
    let far = network.and_then(|network| seen.far_end(network.interface(&link.name)?).ok());
    let far = far.and_then(|far| far.name).unwrap_or_else(|| "IFACE".into());
    format!("at the far end ethtool -L {far} tx {queues}, and then {own}")
}

/// Packets that were put together are longer than any frame.
fn merged(queue: &Queue, facts: &Facts, link: &Link, report: &mut Report) {
    let Some(offloads) = facts.offloads.get(&link.name) else {
        let reason = "whether packets are merged on reception cannot be read";
        let fix = format!("ethtool -k {}", link.name);
        return report.push("receive-offload", &link.name, State::Unknown, reason, fix);
    };
    let (what, fix) = match (offloads.lro, offloads.gro && !queue.native) {
        (true, _) => ("large receive offload merges packets in the driver", "lro"),
        // net/core/dev.c: generic programs run behind it.
        (_, true) => ("GRO merges packets before a generic program sees them", "gro"),
        _ => return report.ok("receive-offload", &link.name, "packets come as they were sent"),
    };
    let reason = format!("{what}: longer than a frame, they may be dropped");
    let fix = format!("ethtool -K {} {fix} off", link.name);
    report.push("receive-offload", &link.name, State::Warn, reason, fix);
}

fn mtu(queue: &Queue, link: &Link, report: &mut Report) {
    let longest = link.mtu.saturating_add(FRAMING);
    let room = queue.room_bytes;
    let reason = match (longest <= room, queue.several_frames) {
        (true, _) => format!("{} fits: a frame has room for {room} bytes", link.mtu),
        (_, true) => format!("{}: packets over {room} bytes take several frames", link.mtu),
        _ => {
            let reason = format!(
                "{}: a frame has room for {room} bytes, and longer packets are dropped",
                link.mtu
            );
            let mut fix = format!("ip link set dev {} mtu {}", link.name, room - FRAMING);
            if longest <= room + SMALL_FRAME && room < SMALL_FRAME {
                fix = format!("start it with --frame-size 4096; or {fix}");
            }
            return report.push("mtu", &link.name, State::Warn, reason, fix);
        }
    };
    report.ok("mtu", &link.name, reason);
}

/// Documentation/networking/napi.rst: without these the driver's interrupts go on beside the program's calls.
fn busy_poll(queue: &Queue, facts: &Facts, link: &Link, report: &mut Report) {
    if !queue.busy_poll {
        return;
    }
    let name = &link.name;
    let seen = machine(facts, Program::default());
    let [defer, flush] = deferral(name).map(|path| seen.number(&path).ok());
    let set = format!(
        "echo 2 > /sys/class/net/{name}/napi_defer_hard_irqs; echo 200000 > /sys/class/net/{name}/gro_flush_timeout"
    );
    let (state, reason) = match (defer, flush) {
        (Some(1..), Some(1..)) => {
            return report.ok("busy-poll", name, "interrupts wait for the program's calls");
        }
        (Some(defer), Some(flush)) => (
            State::Warn,
            format!(
                "interrupts do not wait for the program's calls: napi_defer_hard_irqs is {defer} and gro_flush_timeout {flush}"
            ),
        ),
        _ => (
            State::Unknown,
            "whether interrupts wait for the program's calls cannot be read".into(),
        ),
    };
    report.push("busy-poll", name, state, reason, set);
}

/// What of an interface has interrupts wait for busy polling.
pub fn deferral(name: &str) -> [String; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"]
        .map(|file| format!("/sys/class/net/{name}/{file}"))
}

/// What a program could have from the driver beside packets.
fn metadata(queue: &Queue, link: &Link, report: &mut Report) {
    let driver = queue.driver.unwrap_or_default();
    let rx = driver.rx_hints.map(xdp_features::rx_hints);
    let tx = driver.tx_metadata.map(xdp_features::tx_metadata);
    let told = |names: &Option<Vec<&str>>, since| match names.as_deref() {
        None => format!("unknown, kernel too old (it takes {since})"),
        Some([]) => "none".to_owned(),
        Some(names) => names.join(", "),
    };
    let state = if rx.is_some() && tx.is_some() { State::Ok } else { State::Unknown };
    let reason = format!("RX hints: {}; TX metadata: {}", told(&rx, "6.7"), told(&tx, "6.8"));
    report.push("metadata", &link.name, state, reason, "");
}

/// drivers/net/veth.c: without NAPI at the far end, what is sent waits in that CPU's backlog. What a stack there sends
/// has unfinished checksums, unless it is told to finish them.
fn far_end(facts: &Facts, link: &Link, report: &mut Report) {
    let name = &link.name;
    let seen = machine(facts, Program::default());
    let far = seen.network().ok().and_then(|network| network.interface(name));
    let Some(far) = far.and_then(|one| seen.far_end(one).ok()) else {
        let reason = "what its far end is like cannot be seen";
        return report.push("veth-peer", name, State::Unknown, reason, "");
    };
    let (state, reason) = match far.polls {
        Some(true) => (State::Ok, "the far end polls: it has GRO or native XDP"),
        Some(false) => (
            State::Ok,
            "the far end does not poll: what is sent goes through its CPU's backlog, slower",
        ),
        None => (State::Unknown, "whether the far end polls cannot be seen"),
    };
    report.push("veth-peer", name, state, reason, "");
    let peer = far.name.as_deref().unwrap_or("IFACE");
    let fix = format!("where a host's own stack sends into the far end: ethtool -K {peer} tx off");
    let (state, reason, fix) = match far.unfinished {
        Some(false) => return report.ok("checksum-offload", name, format!("peer {peer} is fine")),
        Some(true) => (
            State::Warn,
            "the far end leaves checksums unfinished: packets of its own stack arrive so",
            fix,
        ),
        None => (
            State::Unknown,
            "cannot see whether the far end of this veth pair leaves checksums unfinished",
            fix,
        ),
    };
    report.push("checksum-offload", name, state, reason, fix);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_host::ethtool::Offloads;
    use ringway_host::netlink::xdp_features::XdpFeatures;

    fn machine(change: impl FnOnce(&mut Facts, &mut Link)) -> Facts {
        let mut link = ringway_host::netlink::links::by_name("lo").unwrap();
        (link.name, link.mtu) = ("eth0".into(), 1500);
        let mut facts = Facts::default();
        facts.drivers.insert("eth0".into(), "ice".into());
        facts.offloads.insert("eth0".into(), Offloads::default());
        facts.channels.insert("eth0".into(), Channels { rx: 1, ..Channels::default() });
        facts.features.insert("eth0".into(), XdpFeatures(15));
        change(&mut facts, &mut link);
        facts.links.push(link);
        facts
    }

    fn queue(number: u32) -> Queue {
        Queue {
            interface: "eth0".into(),
            number,
            native: true,
            zero_copy: true,
            chosen: false,
            busy_poll: false,
            several_frames: false,
            room_bytes: 1792,
            driver: Some(Features {
                rx_hints: Some(0),
                tx_metadata: Some(0),
                ..Features::default()
            }),
        }
    }

    /// What is not as it should be, and what to do.
    fn found(facts: &Facts, queues: &[Queue]) -> Vec<(&'static str, String)> {
        let mut report = Report::default();
        check(queues, facts, &mut report);
        let bad = report.findings.iter().filter(|finding| finding.state != State::Ok);
        bad.map(|finding| (finding.check, finding.to_string())).collect()
    }

    #[test]
    fn all_is_well() {
        assert_eq!(found(&machine(|_, _| ()), &[queue(0)]), []);
        // What was asked for is not advised against.
        for native in [false, true] {
            let chosen = Queue { native, zero_copy: false, chosen: true, ..queue(0) };
            assert_eq!(found(&machine(|_, _| ()), &[chosen]), []);
        }
        let waits = machine(|facts, _| {
            deferral("eth0").iter().for_each(|path| facts.files.put(path, "200"));
        });
        assert_eq!(found(&waits, &[Queue { busy_poll: true, ..queue(0) }]), []);
    }

    /// Fewer queues than the first ones cannot be had, and a veth has to be asked at its far end first.
    #[test]
    fn fewer_queues_by_driver() {
        let channels = Channels { rx: 4, apart: true, ..Channels::default() };
        let veth = machine(|facts, link| {
            facts.channels.insert("eth0".into(), channels);
            link.kind = Some("veth".into());
        });
        let queues = |facts: &Facts, read: &[u32]| {
            let read: Vec<_> = read.iter().map(|number| queue(*number)).collect();
            let found = found(facts, &read);
            found.into_iter().find(|(check, _)| *check == "queues").unwrap().1
        };
        let said = queues(&veth, &[0, 1]);
        assert!(
            said.contains("at the far end ethtool -L IFACE tx 2, and then ethtool -L eth0 rx 2"),
            "{said}"
        );
        let said = queues(&veth, &[1]);
        assert!(said.ends_with("to do: af_xdp:eth0:all reads all"), "{said}");
        let silent = machine(|facts, link| {
            facts.channels.clear();
            link.rx_queues = 4;
        });
        let said = queues(&silent, &[0]);
        assert!(said.ends_with("to do: af_xdp:eth0:all reads all"), "{said}");
    }

    #[test]
    fn each_trouble_is_named_with_what_to_do() {
        let generic = Queue { native: false, zero_copy: false, ..queue(0) };
        let channels = |rx| Channels { rx, ..Channels::default() };
        type Change = Box<dyn Fn(&mut Facts, &mut Link)>;
        let rows: Vec<(Change, Queue, &str, &str)> = vec![
            (
                Box::new(|_, _| ()),
                Queue { zero_copy: false, ..queue(0) },
                "copy-mode",
                "`,zero-copy`",
            ),
            (Box::new(|_, _| ()), generic.clone(), "copy-mode", "`,native`"),
            (
                Box::new(move |facts, _| facts.channels.extend([("eth0".into(), channels(4))])),
                queue(1),
                "queues",
                "0, 2, 3 goes to the kernel",
            ),
            (
                Box::new(|facts, _| facts.offloads.get_mut("eth0").unwrap().lro = true),
                queue(0),
                "receive-offload",
                "ethtool -K eth0 lro off",
            ),
            (
                Box::new(move |facts, _| {
                    facts.channels.insert("eth0".into(), channels(4));
                }),
                queue(0),
                "queues",
                "reads all; or ethtool -L eth0 combined 1",
            ),
            (
                Box::new(|facts, link| {
                    let channels = Channels { rx: 4, apart: true, ..Channels::default() };
                    facts.channels.insert("eth0".into(), channels);
                    link.kind = Some("gve".into());
                }),
                queue(0),
                "queues",
                "reads all; or ethtool -L eth0 rx 1",
            ),
            (
                Box::new(|_, _| ()),
                Queue { busy_poll: true, ..queue(0) },
                "busy-poll",
                "cannot be read\n  to do: echo 2 > /sys/class/net/eth0/napi_defer_hard_irqs; echo 200000 > /sys/class/net/eth0/gro_flush_timeout",
            ),
            (
                Box::new(|facts, _| {
                    let [defer, flush] = deferral("eth0");
                    facts.files.put(&defer, "2");
                    facts.files.put(&flush, "0");
                }),
                Queue { busy_poll: true, ..queue(0) },
                "busy-poll",
                "napi_defer_hard_irqs is 2 and gro_flush_timeout 0",
            ),
            (
                Box::new(|_, link| link.mtu = 9000),
                queue(0),
                "mtu",
                "to do: ip link set dev eth0 mtu 1774",
            ),
            (
                Box::new(|_, link| link.mtu = 3800),
                queue(0),
                "mtu",
                "start it with --frame-size 4096; or ip link",
            ),
            (
                Box::new(|facts, _| facts.features.clear()),
                Queue { zero_copy: false, ..queue(0) },
                "copy-mode",
                "6.3",
            ),
        ];
        for (change, queue, check, fix) in rows {
            let found = found(&machine(change), &[queue]);
            let [(which, text)] = found.as_slice() else { panic!("{check}: {found:?}") };
            assert!(*which == check && text.contains(fix), "{check}: {text}");
        }
        for (driver, said) in [
            (queue(0).driver, "RX hints: none; TX metadata: none"),
            (
                Some(Features { rx_hints: Some(7), tx_metadata: Some(3), ..Features::default() }),
                "RX hints: timestamp, hash, vlan-tag; TX metadata: tx-timestamp, tx-checksum",
            ),
            (
                Some(Features { rx_hints: Some(2), ..Features::default() }),
                "RX hints: hash; TX metadata: unknown, kernel too old (it takes 6.8)",
            ),
            (None, "RX hints: unknown, kernel too old (it takes 6.7); TX metadata: unknown"),
        ] {
            let mut report = Report::default();
            check(&[Queue { driver, ..queue(0) }], &machine(|_, _| ()), &mut report);
            let finding = report.findings.iter().find(|f| f.check == "metadata").unwrap();
            assert!(finding.to_string().contains(said), "{finding}");
            assert_eq!(finding.state == State::Unknown, said.contains("unknown"));
        }
        // Behind GRO, and nothing else to choose.
        let facts = machine(|facts, _| {
            facts.features.clear();
            facts.offloads.get_mut("eth0").unwrap().gro = true;
        });
        let found = found(&facts, &[generic]);
        assert!(found.len() == 1 && found[0].1.contains("eth0 gro off"), "{found:?}");
    }
}
