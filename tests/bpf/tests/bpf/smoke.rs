//! The programs load, and how much the verifier had to do.

use std::os::fd::AsFd;

use libbpf_rs::ObjectBuilder;
use ringway_abi::Slot;
use ringway_bpf_tests::run::Program;
use ringway_bpf_tests::{World, can_run};

/// The kernel gives up at a million. 6.1 takes most: 421 thousand for a capture.
const VERIFIER_LIMIT: u32 = 500_000;

#[test]
fn the_verifier_has_an_easy_time() {
    if !can_run("the_verifier_has_an_easy_time") {
        return;
    }
    let world = World::new();
    let instructions = world.stage(Slot::Balance).verified_instructions();
    println!("ringway_balance: {instructions} instructions verified");
    assert!(instructions < VERIFIER_LIMIT, "{instructions}");
}

/// Every object file by itself, as libbpf would for anyone, and the gateway's as `ringway explain`
/// loads it: packaging/test-kernels counts the lines printed here.
#[test]
fn every_program_loads() {
    if !can_run("every_program_loads") {
        return;
    }
    for (name, bytes) in ringway_kernel::objects() {
        loads(name, bytes, false);
        if name == "gateway" {
            loads(name, bytes, true);
        }
    }
}

fn loads(name: &str, bytes: &[u8], dry: bool) {
    let mut open = ObjectBuilder::default().open_memory(bytes).unwrap();
    for mut map in open.maps_mut() {
        // Sized by the gateway when it loads them.
        if map.max_entries() == 0 {
            map.set_max_entries(1024).unwrap();
        }
        if dry && map.name() == ".rodata.dry" {
            map.set_initial_value(&[1]).unwrap();
        }
    }
    let object = open.load().unwrap_or_else(|error| panic!("{name}: {error}"));
    for program in object.progs() {
        let instructions = Program::new(program.as_fd()).verified_instructions();
        let called = program.name().to_string_lossy().into_owned();
        let how = if dry { ", dry" } else { "" };
        println!("loaded {name}/{called}{how}: {instructions} instructions verified");
        assert!(instructions < VERIFIER_LIMIT, "{called}{how}: {instructions}");
    }
}
