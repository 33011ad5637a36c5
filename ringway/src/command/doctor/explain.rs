//! `ringway doctor --explain`: what a check asks, and why.

use ringway_api::error::Error;
use ringway_doctor::{Profile, Rule, rules};
use serde::Serialize;

use crate::cli::Output;
use crate::exit::Exit;
use crate::table::{self, Cell, Table};

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    checks: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    number: u8,
    check: &'static str,
    rule: &'static str,
    source: &'static str,
    why: &'static str,
    /// Empty: all.
    profiles: &'static [Profile],
}

/// One check in full, or all in a table.
pub fn main(wanted: &str, output: Output) -> anyhow::Result<Exit> {
    let checks: Vec<&Rule> = match wanted {
        "all" => rules::ALL.iter().collect(),
        name => vec![rules::find(name).ok_or_else(|| {
            Error::configuration(
                format!("there is no check {name:?}"),
                "`ringway doctor --explain all` lists them",
            )
        })?],
    };
    match (output, checks.as_slice()) {
        (Output::Json, _) => {
            let checks = checks.iter().map(|check| entry(check)).collect();
            table::json(&Document { schema: "ringway.doctor-checks/1", checks })?;
        }
        (Output::Table, [check]) => table::print(&in_full(check))?,
        (Output::Table, _) => {
            let mut rows = Table::new(&["number", "check", "rule"]);
            for check in checks {
                rows.row(vec![
                    Cell::number(check.number),
                    Cell::new(check.name),
                    Cell::new(check.rule),
                ]);
            }
            table::print(&rows.render(table::colour()))?;
        }
    }
    Ok(Exit::Done)
}

fn entry(check: &Rule) -> Entry {
    let Rule { number, name, rule, source, why, profiles, .. } = *check;
    Entry { number, check: name, rule, source, why, profiles }
}

fn in_full(check: &Rule) -> String {
    let Rule { number, name, rule, source, why, profiles, .. } = check;
    let asked = match profiles {
        [] => "always".to_owned(),
        some => format!("with --profile {}, or by --only", named(some)),
    };
    format!(
        "{name} (number {number})\n\n  rule    {rule}\n  source  {source}\n  why     {why}\n  asked   {asked}\n"
    )
}

/// As the option has them.
fn named(profiles: &[Profile]) -> String {
    let names = profiles.iter().map(|profile| format!("{profile:?}").to_lowercase());
    names.collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_check_is_asked() {
        let said = |name| in_full(rules::find(name).unwrap());
        assert!(said("mtu").contains("asked   always"));
        assert!(said("tcp-hash").contains("with --profile throughput or latency, or by --only"));
    }
}
