//! The promises of a table of tracked flows that is far too small: packets of a crowd, changes of
//! owners and a clock, in any order, against the loaded program.
//!
//! - Who has a record goes where that says. Who has none gets one: a SYN of the current owner, all
//!   else of the former.
//! - Who gives way was on probation and had its time, longer than all others in its bucket; or it
//!   was over.
//! - Of whom more than SYNs came, and who has no record, the daemon is told: the former owner has
//!   to stay that.

use std::collections::HashMap;

use ringway_abi::TrackedFlow;
use ringway_abi::raw::RW_BUCKET_TRACKS;
use ringway_bpf_tests::clock::seed;
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::prelude::*;

use crate::track::{Flow, PORT, counts, go, pair, stranger, world};

const STEPS: usize = 1_000;
const FLOWS: u32 = 40;
/// The first backend.
const FORMER: u8 = 0;
/// Seconds after which a record on probation may give way, and a SYN begins another connection on
/// the tuple of one that was closed.
const CHANCE: i32 = 2;

/// A record's bucket, name and contents.
type Found = (u32, u64, TrackedFlow);

/// A packet, and what it changed.
#[derive(Debug)]
struct Sent {
    syn: bool,
    udp: bool,
    to: u8,
    now: u32,
    /// Its own record before and after it.
    own: [Option<TrackedFlow>; 2],
    before: Vec<Found>,
    gone: Vec<Found>,
    begun: u64,
    evicted: u64,
    refused: u64,
    /// Whether the daemon is told of the service of TCP, and of that of UDP.
    told: [bool; 2],
}

struct Model {
    world: World,
    random: Random,
    current: u8,
    buckets: u32,
    flows: Vec<Flow>,
    /// Under which name each has its record, once it had one.
    names: HashMap<usize, u64>,
    evicted: u64,
}

impl Model {
    fn new(world: World, buckets: u32) -> Self {
        let proto = |n: u32| if n.is_multiple_of(4) { UDP } else { TCP };
        let flow = |n: u32| Flow(Frame { proto: proto(n), ..stranger(n).0 });
        let random = Random::new(seed() ^ u64::from(buckets));
        let flows = (0..FLOWS).map(flow).collect();
        let (names, current, evicted) = (HashMap::new(), FORMER, 0);
        let mut model = Self { world, random, current, buckets, flows, names, evicted };
        (0..buckets).for_each(|n| audit::write(model.world.map("tracked"), n, &[0; 64]));
        model.change();
        model
    }

    fn change(&mut self) {
        self.current = 1 + self.random.below(3) as u8;
        pair(&mut self.world, self.current.into(), FORMER.into());
        self.world.change_settings(|settings| settings.track_buckets = self.buckets);
    }

    fn is_alive(&self, flow: &TrackedFlow, now: u32) -> bool {
        let of = self.world.tables.timeouts;
        let timeout = match flow {
            flow if flow.udp => of.udp,
            flow if flow.closing => of.closing,
            flow if flow.syn => of.syn,
            _ => of.established,
        };
        i64::from(flow.age(now)) <= i64::from(timeout)
    }

    fn gives_way(&self, flow: &TrackedFlow, now: u32) -> bool {
        !self.is_alive(flow, now) || !flow.promoted && flow.age(now) > CHANCE
    }

    fn owner(&self, flow: &TrackedFlow) -> u8 {
        let row = self.world.tables.backends.iter().find(|row| row.reference() == flow.backend);
        (0..4).find(|n| row.unwrap().address == Family::V4.backend(*n)).unwrap()
    }

    fn told(&self) -> [bool; 2] {
        [TCP, UDP].map(|proto| {
            let service = self.world.service(Family::V4, proto, PORT).row.id.into();
            let map = self.world.map("untracked");
            let told = audit::read(map, service) != [0; 4];
            audit::write(map, service, &[0; 4]);
            told
        })
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..15 => {
                let n = self.random.below(self.flows.len());
                let flags = [SYN, SYN, SYN, ACK, ACK, ACK, ACK, FIN | ACK, RST];
                let flags = *self.random.pick(&flags);
                let sent = self.send(n, flags);
                self.hold(&sent);
            }
            15..19 => self.world.advance(1 + self.random.below(3) as u64),
            _ if self.random.below(8) == 0 => self.world.advance(1_000),
            _ => self.change(),
        }
    }

    fn send(&mut self, n: usize, flags: u8) -> Sent {
        self.told();
        let (before, was) = (audit::tracked(&self.world), counts(&self.world));
        let to = go(&self.world, &self.flows[n], flags);
        let (after, is) = (audit::tracked(&self.world), counts(&self.world));
        let mut new = after.iter().filter(|found| before.iter().all(|old| old.1 != found.1));
        if let Some((_, name, _)) = new.next() {
            assert!(self.names.insert(n, *name).is_none_or(|former| former == *name));
        }
        assert_eq!(new.next(), None);
        let named = |found: &&Found| self.names.get(&n) == Some(&found.1);
        let own = [&before, &after].map(|all| all.iter().find(named).map(|found| found.2));
        let left = |found: &Found| after.iter().all(|new| new.1 != found.1);
        let gone = before.iter().copied().filter(left).collect();
        let udp = self.flows[n].0.proto == UDP;
        Sent {
            syn: flags == SYN && !udp,
            udp,
            to,
            now: self.world.now(),
            own,
            before,
            gone,
            begun: is.opened + is.adopted - was.opened - was.adopted,
            evicted: is.evicted - was.evicted,
            refused: is.refused_full - was.refused_full,
            told: self.told(),
        }
    }

    fn hold(&mut self, sent: &Sent) {
        let leads_elsewhere =
            |own: &TrackedFlow| sent.syn && own.closing && own.age(sent.now) >= CHANCE;
        let follows = |own: &TrackedFlow| self.is_alive(own, sent.now) && !leads_elsewhere(own);
        if let Some(own) = sent.own[0].filter(follows) {
            assert_eq!(sent.to, self.owner(&own), "{sent:?}");
            assert_eq!((sent.begun, sent.refused, sent.told), (0, 0, [false; 2]), "{sent:?}");
            assert!(sent.gone.is_empty(), "{sent:?}");
        } else if sent.refused > 0 {
            assert_eq!((sent.to, sent.begun, sent.evicted), (FORMER, 0, 0), "{sent:?}");
            assert_eq!(sent.told, [!sent.udp, sent.udp], "{sent:?}");
            assert!(sent.gone.is_empty() && sent.own[0].is_none(), "{sent:?}");
            // Of several buckets it may have two.
            let room = || sent.before.iter().any(|found| self.gives_way(&found.2, sent.now));
            assert!(self.buckets > 1 || !room(), "{sent:?}");
        } else {
            assert_eq!(sent.to, if sent.syn { self.current } else { FORMER }, "{sent:?}");
            assert_eq!((sent.begun, sent.gone.len().max(1)), (1, 1), "{sent:?}");
            self.hold_gone(sent);
        }
        if let Some(own) = &sent.own[1] {
            assert_eq!(self.owner(own), sent.to, "{sent:?}");
        }
    }

    /// Of whom gave way.
    fn hold_gone(&mut self, sent: &Sent) {
        let living = sent.gone.first().filter(|found| self.is_alive(&found.2, sent.now));
        let Some((bucket, _, flow)) = living else {
            assert_eq!((sent.evicted, sent.told), (0, [false; 2]), "{sent:?}");
            return;
        };
        assert!(sent.evicted == 1 && sent.own[0].is_none(), "{sent:?}");
        assert_eq!(sent.told, [false, true].map(|udp| !flow.syn && flow.udp == udp), "{sent:?}");
        let beside = || sent.before.iter().filter(|found| found.0 == *bucket).map(|found| found.2);
        let sooner = |other: TrackedFlow| {
            self.gives_way(&other, sent.now) && other.age(sent.now) > flow.age(sent.now)
        };
        assert!(self.gives_way(flow, sent.now) && !beside().any(sooner), "{sent:?}");
        assert_eq!(beside().count(), RW_BUCKET_TRACKS as usize, "{sent:?}");
        self.evicted += 1;
    }
}

#[test]
fn a_crowd_finds_its_owners() {
    needs_root!("a_crowd_finds_its_owners");
    let mut world = world();
    for buckets in [1, 2, 5] {
        let mut model = Model::new(world, buckets);
        (0..STEPS).for_each(|_| model.step());
        assert!(model.evicted > 20, "{} evicted", model.evicted);
        world = model.world;
    }
}
