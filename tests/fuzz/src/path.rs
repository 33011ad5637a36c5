//! Who is fed: a gateway, or a backend that opens tunnels.

use std::collections::BTreeMap;

use ringway_abi::Verdict;
use ringway_abi::raw::rw_ledger;
use ringway_bpf_tests::World;
use ringway_bpf_tests::cast::{BACK, FAMILIES, FRONT};
use ringway_bpf_tests::run::Program;
use ringway_kernel::{Decap, Uses};

/// As in the seeds.
const GUE_PORT: u16 = 6080;

/// A program with counters.
pub enum Path {
    /// Both its interface slots.
    Gateway(Box<World>),
    /// `ringway decap`: one interface, which stands in the place of [`FRONT`].
    Decap(Box<Decap>, Program),
}

impl Path {
    /// A backend with the service addresses, to which tunnels lead.
    pub fn decap() -> Path {
        let mut addresses = BTreeMap::new();
        for family in FAMILIES {
            addresses.insert(family.nat(), Uses { outer: true, inner: false });
            addresses.insert(family.vip(), Uses { outer: true, inner: true });
        }
        let mut decap = Decap::load(GUE_PORT).expect("the program loads");
        decap.set_addresses(&addresses).expect("the map has room");
        let program = Program::new(decap.program());
        Path::Decap(Box::new(decap), program)
    }

    fn programs(&self) -> Vec<&Program> {
        match self {
            Path::Gateway(world) => vec![world.root(FRONT), world.root(BACK)],
            Path::Decap(_, program) => vec![program],
        }
    }

    /// Feeds a frame to an interface slot. `out` receives what it was left as.
    pub fn run(&self, slot: u32, frame: &[u8], out: &mut Vec<u8>) -> Verdict {
        let ran = self.programs()[slot as usize].run(frame, out);
        ran.expect("the kernel runs what it has loaded")
    }

    /// How often the kernel has run its programs.
    pub fn run_count(&self) -> u64 {
        self.programs().iter().map(|program| program.run_count()).sum()
    }

    pub fn ledger(&self, slot: u32) -> rw_ledger {
        match self {
            Path::Gateway(world) => world.ledger(slot),
            Path::Decap(decap, _) if slot == FRONT => decap.ledger().expect("the map is there"),
            Path::Decap(..) => rw_ledger::default(),
        }
    }
}
