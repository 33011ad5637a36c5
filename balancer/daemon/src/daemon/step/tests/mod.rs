//! Any sequence of events, held against a model of what is around; and a few sequences by name.

mod syn_secret;
mod world;

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use ringway_api::clock::Timestamp;
use ringway_api::error::Error;
use ringway_api::overrides::OverrideChange;
use ringway_api::shield::{ModeOverride, ShieldChange, ShieldEntry};
use ringway_config::{ListAction, ShieldMode};
use ringway_plan::prefix_list::Prefix;

use super::Event;
use crate::daemon::datapath_thread::DatapathEvent;
use crate::daemon::load::Refusal;
use crate::daemon::shield_plan::{SecretReading, ShieldPlan, Unreadable};
use crate::testing::{entry, gateway};
use world::{PATIENCE, SLOTS, World};

#[derive(Clone, Debug)]
enum Happening {
    /// So many milliseconds pass.
    Wait(u64),
    Tick,
    /// A check of a backend ends well, or badly.
    Check(usize, bool),
    /// The file has so many backends now; 0: it is wrong.
    Edit(usize),
    Reload {
        dry_run: bool,
    },
    HangUp,
    Drain(u8),
    Clear,
    /// A prefix is blocked, for so many seconds.
    Block(u8, Option<u64>),
    Unblock(u8),
    ShieldOff(u64),
    /// So many packets a second come from now on.
    Traffic(u64),
    Confirm,
    /// Somebody takes our program off.
    Detach(u32),
    /// An interface goes, or comes back without a program.
    Exists(u32, bool),
    /// The ways are looked up, or cannot be.
    ReadNetwork(bool),
    /// The packet path's thread carries out an order, or cannot.
    Work(bool),
    /// A change was read, a document written, the tunnel made; or not.
    Read(bool),
    Write(bool),
    Lead(bool),
    /// Work on other threads is done, or cannot be.
    Background(bool),
    /// An answer that nobody waits for any more.
    Late(usize),
    /// The process is killed after so many effects.
    Crash(usize),
    /// The next one cannot read the state directory at first.
    Unreadable,
}

fn happening() -> impl Strategy<Value = Happening> {
    let good = || prop::bool::weighted(0.8);
    let slot = || prop::sample::select(SLOTS.to_vec());
    prop_oneof![
        4 => prop_oneof![0..20u64, 400..600u64, 2900..3100u64, Just(15_000), Just(31_000)]
            .prop_map(Happening::Wait),
        3 => Just(Happening::Tick),
        4 => (0..8usize, good()).prop_map(|(backend, up)| Happening::Check(backend, up)),
        2 => (0..4usize).prop_map(Happening::Edit),
        2 => prop::bool::weighted(0.2).prop_map(|dry_run| Happening::Reload { dry_run }),
        1 => Just(Happening::HangUp),
        2 => (1..4u8).prop_map(Happening::Drain),
        1 => Just(Happening::Clear),
        2 => (1..4u8, prop::option::of(1..20u64)).prop_map(|(n, ends)| Happening::Block(n, ends)),
        1 => (1..4u8).prop_map(Happening::Unblock),
        1 => (1..20u64).prop_map(Happening::ShieldOff),
        2 => prop::sample::select(vec![0, 1000, 1_000_000]).prop_map(Happening::Traffic),
        1 => Just(Happening::Confirm),
        2 => slot().prop_map(Happening::Detach),
        2 => (slot(), any::<bool>()).prop_map(|(slot, there)| Happening::Exists(slot, there)),
        1 => good().prop_map(Happening::ReadNetwork),
        8 => good().prop_map(Happening::Work),
        4 => good().prop_map(Happening::Read),
        4 => good().prop_map(Happening::Write),
        4 => good().prop_map(Happening::Lead),
        4 => good().prop_map(Happening::Background),
        1 => (0..5usize).prop_map(Happening::Late),
        1 => (0..12usize).prop_map(Happening::Crash),
        1 => Just(Happening::Unreadable),
    ]
}

fn happen(world: &mut World, happening: &Happening) {
    match happening {
        Happening::Wait(ms) => world.wait(Duration::from_millis(*ms)),
        Happening::Tick => world.event(Event::Tick),
        Happening::Check(backend, up) => world.check(*backend, *up),
        Happening::Edit(backends) => world.file = *backends,
        Happening::Reload { dry_run } => world.ask(None, *dry_run),
        Happening::HangUp => world.event(Event::HungUp),
        Happening::Drain(n) => {
            world.ask(Some(drain(*n)), false);
        }
        Happening::Clear => {
            world.ask(Some(OverrideChange::Clear { service: None, backend: None }), false);
        }
        Happening::Block(n, seconds) => world.ask_shield(block(*n, *seconds)),
        Happening::Unblock(n) => world.ask_shield(ShieldChange::Remove { prefix: prefix(*n) }),
        Happening::ShieldOff(seconds) => world.ask_shield(shield_off(*seconds)),
        Happening::Traffic(pps) => world.pps = *pps,
        Happening::Confirm => world.confirm(),
        Happening::Detach(slot) => _ = world.on.remove(slot),
        Happening::Exists(slot, there) => {
            world.on.remove(slot);
            world.mtu += 1;
            match there {
                true => world.there.insert(*slot),
                false => world.there.remove(slot),
            };
            world.network();
        }
        Happening::ReadNetwork(true) => world.network(),
        Happening::ReadNetwork(false) => world.network_unknown(),
        Happening::Work(good) => world.work(*good),
        Happening::Read(good) => world.read(*good),
        Happening::Write(good) => world.write(*good),
        Happening::Lead(good) => world.lead(*good),
        Happening::Background(good) => world.background(*good),
        Happening::Late(which) => late(world, *which),
        Happening::Crash(effects) => world.fuse = Some(*effects),
        Happening::Unreadable => world.unreadable = true,
    }
}

fn drain(n: u8) -> OverrideChange {
    OverrideChange::Drain { service: "web".into(), backend: format!("10.0.0.{n}") }
}

fn prefix(n: u8) -> Prefix {
    format!("192.0.2.{n}").parse().expect("a prefix")
}

/// On the model's clock.
fn after(seconds: u64) -> Timestamp {
    Timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn block(n: u8, seconds: Option<u64>) -> ShieldChange {
    let until = seconds.map(after);
    ShieldChange::Add(ShieldEntry { until, ..entry(prefix(n), ListAction::Block) })
}

fn shield_off(seconds: u64) -> ShieldChange {
    let mode = ModeOverride { mode: ShieldMode::Off, until: after(seconds), ends: None };
    ShieldChange::Mode { mode: Some(mode) }
}

fn late(world: &mut World, which: usize) {
    let refused = || Error::failed("too late", "");
    world.event(match which {
        0 => Event::Judged(Box::new((0, Err(Refusal::from(refused()))))),
        1 => Event::Written((0, Err(refused()))),
        2 => Event::Datapath(DatapathEvent::Applied(None, Ok(()))),
        3 => Event::Time,
        _ => Event::NetworkChanged,
    });
}

/// Everything is answered.
fn settled() -> World {
    let mut world = World::new();
    world.settle();
    world
}

/// Attached, with both backends up, and not confirmed yet.
fn attached() -> World {
    let mut world = World::new();
    world.check(0, true);
    world.check(1, true);
    world.work(true);
    world
}

/// Attached and confirmed.
fn running() -> World {
    let mut world = attached();
    world.confirm();
    world.ends_well();
    world
}

proptest! {

    /// Whatever happens, in the end one configuration is in force, in the tables and on the disk;
    /// everybody was answered; and our program is on every interface that was not given up. The
    /// same when each effect is carried out twice.
    #[test]
    fn all_ends_well(
        twice in any::<bool>(),
        happenings in prop::collection::vec(happening(), 0..120),
    ) {
        let mut world = World::new();
        world.twice = twice;
        for one in &happenings {
            happen(&mut world, one);
        }
        world.fuse = None;
        world.ends_well();
    }
}

#[test]
fn what_could_not_be_described_is_described_again() {
    let mut world = running();
    world.mtu = 1400;
    world.network();
    for _ in 0..9 {
        world.work(false);
    }
    world.ends_well();
}

#[test]
fn what_could_not_be_announced_is_announced_when_the_interface_is_back() {
    let mut world = attached();
    world.there.remove(&1);
    world.background(true);
    world.there.insert(1);
    world.confirm();
    world.ends_well();
}

#[test]
fn nothing_is_announced_where_the_program_was_taken_off() {
    let mut world = World::new();
    world.wait(Duration::from_secs(3));
    world.work(true);
    world.there.remove(&0);
    world.background(true);
    world.wait(PATIENCE);
    world.there.insert(0);
    world.settle();
    assert_eq!(world.state.confirm.reverted(), ["eth0"]);
    world.audit();
}

#[test]
fn who_was_not_confirmed_in_time_is_given_up() {
    let mut world = World::new();
    world.wait(Duration::from_secs(3));
    world.work(true);
    assert_eq!(world.provisional, [0].into());
    world.wait(PATIENCE - Duration::from_millis(1));
    assert!(world.state.confirm.reverted().is_empty());
    world.wait(Duration::from_millis(1));
    assert_eq!(world.state.confirm.reverted(), ["eth0"]);
    for _ in 0..9 {
        world.work(false);
    }
    let why = world.state.confirm.problem().expect("a problem").error;
    assert!(why.ends_with("and the program may still be attached: it refuses"), "{why}");
    world.ends_well();
    assert_eq!(world.on, [1].into());
}

#[test]
fn a_change_that_hangs_is_refused_and_leaves_nothing() {
    let mut world = running();
    world.ask(Some(drain(1)), false);
    world.read(true);
    world.wait(Duration::from_secs(30));
    let refused = world.asked.last_mut().and_then(|(_, asked)| asked.try_recv().ok());
    let refused = refused.expect("an answer").expect_err("refused");
    assert!(refused.what.contains("within 30 s"), "{refused}");
    world.asked.clear();
    // What hung is written after all, and then what was kept before.
    world.ends_well();
    assert!(world.disk.overrides.is_empty());
}

#[test]
fn what_was_refused_does_not_stay_on_the_disk() {
    let mut world = running();
    world.ask(Some(drain(1)), false);
    world.read(true);
    world.wait(Duration::from_secs(30));
    // The first one is written after all, in place of what was kept before the second.
    world.ask(Some(drain(2)), false);
    world.read(true);
    world.write(true);
    world.write(false);
    world.ends_well();
    assert!(world.disk.overrides.is_empty());
}

#[test]
fn a_dead_backend_is_shown_while_the_tables_cannot_be_written() {
    let mut world = running();
    world.check(0, false);
    world.wait(Duration::from_millis(10));
    world.work(false);
    assert_eq!(world.state.tables.written.serving(), (1, 2));
    world.ends_well();
}

#[test]
fn ways_that_could_not_be_looked_up_are_told_once_and_looked_up_again() {
    let mut world = running();
    world.log.clear();
    for _ in 0..3 {
        world.network_unknown();
    }
    assert_eq!(world.log.len(), 1, "{:?}", world.log);
    world.ends_well();
}

#[test]
fn the_log_has_when_a_problem_begins_and_when_it_is_over() {
    let mut world = running();
    let mut lines_when = |up: bool| {
        world.log.clear();
        world.check(0, up);
        world.check(1, up);
        world.settle();
        let lines = world.log.iter().filter(|line| line.contains("no backend")).cloned();
        lines.collect::<Vec<_>>()
    };
    let (begun, over) = (lines_when(false), lines_when(true));
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert_eq!(over, [format!("over: {}", begun[0])]);
}

#[test]
fn what_was_refused_before_the_disk_was_read_does_not_come_back() {
    let mut world = running();
    world.unreadable = true;
    world.restart();
    world.wait(Duration::from_secs(3));
    world.work(true);
    world.ask(Some(drain(1)), false);
    world.read(true);
    world.wait(Duration::from_secs(30));
    // What hung is written after all; what was kept before cannot be.
    world.write(true);
    world.write(false);
    assert_eq!(world.disk.overrides.len(), 1);
    // Nor does it with another.
    world.ask(Some(drain(2)), false);
    world.read(true);
    world.write(true);
    world.ends_well();
    assert_eq!(world.disk.overrides.len(), 1);
}

/// Blocked prefixes of the model, by their last bytes.
fn blocked(world: &World) -> Vec<u8> {
    let last = |entry: &ShieldEntry| match entry.prefix.addr() {
        std::net::IpAddr::V4(address) => address.octets()[3],
        std::net::IpAddr::V6(_) => 0,
    };
    world.shield.entries.iter().map(last).collect()
}

#[test]
fn a_block_waits_for_no_reload_and_lasts_until_its_time_is_over() {
    let mut world = settled();
    world.ask(None, false);
    world.ask_shield(block(1, Some(5)));
    world.work(true);
    let (_, asked) = &mut world.asked_shield[0];
    let status = asked.try_recv().expect("answered").expect("done");
    let want = (1, Some(prefix(1)));
    assert_eq!((status.blocked.prefixes, status.entry.map(|entry| entry.prefix)), want);
    assert_eq!(blocked(&world), [1]);
    world.asked_shield.clear();
    world.ask_shield(block(2, None));
    world.settle();
    assert_eq!(blocked(&world), [2], "the other's time is over");
    let line = "no longer blocked, as the time is over: 192.0.2.1/32";
    assert!(world.log.iter().any(|it| it == line), "{:?}", world.log);
    world.restart();
    world.shield = Default::default();
    world.settle();
    assert_eq!(blocked(&world), [2], "the packet path gets it again");
    world.shield = Default::default();
    world.ask(None, false);
    world.settle();
    assert_eq!(blocked(&world), [2], "and after a reload");
    world.audit();
}

#[test]
fn a_block_of_all_clients_or_of_a_backend_needs_force() {
    let mut world = settled();
    let ShieldChange::Add(entry) = block(1, None) else { unreachable!("a block") };
    let backend = world.state.reload.config.services[0].backends[0].address.to_string();
    let mut answer = |change: ShieldChange| {
        world.ask_shield(change);
        world.settle();
        let (_, mut asked) = world.asked_shield.pop().expect("asked");
        asked.try_recv().expect("answered").map(drop)
    };
    for (wide, what) in [
        ("0.0.0.0/0", "all of IPv4"),
        ("::/0", "all of IPv6"),
        ("2000::/3", "a large part of IPv6"),
        (&backend, "a backend of"),
    ] {
        let entry = ShieldEntry { prefix: wide.parse().expect("a prefix"), ..entry.clone() };
        let refused = answer(ShieldChange::Add(entry.clone())).expect_err(wide);
        assert!(refused.what.contains(what), "{refused}");
        assert!(refused.remedy.to_string().contains(&format!("block {} --force", entry.prefix)));
        let allow = ShieldEntry { action: ListAction::Allow, ..entry.clone() };
        match (answer(ShieldChange::Add(allow)), wide == backend) {
            (allowed, true) => allowed.expect("that drops nothing"),
            (allowed, false) => {
                let refused = allowed.expect_err(wide).remedy.to_string();
                assert!(refused.contains(&format!("allow {} --force", entry.prefix)), "{refused}");
            }
        }
        answer(ShieldChange::Force(entry)).expect("on purpose");
    }
}

#[test]
fn a_list_that_becomes_wide_is_told() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("list");
    let read = |prefixes: &str| {
        std::fs::write(&file, prefixes).expect("written");
        let list = format!("list = [{{ name = \"l\", file = {file:?}, action = \"block\" }}]");
        let config = gateway(&format!("[shield]\n{list}"), "");
        ShieldPlan::read(&config, Unreadable::Refused, SecretReading::default())
            .expect("read")
            .expect("a shield")
    };
    let mut world = settled();
    let mut findings = |prefixes: &str| {
        world.event(Event::Datapath(DatapathEvent::Listed(read(prefixes), Ok(()))));
        let findings = world.state.shield.wide_lines();
        (
            world.log.pop().expect("a line"),
            findings.into_iter().map(|it| it.error).collect::<Vec<_>>(),
        )
    };
    let wide = "list l: line 2: 10.0.0.0/8 blocks 10.0.0.2, a backend of service web";
    assert_eq!(findings("192.0.2.0/24\n10.0.0.0/8\n"), (wide.into(), vec![wide.into()]));
    let (line, none) = findings("192.0.2.0/24\n");
    assert!(line.starts_with("lists read again") && none.is_empty(), "{line} {none:?}");
}

#[test]
fn an_attack_is_spread_only_while_it_lasts_and_sources_are_known() {
    let mut world = running();
    let remedy = |world: &World| {
        world.state.mitigation.attacks(&world.state.reload.config, world.state.at)[0]
            .remedy(Some(0))
    };
    world.traffic(1_000_000, 1000);
    assert!(!remedy(&world).contains("forged"), "sources are not known yet");
    world.traffic(1_000_000, 2000);
    assert!(remedy(&world).contains("probably forged"));
    world.traffic(1000, 2000);
    assert_eq!(remedy(&world), "no source was over its limit in the last minute");
}

#[test]
fn what_the_packet_path_refuses_is_not_in_force() {
    let mut world = settled();
    world.ask_shield(block(1, None));
    world.work(false);
    let (_, asked) = &mut world.asked_shield[0];
    asked.try_recv().expect("answered").expect_err("refused");
    assert!(world.kept_shield.entries.is_empty());
    world.asked_shield.clear();
    let finding = |world: &World| world.state.mode_finding().map(|finding| finding.error);
    assert_eq!(finding(&world), None);
    world.ask_shield(shield_off(3));
    world.work(true);
    assert_eq!(world.shield.mode.map(|mode| mode.mode), Some(ShieldMode::Off));
    let off = finding(&world).expect("a finding");
    assert!(off.starts_with("the shield is off until 1970-01-01T00:00"), "{off}");
    world.settle();
    assert_eq!(finding(&world), None);
    assert_eq!((world.shield.mode, blocked(&world)), (None, Vec::new()));
    assert!(world.log.iter().any(|line| line.contains("mode is the configuration's")));
}

#[test]
fn an_attack_arms_its_service_and_the_program_hears_of_both_ends() {
    let mut world = running();
    world.traffic(90_000, 2000);
    assert_eq!((world.armed, world.told), (None, None));
    world.traffic(1_000_000, 750);
    assert!(world.armed.is_some_and(|until| until > world.now + Duration::from_secs(9)));
    assert_eq!(world.told, None, "a flood may be short");
    let attack = world.log.last().expect("a line");
    for words in ["service web (tcp 203.0.113.9:80) is attacked since", "1000000 packets a second"]
    {
        assert!(attack.contains(words), "{attack}");
    }
    world.traffic(1_000_000, 3000);
    assert_eq!(world.told, Some(true));
    let first = world.armed;
    // With half of its time the program hears that it goes on.
    world.told = None;
    world.traffic(1_000_000, 4000);
    assert!(world.armed > first && world.told.is_none());
    world.traffic(1_000_000, 2000);
    assert_eq!(world.told, Some(true));
    let finding = |world: &World| world.state.attack_findings().remove(0).error;
    let begun = "service web (tcp 203.0.113.9:80) is attacked since 1970-01-01T";
    assert!(finding(&world).starts_with(begun), "{}", finding(&world));
    world.traffic(90_000, 9500);
    let ended = finding(&world);
    for words in [" was attacked from ", ": now 90000 packets a second; ", " if nothing more comes"]
    {
        assert!(ended.contains(words), "{ended}");
    }
    assert!(world.armed.is_some_and(|until| until > world.now));
    world.traffic(90_000, 1000);
    assert_eq!((world.armed, world.told), (None, Some(false)));
    let over = world.log.last().expect("a line");
    // Half of what comes is over a limit.
    let want = "over: service web (tcp 203.0.113.9:80) was attacked for 9 s";
    assert_eq!(over.split_once(", since ").expect("when").0, want);
    assert!(over.contains(": up to 1000000 packets a second; "), "{over}");
    assert!(over.ends_with(" packets over limits dropped"), "{over}");
    assert!(!over.contains("in force"), "{over}");
}

#[test]
fn the_program_hears_nothing_of_a_short_flood() {
    let mut world = running();
    world.traffic(1_000_000, 2000);
    assert!(world.armed.is_some());
    world.traffic(90_000, 12_000);
    assert_eq!((world.armed, world.told), (None, None));
}

#[test]
fn a_hangup_without_a_file_is_told_and_fails_nothing() {
    let mut world = running();
    world.event(Event::HungUp);
    world.no_file();
    assert_eq!(world.log.last().map(String::as_str), Some("not reloaded: no file; to do: stop it"));
    assert!(world.state.reload.last.is_none() && world.state.takes_commands());
}

/// Heavy sources are found by the limits that the attack has put in force.
#[test]
fn the_program_is_told_a_second_after_the_service_is_armed() {
    let mut world = running();
    world.file = 4;
    world.ask(None, false);
    world.settle();
    world.traffic(1_000_000, 1000);
    assert_eq!((world.armed.is_some(), world.told), (true, None));
    world.traffic(1_000_000, 1000);
    assert_eq!(world.told, Some(true));
}

#[test]
fn arrivals_that_cannot_be_read_end_no_attack() {
    let mut world = running();
    world.traffic(1_000_000, 2000);
    let armed = world.armed;
    for _ in 0..8 {
        world.wait(Duration::from_millis(250));
        world.work(false);
    }
    assert!(armed.is_some() && world.armed == armed);
    world.traffic(90_000, 500);
    assert_eq!(world.armed, armed, "it goes on");
}

#[test]
fn shield_off_ends_a_mitigation_and_begins_none() {
    let mut world = running();
    world.traffic(1_000_000, 4500);
    assert!(world.armed.is_some());
    world.ask_shield(shield_off(20));
    world.traffic(1_000_000, 1000);
    assert_eq!((world.armed, world.told), (None, Some(false)));
    let line = world.log.iter().rfind(|line| line.contains("was attacked for")).expect("a line");
    let why = ", and then not looked at any more, as the shield was switched off: up to ";
    assert!(line.starts_with("service web ") && line.contains(why), "{line}");
    world.ask_shield(ShieldChange::Mode { mode: None });
    world.traffic(1_000_000, 4500);
    assert_eq!((world.armed.is_some(), world.told), (true, Some(true)));
}

#[test]
fn what_was_only_observed_was_not_dropped() {
    let mut world = running();
    let observe = ModeOverride { mode: ShieldMode::Observe, until: after(5), ends: None };
    world.ask_shield(ShieldChange::Mode { mode: Some(observe) });
    world.traffic(1_000_000, 3000);
    world.traffic(1000, 12_000);
    let over = world.log.last().expect("a line");
    let words = " packets over limits would have been dropped while the shield observed";
    assert!(over.starts_with("over: ") && over.ends_with(words), "{over}");
    world.ask_shield(ShieldChange::Mode {
        mode: Some(ModeOverride { until: after(60), ..observe }),
    });
    world.traffic(1_000_000, 3000);
    world.ask_shield(ShieldChange::Mode { mode: None });
    world.traffic(1_000_000, 3000);
    world.traffic(1000, 12_000);
    let over = world.log.last().expect("a line");
    assert!(over.contains(" packets over limits dropped, ") && over.ends_with(words), "{over}");
}

#[test]
fn a_reload_leaves_a_service_armed_unless_it_takes_the_mitigation() {
    let mut world = running();
    world.traffic(1_000_000, 2000);
    let reload = |world: &mut World, backends| {
        world.file = backends;
        world.ask(None, false);
        world.read(true);
        world.lead(true);
        // What the thread had is lost with the former configuration.
        world.armed = None;
        world.traffic(1_000_000, 4000);
    };
    reload(&mut world, 1);
    assert_eq!((world.armed.is_some(), world.told), (true, Some(true)));
    reload(&mut world, 3);
    assert_eq!((world.armed, world.told), (None, Some(false)));
    world.ends_well();
}

#[test]
fn a_service_that_could_not_be_armed_is_armed_with_the_next_sample() {
    let mut world = running();
    world.traffic(1_000_000, 200);
    for _ in 0..8 {
        world.wait(Duration::from_millis(250));
        world.work(true);
        world.work(false);
    }
    world.armed = None;
    world.traffic(1_000_000, 300);
    assert!(world.armed.is_some());
}

#[test]
fn a_new_daemon_goes_on_with_an_attack() {
    let mut world = running();
    world.traffic(1_000_000, 4500);
    world.restart();
    world.told = None;
    world.check(0, true);
    world.check(1, true);
    world.work(true);
    world.confirm();
    // Too few for a threshold: what is armed is known by itself.
    world.traffic(1000, 4000);
    assert_eq!((world.armed.is_some(), world.told), (true, None));
    world.traffic(1_000_000, 4500);
    assert_eq!(world.told, Some(true));
    world.traffic(1000, 12_000);
    assert_eq!((world.armed, world.told), (None, Some(false)));
}
