//! What the daemon tells those who ask: its state, which makes a status together with the kernel's
//! counters.

mod flow_count;
mod status_store;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ringway_abi::raw::rw_ledger;
use ringway_api::documents::forward::ForwardStatus;
use ringway_api::documents::health::Lack;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::readiness::{Readiness, line};
use ringway_api::documents::shield::{ListReading, service_ids};
use ringway_api::documents::status::{
    self, FlowTable, Interface, Observed, Override, Problem, Reload, Reloads, SCHEMA, Service,
    Status, Tracked,
};
use ringway_api::node::tables::{self, add_traffic, flows_now, shield_observed};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::shield::RuntimeShield;
use ringway_config::Config;
use ringway_kernel::{HeavySource, ServiceState, View};

pub use self::status_store::{HeavySources, Sources, StatusStore};
use crate::monitor::attack_watch::{Found, UsualRates};

/// The state, as the loop posts it.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// `[node] name`.
    pub node: String,
    pub problems: Vec<Problem>,
    /// Why the node should get no traffic.
    pub unready: Vec<Problem>,
    /// Findings.
    pub findings: Vec<Problem>,
    /// In the order of the configuration, without counters.
    pub interfaces: Vec<Interface>,
    /// In the order of the configuration, without counters; one per protocol.
    pub services: Vec<Service>,
    /// Weights that were set at runtime.
    pub overrides: Vec<Override>,
    /// The last reload since the daemon began.
    pub last_reload: Option<Reload>,
    pub reloads: Reloads,
    /// Health checks that this machine could not make.
    pub checks_not_made: BTreeMap<Lack, u64>,
    /// The file that is in force.
    pub configuration: Option<PathBuf>,
    /// The configuration in force, and what was typed about its shield.
    pub shield: Option<(Arc<Config>, Arc<RuntimeShield>)>,
    /// The shield's lists, as they were read last.
    pub lists: Vec<ListReading>,
    /// Attacks that last.
    pub attacks: Vec<AttackStatus>,
    /// Attacks since the daemon began.
    pub attacks_found: Found,
    /// What services usually get.
    pub usual: UsualRates,
    /// What is forwarded between interfaces.
    pub forward: Option<ForwardStatus>,
}

/// Facts about the daemon's process itself.
#[derive(Debug, Default)]
struct Process {
    daemon: status::Daemon,
    /// Its loop is stuck.
    stalled: Option<Problem>,
    /// What it is to be told.
    confirm: Option<Problem>,
    /// The program of mitigation failed.
    untold: Vec<Problem>,
}

/// The kernel's counters at one moment.
#[derive(Debug)]
struct Counters {
    flow_table: FlowTable,
    tracked: Tracked,
    /// One for each interface of the snapshot.
    ledgers: Vec<rw_ledger>,
    services: Vec<ServiceState>,
    shield_observed: Vec<Observed>,
    /// While a service is attacked, where they are asked for.
    heavy: Option<Vec<HeavySource>>,
}

impl Snapshot {
    /// The status of `ringway status` and the API.
    fn status(&self, process: Process, counters: Option<Counters>) -> Status {
        let Process { mut daemon, stalled, confirm, untold } = process;
        daemon.configuration = self.configuration.as_ref().map(|file| file.display().to_string());
        let Snapshot { problems, unready, findings, .. } = self;
        let with = |first: &Option<Problem>, rest: &[Problem]| {
            first.iter().chain(rest).cloned().collect::<Vec<_>>()
        };
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            node: self.node.clone(),
            healthy: problems.is_empty() && stalled.is_none(),
            problems: with(&stalled, problems),
            unready: with(&stalled, unready),
            findings: [with(&confirm, findings), untold].concat(),
            daemon,
            interfaces: self.interfaces.clone(),
            services: self.services.clone(),
            overrides: self.overrides.clone(),
            last_reload: self.last_reload.clone(),
            reloads: self.reloads,
            checks_not_made: self.checks_not_made.clone(),
            forward: self.forward.clone(),
            ..Status::default()
        };
        status.degraded = stalled.is_none() && status.is_degraded();
        if let Some(counters) = counters {
            if let Some(heavy) = &counters.heavy {
                self.name_sources(&mut status.findings, &counters.services, heavy);
            }
            counters.enter(&mut status);
        }
        status
    }

    /// Findings of attacks say what is known of their sources.
    fn name_sources(
        &self,
        findings: &mut [Problem],
        services: &[ServiceState],
        heavy: &[HeavySource],
    ) {
        let (wall, ids) = (SystemTime::now(), service_ids(services));
        let config = self.shield.as_ref().map(|(config, _)| config);
        let counting = config.map(|config| counting_sources(config)).unwrap_or_default();
        // Thousands of services and of sources meet: nothing here looks at each of both.
        let mut by_service: HashMap<u16, Vec<&HeavySource>> = HashMap::new();
        for source in heavy {
            by_service.entry(source.service).or_default().push(source);
        }
        let attacks = self.attacks.iter().map(|attack| (attack.subject(), attack));
        let attacks: BTreeMap<_, _> = attacks.collect();
        for finding in findings.iter_mut().filter(|it| it.kind == ProblemKind::Mitigation) {
            let Some(attack) = attacks.get(&finding.subject) else { continue };
            let counted = counting.contains(&*attack.service);
            let id = ids.get(&(&*attack.service, attack.protocol));
            let own = id.and_then(|id| by_service.get(id)).into_iter().flatten();
            let heavy = own.filter(|source| attack.has_met(source, wall)).count();
            finding.remedy = attack.remedy(counted.then_some(heavy)).into();
        }
    }

    /// Whether the node, or this service of it, should get traffic.
    fn readiness(&self, stalled: Option<Problem>, service: Option<&str>) -> Readiness {
        let stalled = stalled.map(|problem| problem.error);
        let unready = stalled.into_iter().chain(self.unready.iter().map(line));
        let unready = unready.chain(service.and_then(|name| self.unserved(name)));
        Readiness::new(&self.node, unready.collect(), &self.problems)
    }

    fn unserved(&self, name: &str) -> Option<String> {
        let mut of_name = self.services.iter().filter(|service| service.name == name).peekable();
        if of_name.peek().is_none() {
            return Some(format!("there is no service {name:?}: `ringway status` lists them"));
        }
        let served = of_name.any(|service| service.serving() > 0);
        (!served).then(|| format!("service {name}: no backend gets traffic; see `ringway status`"))
    }
}

impl Counters {
    fn read(
        view: &View,
        Snapshot { interfaces, attacks, .. }: &Snapshot,
        flow_table: FlowTable,
        tracked: Tracked,
        heavy: HeavySources,
    ) -> ringway_kernel::Result<Counters> {
        let ledgers = interfaces.iter().map(|interface| view.ledger(interface.slot));
        let ledgers = ledgers.collect::<ringway_kernel::Result<_>>()?;
        let (services, shield_observed) = (view.services()?, shield_observed(view)?);
        let wanted = heavy == HeavySources::Counted && !attacks.is_empty();
        let heavy = wanted.then(|| view.heavy_sources()).transpose()?;
        Ok(Counters { flow_table, tracked, ledgers, services, shield_observed, heavy })
    }

    fn enter(self, status: &mut Status) {
        for (place, ledger) in self.ledgers.iter().enumerate() {
            tables::count(status, place, ledger);
        }
        let states: HashMap<_, _> = self.services.iter().map(|state| (state.key, state)).collect();
        for service in &mut status.services {
            let Some(state) = states.get(&service.key()) else { continue };
            for backend in &mut service.backends {
                let endpoint = backend.endpoint();
                if let Some(found) = state.backends.iter().find(|one| one.address == endpoint) {
                    add_traffic(backend, &found.traffic);
                    let by_backend = Some(&self.flow_table.by_backend);
                    backend.current_flows = flows_now(state, found, by_backend);
                }
            }
            service.current_flows = service.backends.iter().map(|each| each.current_flows).sum();
        }
        (status.flow_table, status.tracked) = (Some(self.flow_table), Some(self.tracked));
        status.shield_observed = self.shield_observed;
    }
}

/// Names of services that have a limit `source` while they are attacked.
fn counting_sources(config: &Config) -> HashSet<&str> {
    let shield = config.shield.iter();
    let services = shield.flat_map(|shield| config.services.iter().map(move |own| (shield, own)));
    let counting = services.filter(|(shield, own)| shield.armed_limits_of(own).source.is_some());
    counting.map(|(_, own)| own.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::{Duration, Instant};

    use ringway_abi::raw::rw_traffic;
    use ringway_abi::{Forward, Reason, Verdict};
    use ringway_api::clock::Timestamp;
    use ringway_api::documents::health::Health;
    use ringway_api::documents::status::{Backend, Ledger, NextHop};
    use ringway_api::node::liveness;
    use ringway_kernel::BackendState;
    use ringway_plan::tables::{Protocol, ServiceKey};

    use super::*;
    use crate::monitor::mitigation_program::tests::attack;
    use crate::testing::{parsed, service_state};

    const BACKEND: ([u8; 4], u16) = ([10, 0, 0, 2], 80);

    fn service(name: &str, port: u16, health: Health) -> Service {
        let next_hop = Some(NextHop::default());
        let backend = Backend { health, next_hop, ..Backend::new(SocketAddr::from(BACKEND)) };
        let key = ServiceKey::new([203, 0, 113, 9].into(), port, Protocol::Tcp);
        Service { backends: vec![backend], ..Service::new(name, key, Forward::Nat) }
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            node: "gw1".into(),
            problems: vec![ProblemKind::NoBackend.of_service(
                "web",
                "service web: no backend",
                "mend it",
            )],
            interfaces: vec![Interface { name: "eth0".into(), slot: 3, ..Interface::default() }],
            services: vec![service("web", 80, Health::Down), service("dns", 53, Health::Up)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_was_posted_and_what_was_counted_make_a_status() {
        let state = |name: &str, port, packets| {
            let backend = BackendState {
                index: 7,
                generation: 1,
                address: BACKEND.into(),
                up: true,
                kept: false,
                next_hop: None,
                traffic: rw_traffic { packets, flows: 2, ..Default::default() },
            };
            ServiceState { backends: vec![backend], ..service_state(port, name, port) }
        };
        let services = vec![state("dns", 53, 5), state("web", 80, 9)];
        let by_backend = [(services[0].backends[0].reference(), 4)].into();
        let mut ledger = rw_ledger { seen: 3, ..Default::default() };
        ledger.counts[Verdict::Drop as usize][Reason::Malformed as usize] = 2;
        let counters = Counters {
            flow_table: FlowTable { by_backend, ..FlowTable::default() },
            tracked: Tracked::default(),
            ledgers: vec![ledger],
            services,
            shield_observed: Vec::new(),
            heavy: None,
        };
        let status = snapshot().status(Process::default(), Some(counters));
        assert!(!status.healthy && !status.degraded, "web is not served at all");
        let packets = status.services.iter().map(|service| service.backends[0].packets);
        assert_eq!(packets.collect::<Vec<_>>(), [9, 5]);
        assert_eq!(status.services[1].current_flows, Some(4));
        assert_eq!(status.interfaces[0].ledger, Ledger::new(3, 2));
        let counter = &status.counters[0];
        assert_eq!((counter.interface.as_str(), counter.reason), ("eth0", Reason::Malformed));
        assert!(status.flow_table.is_some() && status.tracked.is_some());
    }

    #[test]
    fn a_stuck_loop_comes_first_and_a_confirmation_leads_the_findings() {
        let problem = |kind: ProblemKind| Some(kind.problem(kind.name(), ""));
        let process = Process {
            stalled: problem(ProblemKind::LoopStalled),
            confirm: problem(ProblemKind::Confirm),
            ..Process::default()
        };
        let well = Snapshot {
            problems: Vec::new(),
            findings: vec![ProblemKind::CheckHost.problem("", "")],
            services: vec![service("dns", 53, Health::Up)],
            ..snapshot()
        };
        assert!(well.status(Process::default(), None).healthy);
        let status = well.status(process, None);
        assert!(!status.healthy);
        assert_eq!(status.problems, status.unready);
        assert_eq!(status.problems[0].kind, ProblemKind::LoopStalled);
        let kinds = status.findings.iter().map(|finding| finding.kind);
        assert_eq!(kinds.collect::<Vec<_>>(), [ProblemKind::Confirm, ProblemKind::CheckHost]);
    }

    #[test]
    fn many_attacks_and_many_sources_are_told_at_once() {
        const SERVICES: u16 = 500;
        let name = |n: u16| format!("s{n}");
        let mut text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n[shield]\n\
            mitigation = { packets = \"300kpps\" }\nlimits = { source = \"1kpps\" }\n"
            .to_owned();
        for n in 0..SERVICES {
            text += &format!(
                "[[service]]\nname = \"s{n}\"\naddress = \"203.0.113.9\"\nport = {}\n",
                n + 1
            );
            text += "backends = [{ address = \"10.0.0.2\" }]\n";
        }
        let config = parsed(&text);
        let since = Timestamp(SystemTime::now() - Duration::from_secs(60));
        let attack = |n: u16| AttackStatus { service: name(n), since, ..attack(n + 1) };
        let attacks: Vec<_> = (0..SERVICES).map(attack).collect();
        let state = |n: u16| service_state(SERVICES - n, &name(n), n + 1);
        let source = |service, silent| HeavySource {
            learnt: false,
            prefix: [192, 0, 2, 0].into(),
            service,
            over: 9,
            lasting: 2,
            silent,
        };
        // One service has two sources more, one of them from before its attack.
        let mut heavy: Vec<_> = (0..40_000).map(|n| source(n % SERVICES, 1)).collect();
        heavy.extend([source(SERVICES - 3, 1), source(SERVICES - 3, 600)]);
        let services: Vec<_> = (0..SERVICES).map(state).collect();
        let finding = |attack: &AttackStatus| Problem {
            subject: attack.subject(),
            ..ProblemKind::Mitigation.problem("attacked", "")
        };
        let mut findings: Vec<_> = attacks.iter().map(finding).collect();
        let shield = Some((Arc::new(config), Arc::default()));
        let snapshot = Snapshot { attacks, shield, ..snapshot() };
        let begun = Instant::now();
        snapshot.name_sources(&mut findings, &services, &heavy);
        // A step for each attack and source would take most of a minute.
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        let told = |n: usize, words: &str| {
            let remedy = findings[n].remedy.to_string();
            assert!(remedy.contains(words), "{n}: {remedy}");
        };
        told(0, "no source was over its limit");
        told(1, " 80 heavy sources");
        told(3, " 81 heavy sources");
    }

    #[test]
    fn one_service_of_two_is_no_reason_to_withdraw_the_node() {
        let posted = snapshot();
        let all = posted.readiness(None, None);
        assert!(all.ready);
        assert_eq!(all.line(), "ready: node gw1, although service web: no backend; mend it");
        assert!(posted.readiness(None, Some("dns")).ready);
        let web = posted.readiness(None, Some("web"));
        assert!(!web.ready && web.line().starts_with("not ready: node gw1: service web:"));
        assert!(!posted.readiness(None, Some("mail")).ready);
    }

    #[test]
    fn a_node_that_cannot_serve_says_why_in_one_line() {
        let unready = |error: &str| ProblemKind::Starting.problem(error, "mend it");
        let unready = vec![unready("eth1 is\ndown"), unready("starting")];
        let posted = Snapshot { unready, ..snapshot() };
        let said = posted.readiness(None, None).line();
        assert_eq!(said, "not ready: node gw1: eth1 is down; mend it (and 1 more)");
        let stalled = liveness::stalled(Duration::from_secs(9), u64::MAX);
        let stalled = Snapshot::default().readiness(Some(stalled), None);
        assert!(!stalled.ready && stalled.reasons[0].contains("9 s"));
    }
}
