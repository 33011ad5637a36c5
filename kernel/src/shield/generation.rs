//! A generation: its program, with constants, lists and rules of its own.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::MapHandle;
use ringway_abi::raw::{
    RW_SHIELD_COUNT_LISTS, RW_SHIELD_COUNT_RUNTIME_ALLOW, RW_SHIELD_GENERATIONS, RW_SHIELD_RULES,
    rw_clock, rw_label, rw_list_span, rw_list_v4, rw_list_v6, rw_shield, rw_shield_control,
    rw_shield_count, rw_shield_rule,
};
use ringway_abi::{IntoBytes, RuleAction, ShieldMode};
use ringway_bpf_sys::{LoadError, Program};
use ringway_filter::Instruction;
use ringway_plan::prefix_list::ListTables;
use ringway_plan::tables::RateLimit;

use super::challenge_key::ChallengeKey;
use crate::load::set_clock;
use crate::load::{self, as_kernel};
use crate::maps::table_view::TableView;
use crate::maps::{self, Map, Maps, map};
use crate::objects::capture_shield::CaptureShieldSkelBuilder;
use crate::objects::shield::{self, ShieldSkelBuilder};
use crate::tables::policies::fine;
use crate::tables::rows::{label, label_text};
use crate::{Error, Result};

const SHIELD: &str = "ringway_shield";
const RULES: &str = "ringway_rules";

/// What a generation of the shield is made from.
#[derive(Clone, Debug)]
pub struct Generation<'a> {
    pub mode: ShieldMode,
    /// Drop what no correct sender makes.
    pub sanity: bool,
    /// The node's own addresses, too.
    pub protect_host: bool,
    /// Services have modes of their own.
    pub service_modes: bool,
    /// SYNs to some service are answered, by its policy.
    pub answers: bool,
    /// Of challenges to SYNs, the same on all nodes; `None`: one that no other node has.
    pub challenge_key: Option<ChallengeKey>,
    pub lists: &'a ListTables,
    /// Names of list files, by number; at most `RW_SHIELD_LISTS`.
    pub list_names: &'a [String],
    /// In order; at most `RW_SHIELD_RULES`.
    pub rules: &'a [Rule],
    /// [`ringway_filter::first_match`] of the rules' filters.
    pub program: &'a [Instruction],
}

/// A rule beside its filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Under this name it is counted, over generations.
    pub name: String,
    pub action: RuleAction,
    /// For [`RuleAction::Limit`].
    pub limit: Option<RateLimit>,
}

/// The shield as the process knows it that looks after the node.
#[derive(Debug, Default)]
pub(crate) struct ShieldState {
    /// What it has put in force.
    pub(super) made: Option<Made>,
    /// Captures under way have a former generation.
    pub(super) captures_stale: bool,
}

/// A generation, complete, that no packet meets yet.
pub(super) fn make(live: &Maps, generation: &Generation<'_>) -> Result<(OwnedFd, Made)> {
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<ShieldSkelBuilder>(SHIELD, &mut storage)?;
    let control = live.shield_control.get(0)?;
    let place = (control.place + 1) % RW_SHIELD_GENERATIONS;
    let lists = generation.lists;
    set_clock!(open, live.sources.clock);
    let constants = rw_shield {
        allow4: lists.allow4,
        allow6: lists.allow6,
        block4: lists.block4,
        block6: lists.block6,
        mode: generation.mode as u32,
        sanity: generation.sanity.into(),
        protect_host: generation.protect_host.into(),
        rules: generation.rules.len() as u32,
        modes: generation.service_modes.into(),
        place,
        answers: generation.answers.into(),
        pad: 0,
    };
    load::constants(&mut open.maps.rodata_shield_data)?.shield = constants;
    let entries = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).max(1);
    load::set_entries(&mut open.maps.list_index, entries(lists.index.len()))?;
    load::set_entries(&mut open.maps.list_spans, entries(lists.spans.len()))?;
    load::set_entries(&mut open.maps.list_v4, entries(lists.v4.len()))?;
    load::set_entries(&mut open.maps.list_v6, entries(lists.v6.len()))?;
    live.share_with_shield(&mut open.maps)?;
    let loaded = load::load(SHIELD, open)?;
    let loaded_maps = &loaded.maps;
    let made = Made {
        constants,
        list_index: map!(shield, loaded_maps, list_index)?,
        list_spans: map!(shield, loaded_maps, list_spans)?,
        list_v4: map!(shield, loaded_maps, list_v4)?,
        list_v6: map!(shield, loaded_maps, list_v6)?,
        list_counts: map!(shield, loaded_maps, list_counts)?,
        rule_table: map!(shield, loaded_maps, rule_table)?,
    };
    fill(&made.list_index, &lists.index)?;
    fill(&made.list_spans, &lists.spans)?;
    fill(&made.list_v4, &lists.v4)?;
    fill(&made.list_v6, &lists.v6)?;
    // The last that can fail for what is in it: names and counters are still the former one's.
    let program = (!generation.rules.is_empty()).then(|| load_rules(generation.program));
    let program = program.transpose()?;
    let names: Vec<&str> = generation.rules.iter().map(|rule| &*rule.name).collect();
    let rules = count_places(live, 0, &names)?;
    let names: Vec<&str> = generation.list_names.iter().map(|name| &**name).collect();
    let lists = count_places(live, RW_SHIELD_COUNT_LISTS, &names)?;
    let (rows, table) = rows(generation.rules, &rules, live.sources.clock.ticks()?);
    made.rule_table.put_all(&rows, &table)?;
    let numbers: Vec<u32> = (0..).take(lists.len()).collect();
    made.list_counts.put_all(&numbers, &lists)?;
    // Handed out before it is used: a daemon that ends here leaves a place unused.
    live.shield_control.put(&0, &rw_shield_control { place, ..control })?;
    if let Some(program) = program {
        live.rule_programs.put_fd(place, program.as_fd())?;
    }
    Ok((load::program(&loaded.progs.ringway_shield)?, made))
}

fn fill<V: IntoBytes + zerocopy::Immutable>(map: &Map<u32, V>, elements: &[V]) -> Result<()> {
    if elements.is_empty() {
        return Ok(());
    }
    TableView::write(map, 0, elements, "map the shield's lists")
}

fn load_rules(program: &[Instruction]) -> Result<OwnedFd> {
    let instructions: Vec<_> = program.iter().map(as_kernel).collect();
    let loaded = Program { name: RULES, instructions: &instructions, frags: true }.load();
    loaded.map_err(|LoadError { source, log }| Error::ShieldRules { source, log })
}

/// The table of rules: rows and what they hold.
fn rows(rules: &[Rule], counts: &[u32], ticks: rw_clock) -> (Vec<u32>, Vec<rw_shield_rule>) {
    let row = |(rule, count): (&Rule, &u32)| {
        let (gap, window) = rule.limit.map_or((0, 0), |limit| fine(limit, ticks));
        rw_shield_rule { action: rule.action as u32, count: *count, gap, window }
    };
    let table: Vec<rw_shield_rule> = rules.iter().zip(counts).map(row).collect();
    let notes = table.iter().filter(|row| row.action == RuleAction::Count as u32);
    let numbers = (0..).take(table.len());
    let behind = (RW_SHIELD_RULES..).take(notes.clone().count());
    (numbers.chain(behind).collect(), table.iter().chain(notes).copied().collect())
}

/// The places where these are counted: those that they have by their names, else free ones, which
/// begin at nothing.
fn count_places(live: &Maps, first: u32, names: &[&str]) -> Result<Vec<u32>> {
    let most = if first == 0 { RW_SHIELD_COUNT_LISTS } else { RW_SHIELD_COUNT_RUNTIME_ALLOW };
    let labels = labels(live, first..most)?;
    let (places, new) = assign(&labels, names);
    for (name, place) in &new {
        let at = first + place;
        live.shield_counts.put_percpu(&at, &rw_shield_count::default())?;
        live.shield_labels.put(&at, &label(names[*name]))?;
    }
    for (place, label) in (0u32..).zip(&labels) {
        if !label.is_empty() && !places.contains(&place) {
            live.shield_labels.put(&(first + place), &rw_label::default())?;
        }
    }
    Ok(places.into_iter().map(|place| first + place).collect())
}

fn labels(live: &Maps, places: std::ops::Range<u32>) -> Result<Vec<String>> {
    places.map(|place| Ok(label_text(&live.shield_labels.get(place)?))).collect()
}

/// A place for each name, and those that are new: number of the name and place.
fn assign(labels: &[String], names: &[&str]) -> (Vec<u32>, Vec<(usize, u32)>) {
    let stays = |label: &String| !label.is_empty() && names.contains(&&**label);
    let mut free = (0u32..).zip(labels).filter(|(_, label)| !stays(label)).map(|(place, _)| place);
    let mut new = Vec::new();
    let places = names.iter().enumerate().map(|(number, name)| {
        match (0u32..).zip(labels).find(|(_, label)| label == name) {
            Some((place, _)) => place,
            // Names are unique, and no more than places.
            None => {
                let place = free.next().unwrap_or_default();
                new.push((number, place));
                place
            }
        }
    });
    (places.collect(), new)
}

/// The maps and constants of a generation.
#[derive(Debug)]
pub(crate) struct Made {
    constants: rw_shield,
    list_index: Map<u32, u64>,
    list_spans: Map<u32, rw_list_span>,
    list_v4: Map<u32, rw_list_v4>,
    list_v6: Map<u32, rw_list_v6>,
    list_counts: Map<u32, u32>,
    rule_table: Map<u32, rw_shield_rule>,
}

impl Made {
    /// Those of the generation that a program is of, which takes CAP_SYS_ADMIN; `None`: it is none
    /// of ours.
    pub(crate) fn of(program: u32) -> Result<Option<Made>> {
        let constants = Map::<u32, rw_shield>::of_program(program, ".rodata.shield")?;
        let (Some(constants), Some(list_index), Some(list_spans)) = (
            constants,
            Map::of_program(program, "list_index")?,
            Map::of_program(program, "list_spans")?,
        ) else {
            return Ok(None);
        };
        let (Some(list_v4), Some(list_v6)) =
            (Map::of_program(program, "list_v4")?, Map::of_program(program, "list_v6")?)
        else {
            return Ok(None);
        };
        let (Some(list_counts), Some(rule_table)) =
            (Map::of_program(program, "list_counts")?, Map::of_program(program, "rule_table")?)
        else {
            return Ok(None);
        };
        let constants = constants.get(0)?;
        Ok(Some(Made {
            constants,
            list_index,
            list_spans,
            list_v4,
            list_v6,
            list_counts,
            rule_table,
        }))
    }

    /// The name of a list file, by its number.
    pub(crate) fn list_name(&self, live: &Maps, number: u32) -> Result<String> {
        Ok(label_text(&live.shield_labels.get(self.list_counts.get(number)?)?))
    }

    /// The name of a rule, by its number, and what the rule does.
    pub(crate) fn rule(&self, live: &Maps, number: u32) -> Result<(String, Option<RuleAction>)> {
        let row = self.rule_table.get(number)?;
        let name = label_text(&live.shield_labels.get(row.count)?);
        Ok((name, RuleAction::try_from(row.action).ok()))
    }
}

/// Puts the maps and constants of a generation into another instance of the program.
macro_rules! share_generation {
    ($open:ident, $made:expr, $maps:expr) => {{
        let made: &Made = $made;
        set_clock!($open, $maps.sources.clock);
        load::constants(&mut $open.maps.rodata_shield_data)?.shield = made.constants;
        maps::reuse(&mut $open.maps.list_index, &made.list_index)?;
        maps::reuse(&mut $open.maps.list_spans, &made.list_spans)?;
        maps::reuse(&mut $open.maps.list_v4, &made.list_v4)?;
        maps::reuse(&mut $open.maps.list_v6, &made.list_v6)?;
        maps::reuse(&mut $open.maps.list_counts, &made.list_counts)?;
        maps::reuse(&mut $open.maps.rule_table, &made.rule_table)?;
    }};
}

/// A generation once more, for captures, upon these maps of theirs: state, chain and slots.
pub(crate) fn load_for_capture(
    live: &Maps,
    made: &Made,
    (state, chain, slots): (&MapHandle, &MapHandle, &MapHandle),
) -> Result<OwnedFd> {
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<CaptureShieldSkelBuilder>(SHIELD, &mut storage)?;
    share_generation!(open, made, live);
    live.share_with_capture_shield(&mut open.maps)?;
    maps::reuse(&mut open.maps.capture_state, state)?;
    maps::reuse(&mut open.maps.capture_chain, chain)?;
    maps::reuse(&mut open.maps.capture_slots, slots)?;
    load::program(&load::load(SHIELD, open)?.progs.ringway_shield)
}

/// The shield in force once more, upon the maps of a dry balancer, to decide as the live one does
/// and to write nothing. `None`: the program in its slot is none of ours.
pub(crate) fn load_dry(
    program: u32,
    dry: &Maps,
    trace: &MapHandle,
) -> Result<Option<(OwnedFd, Made)>> {
    let Some(made) = Made::of(program)? else { return Ok(None) };
    let mut storage = MaybeUninit::uninit();
    let mut open = load::open::<ShieldSkelBuilder>(SHIELD, &mut storage)?;
    share_generation!(open, &made, dry);
    load::constants(&mut open.maps.rodata_dry_data)?.dry = true;
    dry.share_with_shield(&mut open.maps)?;
    maps::reuse(&mut open.maps.data_trace, trace)?;
    let program = load::program(&load::load(SHIELD, open)?.progs.ringway_shield)?;
    Ok(Some((program, made)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_places() {
        let labels = ["a", "", "b", ""].map(str::to_owned);
        assert_eq!(assign(&labels, &["b", "c", "a"]), (vec![2, 1, 0], vec![(1, 1)]));
        // The place of one that is gone is given away.
        assert_eq!(assign(&labels, &["c", "d", "b"]), (vec![0, 1, 2], vec![(0, 0), (1, 1)]));
        assert_eq!(assign(&labels, &[]), (vec![], vec![]));
    }
}
