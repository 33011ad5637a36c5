//! Rules about interfaces whose queues a packet program in user space reads (`ringway engine`):
//! looked at when they are open.

use std::collections::BTreeSet;

use ringway_host::ethtool::Channels;
use ringway_host::netlink::xdp_features::{self, Features};
use ringway_host::{Host, Interface};

use crate::outcome::MACHINE;
use crate::{Facts, Fix, Outcome, Report, Sample, Severity};

/// An AF_XDP socket's queue, as it was obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    pub interface: String,
    pub number: u32,
    /// The program runs in the driver.
    pub native: bool,
    /// The driver puts packets into the program's memory itself.
    pub zero_copy: bool,
    /// The user asked for generic mode, or for copies.
    pub chosen: bool,
    /// The driver is to work within the program's calls.
    pub busy_poll: bool,
    /// Packets may be longer than a frame.
    pub several_frames: bool,
    /// Bytes of a packet that a frame has room for.
    pub room_bytes: u32,
    /// Its driver's features; none where the kernel does not tell.
    pub driver: Option<Features>,
}

/// Bytes of a frame, unless twice as many are asked for.
const SMALL_FRAME: u32 = 2048;

/// Ethernet's header, and a tag.
const FRAMING: u32 = 18;

/// Findings about the interfaces whose queues a packet program reads. Changes nothing.
pub fn check(queues: &[Queue]) -> Report {
    let network = match Host::live().network() {
        Ok(network) => network,
        Err(error) => {
            let mut report = Report::default();
            report.push("facts", Outcome::unknown(MACHINE, error.to_string()));
            return report;
        }
    };
    let mut files = Sample::default();
    for path in queues.iter().flat_map(|queue| deferral(&queue.interface)) {
        let text = Host::live().source().read(&path);
        text.into_iter().for_each(|text| files.put(&path, text));
    }
    let features = xdp_features::all().ok().flatten().unwrap_or_default();
    judge(queues, &Facts::known(files, network, features))
}

/// Every rule, interface by interface.
fn judge(queues: &[Queue], facts: &Facts) -> Report {
    let names: BTreeSet<&str> = queues.iter().map(|queue| queue.interface.as_str()).collect();
    let mut report = Report::default();
    for name in names {
        let one = facts.network().ok().and_then(|network| network.interface(name));
        let of_interface = || queues.iter().filter(|queue| queue.interface == name);
        // One program and one driver: alike for all of them.
        let (Some(one), Some(first)) = (one, of_interface().next()) else { continue };
        let read = of_interface().map(|queue| queue.number).collect();
        report.push("copy-mode", copies(first, facts, one));
        report.push("queues", unread(&read, facts, one));
        report.push("receive-offload", merged(first, one));
        report.push("mtu", mtu(first, one));
        if first.busy_poll {
            report.push("busy-poll", busy_poll(facts, name));
        }
        report.push("metadata", metadata(first));
        if one.link.kind.as_deref() == Some("veth") {
            far_end(facts, one, &mut report);
        }
    }
    report
}

fn copies(queue: &Queue, facts: &Facts, one: &Interface) -> Outcome {
    let name = &one.link.name;
    let driver = one.driver.as_ref().map_or("unknown", |driver| &driver.name);
    match (queue.native, facts.xdp_features(one)) {
        _ if queue.zero_copy => Outcome::ok(
            name,
            format!("zero-copy: driver {driver} puts packets where the program is"),
        ),
        (native, _) if queue.chosen => {
            let how = if native { "copied" } else { "generic and copied" };
            Outcome::ok(name, format!("{how}, as it was asked for"))
        }
        (false, Some(features)) if features.native() => {
            let said = format!("generic and copied, though driver {driver} has native XDP");
            let advice = "write `,native` behind the port: the engine then says what prevents it";
            Outcome::warn(name, said).advice(advice)
        }
        (false, _) => Outcome::ok(name, "generic: copied, and behind the driver"),
        (true, Some(features)) if features.zero_copy() => {
            let said = format!("copied, though driver {driver} has zero-copy");
            let advice =
                "write `,zero-copy` behind the port: the engine then says what prevents it";
            Outcome::warn(name, said).advice(advice)
        }
        (true, Some(_)) => Outcome::ok(name, format!("copied: driver {driver} has no zero-copy")),
        (true, None) => {
            let said = format!(
                "copied; whether driver {driver} has zero-copy cannot be asked before Linux 6.3"
            );
            Outcome::new(Severity::Unknown, name, said)
        }
    }
}

/// The NIC spreads packets over all queues, read or not.
fn unread(read: &BTreeSet<u32>, facts: &Facts, one: &Interface) -> Outcome {
    let name = &one.link.name;
    let count = one.channels.map_or(one.link.rx_queues, |channels| channels.rx);
    let list =
        |queues: Vec<u32>| queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let reads = list(read.iter().copied().collect());
    let unread: Vec<u32> = (0..count).filter(|queue| !read.contains(queue)).collect();
    if unread.is_empty() {
        return Outcome::ok(name, format!("all are read ({reads})"));
    }
    let said = format!(
        "it has {count}, and {reads} is read here: what the NIC puts into {} goes to the kernel",
        list(unread)
    );
    let driver = one.driver.as_ref().map(|driver| driver.name.as_str());
    if let (Some("virtio_net"), Some(channels)) = (driver, &one.channels)
        && channels.rx < channels.max_rx
    {
        // drivers/net/virtio_net.c, virtnet_xdp_set: some of them came with the program.
        let all = Fix::ethtool("-L", name, format!("combined {}", channels.max_rx));
        let advice = format!("before the start {all}, and then af_xdp:{name}:all");
        return Outcome::warn(name, said).advice(advice);
    }
    let mut advice = format!("af_xdp:{name}:all reads all");
    // Those above are what a driver gives up.
    if let Some(channels) = &one.channels
        && read.iter().copied().eq(0..read.len() as u32)
    {
        advice += &format!("; or {}", fewer(facts, one, channels, read.len()));
    }
    Outcome::warn(name, said).advice(advice)
}

/// Reduces an interface to so many receive queues.
fn fewer(facts: &Facts, one: &Interface, channels: &Channels, queues: usize) -> String {
    let set = |name: &str, word| Fix::ethtool("-L", name, format!("{word} {queues}"));
    let own = set(&one.link.name, channels.word());
    if one.link.kind.as_deref() != Some("veth") {
        return own.to_string();
    }
    // drivers/net/veth.c, veth_set_channels: under XDP not fewer than the far end sends by.
    let far = facts.far_end(one).ok().and_then(|far| far.name).unwrap_or_else(|| "IFACE".into());
    format!("at the far end {}, and then {own}", set(&far, "tx"))
}

/// Packets that were put together are longer than any frame.
fn merged(queue: &Queue, one: &Interface) -> Outcome {
    let name = &one.link.name;
    let (what, feature) = match (one.offloads.lro, one.offloads.gro && !queue.native) {
        (true, _) => ("large receive offload merges packets in the driver", "lro"),
        // net/core/dev.c: generic programs run behind it.
        (_, true) => ("GRO merges packets before a generic program sees them", "gro"),
        _ => return Outcome::ok(name, "packets come as they were sent"),
    };
    Outcome::warn(name, format!("{what}: longer than a frame, they may be dropped")).ethtool(
        "-K",
        name,
        format!("{feature} off"),
        format!("{feature} on"),
    )
}

fn mtu(queue: &Queue, one: &Interface) -> Outcome {
    let (name, mtu, room) = (&one.link.name, one.link.mtu, queue.room_bytes);
    let longest = mtu.saturating_add(FRAMING);
    if longest <= room {
        return Outcome::ok(name, format!("{mtu} fits: a frame has room for {room} bytes"));
    }
    if queue.several_frames {
        return Outcome::ok(name, format!("{mtu}: packets over {room} bytes take several frames"));
    }
    let said = format!("{mtu}: a frame has room for {room} bytes, and longer packets are dropped");
    let seen = Outcome::warn(name, said);
    let set = |mtu| Fix::link(name, format!("mtu {mtu}"));
    if longest <= room + SMALL_FRAME && room < SMALL_FRAME {
        let set = set(room - FRAMING);
        return seen.advice(format!("start it with --frame-size 4096; or {set}"));
    }
    seen.fix(set(room - FRAMING), set(mtu))
}

/// Documentation/networking/napi.rst: without these the driver's interrupts go on beside the
/// program's calls.
fn busy_poll(facts: &Facts, name: &str) -> Outcome {
    let paths = deferral(name);
    match paths.each_ref().map(|path| facts.number(path).ok()) {
        [Some(1..), Some(1..)] => Outcome::ok(name, "interrupts wait for the program's calls"),
        [Some(defer), Some(flush)] => {
            let said = format!(
                "interrupts do not wait for the program's calls: napi_defer_hard_irqs is {defer} and gro_flush_timeout {flush}"
            );
            let seen = Outcome::warn(name, said);
            seen.write(&paths[0], 2, defer).write(&paths[1], 200_000, flush)
        }
        _ => {
            let said = "whether interrupts wait for the program's calls cannot be read";
            let [defer, flush] = paths;
            let set = Fix::Sequence(vec![Fix::write(defer, 2), Fix::write(flush, 200_000)]);
            Outcome::new(Severity::Unknown, name, said).advice(set)
        }
    }
}

/// Settings of an interface that delay interrupts for busy polling.
fn deferral(name: &str) -> [String; 2] {
    ["napi_defer_hard_irqs", "gro_flush_timeout"]
        .map(|file| format!("/sys/class/net/{name}/{file}"))
}

/// Metadata that the driver could give a program beside packets.
fn metadata(queue: &Queue) -> Outcome {
    let driver = queue.driver.unwrap_or_default();
    let rx = driver.rx_hints.map(xdp_features::rx_hints);
    let tx = driver.tx_metadata.map(xdp_features::tx_metadata);
    let told = |names: &Option<Vec<&str>>, since| match names.as_deref() {
        None => format!("unknown, kernel too old (it takes {since})"),
        Some([]) => "none".to_owned(),
        Some(names) => names.join(", "),
    };
    let severity = if rx.is_some() && tx.is_some() { Severity::Ok } else { Severity::Unknown };
    let said = format!("RX hints: {}; TX metadata: {}", told(&rx, "6.7"), told(&tx, "6.8"));
    Outcome::new(severity, &queue.interface, said)
}

/// drivers/net/veth.c: without NAPI at the far end, what is sent waits in that CPU's backlog. What
/// a stack there sends has unfinished checksums, unless it is told to finish them.
fn far_end(facts: &Facts, one: &Interface, report: &mut Report) {
    let name = &one.link.name;
    let Ok(far) = facts.far_end(one) else {
        let said = "what its far end is like cannot be seen";
        return report.push("veth-peer", Outcome::unknown(name, said));
    };
    let (severity, said) = match far.polls {
        Some(true) => (Severity::Ok, "the far end polls: it has GRO or native XDP"),
        Some(false) => (
            Severity::Ok,
            "the far end does not poll: what is sent goes through its CPU's backlog, slower",
        ),
        None => (Severity::Unknown, "whether the far end polls cannot be seen"),
    };
    let peer = far.name.as_deref().unwrap_or("IFACE");
    let off = Fix::ethtool("-K", peer, "tx off");
    let advice = format!("where a host's own stack sends into the far end: {off}");
    let checksums = match far.unfinished {
        Some(false) => Outcome::ok(name, format!("peer {peer} is fine")),
        Some(true) => Outcome::warn(
            name,
            "the far end leaves checksums unfinished: packets of its own stack arrive so",
        )
        .advice(advice),
        None => Outcome::new(
            Severity::Unknown,
            name,
            "cannot see whether the far end of this veth pair leaves checksums unfinished",
        )
        .advice(advice),
    };
    report.push("veth-peer", Outcome::new(severity, name, said));
    report.push("checksum-offload", checksums);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringway_host::Network;
    use ringway_host::ethtool::{Driver, Offloads};
    use ringway_host::netlink::xdp_features::XdpFeatures;

    use super::*;

    /// A machine whose features, interface and files a test changes.
    #[derive(Clone)]
    struct Seen {
        one: Interface,
        features: Option<XdpFeatures>,
        files: Sample,
    }

    fn machine(change: impl FnOnce(&mut Seen)) -> Facts {
        let mut link = ringway_host::netlink::links::by_name("lo").unwrap();
        (link.name, link.mtu) = ("eth0".into(), 1500);
        let one = Interface {
            driver: Some(Driver { name: "ice".into(), bus: String::new() }),
            channels: Some(Channels { rx: 1, ..Channels::default() }),
            offloads: Offloads::default(),
            carries_default_route: false,
            link,
        };
        let mut seen = Seen { one, features: Some(XdpFeatures(15)), files: Sample::default() };
        change(&mut seen);
        let Seen { one, features, files } = seen;
        let features = features.map(|features| (one.link.ifindex, features));
        let network = Network { interfaces: vec![one], ..Network::default() };
        Facts::known(files, network, BTreeMap::from_iter(features))
    }

    const FOUR: Channels = Channels { rx: 4, tx: 0, max_rx: 0, max_tx: 0, apart: false };

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

    /// Findings that are not well, with what to do.
    fn found(facts: &Facts, queues: &[Queue]) -> Vec<(&'static str, String)> {
        let report = judge(queues, facts);
        let bad = report.findings.iter().filter(|one| one.outcome.severity != Severity::Ok);
        bad.map(|one| (one.check, one.outcome.to_string())).collect()
    }

    #[test]
    fn all_is_well() {
        assert_eq!(found(&machine(|_| ()), &[queue(0)]), []);
        // There is no advice against an explicit choice.
        for native in [false, true] {
            let chosen = Queue { native, zero_copy: false, chosen: true, ..queue(0) };
            assert_eq!(found(&machine(|_| ()), &[chosen]), []);
        }
        let waits = machine(|seen| {
            deferral("eth0").iter().for_each(|path| seen.files.put(path, "200"));
        });
        assert_eq!(found(&waits, &[Queue { busy_poll: true, ..queue(0) }]), []);
    }

    /// Fewer queues than the first ones cannot be had, and a veth has to be asked at its far end
    /// first.
    #[test]
    fn fewer_queues_by_driver() {
        let veth = machine(|seen| {
            seen.one.channels = Some(Channels { apart: true, ..FOUR });
            seen.one.link.kind = Some("veth".into());
        });
        let queues = |facts: &Facts, read: &[u32]| {
            let read: Vec<_> = read.iter().map(|number| queue(*number)).collect();
            let found = found(facts, &read);
            found.into_iter().find(|(check, _)| *check == "queues").unwrap().1
        };
        let said = queues(&veth, &[0, 1]);
        let words = "at the far end ethtool -L IFACE tx 2, and then ethtool -L eth0 rx 2";
        assert!(said.contains(words), "{said}");
        let said = queues(&veth, &[1]);
        assert!(said.ends_with("to do: af_xdp:eth0:all reads all"), "{said}");
        let silent = machine(|seen| {
            seen.one.channels = None;
            seen.one.link.rx_queues = 4;
        });
        let said = queues(&silent, &[0]);
        assert!(said.ends_with("to do: af_xdp:eth0:all reads all"), "{said}");
    }

    #[test]
    fn each_trouble_is_named_with_what_to_do() {
        let generic = Queue { native: false, zero_copy: false, ..queue(0) };
        let copies = Queue { zero_copy: false, ..queue(0) };
        let polls = Queue { busy_poll: true, ..queue(0) };
        let deferred = "cannot be read\n  to do: echo 2 > /sys/class/net/eth0/napi_defer_hard_irqs; \
                        echo 200000 > /sys/class/net/eth0/gro_flush_timeout";
        type Change = fn(&mut Seen);
        let four_apart: Change = |seen| {
            seen.one.channels = Some(Channels { apart: true, ..FOUR });
            seen.one.link.kind = Some("gve".into());
        };
        let no_flush: Change = |seen| {
            let [defer, flush] = deferral("eth0");
            seen.files.put(&defer, "2");
            seen.files.put(&flush, "0");
        };
        let four: Change = |seen| seen.one.channels = Some(FOUR);
        let lro: Change = |seen| seen.one.offloads.lro = true;
        let jumbo: Change = |seen| seen.one.link.mtu = 9000;
        let larger: Change = |seen| seen.one.link.mtu = 3800;
        let rows: [(Change, Queue, &str, &str); 11] = [
            (|_| (), copies.clone(), "copy-mode", "`,zero-copy`"),
            (|_| (), generic.clone(), "copy-mode", "`,native`"),
            (|seen| seen.features = None, copies, "copy-mode", "6.3"),
            (four, queue(1), "queues", "0, 2, 3 goes to the kernel"),
            (four, queue(0), "queues", "reads all; or ethtool -L eth0 combined 1"),
            (four_apart, queue(0), "queues", "reads all; or ethtool -L eth0 rx 1"),
            (lro, queue(0), "receive-offload", "ethtool -K eth0 lro off"),
            (|_| (), polls.clone(), "busy-poll", deferred),
            (no_flush, polls, "busy-poll", "napi_defer_hard_irqs is 2 and gro_flush_timeout 0"),
            (jumbo, queue(0), "mtu", "to do: ip link set dev eth0 mtu 1774"),
            (larger, queue(0), "mtu", "start it with --frame-size 4096; or ip link"),
        ];
        for (change, queue, check, fix) in rows {
            let found = found(&machine(change), &[queue]);
            let [(which, text)] = found.as_slice() else { panic!("{check}: {found:?}") };
            assert!(*which == check && text.contains(fix), "{check}: {text}");
        }
        let features = |rx_hints, tx_metadata| {
            Some(Features { rx_hints: Some(rx_hints), tx_metadata, ..Features::default() })
        };
        for (driver, said) in [
            (features(0, Some(0)), "RX hints: none; TX metadata: none"),
            (
                features(7, Some(3)),
                "RX hints: timestamp, hash, vlan-tag; TX metadata: tx-timestamp, tx-checksum",
            ),
            (
                features(2, None),
                "RX hints: hash; TX metadata: unknown, kernel too old (it takes 6.8)",
            ),
            (None, "RX hints: unknown, kernel too old (it takes 6.7); TX metadata: unknown"),
        ] {
            let report = judge(&[Queue { driver, ..queue(0) }], &machine(|_| ()));
            let one = report.findings.iter().find(|one| one.check == "metadata").unwrap();
            let one = &one.outcome;
            assert!(one.to_string().contains(said), "{one}");
            assert_eq!(one.severity == Severity::Unknown, said.contains("unknown"));
        }
        // Behind GRO, and nothing else to choose.
        let facts = machine(|seen| {
            seen.features = None;
            seen.one.offloads.gro = true;
        });
        let found = found(&facts, &[generic]);
        assert!(found.len() == 1 && found[0].1.contains("eth0 gro off"), "{found:?}");
    }
}
