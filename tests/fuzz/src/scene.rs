//! What the packet path has been told: the same services in every mode of forwarding, at rest and
//! in the middle of a change.

use ringway_abi::raw::{RW_IFACE_GENERIC, RW_MAX_MEMBERS};
use ringway_abi::{Slot, Verdict};
use ringway_bpf_tests::World;
use ringway_bpf_tests::cast::{BACK, Family};
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::run::foreign_program;
use ringway_plan::tables::{BackendRow, Forward, Pair, ServiceRow, Tables, Tunnel};

use crate::path::Path;

#[derive(Clone, Copy, Debug)]
pub struct Scene {
    pub name: &'static str,
    forward: Forward,
    /// Outer headers are of the other family than what is inside.
    crossed: bool,
    /// Every ring is being changed.
    changing: bool,
    /// And its former owners are drained; a prefix may open few records.
    drained: bool,
    /// Backends are behind an interface that no redirect can enter.
    generic: bool,
    /// A program of the user's own gets what is passed.
    on_pass: bool,
    /// Not a gateway, but a backend that opens tunnels.
    decap: bool,
}

/// Each is played in turn.
pub const SCENES: [Scene; 14] = [
    scene("nat", Forward::Nat),
    scene("dsr-l2", Forward::DsrL2),
    scene("dsr-ipip", Forward::DsrIpip),
    scene("dsr-gue", Forward::DsrGue),
    Scene { decap: true, ..scene("decap", Forward::Nat) },
    Scene { changing: true, drained: true, ..scene("dsr-l2, flooded", Forward::DsrL2) },
    Scene { generic: true, ..scene("nat, passed up", Forward::Nat) },
    Scene { generic: true, ..scene("dsr-gue, passed up", Forward::DsrGue) },
    Scene { on_pass: true, ..scene("nat, on_pass filled", Forward::Nat) },
    scene("nat", Forward::Nat),
    Scene { crossed: true, ..scene("dsr-ipip, other family", Forward::DsrIpip) },
    Scene { crossed: true, ..scene("dsr-gue, other family", Forward::DsrGue) },
    Scene { changing: true, ..scene("nat, rings changing", Forward::Nat) },
    Scene { changing: true, ..scene("dsr-ipip, rings changing", Forward::DsrIpip) },
];

const fn scene(name: &'static str, forward: Forward) -> Scene {
    Scene {
        name,
        forward,
        crossed: false,
        changing: false,
        drained: false,
        generic: false,
        on_pass: false,
        decap: false,
    }
}

/// Numbers of the owners of a slot that changes.
const CURRENT: u16 = 0;
const FORMER: u16 = 3;
/// Records a second that one prefix may open where it is not to open many.
const QUOTA: u32 = 50;

impl Scene {
    /// Flows can be opened and answered.
    pub fn is_plain_nat(&self) -> bool {
        self.forward == Forward::Nat && !self.changing && !self.generic && !self.decap
    }

    /// More flows begin than there is room for.
    pub fn is_flooded(&self) -> bool {
        self.drained
    }

    /// Who gets the frames, with maps of its own and nobody's flows.
    pub fn path(&self) -> Path {
        if self.decap {
            return Path::decap();
        }
        let world = World::with(8_192, |tables| self.arrange(tables));
        if self.generic {
            world.change_iface(BACK, |iface| iface.flags |= RW_IFACE_GENERIC as u16);
        }
        if self.on_pass {
            let passing = foreign_program(Verdict::Pass, true).expect("two instructions");
            world.set_stage(Slot::OnPass, Some(&passing), true);
        }
        Path::Gateway(Box::new(world))
    }

    fn arrange(&self, tables: &mut Tables) {
        for service in &mut tables.services {
            service.forward = self.forward;
            service.source_client &= self.forward == Forward::Nat;
        }
        for backend in tables.backends.iter_mut().filter(|_| self.forward != Forward::Nat) {
            if self.crossed {
                let other = if backend.address.is_ipv4() { Family::V6 } else { Family::V4 };
                backend.address = other.backend(backend.index as u8 % 8);
            }
            let port = if self.forward == Forward::DsrGue { 6080 } else { 0 };
            let source = Family::of(backend.address).nat();
            backend.tunnel = self.forward.is_tunnel().then_some(Tunnel { source, port });
            backend.mss = if backend.index % 2 == 0 { 1400 } else { 0 };
        }
        for ring in tables.rings.iter_mut().filter(|_| self.changing) {
            // Every other slot has just changed from the last member to the first.
            ring.pairs = [Pair { current: CURRENT, former: FORMER, since: 1 }].into();
            let changed = RW_MAX_MEMBERS as u16;
            let slots = ring.slots.written().into_iter().enumerate();
            ring.slots = slots.map(|(n, slot)| if n % 2 == 0 { changed } else { slot }).collect();
        }
        if self.drained {
            tables.track_quota = QUOTA;
            let former = |s: &ServiceRow| s.members.get(usize::from(FORMER)).copied();
            let former: Vec<u32> = tables.services.iter().filter_map(former).collect();
            let mine = |row: &&mut BackendRow| former.contains(&row.reference());
            tables.backends.iter_mut().filter(mine).for_each(|row| row.weight = 0);
        }
    }
}

/// Something happens to the node: a backend fails or comes back, its way out vanishes, time passes.
pub fn disturb(world: &mut World, random: &mut Random) {
    let index = random.below(world.tables.backends.len());
    match random.below(4) {
        0 => world.advance(4_000),
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
