//! Flows of dsr services through any sequence of changes: planned by the planner, forwarded by a
//! model of the packet path (bpf/gateway/track.bpf.h).

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::SocketAddr;

use proptest::prelude::*;
use ringway_config::{Config, parse};
use ringway_plan::tables::{BackendRow, NextHop, Tables};
use ringway_plan::{Health, Ids, Observed, Planner, Written};

const HOP: NextHop = NextHop { iface: 0, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
/// Seconds; of both protocols.
const TIMEOUT: u32 = 100;
const BACKENDS: usize = 5;
const SLOTS: u32 = 65_537;

#[derive(Clone, Debug)]
enum Event {
    /// A backend is configured with this weight; 0 drains it.
    Weight(usize, u8),
    /// A backend leaves the configuration, or comes back.
    Configured(usize, bool),
    /// A backend dies, or comes back.
    Up(usize, bool),
    /// So many seconds pass.
    Wait(u32),
    /// So many new flows begin; some of them find no room for a record.
    Begin(usize, bool),
    /// Every nth flow sends a packet.
    Send(usize),
    /// The records are looked through.
    Observe,
    /// Another daemon takes over.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    let backend = || 0..BACKENDS;
    prop_oneof![
        3 => (backend(), 0..3u8).prop_map(|(b, weight)| Event::Weight(b, weight)),
        1 => (backend(), any::<bool>()).prop_map(|(b, there)| Event::Configured(b, there)),
        2 => (backend(), any::<bool>()).prop_map(|(b, up)| Event::Up(b, up)),
        4 => prop_oneof![1..4u32, 20..60u32, Just(TIMEOUT - 1), Just(TIMEOUT + 2), Just(3 * TIMEOUT)]
            .prop_map(Event::Wait),
        4 => (10..40usize, prop::bool::weighted(0.2)).prop_map(|(n, full)| Event::Begin(n, full)),
        6 => (1..4usize).prop_map(Event::Send),
        3 => Just(Event::Observe),
        1 => Just(Event::Restart),
    ]
}

#[derive(Debug)]
struct Flow {
    slot: u32,
    /// Whose connection it is.
    owner: u32,
    sent: u32,
}

struct Record {
    slot: u32,
    backend: u32,
    seen: u32,
}

struct World {
    udp: bool,
    planner: Planner,
    observed: Observed,
    tables: Tables,
    ring: Written,
    weights: [u8; BACKENDS],
    there: [bool; BACKENDS],
    up: [bool; BACKENDS],
    flows: HashMap<usize, Flow>,
    records: HashMap<usize, Record>,
    failed: HashMap<u16, u32>,
    next: usize,
}

impl World {
    fn new(udp: bool) -> World {
        let mut observed = Observed::default();
        observed.now = 1000;
        let mut world = World {
            udp,
            planner: Planner::default(),
            observed,
            tables: Tables::default(),
            ring: Written { slots: Vec::new(), pairs: [].into() },
            weights: [1; BACKENDS],
            there: [true; BACKENDS],
            up: [true; BACKENDS],
            flows: HashMap::new(),
            records: HashMap::new(),
            failed: HashMap::new(),
            next: 0,
        };
        world.plan();
        world
    }

    fn config(&self) -> Config {
        let backends: Vec<String> = (0..BACKENDS)
            .filter(|b| self.there[*b])
            .map(|b| format!("{{ address = \"10.0.0.{}\", weight = {} }}", b + 2, self.weights[b]))
            .collect();
        let protocol = if self.udp { "udp" } else { "tcp" };
        let text = format!(
            "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n[nat]\n\
             timeouts = {{ established = \"{TIMEOUT}s\", udp = \"{TIMEOUT}s\" }}\n\
             [[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\nport = 80\n\
             protocol = \"{protocol}\"\nforward = \"dsr-l2\"\n\
             check = {{ type = \"tcp\", port = 8080 }}\nbackends = [{}]\n",
            backends.join(", ")
        );
        parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn plan(&mut self) {
        let config = self.config();
        for backend in &config.services[0].backends {
            let endpoint: SocketAddr = backend.endpoint();
            let number = usize::from(endpoint.to_string().as_bytes()[7] - b'2');
            let health = if self.up[number] { Health::Up } else { Health::Down };
            self.observed.set_health("web", endpoint, health);
            self.observed.next_hops.insert(*backend.address, HOP);
        }
        self.tables = self.planner.plan(&config, &self.observed).unwrap();
        let id = self.tables.services[0].ring;
        self.ring = self.tables.rings.iter().find(|ring| ring.id == id).unwrap().written();
        self.bury();
    }

    fn row(&self, reference: u32) -> Option<&BackendRow> {
        self.tables.backends.iter().find(|row| row.reference() == reference)
    }

    fn lives(&self, reference: u32) -> bool {
        self.row(reference).is_some_and(|row| row.up)
    }

    /// Flows whose backend has died are over.
    fn bury(&mut self) {
        let dead: Vec<usize> = self
            .flows
            .iter()
            .filter(|(_, flow)| !self.lives(flow.owner) || self.observed.now - flow.sent > TIMEOUT)
            .map(|(id, _)| *id)
            .collect();
        for id in dead {
            self.flows.remove(&id);
        }
    }

    /// What the packet path does: the backend, when there is one.
    fn forward(&mut self, id: usize, slot: u32, syn: bool, room: bool) -> Option<u32> {
        let now = self.observed.now;
        let members = &self.tables.services[0].members;
        let reference = |member: Option<u16>| member.map(|m| members[usize::from(m)]);
        let ring = &self.ring;
        let current = reference(ring.current(slot as usize));
        let former = reference(ring.former(slot as usize));
        if !ring.is_changed(slot as usize) {
            return current;
        }
        let own = self.records.get(&id).filter(|r| now - r.seen <= TIMEOUT).map(|r| r.backend);
        if let Some(backend) = own.filter(|backend| self.lives(*backend)) {
            self.records.get_mut(&id).unwrap().seen = now;
            return Some(backend);
        }
        let Some(former) = former.filter(|f| Some(*f) != current && self.lives(*f)) else {
            return current;
        };
        let wanted = if syn { current? } else { former };
        if room {
            self.records.insert(id, Record { slot, backend: wanted, seen: now });
            return Some(wanted);
        }
        if syn && !self.row(former).unwrap().takes_new() {
            return None;
        }
        self.failed.insert(0, now);
        Some(former)
    }

    fn send(&mut self, id: usize) {
        let Flow { slot, owner, .. } = self.flows[&id];
        let got = self.forward(id, slot, false, true);
        assert_eq!(got, Some(owner), "flow {id} in slot {slot}");
        self.flows.get_mut(&id).unwrap().sent = self.observed.now;
    }

    fn begin(&mut self, room: bool) {
        let id = self.next;
        self.next += 1;
        let slot = (id as u32).wrapping_mul(2_654_435_761) % SLOTS;
        let Some(owner) = self.forward(id, slot, !self.udp, room) else { return };
        assert!(self.lives(owner), "flow {id} given to a dead backend");
        self.flows.insert(id, Flow { slot, owner, sent: self.observed.now });
    }

    fn observe(&mut self) {
        let now = self.observed.now;
        let mut observe = self.planner.observe(now, self.failed.clone());
        for record in self.records.values().filter(|record| now - record.seen <= TIMEOUT) {
            let live = self.tables.backends.iter().any(|b| b.reference() == record.backend && b.up);
            if live {
                observe.record(record.slot, record.backend);
            }
        }
        self.observed.records = observe.end();
        self.plan();
    }

    fn restart(&mut self) {
        let Tables { services, backends, rings, .. } = &self.tables;
        let highest = backends.iter().map(|row| row.index).max().unwrap_or(0);
        // What was used before and is free now has had at most this generation.
        let retired: Vec<(u32, u16)> = (0..=highest + 100)
            .filter(|index| backends.iter().all(|row| row.index != *index))
            .map(|index| (index, 100))
            .collect();
        let ids = Ids::from_rows(services, backends, &retired, &[]);
        self.planner = Planner::take_over(ids, services, rings);
        self.observed.records = Default::default();
        self.plan();
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Weight(backend, weight) => self.weights[backend] = weight,
            Event::Configured(backend, there) => {
                self.there[backend] = there;
                if self.there == [false; BACKENDS] {
                    self.there[backend] = true;
                }
            }
            Event::Up(backend, up) => self.up[backend] = up,
            Event::Wait(seconds) => {
                self.observed.now += seconds;
                self.bury();
                return;
            }
            Event::Begin(flows, full) => {
                (0..flows).for_each(|_| self.begin(!full));
                return;
            }
            Event::Send(nth) => {
                let ids: Vec<usize> =
                    self.flows.keys().copied().filter(|id| id % nth == 0).collect();
                ids.into_iter().for_each(|id| self.send(id));
                return;
            }
            Event::Observe => return self.observe(),
            Event::Restart => return self.restart(),
        }
        self.plan();
    }

    /// After a quiet while nothing is left of any change.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.observed.now += 2 * TIMEOUT;
            self.observe();
        }
        self.observed.now += 2 * TIMEOUT;
        self.bury();
        assert!(!self.planner.is_changing(), "{:?}", self.ring.pairs);
        for slot in 0..SLOTS as usize {
            assert!(!self.ring.is_changed(slot));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever changes, and however often: a flow keeps its backend while that lives and the
    /// flow is not idle for too long.
    #[test]
    fn flows_stay(udp: bool, events in prop::collection::vec(event(), 1..50)) {
        let mut world = World::new(udp);
        (0..100).for_each(|_| world.begin(true));
        for event in &events {
            world.happen(event);
        }
        world.happen(&Event::Send(1));
        world.settle();
    }
}

#[test]
fn three_changes_in_ten_seconds() {
    for udp in [false, true] {
        let mut world = World::new(udp);
        (0..400).for_each(|_| world.begin(true));
        for backend in 0..3 {
            world.happen(&Event::Weight(backend, 0));
            (0..100).for_each(|_| world.begin(true));
            world.happen(&Event::Wait(3));
            world.happen(&Event::Send(2));
        }
        assert!(world.planner.is_changing());
        world.happen(&Event::Wait(TIMEOUT - 15));
        world.happen(&Event::Send(1));
        // By now every flow has a record: the former owners are forgotten, the flows are not.
        for _ in 0..5 {
            world.happen(&Event::Wait(60));
            world.happen(&Event::Observe);
            world.happen(&Event::Send(1));
        }
        assert_eq!(world.flows.len(), 700);
        world.settle();
    }
}

/// A flow without a record that sends again at the end of its timeout still goes to its owner.
#[test]
fn a_flow_may_be_silent_for_its_whole_timeout() {
    for udp in [false, true] {
        let mut world = World::new(udp);
        (0..400).for_each(|_| world.begin(true));
        world.happen(&Event::Weight(0, 0));
        world.happen(&Event::Wait(TIMEOUT));
        world.happen(&Event::Observe);
        assert_eq!(world.flows.len(), 400);
        world.happen(&Event::Send(1));
    }
}

/// A second change of a slot does not prolong the memory of its former owner.
#[test]
fn a_change_does_not_begin_anew() {
    let mut world = World::new(false);
    let reference = world.tables.backends[0].reference();
    let drained = world.tables.services[0].members.iter().position(|m| *m == reference);
    let drained = drained.map(|member| member as u16);
    world.happen(&Event::Weight(0, 0));
    let before = world.ring.clone();
    world.happen(&Event::Wait(TIMEOUT / 2));
    world.happen(&Event::Weight(1, 0));
    let changed_twice = |slot: usize| {
        world.ring.former(slot) == drained && world.ring.current(slot) != before.current(slot)
    };
    assert!((0..SLOTS as usize).any(changed_twice));
    world.happen(&Event::Wait(TIMEOUT / 2 + 1));
    world.happen(&Event::Observe);
    assert!((0..SLOTS as usize).all(|slot| world.ring.former(slot) != drained));
}

/// A slot whose owner dies is stable with its next; Maglev moves few others.
#[test]
fn the_dead_are_not_remembered() {
    let mut world = World::new(false);
    let (was, members) = (world.ring.clone(), world.tables.services[0].members.clone());
    let dead = members.iter().position(|m| *m == world.tables.backends[0].reference()).unwrap();
    world.happen(&Event::Up(0, false));
    let mut moved = 0;
    for slot in 0..SLOTS as usize {
        if was.current(slot) == Some(dead as u16) {
            assert!(!world.ring.is_changed(slot));
        } else if world.ring.is_changed(slot) {
            assert_eq!(world.ring.former(slot), was.current(slot));
            moved += 1;
        }
    }
    assert!((1..SLOTS / 20).contains(&moved), "{moved}");
    world.settle();
}

#[test]
fn equal_services_share() {
    let service = |port: u16| {
        format!(
            "[[service]]\nname = \"s{port}\"\naddress = \"203.0.113.10\"\nport = {port}\n\
             forward = \"dsr-ipip\"\ncheck = {{ type = \"tcp\" }}\n\
             backends = [{{ address = \"10.0.0.2\" }}, {{ address = \"10.0.0.3\" }}]\n"
        )
    };
    let text: String = (1..=20).map(service).collect();
    let text = format!("[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n{text}");
    let mut config = parse(&text, "test.toml").unwrap();
    let mut observed = Observed::default();
    observed.now = 10;
    for service in &config.services {
        for backend in &service.backends {
            observed.set_health(&service.name, backend.endpoint(), Health::Up);
            observed.next_hops.insert(*backend.address, HOP);
            observed.sources.insert(*backend.address, "10.0.0.1".parse().unwrap());
        }
    }
    let mut planner = Planner::default();
    let rings = |tables: &Tables| tables.rings.len();
    assert_eq!(rings(&planner.plan(&config, &observed).unwrap()), 1);
    // One of them drains a backend: two rings; all do: one again.
    config.services[0].backends[0].weight = 0;
    let apart = planner.plan(&config, &observed).unwrap();
    assert_eq!(rings(&apart), 2);
    assert_ne!(apart.services[0].ring, apart.services[1].ring);
    for service in &mut config.services {
        service.backends[0].weight = 0;
    }
    observed.now = 11;
    let again = planner.plan(&config, &observed).unwrap();
    assert_eq!(rings(&again), 2, "changed a second later");
    assert!(planner.is_changing());
}
