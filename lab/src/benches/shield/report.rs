//! Figures: medians, and whether the shield is as cheap as it shall be.

use serde::Serialize;

use super::Defence;
use super::adversary::{self, Attempt};
use super::arming::Arming;
use super::costs::{Fate, Found, Key};
use super::flood::Attack;
use super::goal::ShieldGoal;
use super::scenarios::Row;
use super::swap::Swap;
use super::syn::SynFigures;
use crate::harness::median::middle;
use crate::harness::report::Goal;
use crate::harness::table::{Column, or_dash, table};
use crate::harness::{Figures, Repeated};

/// Of what the kernel's trie takes for the same drop, at most.
const OF_TRIE: f64 = 0.5;
/// Of what nftables' hook prerouting takes, at most.
const OF_PREROUTING: f64 = 0.125;
const RULES_NS: f64 = 60.0;
const CALM_ONE_NS: f64 = 10.0;
const CALM_MANY_NS: f64 = 25.0;
const GAP_NS: f64 = 1e6;
/// From an attack's first packet until its service is armed.
const ARMED_MS: f64 = 1000.0;
/// The p99 of good traffic beside an attack, of that in peace, at most.
const TIMES_QUIET: f64 = 2.0;

#[derive(Debug, Serialize)]
pub struct ShieldFigures {
    /// In the order in which they were measured.
    pub scenarios: Vec<Row>,
    pub costs: Vec<Cost>,
    /// None where it was not measured.
    pub swap: Option<Swap>,
    /// The mixes that cost good traffic most, the worst first.
    pub adversary: Vec<Attempt>,
    /// Of so many.
    pub mixes_evaluated: u32,
    /// None where it was not measured.
    pub arming: Option<Arming>,
    pub syn: SynFigures,
    pub goals: Vec<ShieldGoal>,
    pub rounds: u32,
    /// Of each scenario.
    pub duration_s: u64,
}

/// What a packet costs more than a bare XDP drop, or than without the shield.
#[derive(Debug, Serialize)]
pub struct Cost {
    #[serde(flatten)]
    pub key: Key,
    /// What it is more than: `bare-drop`, or `no-shield`.
    pub over: &'static str,
    /// Median.
    pub ns: f64,
    pub ns_by_round: Vec<i64>,
}

impl Cost {
    fn new(key: Key, rounds: &[i64]) -> Self {
        let ns = middle(rounds.iter().map(|ns| *ns as f64)).unwrap_or(0.0);
        let over = if key.fate == Fate::Drop { "bare-drop" } else { "no-shield" };
        Self { key, over, ns, ns_by_round: rounds.to_vec() }
    }

    fn span(&self) -> String {
        let rounds = &self.ns_by_round;
        let (least, most) = (rounds.iter().min().unwrap_or(&0), rounds.iter().max().unwrap_or(&0));
        format!("{least} - {most}")
    }
}

impl ShieldFigures {
    pub(super) fn new(
        repeated: &Repeated,
        found: &Found,
        swap: Option<Swap>,
        scenarios: Vec<Row>,
        adversary: adversary::Found,
        arming: Option<Arming>,
        syn: SynFigures,
    ) -> Self {
        let costs: Vec<Cost> = found.iter().map(|(key, ns)| Cost::new(*key, ns)).collect();
        let mut goals: Vec<ShieldGoal> =
            costs.iter().flat_map(|cost| goals(cost, &costs)).collect();
        goals.extend(swap.iter().flat_map(swap_goals));
        goals.extend(scenario_goals(&scenarios));
        let adversary::Found { worst, evaluated } = adversary;
        goals.extend(worst.iter().map(|attempt| ShieldGoal {
            case: format!("the adversary's {}", attempt.in_words),
            goal: Goal::at_most("known packets lost at most", attempt.known_lost as f64, 0.0),
        }));
        goals.extend(arming.iter().flat_map(arming_goals));
        goals.extend(syn.goals());
        let Repeated { rounds, seconds } = *repeated;
        Self {
            scenarios,
            costs,
            swap,
            adversary: worst,
            mixes_evaluated: evaluated,
            arming,
            syn,
            goals,
            rounds: rounds.count,
            duration_s: seconds,
        }
    }
}

fn goals(cost: &Cost, all: &[Cost]) -> Vec<ShieldGoal> {
    let Key { fate, sources, rules, defence, .. } = cost.key;
    if defence != Defence::Ringway {
        return Vec::new();
    }
    let at_most = |what, figure, most| ShieldGoal {
        case: cost.key.to_string(),
        goal: Goal::at_most(what, figure, most),
    };
    let ns = |most| vec![at_most("ns at most", cost.ns, most)];
    match fate {
        Fate::Calm if rules > 0 => ns(RULES_NS),
        Fate::Calm => ns(if sources == 1 { CALM_ONE_NS } else { CALM_MANY_NS }),
        Fate::Drop => {
            let of = |defence, same: fn(&Key, &Key) -> bool| {
                let like = all.iter().find(|one| {
                    one.key.defence == defence && one.key.fate == fate && same(&one.key, &cost.key)
                });
                like.map(|other| cost.ns / other.ns.max(1.0))
            };
            let list = |a: &Key, b: &Key| (a.ip, a.clients, a.rules) == (b.ip, b.clients, b.rules);
            let trie = of(Defence::KernelTrie, list);
            let prerouting = of(Defence::NftPrerouting, |_, _| true);
            let mut goals = if rules > 0 { ns(RULES_NS) } else { Vec::new() };
            goals.extend(trie.map(|ratio| at_most("of the kernel's trie at most", ratio, OF_TRIE)));
            let of = "of nft's prerouting at most";
            goals.extend(prerouting.map(|ratio| at_most(of, ratio, OF_PREROUTING)));
            goals
        }
    }
}

fn swap_goals(swap: &Swap) -> [ShieldGoal; 2] {
    let goal = |what, figure, most| ShieldGoal {
        case: format!("swap of {} prefixes", swap.prefixes),
        goal: Goal::at_most(what, figure, most),
    };
    [
        goal("longest gap in ns at most", swap.longest_gap_ns as f64, GAP_NS),
        goal("packets lost at most", swap.lost as f64, 0.0),
    ]
}

fn arming_goals(arming: &Arming) -> Vec<ShieldGoal> {
    let goal = |what, figure, most| ShieldGoal {
        case: format!("{} attacks in a row", arming.attacks),
        goal: Goal::at_most(what, figure, most),
    };
    let mut goals = vec![goal("not armed at most", arming.not_armed as f64, 0.0)];
    goals.extend(arming.p99_ms.map(|ms| goal("p99 in ms at most", ms as f64, ARMED_MS)));
    goals
}

/// Good traffic beside an attack upon Ringway: losses as beside a bare drop, p99 twice that in
/// peace.
fn scenario_goals(rows: &[Row]) -> Vec<ShieldGoal> {
    let of = |defence| rows.iter().filter(move |row| row.defence == defence);
    let percent = |row: &Row| row.good_lost as f64 * 100.0 / row.good_sent.max(1) as f64;
    let spread = of(Defence::BareDrop).map(percent).max_by(f64::total_cmp);
    let quiet = of(Defence::Ringway).find(|row| row.attack == Attack::Quiet);
    let quiet = quiet.and_then(|row| row.good_p99_ns);
    let mut goals = Vec::new();
    for row in of(Defence::Ringway).filter(|row| row.attack != Attack::Quiet) {
        let case = format!("{} upon {}", row.attack, row.defence);
        let mut goal = |what, figure, most| {
            let goal = Goal::at_most(what, figure, most);
            goals.push(ShieldGoal { case: case.clone(), goal });
        };
        if let Some(spread) = spread {
            goal("% of good lost at most", percent(row), spread);
        }
        if let (Some(quiet), Some(p99)) = (quiet, row.good_p99_ns) {
            goal("p99, of that in peace, at most", p99 as f64 / quiet.max(1) as f64, TIMES_QUIET);
        }
        let peer = of(Defence::NftPrerouting).find(|peer| peer.attack == row.attack);
        let costs = row.cost_ns_over_bare_drop.zip(peer.and_then(|p| p.cost_ns_over_bare_drop));
        if let Some((ours, theirs)) = costs {
            let ratio = ours as f64 / (theirs as f64).max(1.0);
            goal("ns, of nft's prerouting, at most", ratio, OF_PREROUTING);
        }
    }
    goals
}

const SCENARIO_COLUMNS: [Column<Row>; 11] = [
    Column::text("attack", |row| row.attack.to_string()),
    Column::text("defence", |row| row.defence.to_string()),
    Column::number("packets/s", |row| row.attack_pps.to_string()),
    Column::number("wanted", |row| row.attack_wanted_pps.to_string()),
    Column::number("good sent", |row| row.good_sent.to_string()),
    Column::number("lost", |row| row.good_lost.to_string()),
    Column::number("p99 us", |row| or_dash(row.good_p99_ns.map(us), 0)),
    Column::number("http lost", |row| row.http_failed.to_string()),
    Column::number("http p99 us", |row| or_dash(row.http_p99_ns.map(us), 0)),
    Column::number("more ns", |row| or_dash(row.cost_ns_over_bare_drop.map(|ns| ns as f64), 0)),
    Column::number("armed ms", |row| or_dash(row.armed_after_ms.map(|ms| ms as f64), 0)),
];

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

const COLUMNS: [Column<Cost>; 9] = [
    Column::text("packet", |cost| cost.key.fate.to_string()),
    Column::number("IPv", |cost| cost.key.ip.number().to_string()),
    Column::number("sources", |cost| cost.key.sources.to_string()),
    Column::text("in", |cost| cost.key.place().unwrap_or("-").to_owned()),
    Column::number("prefixes", |cost| cost.key.prefixes.to_string()),
    Column::number("rules", |cost| cost.key.rules.to_string()),
    Column::text("by", |cost| cost.key.defence.to_string()),
    Column::number("more ns", |cost| format!("{:.0}", cost.ns)),
    Column::number("least - most", Cost::span),
];

const ATTEMPT_COLUMNS: [Column<Attempt>; 8] = [
    Column::number("known lost", |one| one.known_lost.to_string()),
    Column::number("good lost", |one| one.good_lost.to_string()),
    Column::number("sent", |one| one.good_sent.to_string()),
    Column::number("more ns", |one| format!("{:.0}", one.cost_ns_over_bare_drop)),
    Column::number("x bare", |one| format!("{:.1}", one.times_bare_drop)),
    Column::number("calls", |one| or_dash(one.calls_per_packet.map(|count| count.calls), 1)),
    Column::number("look-ups", |one| or_dash(one.calls_per_packet.map(|count| count.lookups), 1)),
    Column::text("the adversary's packets", |one| one.in_words.clone()),
];

impl Figures for ShieldFigures {
    fn tables(&self) -> String {
        let mut text = String::new();
        if !self.scenarios.is_empty() {
            text += &table(&SCENARIO_COLUMNS, &self.scenarios);
            text.push('\n');
        }
        if !self.costs.is_empty() {
            text += &table(&COLUMNS, &self.costs);
        }
        if let Some(swap) = &self.swap {
            let Swap { prefixes, longest_gap_ns, longest_gap_quiet_ns, swap_ms, .. } = swap;
            text += &format!(
                "a list of {prefixes} prefixes swapped in {swap_ms} ms: longest gap between packets {} us, {} us when \
                 nothing is swapped; {} of {} packets lost\n",
                longest_gap_ns / 1000,
                longest_gap_quiet_ns / 1000,
                swap.lost,
                swap.packets,
            );
        }
        if !self.adversary.is_empty() {
            text += &table(&ATTEMPT_COLUMNS, &self.adversary);
        }
        if let Some(Arming { attacks, not_armed, p50_ms, p99_ms, max_ms, .. }) = &self.arming {
            let ms = |ms: &Option<u64>| or_dash(ms.map(|ms| ms as f64), 0);
            text += &format!(
                "{attacks} attacks in a row: armed after {p50_ms} ms, p99 {} ms, at most {} ms; {not_armed} not armed\n",
                ms(p99_ms),
                ms(max_ms),
            );
        }
        text + &self.syn.tables()
    }

    fn goals(&self) -> Vec<String> {
        self.goals.iter().map(|goal| format!("{}, {}", goal.case, goal.goal)).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("medians of {} rounds", self.rounds)];
        if !self.costs.is_empty() {
            notes.extend([
                "drop: nanoseconds over a bare XDP drop; calm: over the same gateway without [shield].".to_owned(),
                "ringway and kernel-trie by BPF_PROG_TEST_RUN; nft and iptables by the rate of packets through a veth pair, on one processor.".to_owned(),
            ]);
        }
        if !self.scenarios.is_empty() {
            notes.push(format!(
                "scenarios: {} s each; one processor sends the attack, receives and drops it; the other has the good traffic.",
                self.duration_s
            ));
        }
        if self.mixes_evaluated > 0 {
            notes.push(format!(
                "adversary: the worst of {} mixes; known: packets of established flows and learnt sources.",
                self.mixes_evaluated
            ));
        }
        notes.extend(self.syn.notes());
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::packet::path::{Clients, Ip};
    use crate::harness::Rounds;
    use crate::harness::report::testing;

    fn figures() -> ShieldFigures {
        let key = |fate, defence, prefixes, rules| Key {
            fate,
            ip: Ip::V4,
            clients: Clients::OneNetwork,
            sources: 1 + prefixes,
            prefixes,
            rules,
            defence,
        };
        let found = Found::from([
            (key(Fate::Drop, Defence::Ringway, 1000, 0), vec![90, 110, 100]),
            (key(Fate::Drop, Defence::KernelTrie, 1000, 0), vec![250]),
            (key(Fate::Drop, Defence::Ringway, 0, 10), vec![61]),
            (key(Fate::Drop, Defence::NftPrerouting, 0, 1), vec![400]),
            (key(Fate::Calm, Defence::Ringway, 1000, 0), vec![-3, 26]),
        ]);
        let swap = Swap { lost: 1, ..Swap::default() };
        let row = |attack, defence, good_lost, p99, cost| Row {
            attack,
            defence,
            attack_pps: 900,
            attack_wanted_pps: 1000,
            good_sent: 1000,
            good_lost,
            good_p99_ns: Some(p99),
            cost_ns_over_bare_drop: cost,
            armed_after_ms: None,
            http_requests: 10,
            http_failed: 0,
            http_p99_ns: None,
        };
        let scenarios = vec![
            row(Attack::OneSource, Defence::BareDrop, 1, 900, None),
            row(Attack::OneSource, Defence::BareDrop, 3, 900, None),
            row(Attack::OneSource, Defence::NftPrerouting, 900, 9000, Some(400)),
            row(Attack::Quiet, Defence::Ringway, 0, 1000, None),
            row(Attack::OneSource, Defence::Ringway, 3, 2100, Some(40)),
        ];
        let adversary = adversary::Found { worst: vec![Attempt::example()], evaluated: 9 };
        let arming = Arming {
            attacks: 2,
            not_armed: 1,
            p50_ms: 600,
            p99_ms: Some(600),
            max_ms: Some(600),
            armed_after_ms: vec![600],
        };
        let repeated = Repeated { rounds: Rounds { count: 3 }, seconds: 4 };
        let syn = SynFigures::example();
        ShieldFigures::new(&repeated, &found, Some(swap), scenarios, adversary, Some(arming), syn)
    }

    #[test]
    fn json_has_the_promised_keys() {
        assert_eq!(
            testing::names(&testing::report("shield", figures(), Vec::new())),
            "adversary adversary.calls_per_packet adversary.calls_per_packet.calls adversary.calls_per_packet.lookups \
             adversary.calls_per_packet.tail_calls adversary.cost_ns_over_bare_drop adversary.good_lost adversary.good_sent adversary.in_words \
             adversary.known_lost adversary.known_lost_as adversary.known_sent adversary.mix adversary.mix.ip adversary.mix.layer4 \
             adversary.mix.payload adversary.mix.shape adversary.mix.sources adversary.mix.to adversary.mix.weight \
             adversary.times_bare_drop arming arming.armed_after_ms arming.attacks arming.max_ms arming.not_armed arming.p50_ms arming.p99_ms \
             costs costs.clients costs.defence costs.fate costs.ip costs.ns costs.ns_by_round costs.over costs.prefixes \
             costs.rules costs.sources duration_s failed goals goals.case goals.figure goals.goal goals.met goals.what machine mixes_evaluated rounds \
             scenarios scenarios.armed_after_ms scenarios.attack scenarios.attack_pps scenarios.attack_wanted_pps \
             scenarios.cost_ns_over_bare_drop scenarios.defence scenarios.good_lost scenarios.good_p99_ns scenarios.good_sent \
             scenarios.http_failed scenarios.http_p99_ns scenarios.http_requests schema skipped swap swap.longest_gap_ns swap.longest_gap_ns_by_round swap.longest_gap_quiet_ns \
             swap.longest_gap_quiet_ns_by_round swap.lost swap.packets swap.prefixes swap.swap_ms swap.swap_ms_by_round \
             syn syn.costs syn.costs.answerer syn.costs.ip syn.costs.ns syn.costs.ns_by_round syn.floods syn.floods.answered_pps \
             syn.floods.answerer syn.floods.backend_syns syn.floods.bare_answered_pps syn.floods.flood_pps syn.floods.flood_wanted_pps \
             syn.floods.flows_opened syn.floods.good syn.floods.good.established_failed syn.floods.good.established_requests \
             syn.floods.good.new_connections syn.floods.good.new_failed syn.floods.good.new_p99_ns syn.floods.good_in_peace \
             syn.floods.good_in_peace.established_failed syn.floods.good_in_peace.established_requests \
             syn.floods.good_in_peace.new_connections syn.floods.good_in_peace.new_failed syn.floods.good_in_peace.new_p99_ns \
             syn.floods.of_bare syn.floods.of_bare_by_round"
        );
    }

    #[test]
    fn a_goal_for_each_cost_of_ours() {
        let met = |case: &str| -> Vec<bool> {
            let figures = figures();
            let goals = figures.goals.iter().filter(|goal| goal.case.contains(case));
            goals.map(|goal| goal.goal.met).collect()
        };
        assert_eq!(met("drop IPv4, 1001 sources"), [true, false], "trie, then prerouting");
        assert_eq!(met("10 rules"), [false, false]);
        assert_eq!(met("calm"), [true]);
        assert_eq!(met("swap"), [true, false]);
        assert_eq!(met("upon ringway"), [true, false, true], "losses, p99, cost");
        assert_eq!(met("upon nft"), [false; 0]);
        assert_eq!(met("adversary"), [false]);
        assert_eq!(met("in a row"), [false, true], "not armed, p99");
        assert_eq!(met("answer to a SYN"), [false], "twice a bare program");
        assert_eq!(met("SYNs upon"), [false, true, false, false, true]);
    }

    #[test]
    fn table_lines_up() {
        let table = figures().tables();
        testing::lines_up(&table, 6);
        assert!(table.contains("90 - 110"), "{table}");
    }
}
