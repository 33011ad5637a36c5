//! Errors of the TOML parser, and what to do about them.

use std::ops::Range;

use toml::Spanned;
use toml::de::DeTable;

use crate::reader::diagnostics::Diagnostics;

/// Complaint about text without quotes, whose value is known nevertheless.
const UNQUOTED: &str = "must be quoted";

/// Words of the parser's messages and the remedy for each.
const REMEDIES: [(&str, &str); 8] = [
    ("duplicate key", "remove one of the two"),
    (UNQUOTED, "put text, addresses and quantities in double quotes"),
    ("invalid float", "put text, addresses and quantities in double quotes"),
    ("invalid integer", "put text, addresses and quantities in double quotes"),
    ("invalid date", "put text, addresses and quantities in double quotes"),
    ("basic string", "end the text with a double quote on the same line"),
    ("unclosed", "close what the line opens"),
    ("", "write `key = value`, or a table's name as `[name]`"),
];

/// The document of a file that begins at `base` among all files; `None` after reporting what is no
/// TOML. Text without quotes is reported and taken for text: what else is wrong may be why it is
/// there.
pub(crate) fn parse<'t>(
    report: &Diagnostics,
    text: &'t str,
    base: usize,
) -> Option<Spanned<DeTable<'t>>> {
    let (document, complaints) = DeTable::parse_recoverable(text);
    for complaint in &complaints {
        let span = complaint.span().unwrap_or(0..0);
        error(report, complaint.message(), span.start + base..span.end + base);
    }
    complaints.iter().all(|complaint| complaint.message().contains(UNQUOTED)).then_some(document)
}

/// Reports one complaint of the parser.
fn error(report: &Diagnostics, message: &str, span: Range<usize>) {
    let remedy = REMEDIES.iter().find(|(words, _)| message.contains(words));
    let remedy = remedy.map_or("", |(_, remedy)| remedy);
    let what = message.split_once(", expected").map_or(message, |(what, _)| what);
    let written = match report.excerpt(&span) {
        text if text.trim().is_empty() => String::new(),
        text => format!(" ({text})"),
    };
    report.error(span, format!("not TOML: {what}{written}: {remedy}"));
}
