//! docs/health-checks.md shows what is right, and all of it.

#![allow(clippy::unwrap_used)]

use ringway_config::parse;

const DOCUMENT: &str = include_str!("../../../docs/health-checks.md");

fn configuration(check: &str) -> String {
    format!(
        "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\n\
         address = \"203.0.113.10\"\nport = 80\nbackends = [{{ address = \"10.0.0.2\" }}]\n{check}"
    )
}

#[test]
fn every_example_is_right() {
    let blocks = DOCUMENT.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut types = Vec::new();
    for block in blocks {
        let config =
            parse(&configuration(block), "docs").unwrap_or_else(|e| panic!("{e}\n{block}"));
        types.push(config.services[0].check.as_ref().unwrap().kind.name());
    }
    types.sort_unstable();
    types.dedup();
    assert_eq!(types, ["dns", "exec", "http", "https", "tcp", "udp"]);
}

/// The keys are those that the message about an unknown one lists.
#[test]
fn every_field_has_its_row() {
    let wrong = configuration("check = { type = \"tcp\", xyzzyxyzzy = 1 }\n");
    let message = parse(&wrong, "docs").unwrap_err().to_string();
    let (_, keys) = message.split_once("known here: ").unwrap();
    let keys: Vec<&str> = keys.lines().next().unwrap().split(", ").collect();
    assert!(keys.len() > 15, "{keys:?}");
    for key in keys {
        assert!(DOCUMENT.contains(&format!("\n| `{key}` | ")), "{key} is not in the table");
    }
}
