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
use ringway_api::text::counted;
use ringway_config::{Config, Limits, Mitigation as Rules, Protocol, Service, ShieldMode, Syn};
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
/// What arrives for an attacked service is posted this often.
const SHOWN: Duration = Duration::from_secs(1);
/// An attack goes on that had a sample above its threshold within this.
const PAUSE: Duration = Duration::from_secs(1);

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
    /// When they were posted last.
    shown: Option<Instant>,
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
    pub(super) fn attacks(&self, config: &Config, at: Moment) -> Vec<AttackStatus> {
        let attacks = self.watch.attacks();
        attacks.map(|(key, attack)| shown(key, attack, syn_of(config, key), at)).collect()
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
        let (at, config) = (self.at, self.reload.config.clone());
        self.log_ended();
        let run = self.rules().map(|rules| (rules.run.clone(), rules.run_after, rules.lasting));
        let (run, run_after, lasting) = run.unwrap_or_default();
        let Mitigation { watch, armed, told, shown: posted, .. } = &mut self.mitigation;
        let attacks: BTreeMap<&ServiceKey, &Attack> = watch.attacks().collect();
        let outdated = posted.is_none_or(|posted| at.now >= posted + SHOWN);
        let outdated = !attacks.is_empty() && outdated;
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
            let (command, mut attack) =
                (run.clone(), shown(service, attack, syn_of(&config, service), at));
            // Before it hears again, the attack may last so much longer.
            attack.until.0 += lasting / 2;
            tell(&command, true, &attack);
            told.insert(*service, Told { until, command, attack });
        }
        if outdated || !(orders.is_empty() && runs.is_empty()) {
            *posted = Some(at.now);
            self.effects.post();
        }
        orders.into_iter().for_each(|order| self.effects.order(order));
        runs.into_iter().for_each(|run| self.effects.push(Effect::RunProgram(run)));
    }

    /// Logs attacks that are over, or are not looked at any more.
    fn log_ended(&mut self) {
        let Mitigation { watch, known, .. } = &mut self.mitigation;
        let now: BTreeMap<_, _> =
            watch.attacks().map(|(service, attack)| (*service, attack.clone())).collect();
        let mut before = std::mem::replace(known, now);
        before.retain(|service, _| !self.mitigation.known.contains_key(service));
        for (service, attack) in &before {
            let line = LogLine::new(Level::INFO, over(service, attack, self.why(service), self.at));
            self.effects.log(LogLine { crowds: true, ..line });
        }
    }

    /// Why the packets of a service are not looked at any more; none: they are.
    fn why(&self, service: &ServiceKey) -> Option<&'static str> {
        let config = &self.reload.config;
        let Some(shield) = &config.shield else { return Some("[shield] was removed") };
        let own = service_of(config, service);
        let mode = self.shield.in_force.mode.map(|over| over.mode);
        match own {
            _ if shield.mitigation.is_none() => Some("[shield.mitigation] was removed"),
            None => Some("the service was removed"),
            Some(_) if mode == Some(ShieldMode::Off) => Some("the shield was switched off"),
            Some(own) if mode.is_none() && shield.mode_of(own) == ShieldMode::Off => {
                Some("its shield was switched off")
            }
            Some(_) => None,
        }
    }

    pub(super) fn attack_findings(&self) -> Vec<Problem> {
        let limits = self.rules().map(|rules| rules.limits).unwrap_or_default();
        let attacks = self.mitigation.attacks(&self.reload.config, self.at);
        attacks.iter().map(|attack| finding(attack, limits)).collect()
    }
}

/// `syn`: how SYNs of the service are answered.
fn shown(service: &ServiceKey, attack: &Attack, syn: Syn, at: Moment) -> AttackStatus {
    let silent = at.now.saturating_duration_since(attack.last);
    AttackStatus {
        service: attack.name.clone(),
        address: service.address,
        port: service.port,
        last_port: service.last_port,
        protocol: service.protocol,
        mode: attack.mode,
        since: Timestamp(attack.since),
        until: Timestamp(at.wall + attack.ends.saturating_duration_since(at.now)),
        ended: (silent >= PAUSE).then(|| Timestamp(at.wall - silent)),
        measure: attack.measure,
        packets_per_second: attack.packets,
        new_flows_per_second: attack.new_flows,
        baseline: attack.baseline,
        syn: syn.name().to_owned(),
        syns_answered_per_second: attack.answered,
        lasts: at.now < attack.last + 2 * PERIOD && at.now >= attack.began + SOURCES_FOUND,
    }
}

fn service_of<'c>(config: &'c Config, key: &ServiceKey) -> Option<&'c Service> {
    config.services.iter().find(|own| {
        let ports = (*own.port, own.last_port);
        (*own.address, ports) == (key.address, (key.port, key.last_port))
            && own.protocols.contains(&key.protocol)
    })
}

/// How SYNs of a service are answered.
fn syn_of(config: &Config, key: &ServiceKey) -> Syn {
    let own = service_of(config, key).filter(|_| key.protocol == Protocol::Tcp);
    own.map_or(Syn::Off, |own| *own.syn)
}

/// The line of the log when it is over, or is not looked at any more, and why.
fn over(service: &ServiceKey, attack: &Attack, why: Option<&'static str>, at: Moment) -> String {
    let shown = shown(service, attack, Syn::Off, at);
    // Without the time that the limits still held.
    let lasted = attack.last.saturating_duration_since(attack.began).as_secs().max(1);
    let measure = attack.measure.unwrap_or(Measure::Packets);
    let (what, highest) = (measured(measure), attack.highest[measure as usize]);
    let until = match why {
        Some(why) => format!(", and then not looked at any more, as {why}"),
        None => String::new(),
    };
    let (head, refused) = (if why.is_some() { "" } else { "over: " }, refused(attack));
    format!(
        "{head}service {} ({} {}) was attacked for {lasted} s, since {}{until}: up to {highest} {what} \
         a second; {refused}",
        shown.service,
        shown.protocol,
        shown.endpoint(),
        shown.since,
    )
}

/// What became of packets over limits: an attack may see both modes.
fn refused(attack: &Attack) -> String {
    let Attack { dropped, observed, mode, .. } = attack;
    let dropped = format!("{} over limits dropped", counted(dropped, "packet"));
    let observed = format!(
        "{} over limits would have been dropped while the shield observed",
        counted(observed, "packet")
    );
    match mode {
        _ if attack.dropped > 0 && attack.observed > 0 => format!("{dropped}, {observed}"),
        ShieldMode::Enforce if attack.observed == 0 => dropped,
        _ if attack.dropped > 0 => dropped,
        _ => observed,
    }
}

fn measured(measure: Measure) -> &'static str {
    match measure {
        Measure::NewFlows => "new flows",
        Measure::Packets => "packets",
    }
}

/// `limits`: those of `[shield.mitigation]`.
fn finding(attack: &AttackStatus, limits: Limits) -> Problem {
    let AttackStatus { service, protocol, until, .. } = attack;
    let what = measured(attack.measure.unwrap_or(Measure::Packets));
    let usual = attack.baseline.map_or(String::new(), |usual| format!(", usually {usual}"));
    let answered = attack.answered();
    let limits = match attack.mode {
        _ if limits.is_empty() && answered.is_some() => None,
        _ if limits.is_empty() => Some("[shield.mitigation] has no limits: it is announced"),
        ShieldMode::Enforce => Some("the limits of [shield.mitigation] are in force"),
        _ => Some("the shield observes and drops nothing: these limits would be in force"),
    };
    let actions: Vec<&str> = answered.as_deref().into_iter().chain(limits).collect();
    let action = actions.join("; ");
    let (endpoint, rate) = (attack.endpoint(), attack.rate());
    let (is, now, end) = match attack.ended {
        None => ("is", "", "or longer"),
        Some(_) => ("was", "now ", "if nothing more comes"),
    };
    let error = format!(
        "service {service} ({protocol} {endpoint}) {is} {}: {now}{rate} {what} a second{usual}; \
         {action} until {until} {end}",
        attack.attacked()
    );
    let remedy = "`ringway shield status` shows what arrives, and heavy sources";
    ProblemKind::Mitigation.about(attack.subject(), error, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::mitigation_program::tests::attack;

    #[test]
    fn a_finding_says_that_syns_are_answered() {
        let limits =
            Limits { source: Some(ringway_config::RateLimit::new(9)), ..Limits::default() };
        let told = |syn: &str, limits| {
            let attack =
                AttackStatus { syn: syn.into(), syns_answered_per_second: 491, ..attack(80) };
            finding(&attack, limits).error
        };
        let (answered, none) =
            ("; SYNs are answered (syn = \"proxy\"), 491 a second", "has no limits");
        let proxy = told("proxy", Limits::default());
        assert!(proxy.contains(answered) && !proxy.contains(none), "{proxy}");
        let both = told("proxy", limits);
        assert!(both.contains(&format!("{answered}; the limits of")), "{both}");
        let off = told("off", Limits::default());
        assert!(off.contains(none) && !off.contains("answered"), "{off}");
    }
}
