//! The programs load, and how much the verifier had to do.

use ringway_abi::Slot;
use ringway_bpf_tests::{World, can_run};

/// The kernel gives up at a million.
const VERIFIER_LIMIT: u32 = 700_000;

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
