//! Rates per second: the difference of two readings of the counters. Pure.
//!
//! The daemon notes a [`Sample`] every two seconds from what it reads anyway; `ringway top` makes
//! its own from two statuses.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ringway_abi::raw::rw_ledger;
use ringway_abi::{Loss, Reason, Verdict};
use ringway_api::documents::shield::{ShieldCounter, ShieldStatus};
use ringway_api::documents::status::{Observed, Rates, Status};
use ringway_kernel::ServiceState;
use ringway_plan::tables::ServiceKey;

/// An older reading says nothing about now.
const FRESH: Duration = Duration::from_secs(10);
/// Over less time than this, what is read now is not compared with a reading.
const SHORTEST: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    backends: HashMap<(ServiceKey, SocketAddr), Traffic>,
    /// Seen, by interface slot.
    seen: HashMap<u32, u64>,
    /// Keyed by interface slot.
    packets: HashMap<(u32, Fate), u64>,
    /// What the shield would have dropped.
    observed: HashMap<Reason, u64>,
    shield: HashMap<ShieldCounter, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    Verdict(Verdict, Reason),
    Lost(Loss),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    packets: u64,
    bytes: u64,
    reply_packets: u64,
    reply_bytes: u64,
    flows: u64,
}

impl Sample {
    fn new(at: Instant) -> Sample {
        let (backends, seen, packets, observed, shield) = Default::default();
        Sample { at, backends, seen, packets, observed, shield }
    }

    /// From the packet path's own tables; `ledgers` by interface slot.
    pub fn of_tables(
        at: Instant,
        services: &[ServiceState],
        ledgers: &[(u32, rw_ledger)],
        observed: &[Observed],
    ) -> Sample {
        let mut sample = Sample::new(at);
        for (service, backend) in
            services.iter().flat_map(|s| s.backends.iter().map(move |b| (s, b)))
        {
            let traffic = &backend.traffic;
            sample.backends.insert(
                (service.key, backend.address),
                Traffic {
                    packets: traffic.packets,
                    bytes: traffic.bytes,
                    reply_packets: traffic.reply_packets,
                    reply_bytes: traffic.reply_bytes,
                    flows: traffic.flows,
                },
            );
        }
        sample.observe(observed);
        for (slot, ledger) in ledgers {
            sample.seen.insert(*slot, ledger.seen);
            for (verdict, reason, packets) in ledger.entries() {
                sample.packets.insert((*slot, Fate::Verdict(verdict, reason)), packets);
            }
            for (loss, packets) in ledger.losses() {
                sample.packets.insert((*slot, Fate::Lost(loss)), packets);
            }
        }
        sample
    }

    /// From what a status says.
    pub fn of_status(at: Instant, status: &Status) -> Sample {
        let mut sample = Sample::new(at);
        for service in &status.services {
            for backend in &service.backends {
                sample.backends.insert(
                    (service.key(), backend.endpoint()),
                    Traffic {
                        packets: backend.packets,
                        bytes: backend.bytes,
                        reply_packets: backend.reply_packets,
                        reply_bytes: backend.reply_bytes,
                        flows: backend.flows,
                    },
                );
            }
        }
        let slots = slots(status);
        for interface in &status.interfaces {
            sample.seen.insert(interface.slot, interface.ledger.seen_packets);
        }
        for counter in &status.counters {
            let Some(slot) = slots.get(&counter.interface) else { continue };
            let fate = Fate::Verdict(counter.verdict, counter.reason);
            sample.packets.insert((*slot, fate), counter.packets);
        }
        for loss in &status.losses {
            let Some(slot) = slots.get(&loss.interface) else { continue };
            sample.packets.insert((*slot, Fate::Lost(loss.reason)), loss.packets);
        }
        sample.observe(&status.shield_observed);
        sample
    }

    /// With what the shield has counted.
    pub fn with_shield(mut self, status: &mut ShieldStatus) -> Sample {
        self.shield = status.counters().map(|(counter, packets, _)| (counter, packets)).collect();
        self
    }

    fn observe(&mut self, observed: &[Observed]) {
        self.observed.extend(observed.iter().map(|one| (one.reason, one.packets)));
    }
}

fn slots(status: &Status) -> HashMap<String, u32> {
    status.interfaces.iter().map(|each| (each.name.clone(), each.slot)).collect()
}

#[derive(Clone, Debug, Default)]
pub struct Meter {
    before: Option<Sample>,
    last: Option<Sample>,
}

impl Meter {
    pub fn note(&mut self, sample: Sample) {
        self.before = self.last.replace(sample);
    }

    /// Enters what happened per second up to now, when the status was read; nothing where that is
    /// not known (any more).
    pub fn fill(&self, status: &mut Status, now: Instant) {
        let last = Sample::of_status(now, status);
        if let Some(span) = self.span(&last) {
            span.fill(status);
        }
    }

    /// The same of the shield; what is not known stays as it was.
    pub fn fill_shield(&self, status: &mut ShieldStatus, now: Instant) {
        let last = Sample::new(now).with_shield(status);
        let Some(span) = self.span(&last) else { return };
        for (counter, _, rate) in status.counters() {
            let of = |sample: &Sample| sample.shield.get(&counter).copied();
            *rate = span.rate(of(span.before), of(span.last)).or(*rate);
        }
    }

    /// From a reading of one to three seconds ago: an attack that has just begun has its rate of the
    /// time so far, and none has that of a moment.
    fn span<'a>(&'a self, now: &'a Sample) -> Option<Span<'a>> {
        let newest = self.last.as_ref()?;
        let age = now.at.saturating_duration_since(newest.at);
        let before = if age < SHORTEST { self.before.as_ref()? } else { newest };
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        (seconds > 0.0 && age <= FRESH).then_some(Span { before, last: now, seconds })
    }
}

struct Span<'a> {
    before: &'a Sample,
    last: &'a Sample,
    seconds: f64,
}

impl Span<'_> {
    fn fill(&self, status: &mut Status) {
        for service in &mut status.services {
            let key = service.key();
            let mut sum: Option<Rates> = None;
            for backend in &mut service.backends {
                backend.rates = self.backend(&(key, backend.endpoint()));
                if let Some(rates) = &backend.rates {
                    sum.get_or_insert_default().add(rates);
                }
            }
            service.rates = sum;
        }
        let slots = slots(status);
        for interface in &mut status.interfaces {
            let of = |sample: &Sample| sample.seen.get(&interface.slot).copied();
            interface.rate_pps = self.rate(of(self.before), of(self.last));
        }
        for counter in &mut status.counters {
            let Some(slot) = slots.get(&counter.interface) else { continue };
            counter.rate_pps = self.packets(*slot, Fate::Verdict(counter.verdict, counter.reason));
        }
        for loss in &mut status.losses {
            let Some(slot) = slots.get(&loss.interface) else { continue };
            loss.rate_pps = self.packets(*slot, Fate::Lost(loss.reason));
        }
        for one in &mut status.shield_observed {
            let of = |sample: &Sample| sample.observed.get(&one.reason).copied();
            one.rate_pps = self.rate(Some(of(self.before).unwrap_or(0)), of(self.last));
        }
    }

    fn backend(&self, key: &(ServiceKey, SocketAddr)) -> Option<Rates> {
        let (before, last) = (self.before.backends.get(key)?, self.last.backends.get(key)?);
        let rate = |of: fn(&Traffic) -> u64| self.rate(Some(of(before)), Some(of(last)));
        Some(Rates {
            rate_pps: rate(|t| t.packets)?,
            rate_bps: rate(|t| 8 * t.bytes)?,
            reply_rate_pps: rate(|t| t.reply_packets)?,
            reply_rate_bps: rate(|t| 8 * t.reply_bytes)?,
            new_flows_per_s: rate(|t| t.flows)?,
        })
    }

    /// What a sample lacks had not occurred then, on an interface that it knows.
    fn packets(&self, slot: u32, fate: Fate) -> Option<f64> {
        let of = |sample: &Sample| {
            sample.seen.get(&slot)?;
            Some(sample.packets.get(&(slot, fate)).copied().unwrap_or_default())
        };
        self.rate(of(self.before), of(self.last))
    }

    /// To a tenth. `None`: counters that went back were made anew in between.
    fn rate(&self, before: Option<u64>, last: Option<u64>) -> Option<f64> {
        let more = last?.checked_sub(before?)?;
        Some((more as f64 / self.seconds * 10.0).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;
    use ringway_api::documents::status::{self, Backend, Counter, Interface, Ledger, Service};
    use ringway_api::shield::RuntimeShield;
    use ringway_config::{Forward, Protocol};
    use ringway_kernel::Arrivals;

    fn status(packets: u64) -> Status {
        let backend = |address: &str| Backend {
            packets,
            bytes: 100 * packets,
            flows: packets / 2,
            ..Backend::new(address.parse().expect("an address"))
        };
        let interface = |name: &str, slot| Interface {
            name: name.into(),
            slot,
            ledger: Ledger::new(3 * packets, 3 * packets),
            ..Interface::default()
        };
        let address = "203.0.113.10".parse().expect("an address");
        let key = ServiceKey::new(address, 80, Protocol::Tcp);
        let mut status = Status {
            interfaces: vec![interface("eth0", 0), interface("eth1", 1)],
            services: vec![Service {
                backends: vec![backend("10.0.0.2:80"), backend("10.0.0.3:80")],
                ..Service::new("web", key, Forward::Nat)
            }],
            ..Status::default()
        };
        if packets > 0 {
            status.counters.push(Counter {
                interface: "eth1".into(),
                verdict: Verdict::Drop,
                reason: Reason::Malformed,
                packets,
                rate_pps: None,
            });
            status.shield_observed.push(Observed {
                reason: Reason::Blocked,
                packets: 6 * packets,
                rate_pps: None,
            });
            status.losses.push(status::Loss {
                interface: "eth0".into(),
                reason: Loss::TooBig,
                packets: 4 * packets,
                rate_pps: None,
            });
        }
        status
    }

    fn measured(before: u64, last: u64, age: Duration) -> Status {
        let begin = Instant::now();
        let end = begin + Duration::from_secs(2);
        let mut meter = Meter::default();
        meter.note(Sample::of_status(begin, &status(before)));
        meter.note(Sample::of_status(end, &status(last)));
        let mut status = status(last);
        meter.fill(&mut status, end + age);
        status
    }

    #[test]
    fn rates_are_differences_over_time() {
        let found = measured(0, 20, Duration::ZERO);
        let service = &found.services[0];
        let want = Rates {
            rate_pps: 10.0,
            rate_bps: 8000.0,
            reply_rate_pps: 0.0,
            reply_rate_bps: 0.0,
            new_flows_per_s: 5.0,
        };
        assert_eq!(service.backends[1].rates, Some(want));
        assert_eq!(service.rates.map(|rates| rates.rate_bps), Some(16000.0));
        assert_eq!(found.interfaces[0].rate_pps, Some(30.0));
        // What had never occurred before counts from nothing.
        assert_eq!(found.counters[0].rate_pps, Some(10.0));
        assert_eq!(found.losses[0].rate_pps, Some(40.0));
        assert_eq!(found.shield_observed[0].rate_pps, Some(60.0));
    }

    fn shield(arrived: u64) -> ShieldStatus {
        let rule = "rule = [{ match = \"udp\", action = \"drop\" }]";
        let config = gateway(&format!("[shield]\n{rule}\nlimits = {{ source = \"1kpps\" }}"), "");
        let mut shield = ShieldStatus::new(&config, &RuntimeShield::default());
        shield.rules[0].packets = 2 * arrived;
        let over_source = arrived / 2;
        shield.limits[0].count(Arrivals { packets: arrived, over_source, ..Arrivals::default() });
        shield
    }

    #[test]
    fn the_shield_has_rates() {
        let (begin, mut meter) = (Instant::now(), Meter::default());
        let end = begin + Duration::from_secs(2);
        for (at, arrived) in [(begin, 20), (end, 40)] {
            meter.note(Sample::of_status(at, &status(1)).with_shield(&mut shield(arrived)));
        }
        let mut found = shield(40);
        meter.fill_shield(&mut found, end);
        assert_eq!(found.rules[0].packets_per_second, Some(20.0));
        assert_eq!(found.blocked.packets_per_second, Some(0.0));
        let limits = &found.limits[0];
        assert_eq!(limits.arrived_packets_per_second, Some(10.0));
        assert_eq!(limits.over_per_second(), Some(5.0));
        let mut later = shield(40);
        meter.fill_shield(&mut later, end + Duration::from_secs(11));
        assert_eq!(later, shield(40));
    }

    #[test]
    fn what_has_just_begun_has_its_rate() {
        let (begin, mut meter) = (Instant::now(), Meter::default());
        for seconds in [0, 2] {
            let at = begin + Duration::from_secs(seconds);
            meter.note(Sample::of_status(at, &status(1)).with_shield(&mut shield(1)));
        }
        for (ms, rate) in [(2500, 12.0), (3500, 20.0)] {
            let now = begin + Duration::from_millis(ms);
            let (mut found, mut shield) = (status(31), shield(31));
            meter.fill(&mut found, now);
            meter.fill_shield(&mut shield, now);
            assert_eq!(found.services[0].backends[0].rates.map(|it| it.rate_pps), Some(rate));
            assert_eq!(shield.limits[0].arrived_packets_per_second, Some(rate));
        }
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        for found in [measured(20, 10, Duration::ZERO), measured(0, 20, Duration::from_secs(11))] {
            assert_eq!(found.services[0].backends[0].rates, None);
            assert_eq!((found.interfaces[0].rate_pps, found.counters[0].rate_pps), (None, None));
        }
        let mut one = Meter::default();
        one.note(Sample::of_status(Instant::now(), &status(1)));
        let mut found = status(1);
        one.fill(&mut found, Instant::now());
        assert_eq!(found, status(1));
    }
}
