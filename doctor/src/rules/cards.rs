//! Network cards: their state, link and slot, and their losses.

use std::collections::BTreeMap;

use ringway_host::ethtool::{LinkMode, Pause, Rings};

use crate::{Facts, Looked, Outcome, Rule, Severity, Unknown, each_interface};

pub const NIC_RINGS: Rule = Rule {
    number: 1,
    name: "nic-rings",
    rule: "a card that misses packets has its receive ring at 2048, or half of what it can",
    source: "a practice of many guides, confirmed by the card's own counters",
    why: "A burst that does not fit into the ring is lost; a larger ring absorbs it, and adds delay.",
    profiles: &[],
    check: nic_rings,
};

fn nic_rings(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |_, name| {
        let lost = facts.missed(name)?;
        let rings: Rings = match facts.ethtool(name, "rings") {
            // Then it does not matter.
            Err(_) if lost.delta == 0 => return Ok(Outcome::ok(name, "no packet was missed")),
            rings => rings?,
        };
        let wanted = rings.rx.max(2048.min(rings.max_rx / 2));
        if lost.delta == 0 || rings.rx >= rings.max_rx || wanted == rings.rx {
            return Ok(Outcome::ok(
                name,
                format!("{} of {} descriptors, {} missed", rings.rx, rings.max_rx, lost.delta),
            ));
        }
        let said = format!(
            "{} packets were missed with {} of {} descriptors",
            lost.delta, rings.rx, rings.max_rx
        );
        Ok(Outcome::warn(name, said)
            .counted(format!("ip -s -s link show {name}, missed and fifo"), lost.delta)
            .saw(format!("ethtool -g {name}, RX"), rings.rx)
            .ethtool("-G", name, format!("rx {wanted}"), format!("rx {}", rings.rx)))
    }))
}

pub const NIC_MISSED: Rule = Rule {
    number: 2,
    name: "nic-missed",
    rule: "rx_missed_errors and rx_fifo_errors do not grow",
    source: "netdata, alarm net_fifo; kernel documentation, networking/statistics",
    why: "The processor does not fetch packets as fast as they come: nobody above the card knows of them.",
    profiles: &[],
    check: nic_missed,
};

fn nic_missed(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |_, name| {
        let lost = facts.missed(name)?;
        let packets = facts.device_counter(name, |stats| stats.rx_packets)?;
        if lost.delta == 0 {
            return Ok(Outcome::ok(name, format!("none missed of {}", packets.delta)));
        }
        let of = packets.delta + lost.delta;
        // One in a thousand is felt.
        let severity = if lost.delta * 1000 > of { Severity::Crit } else { Severity::Warn };
        Ok(Outcome::new(severity, name, format!("{} of {of} packets were missed", lost.delta))
            .counted(format!("ip -s -s link show {name}, missed and fifo"), lost.delta)
            .advice("see the checks nic-rings (larger rings) and queue-count (more queues)"))
    }))
}

pub const FRAME_ERRORS: Rule = Rule {
    number: 4,
    name: "frame-errors",
    rule: "CRC, frame and length errors do not grow",
    source: "kernel documentation, networking/statistics",
    why: "Damaged frames are lost, and TCP slows down for each.",
    profiles: &[],
    check: frame_errors,
};

fn frame_errors(facts: &Facts) -> Looked {
    Ok(each_interface(facts.interfaces()?, |_, name| {
        let (before, after) = facts.device(name)?;
        let mut outcome = Outcome::warn(name, "frames arrive damaged");
        for (what, count) in [
            ("crc", after.rx_crc_errors - before.rx_crc_errors),
            ("frame", after.rx_frame_errors - before.rx_frame_errors),
            ("length", after.rx_length_errors - before.rx_length_errors),
        ] {
            if count > 0 {
                outcome = outcome.saw(format!("ip -s -s link show {name}, {what}"), count);
            }
        }
        let advice = "crc and frame: change the cable, then the transceiver; length: compare the MTUs of both ends";
        Ok(outcome.advice(advice).or_ok("no damaged frame"))
    }))
}

pub const LINK_MODE: Rule = Rule {
    number: 6,
    name: "link-mode",
    rule: "full duplex, and the best speed that both ends can",
    source: "IEEE 802.3, auto-negotiation",
    why: "At half duplex frames collide; a gigabit link that fell back to 100 Mbit/s mostly has a bad cable.",
    profiles: &[],
    check: link_mode,
};

fn link_mode(facts: &Facts) -> Looked {
    let cards = facts.cards()?.into_iter().filter(|card| card.link.up && card.link.carrier);
    Ok(each_interface(cards, |_, name| {
        let mode: LinkMode = facts.ethtool(name, "link_mode")?;
        if mode.speed_mbit.is_none() && mode.full_duplex.is_none() {
            return Err(crate::Unknown(format!(
                "ethtool {name}: the driver does not know its speed; that of a virtual machine's card has none"
            )));
        }
        let slow = mode.speed_mbit.zip(mode.best_mbit).is_some_and(|(speed, best)| speed < best);
        let half = mode.full_duplex == Some(false);
        if !slow && !half {
            let speed = mode.speed_mbit.map_or("unknown".into(), |mbit| format!("{mbit} Mbit/s"));
            return Ok(Outcome::ok(name, format!("speed {speed}")));
        }
        let mbit = mode.speed_mbit.unwrap_or_default();
        let duplex = if half { "half" } else { "full" };
        let outcome = Outcome::warn(
            name,
            format!("{mbit} Mbit/s at {duplex} duplex, and both ends can do better"),
        )
        .saw(format!("ethtool {name}, speed and duplex"), format!("{mbit} {duplex}"))
        .saw(format!("ethtool {name}, best common mode"), mode.best_mbit.unwrap_or_default());
        if mode.autoneg {
            return Ok(
                outcome.advice("they negotiated that: change the cable, look at the switch's port")
            );
        }
        let now = format!("autoneg off speed {mbit} duplex {duplex}");
        Ok(outcome.ethtool("-s", name, "autoneg on", now))
    }))
}

pub const PCIE_LINK: Rule = Rule {
    number: 7,
    name: "pcie-link",
    rule: "a card's PCIe link has the width and speed that the card can",
    source: "DPDK, Getting Started Guide for Linux: how to get best performance",
    why: "A slot half as wide carries half as much, and no counter of the network says so.",
    profiles: &[],
    check: pcie_link,
};

fn pcie_link(facts: &Facts) -> Looked {
    let pci = |bus: &str| bus.matches(':').count() == 2;
    let of_pci =
        |one: &&ringway_host::Interface| one.driver.as_ref().is_some_and(|driver| pci(&driver.bus));
    let cards = facts.cards()?.into_iter().filter(of_pci);
    Ok(each_interface(cards, |_, name| {
        let read = |key: &str| facts.text(&format!("/sys/class/net/{name}/device/{key}"));
        let (width, widest) = (read("current_link_width")?, read("max_link_width")?);
        let (speed, fastest) = (read("current_link_speed")?, read("max_link_speed")?);
        if width == widest && speed == fastest {
            return Ok(Outcome::ok(name, format!("{width} lanes at {speed}")));
        }
        Ok(Outcome::warn(name, format!("{width} lanes at {speed}; the card can {widest} at {fastest}"))
            .saw(format!("/sys/class/net/{name}/device/current_link_width"), width)
            .saw(format!("/sys/class/net/{name}/device/current_link_speed"), speed)
            .advice("take it out and put it in again, or into another slot; look at the firmware's settings"))
    }))
}

pub const PAUSE_FRAMES: Rule = Rule {
    number: 8,
    name: "pause-frames",
    rule: "no pause frames are sent or received",
    source: "IEEE 802.3, annex 31B; a practice of many guides",
    why: "One slow receiver holds up a whole switch; without flow control its packets are lost instead.",
    profiles: &[],
    check: pause_frames,
};

type Counters = BTreeMap<String, u64>;

fn pause_frames(facts: &Facts) -> Looked {
    Ok(each_interface(facts.cards()?, |_, name| {
        let (before, after): (Counters, Counters) =
            facts.pair(&format!("/ethtool/{name}/statistics.json"))?;
        let of_pause = |name: &str| name.contains("pause") || name.contains("flow_control");
        let sum = |all: &Counters| {
            all.iter()
                .filter(|(name, _)| of_pause(name))
                .map(|(_, n)| *n)
                .fold(0, u64::saturating_add)
        };
        let frames = sum(&after).saturating_sub(sum(&before));
        if frames == 0 {
            return Ok(Outcome::ok(name, "no pause frames"));
        }
        let outcome = Outcome::warn(name, format!("{frames} pause frames"))
            .saw(format!("ethtool -S {name}, pause or flow_control"), frames)
            .advice("only if losing packets is better than waiting: then turn it off");
        let word = |on: bool| if on { "on" } else { "off" };
        match facts.ethtool::<Pause>(name, "pause") {
            Ok(Pause { rx, tx }) if rx || tx => Ok(outcome.ethtool(
                "-A",
                name,
                "rx off tx off",
                format!("rx {} tx {}", word(rx), word(tx)),
            )),
            _ => Ok(outcome),
        }
    }))
}

pub const LINK_FLAPS: Rule = Rule {
    number: 9,
    name: "link-flaps",
    rule: "carrier_changes and tx_timeout do not grow",
    source: "Linux, Documentation/ABI/testing/sysfs-class-net and sysfs-class-net-queues",
    why: "While the link is away, or a queue hangs until the driver resets it, nothing passes.",
    profiles: &[],
    check: link_flaps,
};

fn link_flaps(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let mut found = each_interface(interfaces, |_, name| {
        let directory = format!("/sys/class/net/{name}");
        let changes = facts.counted(&format!("{directory}/carrier_changes"))?;
        let queues = facts.tx_queues(name)?;
        let timeout = |queue: &String| {
            Ok::<u64, Unknown>(
                facts.counted(&format!("{directory}/queues/{queue}/tx_timeout"))?.delta,
            )
        };
        let timeouts = queues.iter().map(timeout).sum::<Result<u64, Unknown>>()?;
        if changes.delta + timeouts == 0 {
            return Ok(Outcome::ok(name, "steady"));
        }
        let said = format!(
            "its carrier changed {} times, and queues hung {timeouts} times",
            changes.delta
        );
        Ok(Outcome::warn(name, said)
            .counted(format!("{directory}/carrier_changes"), changes.delta)
            .saw(format!("{directory}/queues/tx-*/tx_timeout"), timeouts)
            .advice("cable, transceiver, the switch's port; then the card's firmware and driver"))
    });
    let gone = |name: String| {
        Outcome::info(&name, format!("{name} went away while it was looked at, or was renamed"))
            .saw("ip -s link show, of the first look alone", &name)
    };
    match facts.gone() {
        Ok(names) => found.extend(names.into_iter().map(gone)),
        Err(why) => found.push(Outcome::unknown("interfaces that went away", why)),
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn only_with_losses() {
        let lossy = |rx: u32| {
            let rings = Rings { rx, tx: 512, max_rx: 4096, max_tx: 4096 };
            let machine = healthy().json("/ethtool/eth0/rings.json", rings);
            machine.stats("eth0", |stats| stats.rx_missed_errors = 7)
        };
        assert_eq!(lossy(512).fixes(&NIC_RINGS), ["ethtool -G eth0 rx 2048"]);
        assert_eq!(lossy(512).undos(&NIC_RINGS), ["ethtool -G eth0 rx 512"]);
        let silent = lossy(512).remove("/ethtool/eth0/rings.json");
        table(&NIC_RINGS, [(lossy(512), Warn), (lossy(2048), Severity::Ok), (silent, Unknown)]);
    }

    #[test]
    fn few_and_many() {
        let missed = |count| healthy().stats("eth0", |stats| stats.rx_missed_errors = count);
        table(&NIC_MISSED, [(missed(1), Warn), (missed(300), Crit)]);
    }

    #[test]
    fn each_kind() {
        let crc = healthy().stats("eth0", |stats| stats.rx_crc_errors = 1);
        let length = healthy().stats("eth0", |stats| stats.rx_length_errors = 1);
        table(&FRAME_ERRORS, [(crc, Warn), (length, Warn)]);
    }

    #[test]
    fn slow_and_half() {
        let mode = |speed, full, autoneg| {
            let mode = LinkMode {
                speed_mbit: Some(speed),
                full_duplex: Some(full),
                autoneg,
                best_mbit: Some(1000),
            };
            healthy().json("/ethtool/eth0/link_mode.json", mode)
        };
        let forced = mode(100, true, false);
        assert_eq!(forced.undos(&LINK_MODE), ["ethtool -s eth0 autoneg off speed 100 duplex full"]);
        assert!(mode(100, true, true).fixes(&LINK_MODE).is_empty());
        let rows = [
            (forced, Warn),
            (mode(1000, false, true), Warn),
            (mode(1000, true, true), Severity::Ok),
        ];
        table(&LINK_MODE, rows);
    }

    #[test]
    fn half_a_slot() {
        let width = "/sys/class/net/eth0/device/current_link_width";
        let rows = [(healthy().put(width, "4"), Warn), (healthy().remove(width), Unknown)];
        table(&PCIE_LINK, rows);
    }

    #[test]
    fn frames_and_the_way_back() {
        let path = "/ethtool/eth0/statistics.json";
        let paused = healthy()
            .put(path, r#"{"rx_pause_frames": 1}"#)
            .then(path, r#"{"rx_pause_frames": 9}"#)
            .json("/ethtool/eth0/pause.json", Pause { rx: true, tx: false });
        assert_eq!(paused.undos(&PAUSE_FRAMES), ["ethtool -A eth0 rx on tx off"]);
        table(&PAUSE_FRAMES, [(paused, Warn)]);
    }

    #[test]
    fn carriers_and_queues() {
        let then =
            |key: &str, text: &str| healthy().then(&format!("/sys/class/net/eth0/{key}"), text);
        let vanished = healthy().both_stats("eth7", "eth0");
        let said = vanished.outcomes(&LINK_FLAPS).pop().unwrap();
        assert!(said.subject == "eth7" && said.found.starts_with("eth7 went away"), "{said:?}");
        let elsewhere = healthy().miss("/sys/class/net", "of another namespace");
        let rows = [
            (then("carrier_changes", "4"), Warn),
            (then("queues/tx-1/tx_timeout", "1"), Warn),
            (vanished, Info),
            (elsewhere, Unknown),
        ];
        table(&LINK_FLAPS, rows);
    }
}
