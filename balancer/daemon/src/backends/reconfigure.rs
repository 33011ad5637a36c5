//! One configuration after another: who is still here, and what stays known of them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use ringway_api::documents::changes::NewBackend;
use ringway_api::overrides::Overrides;
use ringway_config::{Backend, Check, Config, Forward, Service, Syn};

use super::{BackendSet, Entry, Member};
use crate::backends::slow_start::SlowStart;
use crate::health::cookies::Cookies;
use crate::health::{Health, dsr_probe};
use crate::network::next_hop::NoWay;

/// How a backend's health is found out.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Asked {
    pub(super) check: Option<Check>,
    /// Under dsr, what its lane depends on: service address, mode, port of GUE, outer source.
    probe_route: Option<(IpAddr, Forward, u16, Option<IpAddr>)>,
    /// Whether it takes the gateway's cookies is asked, too.
    cookies: bool,
}

impl Asked {
    fn new(config: &Config, service: &Service, backend: &Backend) -> Asked {
        let outer = config.tunnel.source_towards(*backend.address);
        let probe_route = (*service.address, service.forward, service.gue_port, outer);
        let has_lane = dsr_probe::is_taken(service, backend);
        Asked {
            check: service.check_of(backend),
            probe_route: has_lane.then_some(probe_route),
            cookies: has_lane && *service.syn == Syn::Backend,
        }
    }

    /// At the service address.
    pub(super) fn by_lane(&self) -> bool {
        self.probe_route.is_some()
    }

    /// Whether it takes cookies.
    pub(super) fn for_cookies(&self) -> bool {
        self.cookies
    }
}

/// A known backend, and how its service forwards.
type Known<'r> = (Forward, &'r Member);

impl BackendSet {
    /// The backend set of another configuration. Backends that are here already keep what is known
    /// of them, and their number if they are asked as before.
    pub fn reconfigure(&self, config: &Config, now: Instant) -> BackendSet {
        let (mut named, mut placed) = (HashMap::new(), HashMap::new());
        for (entry, member) in self.members() {
            let known: Known = (entry.forward, member);
            named.insert((entry.name.as_str(), member.endpoint), known);
            placed.insert((entry.address, entry.port, member.endpoint), known);
        }
        let mut backend_set =
            BackendSet { next: self.next, started: self.started, ..BackendSet::default() };
        for (place, service) in config.services.iter().enumerate() {
            let mut entry = Entry::new(service);
            for backend in &service.backends {
                let endpoint = backend.endpoint();
                let known = named.get(&(service.name.as_str(), endpoint));
                // The service may have got another name.
                let key = (*service.address, *service.port, endpoint);
                let known = known.or_else(|| placed.get(&key)).copied();
                let asked = Asked::new(config, service, backend);
                let mut member = Member::new(backend, asked);
                let stays = known.is_some_and(|known| member.keep(known, service.forward));
                member.kept = member.kept.filter(|_| entry.keep_for.is_some());
                let had_flows = known.is_some_and(|(_, known)| known.weight > 0);
                if self.started && !had_flows && member.weight > 0 && member.health.is_up() {
                    member.slow_start = SlowStart::begin(service.slow_start, now);
                }
                if !stays {
                    member.id = backend_set.next;
                    backend_set.next += 1;
                }
                backend_set.places.insert(member.id, (place, entry.members.len()));
                entry.members.push(member);
            }
            backend_set.services.push(entry);
        }
        backend_set
    }

    /// Takes note of which weights are not the file's. `file`: the same without overrides.
    pub fn mark(&mut self, file: &Config, overrides: &Overrides) {
        for (entry, service) in self.services.iter_mut().zip(&file.services) {
            for (member, backend) in entry.members.iter_mut().zip(&service.backends) {
                let known = overrides.of(&entry.name, member.endpoint);
                member.file_weight = known.map(|_| backend.weight);
                member.drained = known.is_some_and(|known| known.drained);
            }
        }
    }

    /// Backends that `other` has not and that are to get traffic, but cannot as far as is known.
    pub fn idle_beside(&self, other: &BackendSet) -> Vec<NewBackend> {
        let new = self.members().filter(|(_, member)| !other.has(member.id) && member.weight > 0);
        let idle = |(entry, member): (&Entry, &Member)| {
            Some(NewBackend {
                service: entry.name.clone(),
                address: member.endpoint.ip(),
                port: member.endpoint.port(),
                reason: member.obstacle()?,
            })
        };
        new.filter_map(idle).collect()
    }

    /// Backends that checks say are down, by the names of their services.
    pub fn down(&self) -> HashSet<(&str, SocketAddr)> {
        let down = self.members().filter(|(_, member)| member.health == Health::Down);
        down.map(|(entry, member)| (entry.name.as_str(), member.endpoint)).collect()
    }
}

impl Member {
    /// Nothing known yet.
    fn new(backend: &Backend, asked: Asked) -> Member {
        Member {
            id: 0,
            endpoint: backend.endpoint(),
            weight: backend.weight,
            file_weight: None,
            drained: false,
            slow_start: None,
            health: if asked.check.is_some() { Health::Unknown } else { Health::Unchecked },
            kept: None,
            asked,
            since: None,
            reason: None,
            record: Arc::default(),
            cookies: Cookies::Unknown,
            offer: None,
            way: Err(NoWay::NotYet),
            lost_by: None,
        }
    }

    /// Takes over what is known. False when it is asked in another way now: then its checks begin
    /// anew, from the health it had.
    fn keep(&mut self, (was, known): Known, forward: Forward) -> bool {
        // dsr-l2 cannot go by way of a router.
        if was == forward || known.way.as_ref().is_ok_and(|hop| hop.router.is_none()) {
            self.way.clone_from(&known.way);
        }
        self.slow_start = known.slow_start;
        self.health = match (&self.asked.check, known.health) {
            (None, _) => Health::Unchecked,
            // It had traffic.
            (Some(_), Health::Unchecked) => Health::Up,
            (Some(_), health) => health,
        };
        // It is as it was, whoever says so from now on.
        if self.health == known.health {
            self.kept = known.kept;
            self.since = known.since;
            self.reason.clone_from(&known.reason);
        }
        self.cookies.clone_from(&known.cookies);
        if self.asked != known.asked {
            self.record = Arc::new(known.record.go_on());
            return false;
        }
        self.id = known.id;
        self.offer = known.offer;
        self.record = known.record.clone();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::next_hop::Hop;
    use crate::testing::{event, gateway, hop};

    /// A service "web" with a check, and whatever backends and further keys.
    fn config(backends: &str, more: &str) -> Config {
        gateway("", &format!("backends = [{backends}]\n{more}"))
    }

    const A: &str = "{ address = \"10.0.0.2\" }";
    const B: &str = "{ address = \"10.0.0.3\" }";
    const CHECK: &str = "check = { type = \"tcp\" }";

    fn health(backend_set: &BackendSet) -> Vec<(usize, Health)> {
        backend_set.members().map(|(_, member)| (member.id, member.health)).collect()
    }

    fn percents(backend_set: &BackendSet) -> Vec<Option<u16>> {
        let backends = &backend_set.shown(Instant::now())[0].backends;
        backends.iter().map(|backend| backend.slow_start_percent).collect()
    }

    fn is_slow(backend_set: &BackendSet) -> bool {
        backend_set.is_starting_slowly(Instant::now())
    }

    #[test]
    fn who_stays_keeps_number_and_health() {
        let mut backend_set = BackendSet::new(&config(&[A, B].join(","), CHECK), Instant::now());
        backend_set.take(&event(0, Health::Up), Instant::now());
        backend_set.take(&event(1, Health::Down), Instant::now());
        let c = "{ address = \"10.0.0.4\" }";
        let next = backend_set.reconfigure(&config(&[c, B, A].join(","), CHECK), Instant::now());
        assert_eq!(health(&next), [(2, Health::Unknown), (1, Health::Down), (0, Health::Up)]);
        assert!(next.waiting_beside(&backend_set) && !backend_set.waiting_beside(&backend_set));
        // A number is never given twice.
        let last = next
            .reconfigure(&config(A, CHECK), Instant::now())
            .reconfigure(&config(&[A, c].join(","), CHECK), Instant::now());
        assert_eq!(health(&last), [(0, Health::Up), (3, Health::Unknown)]);
        let target = &last.targets(&Default::default())[0];
        assert_eq!((target.id, target.initial), (0, Health::Up));
    }

    #[test]
    fn another_check_begins_with_the_health_there_was() {
        let mut backend_set = BackendSet::new(&config(&[A, B].join(","), CHECK), Instant::now());
        backend_set.take(&event(0, Health::Up), Instant::now());
        backend_set.take(&event(1, Health::Down), Instant::now());
        let both = [A, B].join(",");
        let next = |set: &BackendSet, backends: &str, check: &str| {
            set.reconfigure(&config(backends, check), Instant::now())
        };
        let http = next(&backend_set, &both, "check = { type = \"http\" }");
        assert_eq!(health(&http), [(2, Health::Up), (3, Health::Down)]);
        assert!(http.services[0].members.iter().all(|member| member.since.is_some()));
        let none = next(&http, &both, "");
        assert_eq!(health(&none), [(4, Health::Unchecked), (5, Health::Unchecked)]);
        assert_eq!(health(&next(&none, &both, CHECK)), [(6, Health::Up), (7, Health::Up)]);
        // Weights are nothing to a check.
        let heavy = "{ address = \"10.0.0.2\", weight = 9 }";
        assert_eq!(health(&next(&backend_set, heavy, CHECK)), [(0, Health::Up)]);
    }

    #[test]
    fn another_mode_goes_by_the_same_way_unless_it_cannot() {
        let by = |router: Option<&str>| {
            let router = router.map(|address| address.parse().expect("address"));
            Ok(Hop { source: None, router, ..hop() })
        };
        let l2 = config(A, "forward = \"dsr-l2\"\nannounce = \"arp\"");
        let mut backend_set = BackendSet::new(&config(A, ""), Instant::now());
        backend_set.take_ways(|_| by(None));
        let next = backend_set.reconfigure(&l2, Instant::now());
        assert!(!next.waiting(), "there is no moment without it");
        backend_set.take_ways(|_| by(Some("10.0.0.254")));
        assert!(backend_set.reconfigure(&l2, Instant::now()).waiting());
    }

    #[test]
    fn a_service_by_another_name_is_the_same() {
        let mut backend_set = BackendSet::new(&config(A, CHECK), Instant::now());
        backend_set.take(&event(0, Health::Up), Instant::now());
        let mut renamed = config(A, CHECK);
        renamed.services[0].name = "new".to_owned().into();
        assert_eq!(health(&backend_set.reconfigure(&renamed, Instant::now())), [(0, Health::Up)]);
    }

    #[test]
    fn who_had_weight_0_begins_slowly() {
        let slow = format!("{CHECK}\nslow_start = \"30s\"");
        let with = |weight: u16| {
            let b = format!("{{ address = \"10.0.0.3\", weight = {weight} }}");
            config(&[A, &b].join(","), &slow)
        };
        let mut backend_set = BackendSet::new(&with(0), Instant::now());
        (0..2).for_each(|id| _ = backend_set.take(&event(id, Health::Up), Instant::now()));
        let next = |set: &BackendSet, weight| set.reconfigure(&with(weight), Instant::now());
        assert!(!is_slow(&next(&backend_set, 1)), "the daemon has just begun");
        backend_set.start();
        assert!(!is_slow(&next(&backend_set, 0)));
        let raised = next(&backend_set, 1);
        assert_eq!(percents(&raised), [None, Some(10)]);
        // A weight that was not 0 is there at once.
        let began = raised.members().nth(1).and_then(|(_, member)| member.slow_start);
        let heavier = next(&raised, 5);
        assert_eq!(heavier.members().nth(1).and_then(|(_, member)| member.slow_start), began);
        // Who is down begins when it comes up.
        backend_set.take(&event(1, Health::Down), Instant::now());
        assert!(!is_slow(&next(&backend_set, 1)));
    }

    #[test]
    fn only_who_comes_up_later_begins_slowly() {
        let slow = format!("{CHECK}\nslow_start = \"30s\"");
        let mut backend_set = BackendSet::new(&config(&[A, B].join(","), &slow), Instant::now());
        backend_set.take(&event(0, Health::Up), Instant::now());
        assert!(!is_slow(&backend_set), "the daemon has just begun");
        backend_set.start();
        backend_set.take(&event(1, Health::Down), Instant::now());
        assert!(!is_slow(&backend_set));
        backend_set.take(&event(1, Health::Up), Instant::now());
        assert_eq!(percents(&backend_set), [None, Some(10)]);
        let next = backend_set.reconfigure(&config(&[B, A].join(","), &slow), Instant::now());
        assert!(is_slow(&next));
        assert_eq!(percents(&next), [Some(10), None]);
        backend_set.take(&event(1, Health::Down), Instant::now());
        assert!(!is_slow(&backend_set));
    }
}
