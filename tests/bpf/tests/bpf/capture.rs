//! Captures: each packet's record is what came and what became of it, and changes nothing. A world
//! that is watched holds every record against what was fed and what came of it; some tables of
//! other topics are fed to such worlds, and with RINGWAY_WATCHED=1 all of them.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ringway_abi::{BackendRef, Slot};
use ringway_bpf_tests::prelude::*;
use ringway_bpf_tests::seeds;
use ringway_bpf_tests::watch::{seen, start};
use ringway_kernel::programs::capture::{self, MOST, Session};
use ringway_kernel::{DEFAULT_BPFFS, Error, Pins, View};

const HEAD: usize = 128;
const SOON: Duration = Duration::from_secs(30);

fn pins(node: &str) -> Pins {
    Pins::new(DEFAULT_BPFFS, node).unwrap()
}

/// Whether anything of captures is there.
fn is_captured(world: &World) -> bool {
    pins(world.node()).dir().join("capture").exists()
}

fn begin(world: &World, expression: &str) -> Session {
    start(&world.gateway.view(), expression, |_| ()).unwrap()
}

fn requests(world: &World, flow: &Flow, count: usize) {
    (0..count).for_each(|_| world.request(flow, ACK));
}

#[test]
fn requests_and_replies_of_nat() {
    needs_root!("requests_and_replies_of_nat");
    let mut world = World::watched();
    for (family, proto) in TRANSPORTS {
        for port in [ports::ACROSS, ports::SAME] {
            let flow = world.connect_or_open(family, proto, port);
            world.request(&flow, ACK);
            world.answer(&flow, ACK);
        }
    }
}

/// Tags, options, extension headers, fragments, jumbo frames, ICMP, ARP, what is dropped and
/// passed.
#[test]
fn every_kind_of_frame() {
    needs_root!("every_kind_of_frame");
    ringway_bpf_tests::capture::leave_out();
    let mut world = World::watched();
    world.add_vlan(10, FRONT, &[(0x8100, 5)]);
    let of_nat = seeds::of_nat(&mut world);
    for (slot, frame) in of_nat.into_iter().chain(seeds::of_clients()) {
        world.feed(slot, &frame);
    }
}

#[test]
fn nothing_is_left_after_the_last() {
    needs_root!("nothing_is_left_after_the_last");
    let mut world = World::pinned();
    assert!(!is_captured(&world));
    let flow = world.connect(Family::V4, ports::ACROSS);
    let (mut one, mut two) = (begin(&world, ""), begin(&world, ""));
    world.request(&flow, ACK);
    one.leave().unwrap();
    assert!(is_captured(&world));
    world.request(&flow, ACK);
    two.leave().unwrap();
    assert!(!is_captured(&world));
    world.request(&flow, ACK);
    assert_eq!((seen(&mut one).len(), seen(&mut two).len()), (1, 2));
    assert_eq!(two.counts().unwrap().matched, 2);
    two.leave().unwrap();
}

/// Its client's address is in a reply only once it is rewritten; of what came, the head is there.
#[test]
fn filters_ask_before_and_after() {
    needs_root!("filters_ask_before_and_after");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let client = format!("host {}", Family::V4.client());
    let (mut theirs, mut nobodys) = (begin(&world, &client), begin(&world, "host 192.0.2.255"));
    let long = |frame: Frame| frame.with(|f| f.payload = vec![9; 1000]);
    let (request, answer) = (long(flow.next(ACK)), long(flow.answer(ACK)));
    let there = world.feed(flow.slot, &request.bytes());
    let back = world.feed(flow.back_slot(), &answer.bytes());
    assert_eq!(back.reason, Reason::NatReply);
    let [forth, back_seen] = &seen(&mut theirs)[..] else { panic!("two packets") };
    assert_eq!(forth.before.0, request.bytes());
    assert_eq!(forth.after.as_ref().unwrap().0, there.frame);
    assert_eq!(back_seen.before, (answer.bytes()[..HEAD].to_vec(), answer.bytes().len() as u32));
    assert_eq!(back_seen.after.as_ref().unwrap().0, back.frame);
    for seen in [forth, back_seen] {
        assert_eq!(seen.backend.map(BackendRef::pack), Some(flow.backend.reference()));
        assert_eq!(seen.service, Some(flow.backend.service));
    }
    assert_eq!(seen(&mut nobodys), []);
    assert_eq!(nobodys.counts().unwrap(), capture::Counts::default());
}

/// Each capture has its own filter, length and wishes; all see the same packets.
#[test]
fn each_sees_what_it_wants() {
    needs_root!("each_sees_what_it_wants");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let view = world.gateway.view();
    let (service, backend) = (flow.backend.service, flow.backend.index);
    let mut captures = [
        start(&view, "tcp", |w| w.snaplen = 40).unwrap(),
        start(&view, "udp", |_| ()).unwrap(),
        start(&view, "", |w| w.iface = Some(BACK)).unwrap(),
        start(&view, "", |w| w.verdicts = &[Verdict::Pass, Verdict::Drop]).unwrap(),
        start(&view, "", |w| w.reasons = &[Reason::NatReply]).unwrap(),
        start(&view, "", |w| w.service = Some(service)).unwrap(),
        start(&view, "", |w| w.backend = Some(backend)).unwrap(),
        start(&view, "", |w| w.backend = Some(backend + 1)).unwrap(),
    ];
    world.request(&flow, ACK);
    world.answer(&flow, ACK);
    let (src, dst) = world.ends(Family::V4, 79);
    assert_eq!(world.send(&Frame::udp(src, dst)).pair(), (Verdict::Pass, Reason::NoService));
    let saw = captures.each_mut().map(seen);
    let reasons: Vec<Vec<Reason>> =
        saw.iter().map(|all| all.iter().map(|seen| seen.pair.1).collect()).collect();
    use Reason::*;
    let wanted: [&[Reason]; 8] = [
        &[NatForward, NatReply],
        &[NoService],
        &[NatReply],
        &[NoService],
        &[NatReply],
        &[NatForward, NatReply],
        &[NatForward, NatReply],
        &[],
    ];
    assert_eq!(reasons, wanted);
    let (short, whole) = (&saw[0][0], &saw[5][0]);
    assert_eq!(short.before.0, whole.before.0[..40]);
    assert_eq!(short.before.1, whole.before.1);
    let (short_after, whole_after) = (short.after.as_ref(), whole.after.as_ref());
    let (short_after, whole_after) = (short_after.unwrap(), whole_after.unwrap());
    assert_eq!((&short_after.0[..], short_after.1), (&whole_after.0[..40], whole_after.1));
    let nobodys = &saw[1][0];
    assert!(nobodys.service.is_none() && nobodys.backend.is_none() && nobodys.after.is_none());
}

/// By tags, and by the interface that has them. What leaves may match where what came does not.
#[test]
fn tags_are_filtered() {
    needs_root!("tags_are_filtered");
    const VLAN: u32 = 10;
    let mut world = World::pinned();
    world.add_vlan(VLAN, FRONT, &[(0x8100, 5)]);
    let flow = world.connect(Family::V4, ports::ACROSS);
    let view = world.gateway.view();
    let mut captures = [
        start(&view, "vlan and tcp", |_| ()).unwrap(),
        start(&view, "vlan 5 and dst port 4711", |_| ()).unwrap(),
        start(&view, "vlan 6", |_| ()).unwrap(),
        start(&view, "tcp", |_| ()).unwrap(),
        start(&view, "", |w| w.iface = Some(VLAN)).unwrap(),
        start(&view, "", |w| w.iface = Some(FRONT)).unwrap(),
    ];
    let plain = flow.next(ACK);
    let tagged = plain.clone().with(|f| f.vlans = vec![(0x8100, 5)]);
    let elsewhere = tagged.clone().with(|f| f.dst.set_port(4711));
    for frame in [&plain, &tagged, &elsewhere] {
        world.send(frame);
    }
    let saw = captures.each_mut().map(|session| {
        seen(session).into_iter().map(|seen| (seen.before.0, seen.iface)).collect::<Vec<_>>()
    });
    let head = |bytes: Vec<u8>| bytes[..bytes.len().min(HEAD)].to_vec();
    let [plain, tagged, elsewhere] = [(plain, FRONT), (tagged, VLAN), (elsewhere, VLAN)]
        .map(|(frame, iface)| (head(frame.bytes()), iface));
    let wanted = [
        vec![tagged.clone(), elsewhere.clone()],
        vec![elsewhere.clone()],
        vec![],
        vec![plain.clone(), tagged.clone()],
        vec![tagged, elsewhere],
        vec![plain],
    ];
    assert_eq!(saw, wanted);
}

#[test]
fn samples() {
    needs_root!("samples");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let view = world.gateway.view();
    // Of a request before it is rewritten, of an answer after.
    let client = format!("host {}", Family::V4.client());
    let mut tenth = start(&view, "", |w| w.sample = 10).unwrap();
    let mut late = start(&view, &client, |w| w.sample = 10).unwrap();
    let mut every = begin(&world, "");
    ringway_bpf_tests::run::pin(0);
    requests(&world, &flow, 50);
    (0..50).for_each(|_| world.answer(&flow, ACK));
    assert_eq!(seen(&mut every).len(), 100);
    for session in [&mut tenth, &mut late] {
        assert_eq!((seen(session).len(), session.counts().unwrap().matched), (10, 10));
    }
    // Of those of one interface: what comes by others between them does not count.
    let mut half = start(&view, "", |w| (w.sample, w.iface) = (2, Some(BACK))).unwrap();
    for _ in 0..10 {
        requests(&world, &flow, 1);
        world.answer(&flow, ACK);
    }
    assert_eq!(seen(&mut half).len(), 5);
}

/// A reader that sleeps: what does not fit is counted, and traffic is as ever.
#[test]
fn a_full_ring_loses_and_counts() {
    needs_root!("a_full_ring_loses_and_counts");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let mut small = start(&world.gateway.view(), "", |w| w.buffer_bytes = 1).unwrap();
    let long = flow.next(ACK).with(|f| f.payload = vec![1; 8_000]);
    for _ in 0..20 {
        world.forwards(&flow, &long);
    }
    let counts = small.counts().unwrap();
    assert_eq!(counts.matched, 20);
    let read = seen(&mut small);
    assert_eq!(counts.lost + read.len() as u64, 20);
    assert!(counts.lost > 0 && !read.is_empty(), "{counts:?}");
    // There is room again.
    requests(&world, &flow, 1);
    assert_eq!(seen(&mut small).len(), 1);
}

#[test]
fn one_more_than_there_is_room_for_is_refused() {
    needs_root!("one_more_than_there_is_room_for_is_refused");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let mut all: Vec<Session> = (0..MOST).map(|_| begin(&world, "")).collect();
    match start(&world.gateway.view(), "", |_| ()) {
        Err(Error::CapturesFull { pids, .. }) => assert_eq!(pids, [std::process::id(); MOST]),
        other => panic!("{other:?}"),
    }
    // Through all filters, twice, with an ICMP error between: no tail call too many.
    world.add_vlan(10, FRONT, &[(0x8100, 5)]);
    let tagged = flow.next(ACK).with(|f| (f.vlans, f.ttl) = (vec![(0x8100, 5)], 1));
    assert_eq!(world.send(&tagged).pair(), (Verdict::Tx, Reason::SentTimeExceeded));
    requests(&world, &flow, 1);
    for session in &mut all {
        assert_eq!(seen(session).len(), 2);
    }
    // One place is enough for another.
    all.remove(5);
    let mut another = begin(&world, "");
    requests(&world, &flow, 1);
    assert_eq!(seen(&mut another).len(), 1);
    drop((all, another));
    assert!(!is_captured(&world));
}

/// Captures come and go; one that stays sees every packet once, and no packet meets a difference.
#[test]
fn they_come_and_go_under_traffic() {
    needs_root!("they_come_and_go_under_traffic");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let (request, forwarded) = (flow.next(ACK), flow.forwarded(&flow.next(ACK)));
    let mut steady = begin(&world, "");
    let (view, done) = (world.gateway.view(), AtomicBool::new(false));
    let root = world.root(flow.slot);
    let before = world.ledger(flow.slot);
    let fed = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let (mut fed, mut out) = (0u64, Vec::new());
            while !done.load(Ordering::Relaxed) {
                let verdict = root.run(&request.bytes(), &mut out).unwrap();
                assert_eq!((verdict, &out), (Verdict::Redirect, &forwarded.bytes()));
                fed += 1;
            }
            fed
        });
        for round in 0..30 {
            let _first = start(&view, "tcp", |_| ()).unwrap();
            let _second = start(&view, "udp", |w| w.sample = round).unwrap();
            while seen(&mut steady).is_empty() {}
        }
        done.store(true, Ordering::Relaxed);
        traffic.join().unwrap()
    });
    let counts = steady.counts().unwrap();
    assert_eq!(counts.matched, fed);
    let after = world.ledger(flow.slot);
    assert_eq!((after.seen - before.seen, after.difference()), (fed, 0));
}

/// Not the test that it looks like: what `a_killed_holder_is_cleaned_up` starts and kills.
#[test]
fn holder() {
    let Some(node) = std::env::var_os("RINGWAY_TEST_HOLDER") else { return };
    let view = View::open(Path::new(DEFAULT_BPFFS), node.to_str().unwrap()).unwrap();
    let _session = start(&view, "", |_| ()).unwrap();
    println!("holds");
    // Blocks until its parent ends.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Another process that captures, until it is killed.
fn other_process(world: &World) -> Child {
    use std::io::{BufRead as _, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "capture::holder", "--nocapture"])
        .env("RINGWAY_TEST_HOLDER", world.node())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("holds")));
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_killed_holder_is_cleaned_up() {
    needs_root!("a_killed_holder_is_cleaned_up");
    let mut world = World::pinned();
    // The programs of the other process go by the kernel's clock.
    let now = ringway_kernel::now_seconds();
    world.gateway.clock().set(Duration::from_secs(now.into())).unwrap();
    let flow = world.connect(Family::V4, ports::ACROSS);
    // By the daemon's watch, which touches no living one.
    let child = other_process(&world);
    assert_eq!(capture::sweep(&pins(world.node())).unwrap(), 0);
    let mut beside = begin(&world, "");
    kill(child);
    requests(&world, &flow, 1);
    assert_eq!(capture::sweep(&pins(world.node())).unwrap(), 1);
    requests(&world, &flow, 1);
    assert_eq!(seen(&mut beside).len(), 2);
    drop(beside);
    assert!(!is_captured(&world));
    kill(other_process(&world));
    assert_eq!(capture::sweep(&pins(world.node())).unwrap(), 1);
    assert!(!is_captured(&world));
    requests(&world, &flow, 1);
    // By the next capture, which gets its place.
    kill(other_process(&world));
    let mut next: Vec<Session> = (0..MOST).map(|_| begin(&world, "")).collect();
    requests(&world, &flow, 1);
    assert!(next.iter_mut().all(|session| seen(session).len() == 1));
}

/// By `ringway detach`, whether its process lives or not.
#[test]
fn detaching_ends_captures() {
    needs_root!("detaching_ends_captures");
    let world = World::pinned();
    kill(other_process(&world));
    let mut session = begin(&world, "");
    let node = world.node().to_owned();
    let detached = world.detach();
    let gone = session.poll(SOON, |_| ()).unwrap_err();
    assert!(matches!(gone, Error::CaptureGone { .. }), "{gone}");
    assert_eq!(detached.leftovers(SOON), Vec::<String>::new());
    session.leave().unwrap();
    assert!(!pins(&node).dir().exists());
}

/// Not our program: seen before it gets the packet, which it does.
#[test]
fn what_on_pass_gets_is_seen() {
    needs_root!("what_on_pass_gets_is_seen");
    let mut world = World::pinned();
    let (src, dst) = world.ends(Family::V4, 79);
    let frame = Frame::udp(src, dst).bytes();
    let dropping = foreign_program(Verdict::Drop, true).unwrap();
    world.set_stage(Slot::OnPass, Some(&dropping), true);
    let mut session = begin(&world, "");
    let mut nobodys = begin(&world, "tcp");
    let mut out = Vec::new();
    let before = world.ledger(FRONT);
    assert_eq!(world.root(FRONT).run(&frame, &mut out).unwrap(), Verdict::Drop);
    let [seen_one] = &seen(&mut session)[..] else { panic!("one packet") };
    assert_eq!(seen_one.pair, (Verdict::Pass, Reason::OnPass));
    assert_eq!((&seen_one.before.0, &seen_one.after), (&frame, &None));
    // Nobody's: it gets it all the same.
    drop(session);
    assert_eq!(world.root(FRONT).run(&frame, &mut out).unwrap(), Verdict::Drop);
    let passed = |ledger: &ringway_abi::raw::rw_ledger| ledger.count(Verdict::Pass, Reason::OnPass);
    assert_eq!(passed(&world.ledger(FRONT)) - passed(&before), 2);
    // Emptied behind our back.
    world.set_stage(Slot::OnPass, None, true);
    assert_eq!(world.feed(FRONT, &frame).pair(), (Verdict::Pass, Reason::NoService));
    assert_eq!(seen(&mut nobodys), []);
}

/// A program in the shield's slot stays in force behind the filters, and gets its slot back.
#[test]
fn a_shield_goes_on() {
    needs_root!("a_shield_goes_on");
    let mut world = World::pinned();
    let shield = foreign_program(Verdict::Aborted, true).unwrap();
    world.set_stage(Slot::Shield, Some(&shield), false);
    let (src, dst) = world.ends(Family::V4, ports::ACROSS);
    let syn = Frame::tcp(src, dst, SYN).bytes();
    let session = begin(&world, "");
    let mut out = Vec::new();
    assert_eq!(world.root(FRONT).run(&syn, &mut out).unwrap(), Verdict::Aborted);
    drop(session);
    assert_eq!(world.root(FRONT).run(&syn, &mut out).unwrap(), Verdict::Aborted);
    world.set_stage(Slot::Shield, None, false);
    assert_eq!(world.root(FRONT).run(&syn, &mut out).unwrap(), Verdict::Redirect);
}

/// The first record is there within a moment, though nobody is woken by it.
#[test]
fn a_reader_waits_for_records() {
    needs_root!("a_reader_waits_for_records");
    let mut world = World::pinned();
    let flow = world.connect(Family::V4, ports::ACROSS);
    let mut session = begin(&world, "");
    assert_eq!(session.poll(Duration::from_millis(30), |_| ()).unwrap(), 0);
    let (done, read) = mpsc::channel();
    std::thread::spawn(move || done.send(session.poll(1_000 * SOON, |_| ()).unwrap()));
    requests(&world, &flow, 1);
    assert_eq!(read.recv_timeout(SOON), Ok(1));
}
