//! The slots of the node's program array: what happens when one is empty or somebody else's.

use ringway_abi::Slot;
use ringway_abi::raw::RW_IFACE_FORWARDS;
use ringway_bpf_tests::prelude::*;

/// Something the gateway passes on, with its reason.
fn stranger(world: &mut World) -> (Frame, Reason) {
    let (src, dst) = world.ends(Family::V4, ports::ACROSS);
    let frame = Frame::tcp(src, dst, SYN).with(|f| f.dst.set_ip(Family::V4.elsewhere()));
    (frame, Reason::NoService)
}

#[test]
fn the_users_program_gets_what_is_passed() {
    needs_root!("the_users_program_gets_what_is_passed");
    let mut world = World::unwatched();
    let (frame, reason) = stranger(&mut world);
    let dropping = foreign_program(Verdict::Drop, true).unwrap();
    world.set_stage(Slot::OnPass, Some(&dropping), true);
    // Its verdict is its own; ours was to pass, which is what the ledger says.
    let mut out = Vec::new();
    let before = world.ledger(FRONT);
    assert_eq!(world.root(FRONT).run(&frame.bytes(), &mut out).unwrap(), Verdict::Drop);
    let after = world.ledger(FRONT);
    let passed = |ledger: &ringway_abi::raw::rw_ledger| ledger.count(Verdict::Pass, Reason::OnPass);
    assert_eq!(passed(&after) - passed(&before), 1);
    assert_eq!((after.seen - before.seen, after.difference()), (1, 0));
    // A service's own traffic never gets there.
    let flow = world.open(Family::V4, 6, ports::ACROSS);
    world.answer(&flow, SYN);
    // Emptied behind our back, or by control: on to the kernel, counted once.
    world.set_stage(Slot::OnPass, None, true);
    assert_eq!(world.send(&frame).pair(), (Verdict::Pass, reason));
    world.set_stage(Slot::OnPass, None, false);
    assert_eq!(world.send(&frame).pair(), (Verdict::Pass, reason));
    // There but not announced in the settings: not called.
    world.set_stage(Slot::OnPass, Some(&dropping), false);
    assert_eq!(world.send(&frame).pair(), (Verdict::Pass, reason));
}

/// Tail calls need the same frags flag on both sides; the kernel says so at once.
#[test]
fn a_program_without_the_frags_flag_is_refused() {
    needs_root!("a_program_without_the_frags_flag_is_refused");
    let world = World::unwatched();
    let linear = foreign_program(Verdict::Pass, false).unwrap();
    assert!(world.try_set_stage(Slot::OnPass, Some(&linear), true).is_err());
}

/// forward, then on_pass: the first that is filled gets the packet.
#[test]
fn stages_come_in_their_order() {
    needs_root!("stages_come_in_their_order");
    let mut world = World::unwatched();
    let (frame, _) = stranger(&mut world);
    world.change_iface(FRONT, |iface| iface.flags |= RW_IFACE_FORWARDS as u16);
    let verdicts = [(Slot::OnPass, Verdict::Pass), (Slot::Forward, Verdict::Tx)];
    let programs = verdicts.map(|(slot, verdict)| (slot, foreign_program(verdict, true).unwrap()));
    let run = |world: &World| {
        let mut out = Vec::new();
        world.root(FRONT).run(&frame.bytes(), &mut out).unwrap()
    };
    for ((slot, program), (_, verdict)) in programs.iter().zip(verdicts) {
        world.set_stage(*slot, Some(program), true);
        assert_eq!(run(&world), verdict, "{slot}");
    }
    // Stages of ours count for themselves; only on_pass is counted for.
    let on_pass = world.ledger(FRONT).count(Verdict::Pass, Reason::OnPass);
    assert_eq!(on_pass, 1);
    // shield comes before balance, and before everything else.
    let aborting = foreign_program(Verdict::Aborted, true).unwrap();
    world.set_stage(Slot::Shield, Some(&aborting), true);
    assert_eq!(run(&world), Verdict::Aborted);
    world.set_stage(Slot::Shield, None, false);
    // Without balance, root itself goes down the same list.
    world.set_stage(Slot::Balance, None, false);
    for (slot, verdict) in verdicts.into_iter().rev() {
        assert_eq!(run(&world), verdict, "{slot} without balance");
        world.set_stage(slot, None, false);
    }
    // Without any, everything passes.
    let first = world.first(Family::V4, TCP, ports::ACROSS);
    let seen = world.send(&first);
    assert_eq!(seen.pair(), (Verdict::Pass, Reason::NoStage));
    assert_eq!(seen.frame, first.bytes());
}
