//! Every command that a document, a help text or a message tells somebody to type is one that its
//! program takes, every `make` target is there, and so is what documents link to. Each program's
//! tests call this with their command line. What the commands then do, tests/net/documents.rs runs.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;

/// A command, where it stands, and whether it stands there to be typed as it is.
struct Typed {
    place: String,
    words: Vec<String>,
    exact: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files below a directory of the tree with this ending, but for what was built or fetched.
fn files(below: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(below).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                files(&path, ending, found);
            }
        } else if name.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

fn read(ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    files(&root(), ending, &mut found);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    };
    found.into_iter().map(read).collect()
}

/// Words of a shell line, one list for each simple command; operators and redirections end one.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let end = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>| {
        if let Some(word) = word.take() {
            commands.last_mut().unwrap().push(word);
        }
    };
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '&' | ';' | '(' | ')' | '>' | '<') => {
                // 2>FILE
                word = word.filter(|word| c != '>' || !word.chars().all(|c| c.is_ascii_digit()));
                end(&mut word, &mut commands);
                commands.push(Vec::new());
            }
            (None, _) if c.is_whitespace() => end(&mut word, &mut commands),
            _ => word.get_or_insert_default().push(c),
        }
    }
    end(&mut word, &mut commands);
    commands
}

/// The command without what runs it: `if`, `sudo`, `nsenter --net=...`, `ip netns exec NAME`.
fn bare(words: &[String]) -> &[String] {
    const RUNNERS: [&str; 9] = ["if", "while", "!", "then", "do", "exec", "sudo", "gw", "nsenter"];
    let mut words = words;
    loop {
        words = match words {
            [first, rest @ ..] if RUNNERS.contains(&first.as_str()) || first.contains("--net=") => {
                rest
            }
            [ip, netns, exec, _, rest @ ..] if ip == "ip" && netns == "netns" && exec == "exec" => {
                rest
            }
            _ => return words,
        };
    }
}

fn commands_in(line: &str, place: &str, exact: bool, found: &mut Vec<Typed>) {
    for words in simple_commands(line) {
        let mut words = bare(&words).to_vec();
        let Some(first) = words.first_mut() else { continue };
        if let Some(name) = first.strip_prefix("/usr/bin/") {
            *first = name.to_owned();
        }
        if matches!(first.as_str(), "ringway" | "ringway-lab" | "make") {
            found.push(Typed { place: place.to_owned(), words, exact });
        }
    }
}

/// Commands of shell blocks, and of `spans` in running text.
fn of_markdown(name: &str, text: &str) -> Vec<Typed> {
    let mut found = Vec::new();
    let mut block: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if let Some(language) = line.strip_prefix("```") {
            assert!(
                block.is_some() || !language.is_empty(),
                "{place}: a block must say what it is: sh (tests run it), sh elsewhere, text, toml, ..."
            );
            block = if block.is_some() { None } else { Some(language.to_owned()) };
        } else if let Some(language) = &block {
            if language.split(' ').next() == Some("sh") {
                commands_in(line, &place, true, &mut found);
            }
        } else {
            of_spans(line, &place, &mut found);
        }
    }
    found
}

fn of_spans(line: &str, place: &str, found: &mut Vec<Typed>) {
    for span in line.split('`').skip(1).step_by(2) {
        commands_in(span, place, false, found);
    }
}

/// Messages quote commands like documents do.
fn of_source(name: &str, text: &str) -> Vec<Typed> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.contains('"')) {
        for span in line.split('`').skip(1).step_by(2).filter(|span| !span.contains(['"', '\\'])) {
            commands_in(span, &format!("{name}:{}", number + 1), false, &mut found);
        }
    }
    found
}

/// The examples of a subcommand's help, and of its subcommands'.
fn of_help(command: &Command, found: &mut Vec<Typed>) {
    let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let leaf = !command.has_subcommands() && !command.is_hide_set();
    assert!(!leaf || help.contains("Example"), "{}: --help has no example", command.get_name());
    let place = format!("{} --help", command.get_name());
    for line in help.lines().filter(|line| line.starts_with("  ")) {
        commands_in(line, &place, true, found);
    }
    for sub in command.get_subcommands() {
        of_help(sub, found);
    }
}

/// `N` stands for a number, `PREFIX` and `{prefix}` for a network.
fn filled_in(word: &str) -> String {
    match word {
        "N" => "1",
        "PREFIX" | "{prefix}" => "192.0.2.0/24",
        word => word,
    }
    .to_owned()
}

fn is_taken(program: &Command, typed: &Typed, targets: &[String]) -> Result<(), String> {
    if typed.words[0] == "make" {
        let wanted =
            typed.words[1..].iter().find(|word| !word.contains('=') && !word.starts_with('-'));
        let known = |target: &String| targets.contains(target);
        return match wanted {
            Some(target) if !known(target) => Err(format!("the Makefile has no target {target}")),
            _ => Ok(()),
        };
    }
    let words = typed.words.iter().map(|word| filled_in(word));
    match program.clone().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(()),
            // `ringway decap --detach` in running text need not say which interface.
            ErrorKind::MissingRequiredArgument
            | ErrorKind::MissingSubcommand
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if !typed.exact =>
            {
                Ok(())
            }
            _ => Err(error.to_string()),
        },
    }
}

fn make_targets() -> Vec<String> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let rule = |line: &str| {
        let (target, _) = line.split_once(':')?;
        let plain = target.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        (plain && !target.is_empty()).then(|| target.to_owned())
    };
    makefile.lines().filter_map(rule).collect()
}

/// Those of this program, and of `make`.
#[track_caller]
fn all_are_taken(program: &Command, typed: &[Typed], at_least: usize) {
    let its = |one: &&Typed| one.words[0] == program.get_name() || one.words[0] == "make";
    let typed: Vec<&Typed> = typed.iter().filter(its).collect();
    assert!(typed.len() >= at_least, "only {} commands were found", typed.len());
    let targets = make_targets();
    let wrong: Vec<String> = typed
        .iter()
        .filter_map(|one| {
            let why = is_taken(program, one, &targets).err()?;
            Some(format!("{}: {}\n{why}", one.place, one.words.join(" ")))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Checks what documents tell to type.
///
/// # Panics
/// A command is none, or there are fewer than `at_least`.
pub fn check_documents(program: &Command, at_least: usize) {
    let documents = read(".md");
    let typed: Vec<Typed> =
        documents.iter().flat_map(|(name, text)| of_markdown(name, text)).collect();
    all_are_taken(program, &typed, at_least);
}

/// Checks what messages in the source tell to type.
///
/// # Panics
/// As [`check_documents`].
pub fn check_messages(program: &Command, at_least: usize) {
    let own = |name: &String| name == "terminal/src/testing_documents.rs";
    let sources: Vec<_> = read(".rs").into_iter().filter(|(name, _)| !own(name)).collect();
    let mut typed: Vec<Typed> =
        sources.iter().flat_map(|(name, text)| of_source(name, text)).collect();
    typed.retain(|one| one.words.get(1).is_none_or(|word| !word.starts_with('{')));
    all_are_taken(program, &typed, at_least);
}

/// Checks that each subcommand's help has an example, and that these are commands.
///
/// # Panics
/// As [`check_documents`].
pub fn check_help(program: &Command, at_least: usize) {
    let mut typed = Vec::new();
    of_help(program, &mut typed);
    all_are_taken(program, &typed, at_least);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the sites that show Markdown make them from headings.
    fn anchors(text: &str) -> Vec<String> {
        let heading = |line: &str| {
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            let title = line.strip_prefix('#')?.trim_start_matches('#').trim();
            let plain: String = title.to_lowercase().chars().filter(kept).collect();
            Some(plain.replace(' ', "-"))
        };
        text.lines().filter_map(heading).collect()
    }

    #[test]
    fn documents_link_to_what_is_there() {
        let documents = read(".md");
        let mut links = 0;
        for (name, text) in &documents {
            let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            for (target, _) in targets.filter(|(target, _)| !target.starts_with("http")) {
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let here = root().join(name);
                let path = if file.is_empty() { here } else { here.parent().unwrap().join(file) };
                assert!(path.exists(), "{name}: {target} is not there");
                let known = || anchors(&fs::read_to_string(&path).unwrap());
                assert!(
                    anchor.is_empty() || known().contains(&anchor.to_owned()),
                    "{name}: {target}"
                );
                links += 1;
            }
        }
        assert!(links > 30, "only {links} links were found");
    }

    /// The tests that rows about hostile neighbours name exist; a row without tests gives a reason.
    #[test]
    fn security_names_tests_that_exist() {
        let document = fs::read_to_string(root().join("SECURITY.md")).unwrap();
        let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let sources: Vec<_> =
            read(".rs").into_iter().map(|(name, text)| (name, words(text))).collect();
        let exists = |file: &str, test: &str| {
            let functions = [format!("test] fn {test}("), format!("test] async fn {test}(")];
            let places =
                [format!("/{file}.rs"), format!("/{file}/mod.rs"), format!("/{file}/tests.rs")];
            let is_there = |name: &str| places.iter().any(|place| name.ends_with(place));
            let mut sources = sources.iter().filter(|(name, _)| is_there(name));
            sources.any(|(_, text)| functions.iter().any(|function| text.contains(function)))
        };
        let (mut rows, mut wrong) = (0, Vec::new());
        let neighbours = document.split("### ").find(|part| part.starts_with("Hostile neighbours"));
        for row in neighbours.unwrap().lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [_, _, happens, tests] = cells[..] else { panic!("{row}") };
            let named = tests.split('`').filter_map(|span| span.split_once("::"));
            wrong.extend(named.filter(|(file, test)| !exists(file, test)));
            let explained = happens.contains("Limit: ") || happens.starts_with("as a");
            assert!(!tests.is_empty() || explained, "no test, and no reason: {row}");
            rows += 1;
        }
        assert!(rows > 20 && wrong.is_empty(), "{rows} rows; no such tests: {wrong:?}");
    }

    #[test]
    fn a_command_that_is_none_is_seen() {
        let ledger = clap::Arg::new("ledger").long("ledger").num_args(0);
        let program = Command::new("ringway").subcommand(Command::new("status").arg(ledger));
        let text = "```sh\nringway staus\nsystemctl restart ringway\n```\nthen `ringway status --leger`, \
            `ringway status --ledger`, `make demoo`\n";
        let typed = of_markdown("x.md", text);
        let wrong: Vec<&str> = typed
            .iter()
            .filter(|one| is_taken(&program, one, &make_targets()).is_err())
            .map(|one| one.words[1].as_str())
            .collect();
        assert_eq!(wrong, ["staus", "status", "demoo"]);
    }
}
