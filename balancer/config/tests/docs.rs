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

/// The keys are those that the message about an unknown one lists: of a check, of `[shield]`, its
/// lists, rules, limits and mitigation, and of `[forward]`.
#[test]
fn every_key_has_its_row() {
    const SHIELD: &str = include_str!("../../../docs/shield.md");
    const FORWARD: &str = include_str!("../../../docs/forward.md");
    for (document, wrong, fewest) in [
        (DOCUMENT, "check = { type = \"tcp\", xyzzyxyzzy = 1 }", 16),
        (SHIELD, "[shield]\nxyzzyxyzzy = 1", 5),
        (SHIELD, "[shield]\nlist = [{ xyzzyxyzzy = 1 }]", 4),
        (SHIELD, "[shield]\nrule = [{ xyzzyxyzzy = 1 }]", 6),
        (SHIELD, "[shield]\nlimits = { xyzzyxyzzy = 1 }", 8),
        (SHIELD, "[shield]\nmitigation = { packets = \"1pps\", xyzzyxyzzy = 1 }", 8),
        (FORWARD, "[forward]\nxyzzyxyzzy = 1", 3),
    ] {
        let message = parse(&configuration(wrong), "docs").unwrap_err().to_string();
        let (_, keys) = message.split_once("known here: ").unwrap();
        let keys: Vec<&str> = keys.lines().next().unwrap().split(", ").collect();
        assert!(keys.len() >= fewest, "{wrong}: {keys:?}");
        for key in keys {
            assert!(document.contains(&format!("\n| `{key}` | ")), "{key} is not in a table");
        }
    }
}

/// What a guide shows a part of, made whole.
fn completed(block: &str) -> String {
    let service = "[[service]]\nname = \"other\"\naddress = \"203.0.113.99\"\nport = 443\n\
                   backends = [{ address = \"10.0.0.2\" }]\n";
    let missing = |key: &str| !block.lines().any(|line| line.starts_with(key));
    let mut node = String::from("[node]\n");
    for (key, line) in [("name", "name = \"gw1\"\n"), ("interfaces", "interfaces = [\"eth9\"]\n")] {
        // Of [node], which begins a block that has it.
        let own = block.split("[[service]]").next().unwrap();
        if !own.contains("[node]") || !own.lines().any(|line| line.starts_with(key)) {
            node += line;
        }
    }
    if missing("[") {
        // Keys of a service.
        let service =
            service.replace("port = 443\n", if missing("port") { "port = 443\n" } else { "" });
        return format!("{node}{service}{block}");
    }
    let whole = match block.split_once("[node]\n") {
        Some((_, rest)) => format!("{node}{rest}"),
        None => format!("{node}{block}"),
    };
    if missing("[[service]]") { whole + service } else { whole }
}

/// README.md and every guide; docs/health-checks.md is above.
#[test]
fn what_guides_configure_is_right() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guides = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut blocks = 0;
    let guides = guides.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    for path in guides.chain([root.join("README.md")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        if text == DOCUMENT {
            continue;
        }
        for block in text.split("\n```toml").skip(1) {
            // What follows `toml` on its line names the block.
            let block = block.split_once('\n').unwrap().1.split("```").next().unwrap();
            let whole = completed(block);
            if let Err(error) = parse(&whole, &path.display().to_string()) {
                panic!("{error}\nin\n{whole}");
            }
            blocks += 1;
        }
    }
    assert!(blocks >= 8, "only {blocks} were found");
}
