//! The commands of README.md and of the guides under docs/, as they are written there and in their
//! order, on the machine that they speak of (machine.sh); and what they are said to print.
//!
//! A block that begins with "```sh" is run on the gateway, "```sh client" or
//! "```sh backend" there. "```sh elsewhere" is not run: it is for other machines, or for programs
//! that are not everywhere; unit tests of the programs hold their commands against the command line
//! (terminal/src/testing_documents.rs). "```sh NAME" is a file that another test uses. A "```text"
//! block right behind a block that is run is what that prints: the beginning of each of its lines
//! must come, whatever numbers are in it. `<!-- sh: COMMAND -->` does what a reader need not see.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, needs_root, tree};

use super::guide::in_sandbox;

const MACHINE: &str = include_str!("../../machine.sh");

/// Followed here; docs/first-service.md is by guide.rs.
const FOLLOWED: [&str; 8] = [
    "README.md",
    "docs/capture.md",
    "docs/coexistence.md",
    "docs/explain.md",
    "docs/forwarding.md",
    "docs/observing.md",
    "docs/operations.md",
    "docs/runbook.md",
];

/// Commands in running text of these documents are run as well, each once, with an example for what
/// is in capitals.
const SPANS_TOO: [&str; 4] =
    ["docs/coexistence.md", "docs/explain.md", "docs/operations.md", "docs/runbook.md"];
const EXAMPLES: [(&str, &str); 8] = [
    ("FILE", "/etc/ringway/ringway.toml"),
    ("NAMESPACE", "gateway"),
    ("IFACE", "eth1"),
    ("SERVICE", "web"),
    ("BACKEND", "10.0.0.2"),
    ("REASON", "no-neighbour"),
    ("ADDRESS", "203.0.113.10"),
    ("NODE", "gw1"),
];
/// Said of, not told to be typed.
const NAMED: [&str; 6] = [
    "ringway accept",
    "ringway detach",
    "ringway decap",
    "ringway explain",
    "ip link set dev NAME name IFACE",
    "ip netns exec",
];
const PROGRAMS: [&str; 14] = [
    "ringway",
    "systemctl",
    "journalctl",
    "ip",
    "ethtool",
    "sysctl",
    "ping",
    "nsenter",
    "uptime",
    "curl",
    "nft",
    "ss",
    "chgrp",
    "cat",
];

/// Something to run, and what it is said to print.
struct Piece {
    /// Name of its file: line of the document, five digits.
    place: String,
    machine: String,
    commands: String,
    prints: Option<String>,
}

fn read(name: &str) -> Result<String> {
    fs::read_to_string(tree().join(name)).with_context(|| name.to_owned())
}

/// Every block: line of its beginning, what it says it is, and what it holds.
fn blocks(text: &str) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(kind), None) => open = Some((number + 1, kind.to_owned(), String::new())),
            (None, Some((_, _, body))) => {
                body.push_str(line);
                body.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Where a block is run; none: not here.
fn machine(kind: &str) -> Option<&str> {
    match kind {
        "sh" => Some("gateway"),
        "sh client" | "sh backend" => kind.split(' ').nth(1),
        _ => None,
    }
}

fn pieces(name: &str, text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let place = |line: usize| format!("{line:05}");
    let mut before = None;
    for (line, kind, body) in blocks(text) {
        let lines = body.lines().count();
        if let Some(machine) = machine(&kind) {
            let machine = machine.to_owned();
            pieces.push(Piece { place: place(line), machine, commands: body, prints: None });
            before = Some(line + lines + 1);
        } else if kind == "text" && before.is_some_and(|end| text_between(text, end, line)) {
            pieces.last_mut().expect("there was a block before").prints = Some(body);
        }
    }
    pieces.extend(hidden(text));
    if SPANS_TOO.contains(&name) {
        pieces.extend(spans(text));
    }
    pieces.sort_by(|a, b| a.place.cmp(&b.place));
    pieces
}

/// Nothing but empty lines between the end of one block and the beginning of the next.
fn text_between(text: &str, end: usize, begin: usize) -> bool {
    text.lines().skip(end).take(begin - end - 1).all(str::is_empty)
}

fn hidden(text: &str) -> impl Iterator<Item = Piece> + '_ {
    text.lines().enumerate().filter_map(|(number, line)| {
        let commands = line.strip_prefix("<!-- sh: ")?.strip_suffix(" -->")?.to_owned() + "\n";
        let (place, machine) = (format!("{:05}", number + 1), "gateway".to_owned());
        Some(Piece { place, machine, commands, prints: None })
    })
}

/// `commands` in running text.
fn spans(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut seen = BTreeSet::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        inside ^= line.starts_with("```");
        for (n, span) in line.split('`').skip(1).step_by(2).enumerate().filter(|_| !inside) {
            let mut words = span.split(' ');
            let program = words.next().is_some_and(|word| PROGRAMS.contains(&word));
            let typed = program && words.next().is_some() && !NAMED.contains(&span);
            if !typed || !seen.insert(span) {
                continue;
            }
            let mut commands = span.to_owned() + "\n";
            for (capitals, example) in EXAMPLES {
                commands = commands.replace(capitals, example);
            }
            let (place, machine) = (format!("{:05}.{n}", number + 1), "gateway".to_owned());
            pieces.push(Piece { place, machine, commands, prints: None });
        }
    }
    pieces
}

/// README's configuration is the one of that machine.
fn configuration() -> Result<String> {
    let blocks = blocks(&read("README.md")?);
    let found = blocks.into_iter().find(|(_, kind, _)| kind == "toml");
    Ok(found.context("README.md has no configuration")?.2)
}

fn follow(name: &str) -> Result<()> {
    let text = read(name)?;
    let pieces = pieces(name, &text);
    ensure!(!pieces.is_empty(), "{name} has no command");
    let directory = std::env::temp_dir().join(format!(
        "ringway-documents-{}-{}",
        std::process::id(),
        name.replace('/', "-")
    ));
    fs::create_dir_all(&directory)?;
    let ran = run(&pieces, &directory);
    fs::remove_dir_all(&directory)?;
    let ran = ran?;
    let last = ran.out.lines().rev().find_map(|line| line.strip_prefix("== ")).unwrap_or("start");
    ensure!(ran.code == 0, "{name}:{last}: exit code {}\n{}", ran.code, ran.said());
    for piece in &pieces {
        prints(piece, &ran.out).with_context(|| format!("{name}:{}", piece.place))?;
    }
    Ok(())
}

fn run(pieces: &[Piece], directory: &Path) -> Result<Ran> {
    fs::write(directory.join("ringway.toml"), configuration()?)?;
    let mut script = format!(
        "PIECES={directory:?} UNIT={:?}\nexport UNIT\n{MACHINE}\n",
        tree().join("packaging/ringway.service")
    );
    for piece in pieces {
        fs::write(directory.join(&piece.place), &piece.commands)?;
        writeln!(script, "follow {} {}", piece.place, piece.machine)?;
    }
    in_sandbox(&script)
}

/// What comes first on a line, two columns of a table, whatever the numbers and MAC addresses.
fn beginning(line: &str) -> String {
    let columns = line.trim().split("  ").map(str::trim).filter(|column| !column.is_empty());
    let plain = |column: &str| column.split(' ').map(plain).collect::<Vec<_>>().join(" ");
    columns.take(2).map(plain).collect::<Vec<_>>().join("  ")
}

fn plain(word: &str) -> String {
    if word.len() == 17 && word.split(':').count() == 6 {
        return "MAC".to_owned();
    }
    let mut plain = String::new();
    for c in word.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if !(c == '0' && plain.ends_with('0')) {
            plain.push(c);
        }
    }
    plain
}

fn prints(piece: &Piece, out: &str) -> Result<()> {
    let Some(wanted) = &piece.prints else { return Ok(()) };
    let head = format!("== {}", piece.place);
    let own: BTreeSet<String> = out
        .lines()
        .skip_while(|line| **line != head)
        .skip(1)
        .take_while(|line| !line.starts_with("== "))
        .map(beginning)
        .collect();
    for line in wanted.lines().map(beginning).filter(|line| !line.is_empty()) {
        ensure!(own.contains(&line), "nothing printed begins with {line:?}, but: {own:#?}");
    }
    Ok(())
}

/// A test for each document.
macro_rules! followed {
    ($($test:ident $name:literal)*) => {$(
        #[test]
        fn $test() -> Result<()> {
            needs_root!();
            assert!(FOLLOWED.contains(&$name));
            follow($name)
        }
    )*};
}

followed! {
    readme "README.md"
    capture "docs/capture.md"
    coexistence "docs/coexistence.md"
    explain "docs/explain.md"
    forwarding "docs/forwarding.md"
    observing "docs/observing.md"
    operations "docs/operations.md"
    runbook "docs/runbook.md"
}

#[test]
fn no_document_is_left_out() -> Result<()> {
    for entry in fs::read_dir(tree().join("docs"))? {
        let name = format!("docs/{}", entry?.file_name().to_string_lossy());
        if !name.ends_with(".md") {
            continue;
        }
        let runs = blocks(&read(&name)?).iter().any(|(_, kind, _)| machine(kind).is_some());
        let known = FOLLOWED.contains(&name.as_str()) || name == "docs/first-service.md";
        ensure!(known || !runs, "{name} has commands that no test runs");
    }
    Ok(())
}
