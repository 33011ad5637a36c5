//! `ringway reasons [NAME]`: what verdicts mean.

use std::fmt::Write as _;

use ringway_abi::{Loss, Reason, Verdict};
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use serde::{Serialize, Serializer};

use crate::cli::{Output, ReasonsArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};

/// The heading that a reason is listed under.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Reasons of the gateway.
    Verdict(Verdict),
    /// Reasons of packet programs in user space.
    Engine,
    /// What segments come to at `ringway accept`.
    Accept,
}

impl Group {
    fn all() -> impl Iterator<Item = Group> {
        Verdict::all().map(Group::Verdict).chain([Group::Engine, Group::Accept])
    }

    fn name(self) -> &'static str {
        match self {
            Group::Verdict(verdict) => verdict.name(),
            Group::Engine => "engine",
            Group::Accept => "accept",
        }
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    reasons: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    verdicts: Vec<Group>,
    meaning: &'static str,
    cause: &'static str,
    next: Option<&'static str>,
}

/// Prints all reasons, those of a verdict, or one in full.
pub fn main(args: &ReasonsArgs) -> anyhow::Result<Exit> {
    let entries = select(args.name.as_deref())?;
    let name = args.name.as_deref().filter(|name| group(name).is_none());
    match (args.output.output, name) {
        (Output::Json, _) => {
            table::json(&Document { schema: "ringway.reasons/1", reasons: entries })?;
        }
        (Output::Table, None) => table::print(&list(&entries, table::colour()))?,
        (Output::Table, Some(_)) => {
            table::print(&entries.iter().map(in_full).collect::<String>())?;
        }
    }
    Ok(Exit::Done)
}

fn select(name: Option<&str>) -> anyhow::Result<Vec<Entry>> {
    let Some(name) = name else {
        return Ok(all().collect());
    };
    if let Some(group) = group(name) {
        let those = everywhere().filter(|entry| entry.verdicts.contains(&group));
        return Ok(those.collect());
    }
    // Some are the gateway's and the engine's.
    let found: Vec<_> = everywhere().filter(|entry| entry.name == name).collect();
    if found.is_empty() && ProblemKind::ALL.iter().any(|kind| kind.name() == name) {
        let what = format!("{name} is a kind of problem or finding, not a reason of packets");
        let remedy = format!(
            "see what it is about: ringway status; and its section {name} in docs/runbook.md"
        );
        return Err(Error::configuration(what, remedy).into());
    }
    if found.is_empty() {
        let groups = Group::all().map(Group::name);
        let known: Vec<&str> = everywhere().map(|entry| entry.name).chain(groups).collect();
        let remedy = match ringway_config::nearest(name, &known) {
            Some(near) => format!("did you mean {near:?}? `ringway reasons` lists them all"),
            None => "`ringway reasons` lists them all".to_owned(),
        };
        return Err(Error::configuration(format!("there is no reason {name:?}"), remedy).into());
    }
    Ok(found)
}

fn everywhere() -> impl Iterator<Item = Entry> {
    all().chain(of_engine()).chain(of_accept())
}

/// What `ringway accept --status` counts.
fn of_accept() -> impl Iterator<Item = Entry> {
    ringway_abi::Accept::all().map(|end| Entry {
        name: end.name(),
        verdicts: vec![Group::Accept],
        meaning: end.meaning(),
        cause: "",
        next: None,
    })
}

/// Why `ringway engine` drops a packet.
fn of_engine() -> impl Iterator<Item = Entry> {
    ringway_engine::Reason::ALL.iter().map(|reason| Entry {
        name: reason.name(),
        verdicts: vec![Group::Engine],
        meaning: reason.explanation(),
        cause: "",
        next: None,
    })
}

fn group(name: &str) -> Option<Group> {
    Group::all().find(|group| group.name() == name)
}

/// Reasons of verdicts, then of losses after them.
fn all() -> impl Iterator<Item = Entry> {
    let reasons = Reason::all().filter(|reason| *reason != Reason::None);
    reasons.map(entry).chain(Loss::all().map(loss))
}

fn loss(loss: Loss) -> Entry {
    Entry {
        name: loss.name(),
        verdicts: vec![Group::Verdict(Verdict::Tx), Group::Verdict(Verdict::Redirect)],
        meaning: loss.meaning(),
        cause: loss.cause(),
        next: Some(loss.next()),
    }
}

fn entry(reason: Reason) -> Entry {
    Entry {
        name: reason.name(),
        verdicts: reason.verdicts().iter().copied().map(Group::Verdict).collect(),
        meaning: reason.meaning(),
        cause: reason.cause(),
        next: reason.next(),
    }
}

fn list(entries: &[Entry], colour: bool) -> String {
    let mut table = Table::new(&["reason", "verdict", "meaning"]);
    for entry in entries {
        table.row(vec![
            Cell::new(entry.name),
            Cell::new(names(&entry.verdicts)).tone(tone(&entry.verdicts)),
            Cell::new(entry.meaning),
        ]);
    }
    table.render(colour)
        + "\n`ringway reasons NAME` tells why it happens and what to do; `ringway reasons engine` lists those of packet programs in user space, `ringway reasons accept` what segments come to at backends.\n"
}

fn names(groups: &[Group]) -> String {
    groups.iter().map(|group| group.name()).collect::<Vec<_>>().join(", ")
}

fn tone(groups: &[Group]) -> Tone {
    let lost = |group: &Group| matches!(group, Group::Verdict(Verdict::Drop | Verdict::Aborted));
    if groups.iter().any(lost) { Tone::Warn } else { Tone::Plain }
}

fn in_full(entry: &Entry) -> String {
    let mut text = format!("{} ({})\n", entry.name, names(&entry.verdicts));
    // Writing to a String cannot fail.
    let _ = writeln!(text, "  meaning  {}", entry.meaning);
    // Those of the engine and of accept have a meaning only.
    if !entry.cause.is_empty() {
        let _ = writeln!(text, "  cause    {}", entry.cause);
        let _ = writeln!(text, "  next     {}", entry.next.unwrap_or("nothing to do"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runbook_knows_every_reason() {
        let runbook = include_str!("../../../docs/runbook.md");
        let reasons = Reason::all().skip(1).map(Reason::name);
        for name in reasons.chain(ringway_abi::Loss::all().map(ringway_abi::Loss::name)) {
            assert!(runbook.contains(&format!("`{name}`")), "docs/runbook.md lacks {name}");
        }
    }

    #[test]
    fn all_and_one() {
        let all = select(None).expect("all");
        assert!(all.len() > 20 && all.iter().all(|entry| !entry.meaning.is_empty()));
        let one = select(Some("vlan")).expect("vlan");
        assert!(in_full(&one[0]).starts_with("vlan (pass)\n  meaning  The frame carries"));
        let error = select(Some("vlam")).err().expect("unknown").to_string();
        assert!(error.contains("did you mean \"vlan\"?"), "{error}");
        let problem = select(Some("forward-suspended")).err().expect("no reason").to_string();
        assert!(problem.contains("a kind of problem") && problem.contains("status"), "{problem}");
        let lost = select(Some("lost-too-big")).expect("lost");
        assert!(in_full(&lost[0]).starts_with("lost-too-big (tx, redirect)\n"));
        assert!(list(&all, false).lines().nth(1).expect("row").contains("pass"));
        let dropped = select(Some("drop")).expect("a verdict");
        assert!(dropped.len() > 10 && dropped.len() < all.len());
        assert!(
            dropped.iter().all(|entry| entry.verdicts.contains(&Group::Verdict(Verdict::Drop)))
        );
        assert!(!dropped.iter().any(|entry| entry.name == "nat-forward"));
        assert!(select(Some("engine")).is_ok_and(|all| all.len() > 20));
        let accept = select(Some("no-cookie")).expect("no-cookie");
        let want =
            "no-cookie (accept)\n  meaning  an ACK of no connection, without a valid cookie;";
        assert!(in_full(&accept[0]).starts_with(want), "{}", in_full(&accept[0]));
        let odd = select(Some("other-address")).expect("other-address");
        assert_eq!(
            in_full(&odd[0]),
            "other-address (engine)\n  meaning  It was sent to another IP address, or looks for one.\n"
        );
    }
}
