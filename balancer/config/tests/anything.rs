//! Whatever the file holds, there is an answer: a configuration or errors with their places.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use ringway_config::parse;

const PACKAGED: &str = include_str!("../../../packaging/ringway.toml");

/// Pieces that mean something to the parser.
fn pieces() -> Vec<String> {
    let sections = "[node] [nat] [[service]] [service] [metrics] [api] [log] [shield] \
                    [[shield.list]] [[shield.rule]] [shield.limits]";
    let words = r#"packets match action rate name interfaces faces address port ports protocol
        backends check weight timeouts type interval ] { } " ''' # "10kpps" "10.0.0.2" "::1" "tcp"
        "http" "1s" "-" 0 -1 80 1e9 0xffffffffffffffffff inf true"#;
    let sections = sections.split_whitespace().map(|section| format!("{section}\n"));
    let spaced = [" = ", "= [", ", ", "\n", "\u{fffd}", "\u{1f6a7}"];
    let words = words.split_whitespace().chain(spaced).map(str::to_owned);
    sections.chain(words).collect()
}

/// Every error has a place in the text and can be shown.
fn survives(text: &str) -> Result<(), TestCaseError> {
    if let Err(errors) = parse(text, "any.toml") {
        prop_assert!(errors.iter().count() > 0);
        prop_assert!(!errors.to_string().is_empty());
        let lines = text.split('\n').count();
        for error in errors.iter() {
            prop_assert!((1..=lines).contains(&error.line), "{error}");
            prop_assert!(error.column >= 1, "{error}");
            prop_assert!(!error.message.is_empty());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_text(text in any::<String>()) {
        survives(&text)?;
    }

    #[test]
    fn any_pieces(pieces in prop::collection::vec(prop::sample::select(pieces()), 0..80)) {
        survives(&pieces.concat())?;
    }

    /// The packaged file with bytes cut out and pieces put in.
    #[test]
    fn mutated(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0..12usize, prop::sample::select(pieces())),
            1..8,
        ),
    ) {
        let mut text: Vec<char> = PACKAGED.chars().collect();
        for (place, cut, piece) in edits {
            let start = place.index(text.len());
            let end = (start + cut).min(text.len());
            text.splice(start..end, piece.chars());
        }
        survives(&text.into_iter().collect::<String>())?;
    }

    /// One value of the packaged file replaced by something else: an answer without a panic,
    /// and where it is an error, it is about that line.
    #[test]
    fn one_value(line: prop::sample::Index, value in any::<i64>()) {
        let lines: Vec<&str> = PACKAGED.lines().collect();
        let keys: Vec<usize> = (0..lines.len())
            .filter(|i| lines[*i].split_once(" = ").is_some_and(|(k, v)| {
                !k.starts_with('#') && !v.ends_with('[')
            }))
            .filter(|i| !lines[*i].starts_with(' '))
            .collect();
        let at = keys[line.index(keys.len())];
        let key = lines[at].split_once(" = ").unwrap().0;
        let mut changed: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        changed[at] = format!("{key} = {value}");
        if let Err(errors) = parse(&changed.join("\n"), "one.toml") {
            prop_assert!(errors.iter().any(|error| error.line == at + 1), "{errors}");
        }
    }
}

/// Deep nesting is refused by the parser, not by the stack.
#[test]
fn deep() {
    let text = format!("a = {}", "[".repeat(100_000));
    assert!(parse(&text, "deep.toml").is_err());
    let text = format!("{} = 1", vec!["a"; 10_000].join("."));
    assert!(parse(&text, "deep.toml").is_err());
}
