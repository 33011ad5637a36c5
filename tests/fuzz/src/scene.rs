//! What the packet path has been told: the same services in every mode of forwarding, at rest and
//! in the middle of a change.

use ringway_abi::raw::RW_MAX_MEMBERS;
use ringway_bpf_tests::cast::{FAMILIES, Family};
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::{World, audit};
use ringway_plan::tables::{Forward, Pair, Tables, Tunnel};

/// A set of tables.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// For reports.
    pub name: &'static str,
    forward: Forward,
    /// Outer headers are of the other family than what is inside.
    crossed: bool,
    /// Every ring is being changed.
    changing: bool,
}

/// Each is played in turn.
pub const SCENES: [Scene; 9] = [
    scene("nat", Forward::Nat, false, false),
    scene("dsr-l2", Forward::DsrL2, false, false),
    scene("dsr-ipip", Forward::DsrIpip, false, false),
    scene("dsr-gue", Forward::DsrGue, false, false),
    scene("nat", Forward::Nat, false, false),
    scene("dsr-ipip, other family", Forward::DsrIpip, true, false),
    scene("dsr-gue, other family", Forward::DsrGue, true, false),
    scene("nat, rings changing", Forward::Nat, false, true),
    scene("dsr-ipip, rings changing", Forward::DsrIpip, false, true),
];

const fn scene(name: &'static str, forward: Forward, crossed: bool, changing: bool) -> Scene {
    Scene { name, forward, crossed, changing }
}

impl Scene {
    /// Flows can be opened and answered.
    pub fn is_plain_nat(&self) -> bool {
        self.forward == Forward::Nat && !self.changing
    }

    /// The gateway with these tables, its own maps, nobody's flows.
    pub fn world(&self) -> World {
        World::with(8_192, |tables| self.arrange(tables))
    }

    fn arrange(&self, tables: &mut Tables) {
        for service in &mut tables.services {
            service.forward = self.forward;
            service.source_client &= self.forward == Forward::Nat;
        }
        for backend in tables.backends.iter_mut().filter(|_| self.forward != Forward::Nat) {
            let outer = match (backend.address.is_ipv4(), self.crossed) {
                (true, false) | (false, true) => Family::V4,
                _ => Family::V6,
            };
            if outer != family_of(backend.address) {
                backend.address = outer.backend(backend.index as u8 % 8);
            }
            let port = if self.forward == Forward::DsrGue { 6080 } else { 0 };
            let tunnelled = matches!(self.forward, Forward::DsrIpip | Forward::DsrGue);
            backend.tunnel = tunnelled.then(|| Tunnel { source: outer.nat(), port });
            backend.mss = if backend.index % 2 == 0 { 1400 } else { 0 };
        }
        for ring in tables.rings.iter_mut().filter(|_| self.changing) {
            // Every other slot has just changed from the last member to the first.
            ring.pairs = [Pair { current: 0, former: 3, since: 1 }].into();
            let changed = RW_MAX_MEMBERS as u16;
            let slots = ring.slots.written().into_iter().enumerate();
            ring.slots = slots.map(|(n, slot)| if n % 2 == 0 { changed } else { slot }).collect();
        }
    }
}

fn family_of(address: std::net::IpAddr) -> Family {
    FAMILIES[usize::from(address.is_ipv6())]
}

/// Something happens to the node: a backend fails or comes back, its way out vanishes, time passes.
pub fn disturb(world: &mut World, random: &mut Random) {
    let index = random.below(world.tables.backends.len());
    match random.below(4) {
        0 => audit::age_all(world, 4_000),
        1 => world.change(|tables| {
            let hop = tables.backends.iter().find_map(|backend| backend.next_hop);
            let backend = &mut tables.backends[index];
            backend.next_hop = if backend.next_hop.is_some() { None } else { hop };
        }),
        _ => world.change(|tables| {
            let backend = &mut tables.backends[index];
            backend.up = !backend.up;
        }),
    }
}
