//! `ringway explain` beside the packet path: before each frame that a table feeds, the dry instance
//! is asked upon the same maps. It must foretell verdict, reason and frame, and change nothing.

use ringway_abi::{Reason, Verdict};
use ringway_kernel::{Explained, Explainer};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::map_batch::dump;
use crate::mapping::Mapping;
use crate::watch::Seen;
use crate::{Summary, World};

/// Read where they lie, before and after a world's first thousand frames and some of the others:
/// what a packet's flow changes.
pub(crate) const MAPPED: [&str; 3] = ["flows", "flow_index", "tracked"];
/// Tables, which packets never change: read for a gateway's first frame and some of the others, as
/// this takes 50 ms.
const TABLES: [&str; 6] =
    ["settings", "services", "service_info", "backends", "nat_addrs", "ifaces"];
/// Packets change these, too: they are read for a world's first frames as well.
pub(crate) const WRITTEN: [&str; 10] = [
    "fragments",
    "track_quotas",
    "untracked",
    "tracking",
    "traffic",
    "port_hands",
    "kept_flows",
    "vain_searches",
    "ledger",
    "scratch",
];
const FIRST_WRITTEN: u32 = 2;
const EVERY: u32 = 1024;
const FIRST_MAPPED: u32 = 1000;

/// The dry instance of one world.
#[derive(Debug)]
pub(crate) struct Dry {
    explainer: Explainer,
    /// Each with what was in it before a frame.
    mapped: Vec<(&'static str, Mapping, Vec<u8>)>,
    /// Since the gateway was made.
    asked: u32,
    /// By the world that has it now.
    asked_by_world: u32,
}

/// A prediction, and its CPU.
#[derive(Debug)]
pub(crate) struct Foretold {
    explained: Explained,
    /// Where this thread may run: until then it stays where it is, as ports are each CPU's own.
    affinity: CpuSet,
}

impl Dry {
    pub(crate) fn new(world: &World) -> Self {
        let mapped = MAPPED.map(|name| (name, Mapping::new(world.map(name)), Vec::new())).into();
        Self {
            explainer: Explainer::new(&world.gateway.view()).unwrap(),
            mapped,
            asked: 0,
            asked_by_world: 0,
        }
    }

    /// Another world has the gateway now.
    pub(crate) fn begin_world(&mut self) {
        self.asked_by_world = 0;
    }

    /// Asks what would become of a frame; panics when that changed anything.
    pub(crate) fn foretell(&mut self, world: &World, slot: u32, frame: &[u8]) -> Foretold {
        let tables = self.asked.is_multiple_of(EVERY);
        let written = tables || self.asked_by_world < FIRST_WRITTEN;
        let mapped = if tables || self.asked_by_world < FIRST_MAPPED {
            &mut self.mapped[..]
        } else {
            &mut []
        };
        let read =
            [if tables { &TABLES[..] } else { &[] }, if written { &WRITTEN[..] } else { &[] }]
                .concat();
        self.asked += 1;
        self.asked_by_world += 1;
        for (_, map, before) in mapped.iter_mut() {
            before.clear();
            before.extend_from_slice(map.bytes());
        }
        let read_before: Vec<Vec<u8>> = read.iter().map(|name| dump(world.map(name))).collect();
        let affinity = sched_getaffinity(None).unwrap();
        crate::run::pin(sched_getcpu());
        let explained = self.explainer.run(slot, frame).unwrap();
        for (name, map, before) in mapped {
            assert!(map.bytes() == before, "explaining changed {name}: {explained:?}");
        }
        for (name, before) in read.iter().zip(read_before) {
            assert!(dump(world.map(name)) == before, "explaining changed {name}: {explained:?}");
        }
        Foretold { explained, affinity }
    }
}

impl Foretold {
    /// Panics when something else came of the frame.
    pub(crate) fn hold_against(&self, came: &[u8], live: &Summary) {
        sched_setaffinity(None, &self.affinity).unwrap();
        let Explained { verdict, reason, frame, .. } = &self.explained;
        if live.reason == Reason::OnPass {
            // The user's own program is not run.
            assert!(self.explained.on_pass, "{:?} but live {live:?}", self.explained);
            return;
        }
        let same = (*verdict, *reason) == live.pair();
        assert!(
            same && !self.explained.on_pass,
            "explained as {verdict}/{reason}, live {}/{}: {:?}\n{came:02x?}",
            live.verdict,
            live.reason,
            self.explained
        );
        if *verdict != Verdict::Drop && *frame != live.frame {
            panic!("{:?}\nlive {:02x?}", self.explained, live.frame);
        }
    }

    /// Panics when a capture tells of another service or backend.
    pub(crate) fn hold_owners(&self, seen: &Seen) {
        let Explained { verdict, reason, service, backend, .. } = &self.explained;
        assert_eq!(seen.pair, (*verdict, *reason));
        assert_eq!(seen.iface, self.explained.iface, "{:?} {seen:?}", self.explained);
        // An ICMP error's service is known before its flow is found, or is not.
        if service.is_some() || *reason == Reason::NoService {
            assert_eq!(seen.service, *service, "{:?} {seen:?}", self.explained);
        }
        // A ring may still name one that is gone, which no packet gets.
        if *reason != Reason::ResetNoBackend {
            let seen_backend = seen.backend.map(|backend| backend.index);
            assert_eq!(seen_backend, *backend, "{:?} {seen:?}", self.explained);
        }
    }
}
