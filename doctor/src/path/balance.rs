//! Received packets, what became of them, and what is not accounted for.

use std::collections::BTreeMap;

use ringway_host::Interface;
use ringway_host::netlink::counters::Stats;
use ringway_host::netlink::links::XdpMode;
use serde::Serialize;

use super::steps::after_queue;
use super::{Loss, Reached, Samples, Scope, SeenAt, Step, counters, upper_devices};
use crate::Unknown;

/// EtherTypes of tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// EtherTypes of IP.
const IP: [u16; 2] = [0x0800, 0x86dd];

/// Received packets, and what became of them: what came in is the sum of all but `others`, which
/// came in by other interfaces and is in these sums.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PacketBalance {
    /// Came in, lost in the ring or not.
    pub received: u64,
    /// Received by other interfaces, and counted below; absent where they were told apart.
    pub others: Option<u64>,
    /// Lost, at all steps.
    pub lost: u64,
    /// An XDP program dropped, sent back or redirected them.
    pub taken_by_xdp: u64,
    /// Went on as part of another packet (GRO).
    pub joined: u64,
    /// Put before another interface's queue.
    pub passed_on: Option<u64>,
    /// Handed up to the bridge or bond that it is a port of, or to VLAN devices and others upon it.
    pub handed_up: Option<u64>,
    /// Reached a socket, or what in the kernel answers without one.
    pub delivered: Option<u64>,
    /// The difference; negative: more packets are accounted for than came in. Absent where one of
    /// these is not known.
    pub rest: Option<i64>,
    /// The same of what came in, in percent.
    pub rest_percent: Option<f64>,
}

/// Steps with what reached them and what was lost.
pub(super) fn steps(samples: &Samples) -> Vec<Reached> {
    let (before, after) = (&samples.before, &samples.after);
    let mut lost: BTreeMap<Step, Vec<Loss>> = BTreeMap::new();
    lost.insert(Step::Ring, counters::of_ring(before, after));
    match &samples.trace {
        Some(_) => {
            for (step, loss) in traced(samples, samples.interface.link.ifindex) {
                lost.entry(step).or_default().push(loss);
            }
        }
        None => untraced(samples, &mut lost),
    }
    let taken = driver_xdp(samples).unwrap_or_default();
    if !taken.is_empty() {
        // The trace may have seen packets that the driver counts.
        let seen = lost.remove(&Step::Xdp).unwrap_or_default().into_iter().map(Loss::uncounted);
        lost.insert(Step::Xdp, taken.into_iter().chain(seen).collect());
    }
    let sockets = counters::sockets(samples.facts).into_iter().map(Loss::uncounted);
    lost.entry(Step::Socket).or_default().extend(sockets);
    // A device upon another one has no ring of its own.
    let first = if upper_devices::is_carried(samples.interface) { Step::Upon } else { Step::Ring };
    let order = [first, Step::Xdp, Step::Stack, Step::Ip, Step::Protocol, Step::Socket, Step::Copy];
    let one = |step: Step| {
        let mut losses = lost.remove(&step).unwrap_or_default();
        losses.retain(|loss| loss.packets > 0);
        losses.sort_by_key(|loss| (!loss.counted, std::cmp::Reverse(loss.packets)));
        let counted = losses.iter().filter(|loss| loss.counted).map(|loss| loss.packets);
        let (packets, scope) = reached(samples, step);
        Reached { step, packets, scope, lost: counted.sum(), losses }
    };
    let steps = order.into_iter().map(one);
    // Nobody's but those of a ring, and generic XDP.
    let beside = |step| step == Step::Copy || step == Step::Xdp && first == Step::Upon;
    steps.filter(|one| !beside(one.step) || !one.losses.is_empty()).collect()
}

/// Losses on the receive path that were seen at tracepoints.
fn traced(samples: &Samples, ifindex: u32) -> Vec<(Step, Loss)> {
    let Some(trace) = &samples.trace else { return Vec::new() };
    let mut found = Vec::new();
    for at in [SeenAt::Lost, SeenAt::LostNear] {
        for seen in trace.at(at, ifindex) {
            let step = match at {
                SeenAt::LostNear => Step::of_near(&seen.reason, &seen.function),
                _ => match Step::of(&seen.reason, &seen.function) {
                    // It was to be passed on.
                    Step::Out => Step::Ip,
                    step => step,
                },
            };
            if step == Step::Out {
                continue;
            }
            let function = Some(seen.function.clone()).filter(|name| !name.is_empty());
            let loss = Loss::new(&seen.reason, seen.all(), Scope::Interface);
            let counted = step != Step::Copy;
            found.push((step, Loss { function, counted, ..loss }));
        }
    }
    found
}

/// This host's own packets that were lost on their way out of the interface.
pub(super) fn lost_out(samples: &Samples) -> Vec<Loss> {
    let Some(trace) = &samples.trace else { return Vec::new() };
    let near = trace.at(SeenAt::LostNear, samples.interface.link.ifindex);
    let out = near.filter(|seen| Step::of_near(&seen.reason, &seen.function) == Step::Out);
    let loss = |seen: &super::Seen| Loss {
        function: Some(seen.function.clone()),
        ..Loss::new(&seen.reason, seen.all(), Scope::Interface)
    };
    out.map(loss).collect()
}

fn untraced(samples: &Samples, lost: &mut BTreeMap<Step, Vec<Loss>>) {
    let dropped = samples.after.rx_dropped.saturating_sub(samples.before.rx_dropped);
    // A full backlog is in here, and so are protocols that nobody speaks; some drivers count what
    // XDP dropped.
    lost.entry(Step::Stack).or_default().push(Loss::new("rx_dropped", dropped, Scope::Interface));
    if let Ok(all) = samples.facts.softnet() {
        let sum = |of: fn(&crate::facts::Softnet) -> u64| all.iter().map(of).sum::<u64>();
        let rows = [
            ("backlog full (softnet_stat)", sum(|one| one.dropped.delta)),
            ("flow limit (softnet_stat)", sum(|one| one.flow_limited.delta)),
        ];
        let rows = rows.map(|(what, n)| Loss::new(what, n, Scope::Machine).uncounted());
        lost.entry(Step::Stack).or_default().extend(rows);
    }
    for (step, loss) in counters::losses(samples.facts) {
        lost.entry(step).or_default().push(loss);
    }
}

/// The driver's counters of an XDP program's verdicts, without those that let packets pass;
/// `None`: it has none.
fn driver_xdp(samples: &Samples) -> Option<Vec<Loss>> {
    const TAKEN: [&str; 7] = [
        "xdp_drop",
        "xdp_drops",
        "xdp_redirect",
        "xdp_redirects",
        "xdp_tx",
        "xdp_tx_xmit",
        "xdp_aborted",
    ];
    let path = format!("/ethtool/{}/statistics.json", samples.interface.link.name);
    let (before, after) = samples.facts.pair::<BTreeMap<String, u64>>(&path).ok()?;
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    // Packets of a queue for sending have been counted when they were received.
    for (name, now) in after.iter().filter(|(name, _)| !name.starts_with("tx")) {
        let Some(what) = TAKEN.iter().find(|what| name.ends_with(*what)) else { continue };
        let by = now.saturating_sub(before.get(name).copied().unwrap_or(*now));
        let sum = sums.entry(what).or_default();
        // Some have both: rx_xdp_drop, and rx0_xdp_drop of each queue.
        let of_queue = name.chars().any(|c| c.is_ascii_digit());
        if of_queue { sum.0 += by } else { sum.1 += by }
    }
    let loss = |(what, (queues, all)): (&str, (u64, u64))| {
        Loss::new(what, if all > 0 { all } else { queues }, Scope::Interface)
    };
    let counts = !sums.is_empty();
    counts.then(|| sums.into_iter().map(loss).filter(|loss| loss.packets > 0).collect())
}

fn reached(samples: &Samples, step: Step) -> (Option<u64>, Scope) {
    let ip = counters::ip(samples.facts).ok();
    let ifindex = samples.interface.link.ifindex;
    let received = samples.after.rx_packets - samples.before.rx_packets;
    let trace = samples.trace.as_ref();
    match step {
        Step::Ring => (Some(offered(samples)), Scope::Interface),
        Step::Xdp | Step::Upon => (Some(received), Scope::Interface),
        Step::Stack => (trace.map(|_| own(samples, ifindex).packets), Scope::Interface),
        Step::Ip if trace.is_some() => {
            let mine = own(samples, ifindex);
            (
                Some(mine.packets.saturating_sub(mine.not_ip_at_first + mine.handed_up)),
                Scope::Interface,
            )
        }
        Step::Ip => (ip.map(|ip| ip.received), Scope::Namespace),
        Step::Protocol => (ip.map(|ip| ip.delivered), Scope::Namespace),
        _ => (None, Scope::Namespace),
    }
}

/// Packets that came in, with those that the device lost.
fn offered(samples: &Samples) -> u64 {
    let ring: u64 =
        counters::of_ring(&samples.before, &samples.after).iter().map(|l| l.packets).sum();
    // A veth counts as received what the other end has sent, and that is not what its backlog had
    // no room for (drivers/net/veth.c, veth_xmit).
    let backlog: u64 = match samples.interface.link.kind.as_deref() {
        Some("veth") => traced(samples, samples.interface.link.ifindex)
            .iter()
            .filter(|(_, loss)| loss.what == "CPU_BACKLOG")
            .map(|(_, loss)| loss.packets)
            .sum(),
        _ => 0,
    };
    samples.after.rx_packets - samples.before.rx_packets + ring + backlog
}

pub(super) fn balance(samples: &Samples, steps: &[Reached]) -> PacketBalance {
    let received = offered(samples);
    let sum = |wanted: &dyn Fn(Step) -> bool| {
        steps.iter().filter(|one| wanted(one.step)).map(|one| one.lost).sum::<u64>()
    };
    let taken_by_xdp = sum(&|step| step == Step::Xdp);
    let lost = sum(&|step| step != Step::Xdp);
    let mut balance = PacketBalance {
        received,
        others: None,
        lost,
        taken_by_xdp,
        joined: 0,
        passed_on: None,
        handed_up: None,
        delivered: None,
        rest: None,
        rest_percent: None,
    };
    let filled = match &samples.trace {
        Some(_) => of_trace(samples, steps, &mut balance),
        None => of_counters(samples, steps, &mut balance),
    };
    if filled.is_ok() {
        close(&mut balance);
    }
    balance
}

fn close(balance: &mut PacketBalance) {
    let came = balance.received + balance.others.unwrap_or(0);
    let became =
        [Some(balance.lost), Some(balance.taken_by_xdp), Some(balance.joined), balance.passed_on];
    let became: u64 =
        became.into_iter().chain([balance.handed_up, balance.delivered]).flatten().sum();
    let rest = came as i64 - became as i64;
    balance.rest = Some(rest);
    balance.rest_percent = Some(rest as f64 * 100.0 / came.max(1) as f64);
}

/// Packets that the stack received from one interface of a trace, in skbs.
#[derive(Debug, Default)]
struct Own {
    packets: u64,
    segments: u64,
    not_ip: u64,
    /// The same with those that were lost.
    not_ip_at_first: u64,
    /// Went on to devices upon it.
    handed_up: u64,
    /// Lost before a protocol had it.
    early: u64,
    late: u64,
    /// Put before another's queue, and not lost there.
    passed_on: u64,
}

fn own(samples: &Samples, ifindex: u32) -> Own {
    let mut own = came_up(samples, ifindex);
    let Some(trace) = &samples.trace else { return own };
    own.handed_up = upper_devices::uppers(samples, ifindex).iter().map(|upper| upper.packets).sum();
    for seen in trace.at(SeenAt::Received, ifindex) {
        own.packets += seen.all();
        own.segments += seen.segments;
        // A tag of a VLAN device may be in the frame; the device counts it.
        let other = !IP.contains(&seen.protocol);
        let handed = own.handed_up > 0 && TAGS.contains(&seen.protocol);
        own.not_ip += if other && !handed { seen.all() } else { 0 };
    }
    own.not_ip_at_first = own.not_ip;
    let mut behind = 0;
    for seen in trace.at(SeenAt::Lost, ifindex) {
        match Step::of(&seen.reason, &seen.function) {
            Step::Copy => continue,
            Step::Protocol | Step::Socket if IP.contains(&seen.protocol) => own.late += seen.all(),
            Step::Out if after_queue(&seen.reason, &seen.function) => {
                own.early += seen.all();
                behind += seen.all();
            }
            _ => own.early += seen.all(),
        }
        if !IP.contains(&seen.protocol) {
            own.not_ip = own.not_ip.saturating_sub(seen.all());
        }
    }
    own.passed_on = trace.sum(SeenAt::PassedOn, ifindex).saturating_sub(behind);
    own
}

/// Packets from the device below, or from bundled ports, which no tracepoint sees.
fn came_up(samples: &Samples, ifindex: u32) -> Own {
    let mut own = Own::default();
    let Ok(network) = samples.facts.network() else { return own };
    let Some(one) = network.interface_by_index(ifindex) else { return own };
    if upper_devices::is_carried(one) {
        (own.packets, own.segments) = (
            upper_devices::received(samples.facts, one),
            upper_devices::received(samples.facts, one),
        );
    }
    if upper_devices::bundles(one) {
        // Bundles of bundles no kernel makes.
        for port in upper_devices::ports(network, one)
            .into_iter()
            .filter(|port| !upper_devices::bundles(port))
        {
            let port = self::own(samples, port.link.ifindex);
            own.packets +=
                port.packets.saturating_sub(port.early + port.passed_on + port.handed_up);
            own.segments += port.segments;
            own.not_ip += port.not_ip;
        }
    }
    own
}

fn of_trace(
    samples: &Samples,
    steps: &[Reached],
    balance: &mut PacketBalance,
) -> Result<(), Unknown> {
    let link = &samples.interface.link;
    let mine = own(samples, link.ifindex);
    let before: u64 = steps.iter().filter(|one| one.step == Step::Ring).map(|one| one.lost).sum();
    let near: u64 = traced_near(samples);
    // GRO joined at most what the segments show, and no more than what is missing.
    let missing =
        balance.received.saturating_sub(before + near + balance.taken_by_xdp + mine.packets);
    balance.joined = missing.min(mine.segments.saturating_sub(mine.packets));
    balance.passed_on = Some(mine.passed_on);
    if link.master.is_some() {
        balance.handed_up =
            Some(mine.packets.saturating_sub(mine.early + mine.late + mine.passed_on));
        return Ok(());
    }
    if mine.handed_up > 0 {
        balance.handed_up = Some(mine.handed_up);
    }
    let ip = counters::ip(samples.facts)?;
    let network = samples.facts.network()?;
    // Each packet that IP delivered came in by one of these.
    let others = network.interfaces.iter().filter(|one| one.link.ifindex != link.ifindex);
    let others = others.filter(|one| one.link.master.is_none()).map(|one| {
        let one = own(samples, one.link.ifindex);
        let stayed = one.packets.saturating_sub(one.not_ip + one.handed_up);
        stayed.saturating_sub(one.early + one.passed_on)
    });
    let to_protocols = ip.delivered.saturating_sub(others.sum());
    balance.delivered = Some((to_protocols + mine.not_ip).saturating_sub(mine.late));
    Ok(())
}

/// Lost before the stack knew of them, XDP's apart.
fn traced_near(samples: &Samples) -> u64 {
    let Some(trace) = &samples.trace else { return 0 };
    let near = trace.at(SeenAt::LostNear, samples.interface.link.ifindex);
    let early = |seen: &&super::Seen| Step::of_near(&seen.reason, &seen.function) == Step::Stack;
    near.filter(early).map(super::Seen::all).sum()
}

fn of_counters(
    samples: &Samples,
    steps: &[Reached],
    balance: &mut PacketBalance,
) -> Result<(), Unknown> {
    let name = &samples.interface.link.name;
    let network = samples.facts.network()?;
    let (before, after): (BTreeMap<String, Stats>, BTreeMap<String, Stats>) =
        samples.facts.pair("/netlink/stats.json")?;
    let of_other = |other: &String| {
        let received =
            |stats: &BTreeMap<String, Stats>| stats.get(other).map_or(0, |s| s.rx_packets);
        // A port's are those of its bridge, and what lies upon another device has its packets from
        // there.
        let twice = |one: &Interface| one.link.master.is_some() || upper_devices::is_carried(one);
        let twice = network.interface(other).is_some_and(twice);
        if other == name || twice { 0 } else { received(&after).saturating_sub(received(&before)) }
    };
    let others: u64 = after.keys().map(of_other).sum();
    let counted_below = upper_devices::lower(network, samples.interface).is_some();
    let own = if counted_below { balance.received } else { 0 };
    balance.others = Some(others.saturating_sub(own));
    let ip = counters::ip(samples.facts)?;
    let late = steps.iter().filter(|one| matches!(one.step, Step::Protocol | Step::Socket));
    let late: u64 = late.map(|one| one.lost).sum();
    balance.joined = ip.segments.saturating_sub(ip.received);
    balance.passed_on = Some(ip.forwarded);
    balance.delivered = Some(ip.delivered.saturating_sub(late));
    let became = balance.lost + balance.taken_by_xdp + ip.forwarded + ip.delivered - late;
    let came = balance.received + balance.others.unwrap_or(0);
    // A sender's own large packets look joined, too.
    balance.joined = balance.joined.min(came.saturating_sub(became));
    Ok(())
}

/// Notes about the sums.
pub(super) fn notes(samples: &Samples, balance: &PacketBalance) -> Vec<String> {
    let link = &samples.interface.link;
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    let native = link.xdp.first().filter(|xdp| xdp.mode != XdpMode::Generic);
    if let Some(xdp) = native.filter(|_| driver_xdp(samples).is_none()) {
        note(format!(
            "XDP program {} is attached, and the driver counts none of its verdicts: what it took is not accounted \
             for here; of Ringway's: `ringway status --ledger`",
            xdp.program
        ));
    }
    if let Some(master) =
        link.master.and_then(|index| samples.facts.network().ok()?.interface_by_index(index))
    {
        note(format!("it is a port of {}: what is handed up goes on there", master.link.name));
    }
    notes.extend(upper_devices::notes(samples));
    let mut note = |text: String| notes.push(text);
    if let Some(uncounted) = samples.trace.as_ref().map(|trace| trace.uncounted).filter(|n| *n > 0)
    {
        note(format!(
            "{uncounted} packets were of more kinds than there is room to count, and are not accounted for"
        ));
    }
    if balance.others.is_some_and(|others| others > 0) {
        note("packets of other interfaces are in counters marked *, and so in the sum".into());
    }
    if balance.rest.is_some_and(|rest| rest != 0) {
        let unnamed = if samples.trace.is_none() {
            "rules of nftables and tc drop without a counter; ARP is none of IP's; "
        } else {
            ""
        };
        note(format!(
            "not accounted for: {unnamed}counters are read one after the other while packets come; fragments become one \
             packet, broadcasts several"
        ));
    }
    notes
}
