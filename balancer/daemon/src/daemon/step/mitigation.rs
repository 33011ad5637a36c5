//! Automatic mitigation: what arrives for services is sampled while the configuration says what an
//! attack is; one arms its service, is announced, and has the program told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ringway_api::clock::Timestamp;
use ringway_api::documents::measure::Measure;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_config::{Limits, Mitigation as Rules, ShieldMode};
use ringway_plan::tables::ServiceKey;
use tracing::Level;

use super::effect::{Effect, LogLine, ProgramRun};
use super::{Moment, State};
use crate::daemon::background::BackgroundWork;
use crate::daemon::datapath_thread::DatapathCommand;
use crate::monitor::attack_watch::{Arrived, Attack, AttackWatch, Found, PERIOD, UsualRates};

/// The packet path knows the end of an attack to this.
const PRECISION: Duration = Duration::from_secs(1);
/// The limit `source` of an armed service has found the heavy sources after this.
const SOURCES_FOUND: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Mitigation {
    watch: AttackWatch,
    /// When to look at what arrives; none: not at all.
    due: Option<Instant>,
    /// The packet path's thread is asked.
    reading: bool,
    /// Until when the packet path has services armed.
    armed: BTreeMap<ServiceKey, Instant>,
    /// What the program was told last.
    told: BTreeMap<ServiceKey, Told>,
    /// Attacks as they were with the last sample.
    known: BTreeMap<ServiceKey, Attack>,
}

/// That an attack lasts, until when.
#[derive(Debug)]
struct Told {
    until: Instant,
    command: Vec<String>,
    attack: AttackStatus,
}

impl Mitigation {
    pub(super) fn until(&self) -> Option<Instant> {
        self.due
    }

    /// The packet path may have lost it: all services are armed again.
    pub(super) fn renew(&mut self, now: Instant) {
        self.armed.values_mut().for_each(|until| *until = now);
    }

    /// Attacks since the daemon began.
    pub(super) fn found(&self) -> &Found {
        self.watch.found()
    }

    /// Attacks that last.
    pub(super) fn attacks(&self, at: Moment) -> Vec<AttackStatus> {
        self.watch.attacks().map(|(service, attack)| shown(service, attack, at)).collect()
    }
}

impl State {
    /// Asks for what arrives, where the configuration wants it.
    pub(super) fn advance_mitigation(&mut self) {
        let now = self.at.now;
        if self.rules().is_none() || !self.attachment.is_done() {
            if self.mitigation.due.take().is_some() {
                self.mitigation.watch.forget();
                self.follow_attacks();
            }
            return;
        }
        if self.mitigation.due.is_some_and(|due| now < due) {
            return;
        }
        self.mitigation.due = Some(now + PERIOD);
        if !std::mem::replace(&mut self.mitigation.reading, true) {
            self.effects.order(DatapathCommand::ReadArrivals);
        }
    }

    /// What services usually get.
    pub(super) fn usual(&self) -> UsualRates {
        self.rules().map(|rules| self.mitigation.watch.usual(rules)).unwrap_or_default()
    }

    fn rules(&self) -> Option<&Rules> {
        self.reload.config.shield.as_ref()?.mitigation.as_ref()
    }

    /// What has arrived up to a moment.
    pub(super) fn arrived(&mut self, sample: Result<(Instant, Vec<Arrived>), Error>) {
        self.mitigation.reading = false;
        let (at, mut sample) = match sample {
            Ok(read) => {
                self.done(BackgroundWork::ReadArrivals, Ok(()));
                read
            }
            Err(error) => return self.done(BackgroundWork::ReadArrivals, Err(error)),
        };
        let config = self.reload.config.clone();
        let Some(rules) = config.shield.as_ref().and_then(|shield| shield.mitigation.as_ref())
        else {
            return;
        };
        if let Some(over) = self.shield.in_force.mode {
            sample.iter_mut().for_each(|arrived| arrived.mode = over.mode);
        }
        self.mitigation.watch.note(rules, at, self.at.wall, sample);
        self.follow_attacks();
    }

    /// The packet path has armed a service, or not.
    pub(super) fn armed(&mut self, service: ServiceKey, outcome: Result<(), Error>) {
        if outcome.is_err() {
            self.mitigation.armed.remove(&service);
        }
        self.done(BackgroundWork::Arm, outcome);
    }

    /// Packet path, program and status have the attacks that there are.
    fn follow_attacks(&mut self) {
        let at = self.at;
        let run = self.rules().map(|rules| (rules.run.clone(), rules.run_after, rules.lasting));
        let (run, run_after, lasting) = run.unwrap_or_default();
        let Mitigation { watch, armed, told, known, .. } = &mut self.mitigation;
        let attacks: BTreeMap<&ServiceKey, &Attack> = watch.attacks().collect();
        let now = attacks.iter().map(|(service, attack)| (**service, (*attack).clone()));
        let before = std::mem::replace(known, now.collect());
        for (service, attack) in before.iter().filter(|(service, _)| !attacks.contains_key(service))
        {
            let line = LogLine::new(Level::INFO, over(service, attack, at));
            self.effects.log(LogLine { crowds: true, ..line });
        }
        let mut orders = Vec::new();
        armed.retain(|service, _| {
            let stays = attacks.contains_key(service);
            if !stays {
                orders.push(DatapathCommand::Arm(*service, None));
            }
            stays
        });
        for (service, attack) in &attacks {
            if armed.get(service).is_some_and(|until| attack.ends < *until + PRECISION) {
                continue;
            }
            armed.insert(**service, attack.ends);
            orders.push(DatapathCommand::Arm(**service, Some(attack.ends)));
        }
        let mut runs = Vec::new();
        let mut tell = |command: &[String], begins, attack: &AttackStatus| {
            runs.push(ProgramRun { command: command.into(), begins, attack: attack.clone() });
        };
        let enforced: BTreeMap<_, _> =
            attacks.into_iter().filter(|(_, it)| it.mode == ShieldMode::Enforce).collect();
        told.retain(|service, told| {
            let stays = told.command == run && enforced.contains_key(service);
            if !stays {
                tell(&told.command, false, &told.attack);
            }
            stays
        });
        for (service, attack) in enforced.into_iter().filter(|_| !run.is_empty()) {
            let until = attack.ends;
            let due = match told.get(service) {
                Some(known) => until >= known.until + lasting / 2,
                None => attack.above >= run_after && at.now >= attack.began + SOURCES_FOUND,
            };
            if !due {
                continue;
            }
            let (command, mut attack) = (run.clone(), shown(service, attack, at));
            // Before it hears again, the attack may last so much longer.
            attack.until.0 += lasting / 2;
            tell(&command, true, &attack);
            told.insert(*service, Told { until, command, attack });
        }
        if !(orders.is_empty() && runs.is_empty()) {
            self.effects.post();
        }
        orders.into_iter().for_each(|order| self.effects.order(order));
        runs.into_iter().for_each(|run| self.effects.push(Effect::RunProgram(run)));
    }

    pub(super) fn attack_findings(&self) -> Vec<Problem> {
        let limits = self.rules().map(|rules| rules.limits).unwrap_or_default();
        let attacks = self.mitigation.attacks(self.at);
        attacks.iter().map(|attack| finding(attack, limits)).collect()
    }
}

fn shown(service: &ServiceKey, attack: &Attack, at: Moment) -> AttackStatus {
    AttackStatus {
        service: attack.name.clone(),
        address: service.address,
        port: service.port,
        last_port: service.last_port,
        protocol: service.protocol,
        mode: attack.mode,
        since: Timestamp(attack.since),
        until: Timestamp(at.wall + attack.ends.saturating_duration_since(at.now)),
        measure: attack.measure,
        packets_per_second: attack.packets,
        new_flows_per_second: attack.new_flows,
        baseline: attack.baseline,
        lasts: at.now < attack.last + 2 * PERIOD && at.now >= attack.began + SOURCES_FOUND,
    }
}

/// The line of the log when it is over.
fn over(service: &ServiceKey, attack: &Attack, at: Moment) -> String {
    let shown = shown(service, attack, at);
    // Without the time that the limits still held.
    let lasted = attack.last.saturating_duration_since(attack.began).as_secs().max(1);
    let measure = attack.measure.unwrap_or(Measure::Packets);
    let (what, highest) = (measured(measure), attack.highest[measure as usize]);
    let were = match attack.mode {
        ShieldMode::Enforce => "were dropped",
        _ => "would have been dropped: the shield observes",
    };
    format!(
        "over: service {} ({} {}) was attacked for {lasted} s, since {}: up to {highest} {what} a \
         second; {} packets over limits {were}",
        shown.service,
        shown.protocol,
        shown.endpoint(),
        shown.since,
        attack.refused,
    )
}

fn measured(measure: Measure) -> &'static str {
    match measure {
        Measure::NewFlows => "new flows",
        Measure::Packets => "packets",
    }
}

/// `limits`: those of `[shield.mitigation]`.
fn finding(attack: &AttackStatus, limits: Limits) -> Problem {
    let AttackStatus { service, protocol, since, until, .. } = attack;
    let what = measured(attack.measure.unwrap_or(Measure::Packets));
    let usual = attack.baseline.map_or(String::new(), |usual| format!(", usually {usual}"));
    let action = match attack.mode {
        _ if limits.is_empty() => "[shield.mitigation] has no limits: it is announced",
        ShieldMode::Enforce => "the limits of [shield.mitigation] are in force",
        _ => "the shield observes and drops nothing: these limits would be in force",
    };
    let (endpoint, rate) = (attack.endpoint(), attack.rate());
    let error = format!(
        "service {service} ({protocol} {endpoint}) is attacked since {since}: {rate} {what} a \
         second{usual}; {action} until {until} or longer"
    );
    let remedy = "`ringway shield status` shows what arrives, and heavy sources";
    ProblemKind::Mitigation.about(attack.subject(), error, remedy)
}
