//! Which movements are told, and which are not.

use super::*;

const NAME: &str = "eth0";

/// Notes one interface's counters, one after another, each [`PERIOD`] after the one before.
struct Player {
    alarm: CounterWatch,
    now: Instant,
    counts: Counts,
}

impl Player {
    fn new() -> Player {
        let counts = Counts { drops: Some(Drops::default()), ..Counts::default() };
        Player { alarm: CounterWatch::default(), now: Instant::now(), counts }
    }

    fn play(&mut self, times: u32, change: impl Fn(&mut Counts)) -> Vec<Problem> {
        for _ in 0..times {
            change(&mut self.counts);
            self.alarm.note(self.now, [(NAME.to_owned(), self.counts.clone())].into());
            self.now += PERIOD;
        }
        self.alarm.findings(|_| false)
    }

    fn packets(&mut self, times: u32, each: u64) -> Vec<Problem> {
        self.play(times, |counts| counts.ledger.seen += each)
    }
}

/// So many notes that the traffic between them is steady.
const STEADILY: u32 = (STEADY.as_millis() / PERIOD.as_millis()) as u32 + 2;

fn kinds(problems: &[Problem]) -> Vec<ProblemKind> {
    problems.iter().map(|problem| problem.kind).collect()
}

#[test]
fn packets_that_stop_are_missed_until_they_come_again() {
    let mut player = Player::new();
    assert!(player.packets(STEADILY, 500).is_empty());
    assert!(player.packets(2, 0).is_empty(), "a second without may be chance");
    assert_eq!(kinds(&player.packets(1, 0)), [ProblemKind::TrafficStopped]);
    assert_eq!(player.packets(30, 0).len(), 1);
    assert!(player.alarm.findings(|name| name == NAME).is_empty(), "told already");
    assert_eq!(player.packets(30, 4).len(), 1, "8 packets a second instead of 1000");
    assert!(player.packets(1, 6).is_empty());
}

#[test]
fn nobody_misses_packets_that_came_now_and_then() {
    for (times, each) in [(STEADILY, 49), (STEADILY - 4, 500), (2 * STEADILY, 1)] {
        let mut player = Player::new();
        player.packets(times, each);
        assert!(player.packets(20, 0).is_empty(), "{times} {each}");
    }
    let mut idle = Player::new();
    assert!(idle.packets(100, 0).is_empty());
    assert!(idle.packets(100, 500).is_empty());
}

#[test]
fn one_missed_look_does_not_make_traffic_unsteady() {
    let mut player = Player::new();
    player.packets(STEADILY / 2, 500);
    player.packets(1, 0);
    player.packets(STEADILY / 2, 500);
    assert_eq!(player.packets(3, 0).len(), 1);
}

#[test]
fn a_packet_now_and_then_hides_no_stop() {
    let mut player = Player::new();
    player.packets(STEADILY, 80);
    assert_eq!(kinds(&player.packets(3, 1)), [ProblemKind::TrafficStopped]);
}

/// As a new user had it told of after each of his load tests.
#[test]
fn a_burst_that_ends_is_no_finding() {
    let mut player = Player::new();
    for minutes in [1, 1, 5, 9] {
        assert!(player.packets(minutes * 120, 5000).is_empty());
        assert!(player.packets(120, 0).is_empty(), "{minutes} minutes");
    }
}

#[test]
fn silence_becomes_usual() {
    let mut player = Player::new();
    player.packets(STEADILY, 500);
    assert_eq!(player.packets(1000, 0).len(), 1);
    assert!(player.packets(300, 0).is_empty());
}

#[test]
fn what_the_kernel_drops_is_told_while_it_matters() {
    let lose = |packets: u64| {
        move |counts: &mut Counts| {
            counts.ledger.seen += 20_000;
            counts.ledger.counts[Verdict::Tx as usize][Reason::NatForward as usize] += 20_000;
            counts.ledger.lost[Loss::NoReceiver as usize] += packets;
        }
    };
    assert!(Player::new().play(100, lose(1)).is_empty(), "one in twenty thousand");
    let mut player = Player::new();
    player.play(10, lose(0));
    let told = player.play(1, lose(1000));
    assert_eq!(kinds(&told), [ProblemKind::PacketsLost]);
    assert!(told[0].error.contains("dropped 1000 (lost-no-receiver)"), "{told:?}");
    let held = player.play(120, lose(0));
    assert_eq!(held.len(), 1, "held for a minute");
    assert!(held[0].error.ends_with("; none in the last 60 s"), "{held:?}");
    assert!(player.play(30, lose(0)).is_empty());
}

#[test]
fn a_device_that_drops_is_told_but_not_of_our_own_drops() {
    let drop = |ours: u64| {
        move |counts: &mut Counts| {
            counts.ledger.seen += 1000;
            counts.ledger.counts[Verdict::Drop as usize][Reason::Malformed as usize] += ours;
            counts.drops.as_mut().expect("drops").rx_dropped += 100;
        }
    };
    assert!(Player::new().play(10, drop(100)).is_empty());
    assert_eq!(kinds(&Player::new().play(10, drop(50))), [ProblemKind::DeviceDrops]);
}

#[test]
fn a_full_table_names_the_key_to_raise() {
    for full in &FULL {
        let mut player = Player::new();
        player.packets(3, 10);
        let told = player.play(1, |counts| {
            counts.ledger.counts[Verdict::Drop as usize][full.reason as usize] += 1;
        });
        assert_eq!(kinds(&told), [ProblemKind::TableFull]);
        assert!(told[0].error.contains(full.reason.name()), "{told:?}");
        assert!(told[0].error.contains("1 packet dropped within 10 s: "), "{told:?}");
    }
    let mut alarm = CounterWatch::default();
    let flows =
        |current_flows| FlowTable { current_flows, capacity_flows: 1000, ..FlowTable::default() };
    alarm.tables(&flows(899), &Tracked::default());
    assert!(alarm.findings(|_| false).is_empty());
    alarm.tables(&flows(900), &Tracked::default());
    assert!(alarm.findings(|_| false)[0].remedy.to_string().contains("`flows` under [nat]"));
}

#[test]
fn counters_that_begin_anew_are_no_jump() {
    let mut player = Player::new();
    player.packets(STEADILY, 500);
    player.counts = Counts::default();
    assert!(player.packets(1, 0).is_empty());
    assert!(player.packets(20, 0).is_empty());
}
