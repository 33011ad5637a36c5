//! The shield: what it drops, in which order, and what it leaves alone.

use ringway_abi::Reason::*;
use ringway_abi::Verdict::{Drop, Pass, Redirect};
use ringway_abi::{Reason, RuleAction, ShieldMode, Verdict};
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::{Frame, TCP, UDP, flags, fragments};
use ringway_bpf_tests::{World, ports};
use ringway_filter::{Filter, Instruction};
use ringway_kernel::shield::{Generation, Limit, ListTables, Rule};

use crate::needs_root;

/// What a generation is made from, which lives as long as the test.
struct Shield {
    mode: ShieldMode,
    sanity: bool,
    protect_host: bool,
    lists: ListTables,
    list_names: Vec<String>,
    rules: Vec<Rule>,
    program: Vec<Instruction>,
}

impl Default for Shield {
    fn default() -> Self {
        Self {
            mode: ShieldMode::Enforce,
            sanity: true,
            protect_host: false,
            lists: ListTables::default(),
            list_names: Vec::new(),
            rules: Vec::new(),
            program: Vec::new(),
        }
    }
}

impl Shield {
    fn raise(&self, world: &mut World) {
        let generation = Generation {
            mode: self.mode,
            sanity: self.sanity,
            protect_host: self.protect_host,
            service_modes: false,
            lists: &self.lists,
            list_names: &self.list_names,
            rules: &self.rules,
            program: &self.program,
        };
        world.gateway.set_shield(Some(&generation)).unwrap();
    }
}

#[test]
fn flags_that_no_segment_has() {
    needs_root!("flags_that_no_segment_has");
    let mut world = World::watched();
    Shield::default().raise(&mut world);
    for family in FAMILIES {
        let (src, dst) = world.ends(family, ports::ACROSS);
        for bits in 0..64u8 {
            let frame = Frame::tcp(src, dst, bits);
            let ends = (bits & (flags::SYN | flags::RST | flags::FIN)).count_ones();
            let fits = ends <= 1 && bits & (flags::SYN | flags::RST | flags::ACK) != 0;
            let (verdict, reason) = world.send(&frame).pair();
            assert_eq!(fits, reason != TcpFlags, "{bits:#x}: {verdict} {reason}");
        }
    }
}
