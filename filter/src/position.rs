//! Where an expression goes wrong, which libpcap does not tell: the first word that nothing can
//! follow to make it an expression.

use std::ops::Range;

/// Ways to complete what has been read up to some word. Where one of them, and the parentheses that
/// are still open, make it an expression, the words up to there are in order.
const COMPLETIONS: [&str; 20] = [
    "",
    "tcp",
    "1",
    "= 1",
    "1 = 1",
    "1.1.1.1",
    "10.0.0.0/8",
    "255.0.0.0",
    "::1",
    "2:2:2:2:2:2",
    "host 1.1.1.1",
    "host ::1",
    "host 2:2:2:2:2:2",
    "port 1",
    "net 10.0.0.0/8",
    "src host 1.1.1.1",
    "] = 1",
    "1] = 1",
    "0:1] = 1",
    "proto 6",
];

/// How deep in parentheses errors are looked for.
const DEEPEST: usize = 8;

/// The bytes of the expression where it goes wrong: its end, where something is missing. `compiles`
/// says whether an expression does.
pub(crate) fn of_error(expression: &str, compiles: impl Fn(&str) -> bool) -> Range<usize> {
    let words = words(expression);
    let is_fine = |word: &Range<usize>| can_go_on(&expression[..word.end], &compiles);
    match words.get(words.partition_point(is_fine)) {
        Some(word) => word.clone(),
        None => expression.trim_end().len()..expression.len(),
    }
}

fn can_go_on(read: &str, compiles: impl Fn(&str) -> bool) -> bool {
    let count = |parenthesis: char| read.chars().filter(|c| *c == parenthesis).count();
    let open = count('(').saturating_sub(count(')')).min(DEEPEST);
    COMPLETIONS.iter().any(|rest| {
        // Arithmetic has parentheses, too: some are closed before it is compared with something.
        let plain = format!("{read} {rest}{}", ")".repeat(open));
        compiles(&plain)
            || (1..=open).any(|inner| {
                let rest = rest.strip_suffix(" = 1").unwrap_or(rest);
                let (inner, outer) = (")".repeat(inner), ")".repeat(open - inner));
                compiles(&format!("{read} {rest}{inner} = 1{outer}"))
            })
    })
}

/// Tokens without white space; operators and brackets alone or doubled.
fn words(expression: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    let mut before = None;
    for (at, c) in expression.char_indices() {
        let end = at + c.len_utf8();
        let goes_on = match before {
            Some(last) if is_part_of_word(c) && is_part_of_word(last) => true,
            Some(last) => matches!(
                (last, c),
                ('<' | '>' | '!' | '=', '=') | ('<', '<') | ('>', '>') | ('&', '&') | ('|', '|')
            ),
            None => false,
        };
        match words.last_mut() {
            Some(word) if goes_on => word.end = end,
            _ if !c.is_whitespace() => words.push(at..end),
            _ => {}
        }
        before = (!c.is_whitespace()).then_some(c);
    }
    words
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | ':' | '-' | '_' | '/' | '\\')
}
