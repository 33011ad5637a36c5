//! The programs load, and how much the verifier had to do.

use std::os::fd::AsFd;

use libbpf_rs::ObjectBuilder;
use ringway_abi::IntoBytes;
use ringway_abi::raw::{rw_list_section, rw_list_span, rw_shield};
use ringway_bpf_tests::run::Program;

/// The kernel gives up at a million. 6.1 takes most: 282 thousand for the gateway.
const VERIFIER_LIMIT: u32 = 450_000;

/// Every object file by itself, as libbpf would for anyone, and the gateway's as `ringway explain`
/// loads it: packaging/test-kernels counts the lines printed here.
#[test]
fn every_program_loads() {
    needs_root!("every_program_loads");
    for (name, bytes) in ringway_kernel::objects() {
        loads(name, bytes, None);
        match name {
            "gateway" => loads(name, bytes, Some((".rodata.dry", &[1]))),
            // Without constants nearly all of it is dead code.
            "shield" | "capture_shield" => {
                loads(name, bytes, Some((".rodata.shield", every_part().as_bytes())));
            }
            _ => {}
        }
    }
}

/// A shield with all that it can have.
fn every_part() -> rw_shield {
    let span = rw_list_span { slots: 1 << 18, ..Default::default() };
    let section = rw_list_section { span, leaves: 1 << 17, leaf: 0 };
    rw_shield {
        answers: 1,
        allow4: section,
        allow6: section,
        block4: section,
        block6: section,
        sanity: 1,
        protect_host: 1,
        rules: 1,
        modes: 1,
        ..Default::default()
    }
}

/// With these constants, where it has some.
fn loads(name: &str, bytes: &[u8], constants: Option<(&str, &[u8])>) {
    let mut open = ObjectBuilder::default().open_memory(bytes).unwrap();
    for mut map in open.maps_mut() {
        // Sized by the gateway when it loads them.
        if map.max_entries() == 0 {
            map.set_max_entries(1024).unwrap();
        }
        if let Some((section, value)) = constants.filter(|(section, _)| map.name() == *section) {
            map.set_initial_value(value).unwrap_or_else(|error| panic!("{section}: {error}"));
        }
    }
    let object = open.load().unwrap_or_else(|error| panic!("{name}: {error}"));
    for program in object.progs() {
        let instructions = Program::new(program.as_fd()).verified_instructions();
        let called = program.name().to_string_lossy().into_owned();
        let how = constants.map_or(String::new(), |(section, _)| format!(", with {section}"));
        println!("loaded {name}/{called}{how}: {instructions} instructions verified");
        assert!(instructions < VERIFIER_LIMIT, "{called}{how}: {instructions}");
    }
}
