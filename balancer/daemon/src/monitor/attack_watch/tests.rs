//! Simulated traffic: what clients do is no attack, and what an attacker does is one at once.

use proptest::prelude::*;
use ringway_config::{AboveBaseline, Limits};

use super::*;

const LASTING: Duration = Duration::from_secs(600);
const HOUR: u64 = 3600;

fn rules(packets: Option<u32>, factor: Option<u32>) -> Mitigation {
    Mitigation {
        packets,
        new_flows: None,
        above_baseline: factor.map(|factor| AboveBaseline { factor, minimum: 5000 }),
        lasting: LASTING,
        limits: Limits::default(),
        run: Vec::new(),
        run_after: Duration::ZERO,
    }
}

/// A service whose counters a daemon samples.
struct Simulation {
    watch: AttackWatch,
    rules: Mitigation,
    now: Instant,
    packets: f64,
    new_flows: f64,
    mode: ShieldMode,
    noise: u64,
}

impl Simulation {
    fn new(rules: Mitigation) -> Simulation {
        Simulation {
            watch: AttackWatch::default(),
            rules,
            now: Instant::now(),
            packets: 0.0,
            new_flows: 0.0,
            mode: ShieldMode::Enforce,
            noise: 1,
        }
    }

    /// Of 0 to 1.
    fn random(&mut self) -> f64 {
        // xorshift64
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        (self.noise >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn look(&mut self, armed: Option<Instant>) {
        let service = ServiceKey::new([203, 0, 113, 9].into(), 80, Protocol::Tcp);
        let (packets, new_flows) = (self.packets as u64, self.new_flows as u64);
        let (name, mode) = ("web".to_owned(), self.mode);
        // A tenth of it is over a limit.
        let refused = packets / 10;
        let answered = new_flows;
        let one = Arrived { service, name, mode, packets, new_flows, refused, answered, armed };
        self.watch.note(&self.rules, self.now, SystemTime::UNIX_EPOCH, vec![one]);
    }

    /// So many packets a second come for so long, a twentieth of them opening flows; then a look.
    fn sample(&mut self, pps: f64, long: Duration) -> bool {
        self.now += long;
        self.packets += pps * long.as_secs_f64();
        self.new_flows += pps / 20.0 * long.as_secs_f64();
        self.look(None);
        self.attack().is_some()
    }

    fn attack(&self) -> Option<&Attack> {
        self.watch.attacks().next().map(|(_, attack)| attack)
    }

    /// Ordinary traffic for so many seconds; the rate by the second, which may be noisy.
    fn is_calm(&mut self, seconds: u64, rate: impl Fn(&mut Simulation, f64) -> f64) {
        for n in 0..seconds * 4 {
            let pps = rate(self, n as f64 / 4.0);
            assert!(!self.sample(pps, PERIOD), "{n}: {pps} pps: {:?}", self.attack());
        }
    }

    /// So many seconds of this rate, more or less.
    fn steady(&mut self, seconds: u64, pps: f64) {
        self.is_calm(seconds, |it, _| pps * (0.9 + 0.2 * it.random()));
    }
}

#[test]
fn an_attack_is_found_with_the_second_sample_and_lasts_its_time() {
    let mut it = Simulation::new(rules(Some(100_000), None));
    it.steady(10, 90_000.0);
    assert!(!it.sample(2e6, PERIOD), "one burst");
    it.steady(10, 90_000.0);
    assert!(!it.sample(2e6, PERIOD) && it.sample(2e6, PERIOD));
    let attack = it.attack().expect("one").clone();
    assert_eq!((attack.measure, attack.packets), (Some(Measure::Packets), 2_000_000));
    assert_eq!((attack.ends, attack.baseline), (it.now + LASTING, None));
    assert_eq!((attack.highest, attack.dropped), ([2_000_000, 100_000], 0), "it begins");
    it.sample(3e6, PERIOD);
    it.sample(2e6, PERIOD);
    let attack = it.attack().expect("it lasts").clone();
    assert_eq!((attack.highest, attack.dropped), ([3_000_000, 150_000], 125_000));
    for _ in 0..4 * 3600 {
        assert!(it.sample(2e6, PERIOD), "it lasts");
    }
    let last = it.now;
    while it.sample(90_000.0, PERIOD) {
        assert!(it.now < last + LASTING);
    }
    assert_eq!(it.now, last + LASTING);
    assert!(!it.sample(2e6, PERIOD) && it.sample(2e6, PERIOD), "the next");
    assert_eq!(it.watch.found().values().collect::<Vec<_>>(), [&2]);
}

#[test]
fn many_new_flows_are_an_attack_though_packets_are_few() {
    let new_flows = Some(1000);
    let mut it = Simulation::new(Mitigation { new_flows, ..rules(Some(100_000), None) });
    it.steady(10, 15_000.0);
    it.sample(25_000.0, PERIOD);
    assert!(it.sample(25_000.0, PERIOD));
    let attack = it.attack().expect("one");
    assert_eq!(attack.measure, Some(Measure::NewFlows));
    assert!((1240..1260).contains(&attack.new_flows), "{attack:?}");
}

/// An office's day, an hour of a film, bursts of a batch job, a restart of all clients, and a
/// machine that sleeps.
#[test]
fn an_ordinary_day_is_no_attack() {
    let mut it = Simulation::new(rules(None, Some(8)));
    let day = |it: &mut Simulation, second: f64| {
        let turn = second / (24 * HOUR) as f64 * std::f64::consts::TAU;
        let usual = 1_000.0 + 20_000.0 * (0.5 - 0.5 * turn.cos()).powi(3);
        // Every two minutes three seconds of a batch job.
        let burst = if second % 120.0 < 3.0 { 6_000.0 } else { 0.0 };
        (usual + burst) * (0.5 + it.random() + if it.random() > 0.99 { 3.0 } else { 0.0 })
    };
    it.is_calm(24 * HOUR, day);
    it.is_calm(600, |_, _| 0.0); // The link is down, and everybody comes back at once.
    it.is_calm(60, |it, _| 30_000.0 * (0.5 + it.random()));
    it.sample(1_000.0, Duration::from_secs(9 * HOUR)); // The machine slept.
    it.is_calm(HOUR, day);
    (it.packets, it.new_flows) = (0.0, 0.0); // Counted anew.
    it.is_calm(HOUR, day);
}

/// With scans of a few packets a second before, and checks.
#[test]
fn a_service_that_begins_to_be_used_is_no_attack() {
    for before in [0.0, 1.0, 40.0] {
        let mut it = Simulation::new(rules(None, Some(8)));
        it.steady(2 * HOUR, before);
        it.steady(60, 50_000.0);
    }
    let mut it = Simulation::new(rules(None, Some(8)));
    it.steady(HOUR, 100.0);
    it.is_calm(600, |_, second| 100.0 * (second / 60.0).exp());
}

#[test]
fn clocks_that_stand_still_or_jump_are_no_attack() {
    let mut it = Simulation::new(rules(Some(20_000), Some(8)));
    it.steady(HOUR, 10_000.0);
    for long in [0, 1, 99, 100, 3_600_000, 0, 250, 86_400_000, 250] {
        assert!(!it.sample(10_000.0, Duration::from_millis(long)), "{long}");
    }
    // A look that comes late is followed by one that comes at once.
    it.packets += 1000.0;
    it.look(None);
    assert!(!it.sample(10_000.0, PERIOD));
}

#[test]
fn an_attack_is_not_learnt_unless_it_lasts_a_day() {
    let mut it = Simulation::new(rules(None, Some(8)));
    it.steady(HOUR, 10_000.0);
    let usual = |it: &Simulation| it.watch.services.values().next().expect("one").usual.rates[0];
    let before = usual(&it);
    let mut hours = 0;
    it.sample(300_000.0, PERIOD);
    while it.sample(300_000.0, PERIOD) {
        hours += 1;
        if hours == 2 {
            assert!(usual(&it) < before * 1.2, "{before} {}", usual(&it));
        }
        it.sample(300_000.0, Duration::from_secs(HOUR));
        assert!(hours < 30, "it never ends");
    }
    assert!(hours >= 24, "{hours}");
    it.steady(HOUR, 300_000.0);
}

#[test]
fn what_the_shield_does_not_see_is_no_attack() {
    let mut it = Simulation::new(rules(Some(1000), None));
    it.sample(5000.0, PERIOD);
    it.sample(5000.0, PERIOD);
    assert!(it.sample(5000.0, PERIOD));
    it.mode = ShieldMode::Off;
    assert!(!it.sample(5000.0, PERIOD), "it is off");
    it.mode = ShieldMode::Observe;
    for _ in 0..2 {
        assert!(!it.sample(5000.0, PERIOD));
    }
    assert!(it.sample(5000.0, PERIOD), "it is announced");
}

#[test]
fn what_is_usual_stays_while_the_shield_is_off_and_nothing_is_learnt() {
    let mut it = Simulation::new(rules(None, Some(8)));
    it.steady(HOUR, 10_000.0);
    let usual = |it: &Simulation| it.watch.services.values().next().expect("one").usual.rates;
    let before = usual(&it);
    it.mode = ShieldMode::Off;
    it.steady(HOUR, 300_000.0);
    assert_eq!(usual(&it), before);
    it.mode = ShieldMode::Enforce;
    let found = [PERIOD; 3].map(|long| it.sample(300_000.0, long));
    assert_eq!(found, [false, false, true], "the first sample only counts");
    assert!(it.attack().is_some_and(|attack| attack.baseline.is_some()));
}

/// Pauses do not count, nor does the sample that finds it.
#[test]
fn how_long_an_attack_was_above_its_threshold_is_known() {
    let mut it = Simulation::new(rules(Some(100_000), None));
    let flood = |it: &mut Simulation| (0..8).for_each(|_| _ = it.sample(2e6, PERIOD));
    it.steady(1, 90_000.0);
    flood(&mut it);
    it.sample(90_000.0, Duration::from_secs(60));
    flood(&mut it);
    assert_eq!(it.attack().map(|attack| attack.above), Some(PERIOD * 14));
}

#[test]
fn a_new_daemon_goes_on_with_what_is_armed() {
    let mut it = Simulation::new(rules(Some(100_000), None));
    it.look(Some(it.now + Duration::from_secs(5)));
    assert!(it.attack().is_some_and(|attack| attack.measure.is_none()));
    assert!(it.sample(200_000.0, PERIOD), "it lasts");
    let attack = it.attack().expect("one");
    assert_eq!((attack.measure, attack.ends), (Some(Measure::Packets), it.now + LASTING));
    let mut it = Simulation::new(rules(Some(100_000), None));
    it.look(Some(it.now + Duration::from_secs(5)));
    assert!(!it.sample(1000.0, Duration::from_secs(5)), "its time is over");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Of any height, between day and night; with any noise.
    #[test]
    fn a_day_is_no_attack(
        day in 1_000.0..1e6_f64,
        night in 0.001..1.0_f64,
        noise in 0.0..0.8_f64,
        seed in 1..u64::MAX,
    ) {
        let mut it = Simulation::new(rules(None, Some(8)));
        it.noise = seed;
        let second = Duration::from_secs(1);
        for n in 0..36 * HOUR {
            let turn = n as f64 / (24 * HOUR) as f64 * std::f64::consts::TAU;
            let part = night + (1.0 - night) * (0.5 - 0.5 * turn.cos());
            let pps = day * part * (1.0 - noise + 2.0 * noise * it.random());
            prop_assert!(!it.sample(pps, second), "{n}: {:?}", it.attack());
        }
    }

    /// Ten times what is usual, at any phase of the samples: armed within two whole samples.
    #[test]
    fn ten_times_the_usual_is_an_attack(
        usual in 1_000.0..1e6_f64,
        hours in 1..30_u64,
        phase in 0.0..1.0_f64,
        seed in 1..u64::MAX,
    ) {
        let mut it = Simulation::new(rules(None, Some(8)));
        it.noise = seed;
        for _ in 0..hours * HOUR {
            let pps = usual * (0.9 + 0.2 * it.random());
            prop_assert!(!it.sample(pps, Duration::from_secs(1)));
        }
        // The attack begins within a sample.
        it.sample(usual * (1.0 + 9.0 * phase), PERIOD);
        it.sample(usual * 10.0, PERIOD);
        it.sample(usual * 10.0, PERIOD);
        let attack = it.attack();
        prop_assert!(attack.is_some_and(|attack| attack.baseline.is_some()), "{attack:?}");
    }
}
