//! Attacks on services: more packets or new flows than `[shield.mitigation]` allows, or many times
//! what a service usually gets. Pure: fed with the packet path's counters four times a second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use ringway_api::documents::measure::Measure;
use ringway_config::{Mitigation, ShieldMode};
use ringway_plan::tables::{Protocol, ServiceKey};

/// How often the counters are to be noted. With [`IN_A_ROW`] an attack is found within 750 ms.
pub const PERIOD: Duration = Duration::from_millis(250);
/// So many samples above a threshold are an attack: one is a burst.
const IN_A_ROW: u32 = 2;
/// Counters are compared over this long at least: a shorter time gives no rate.
const SHORTEST: Duration = Duration::from_millis(100);
/// What a service usually gets is known after it has been in use for so long.
const WARM_UP: Duration = Duration::from_secs(600);
/// In use: it gets this part of the minimum. Scans and checks alone are no use.
const USED_PART: f64 = 100.0;
/// The usual rate follows a higher one within a minute, as bursts and mornings are usual, and a lower
/// one within a day: a quiet night does not make the next morning an attack.
const RISE: Duration = Duration::from_secs(60);
const FALL: Duration = Duration::from_secs(24 * 3600);
/// What has lasted so long is usual: it is learnt anew.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// One value for each measure.
pub type Each<T> = [T; 2];

/// What had come for a service at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    pub service: ServiceKey,
    /// Its name in the configuration.
    pub name: String,
    /// The shield's mode for its packets.
    pub mode: ShieldMode,
    pub packets: u64,
    pub new_flows: u64,
    /// Of these packets, those over a limit that nothing speaks for.
    pub refused: u64,
    /// SYNs that the gateway has answered, or would have.
    pub answered: u64,
    /// A daemon before this one has armed it: until when.
    pub armed: Option<Instant>,
}

/// An attack on a service, from the sample that found it until [`Attack::ends`].
#[derive(Clone, Debug, PartialEq)]
pub struct Attack {
    pub name: String,
    pub mode: ShieldMode,
    /// What was above its threshold; none: a daemon before this one found it.
    pub measure: Option<Measure>,
    pub since: SystemTime,
    pub began: Instant,
    /// For so long in all were samples above a threshold since.
    pub above: Duration,
    /// Of the last sample above a threshold.
    pub last: Instant,
    /// Unless packets are above a threshold again.
    pub ends: Instant,
    /// A second, of the last sample.
    pub packets: u64,
    pub new_flows: u64,
    /// SYNs that the gateway answers, or would, a second, of the last sample.
    pub answered: u64,
    /// The most packets and new flows a second.
    pub highest: Each<u64>,
    /// Packets over a limit since, that were dropped.
    pub dropped: u64,
    /// The same, while the shield observed.
    pub observed: u64,
    /// What the service usually gets of [`Attack::measure`], where that is known.
    pub baseline: Option<u64>,
}

#[derive(Debug, Default)]
pub struct AttackWatch {
    services: BTreeMap<ServiceKey, Watched>,
    /// Attacks since the daemon began.
    found: Found,
}

/// How many attacks on services of a name.
pub type Found = BTreeMap<(String, Protocol), u64>;

/// What services of a name usually get, packets and new flows a second, where that is known.
pub type UsualRates = BTreeMap<(String, Protocol), [Option<u64>; 2]>;

#[derive(Debug, Default)]
struct Watched {
    name: String,
    counted: Option<(Instant, Each<u64>)>,
    refused: u64,
    answered: u64,
    /// Samples above a threshold, up to now.
    in_a_row: u32,
    usual: Usual,
    attack: Option<Attack>,
}

/// What a service gets in its busier seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    /// A second.
    rates: Each<f64>,
    /// For so long was it in use.
    used: Duration,
}

impl AttackWatch {
    /// Takes the counters as they are now. Services that are missing are forgotten. Of those whose
    /// shield is off, attacks alone are: what is usual stays, and nothing is learnt meanwhile.
    pub fn note(
        &mut self,
        rules: &Mitigation,
        now: Instant,
        wall: SystemTime,
        sample: Vec<Arrived>,
    ) {
        let mut before = std::mem::take(&mut self.services);
        for arrived in sample {
            let mut watched = before.remove(&arrived.service).unwrap_or_default();
            let (service, name) = (arrived.service, arrived.name.clone());
            watched.name.clone_from(&name);
            if arrived.mode == ShieldMode::Off {
                watched = Watched { name, usual: watched.usual, ..Watched::default() };
            } else if watched.note(rules, now, wall, arrived) {
                *self.found.entry((name, service.protocol)).or_default() += 1;
            }
            self.services.insert(service, watched);
        }
    }

    /// Looks at nothing any more: what is usual is learnt anew.
    pub fn forget(&mut self) {
        self.services.clear();
    }

    pub fn found(&self) -> &Found {
        &self.found
    }

    pub fn usual(&self, rules: &Mitigation) -> UsualRates {
        let rates = |it: &Watched| Measure::ALL.map(|measure| it.usual.known(rules, measure));
        let all = self.services.iter();
        all.map(|(service, it)| ((it.name.clone(), service.protocol), rates(it))).collect()
    }

    /// Attacks that last.
    pub fn attacks(&self) -> impl Iterator<Item = (&ServiceKey, &Attack)> {
        let all = self.services.iter();
        all.filter_map(|(service, watched)| Some((service, watched.attack.as_ref()?)))
    }
}

impl Watched {
    /// Whether an attack begins.
    fn note(
        &mut self,
        rules: &Mitigation,
        now: Instant,
        wall: SystemTime,
        arrived: Arrived,
    ) -> bool {
        let Arrived { name, mode, packets, new_flows, refused, answered, armed, .. } = arrived;
        let counts = [packets, new_flows];
        let begun = |measure, ends| Attack {
            name: name.clone(),
            mode,
            measure,
            since: wall,
            began: now,
            above: Duration::ZERO,
            last: now,
            ends,
            packets: 0,
            new_flows: 0,
            answered: 0,
            highest: [0; 2],
            dropped: 0,
            observed: 0,
            baseline: None,
        };
        let refused = refused.saturating_sub(std::mem::replace(&mut self.refused, refused));
        if let Some(ends) = armed.filter(|ends| *ends > now) {
            self.attack.get_or_insert_with(|| begun(None, ends));
        }
        let Some((last, before)) = self.counted else {
            self.counted = Some((now, counts));
            return false;
        };
        let since = now.saturating_duration_since(last);
        if since < SHORTEST {
            return false;
        }
        self.counted = Some((now, counts));
        // Counted anew after `ringway detach`.
        if counts[0] < before[0] || counts[1] < before[1] {
            self.in_a_row = 0;
            return false;
        }
        let answered = answered.saturating_sub(std::mem::replace(&mut self.answered, answered));
        let rates = [0, 1].map(|n| (counts[n] - before[n]) as f64 / since.as_secs_f64());
        let is_above = |measure: &Measure| {
            self.usual
                .threshold(rules, *measure)
                .is_some_and(|most| rates[*measure as usize] > most)
        };
        let above = Measure::ALL.into_iter().find(is_above);
        self.in_a_row = if above.is_some() { self.in_a_row + 1 } else { 0 };
        let (ends, baseline) = (now + rules.lasting, |measure| self.usual.known(rules, measure));
        let mut begins = false;
        match (&mut self.attack, above) {
            (Some(attack), Some(measure)) => {
                (attack.last, attack.ends) = (now, ends);
                attack.above += since;
                if attack.measure.is_none() {
                    (attack.measure, attack.baseline) = (above, baseline(measure));
                }
            }
            (None, Some(measure)) if self.in_a_row >= IN_A_ROW => {
                begins = true;
                let attack = begun(above, ends);
                self.attack = Some(Attack { baseline: baseline(measure), ..attack });
            }
            _ => {}
        }
        self.attack.take_if(|attack| attack.ends <= now);
        match &mut self.attack {
            Some(attack) => {
                [attack.packets, attack.new_flows] = rates.map(|rate| rate as u64);
                attack.answered = (answered as f64 / since.as_secs_f64()) as u64;
                let highest = attack.highest;
                attack.highest = [attack.packets.max(highest[0]), attack.new_flows.max(highest[1])];
                let over = match mode {
                    ShieldMode::Enforce => &mut attack.dropped,
                    _ => &mut attack.observed,
                };
                *over += if begins { 0 } else { refused };
                (attack.name, attack.mode) = (name, mode);
                if now.saturating_duration_since(attack.began) > LONGEST {
                    self.usual = Usual::default();
                }
            }
            None => self.usual.learn(rules, rates, since),
        }
        begins
    }
}

impl Usual {
    /// What is usual of a measure, once that is known.
    fn known(&self, rules: &Mitigation, measure: Measure) -> Option<u64> {
        let known = rules.above_baseline.is_some() && self.used >= WARM_UP;
        known.then(|| self.rates[measure as usize] as u64)
    }

    /// The threshold that is learnt.
    fn learnt(&self, rules: &Mitigation, measure: Measure) -> Option<f64> {
        let above = rules.above_baseline.filter(|_| self.used >= WARM_UP)?;
        let usual = self.rates[measure as usize];
        Some((f64::from(above.factor) * usual).max(above.minimum.into()))
    }

    fn threshold(&self, rules: &Mitigation, measure: Measure) -> Option<f64> {
        let configured = match measure {
            Measure::Packets => rules.packets,
            Measure::NewFlows => rules.new_flows,
        };
        let both = [configured.map(f64::from), self.learnt(rules, measure)];
        both.into_iter().flatten().min_by(f64::total_cmp)
    }

    fn learn(&mut self, rules: &Mitigation, rates: Each<f64>, since: Duration) {
        let Some(above) = rules.above_baseline else { return };
        if rates[0] < f64::from(above.minimum) / USED_PART {
            return;
        }
        for measure in Measure::ALL {
            // One sample alone does not move its own threshold far.
            let most = self.learnt(rules, measure).unwrap_or(f64::INFINITY);
            let (rate, usual) = (rates[measure as usize].min(most), self.rates[measure as usize]);
            // At first the average of all there is.
            let pace = if rate > usual { RISE } else { FALL }.min(self.used);
            let part = since.as_secs_f64() / (pace + since).as_secs_f64();
            self.rates[measure as usize] += part * (rate - usual);
        }
        self.used = self.used.saturating_add(since);
    }
}

#[cfg(test)]
mod tests;
