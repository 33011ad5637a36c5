//! Errors in a filter.

use std::ops::Range;

/// Why something is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libpcap does not understand the expression, or a name in it.
    #[error(
        "{}\n  {}\n  {}",
        not_understood(.message), on_one_line(.expression), underline(.expression, .at)
    )]
    Syntax {
        /// The filter expression.
        expression: String,
        /// Libpcap's words.
        message: String,
        /// Which bytes of the expression, as near as can be told; none, at its end, where something
        /// is missing.
        at: Range<usize>,
    },
    /// No packet can match it.
    #[error(
        "no packet can ever match the filter {expression:?}: its conditions contradict each other, or a \
         length or value is out of range; correct the expression"
    )]
    NeverMatches {
        /// The filter expression.
        expression: String,
    },
    /// It asks for what is in no packet, such as its direction.
    #[error(
        "the filter {expression:?} uses `inbound`, `outbound` or `ifindex`, which are not part of a \
         packet: filter by what is in the packet, such as its addresses"
    )]
    NotInPackets {
        /// The filter expression.
        expression: String,
    },
    /// The expression is longer than libpcap can be trusted with.
    #[error(
        "the filter is {bytes} bytes long, and the limit is {limit}: split it into several filters, or \
         use networks and ranges instead of hosts and ports"
    )]
    TooMuchText {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        limit: usize,
    },
    /// Compiled, it is longer than can be translated.
    #[error(
        "the filter compiles to {instructions} instructions, and the limit is {limit}: split it into \
         several filters, or use networks and ranges instead of hosts and ports"
    )]
    TooLong {
        /// The number that it has.
        instructions: usize,
        /// The most that it may have.
        limit: usize,
    },
    /// There are more rules than a program can have.
    #[error("there are {rules} rules, and the limit is {limit}: join some by `or`, or remove some")]
    TooManyRules {
        /// How many there are.
        rules: usize,
        /// How many there may be.
        limit: usize,
    },
    /// More rules only note that they match than a result has bits for.
    #[error(
        "{rules} rules count packets, and the limit is {limit}: join some by `or`, or remove some"
    )]
    TooManyNotes {
        /// How many there are.
        rules: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Together, the rules are too long.
    #[error(
        "the rules compile to {instructions} instructions together, and the limit is {limit}: remove \
         some, or use networks and ranges instead of hosts and ports; lists of prefixes have no such \
         limit"
    )]
    RulesTooLong {
        /// The number that they have.
        instructions: usize,
        /// The most that they may have.
        limit: usize,
    },
    /// A program has an instruction that cannot be translated.
    #[error("instruction {number} of the filter cannot be run: {reason}")]
    Invalid {
        /// Number of the instruction, from 0.
        number: usize,
        /// Why it cannot be translated.
        reason: &'static str,
    },
}

impl Error {
    /// The error in one line, for those who show the place themselves.
    pub fn brief(&self) -> String {
        match self {
            Error::Syntax { message, .. } => not_understood(message),
            other => other.to_string(),
        }
    }
}

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

fn not_understood(message: &str) -> String {
    format!("the filter is not understood: {message}{}", hint(message))
}

/// The part of the reason that libpcap's words omit.
fn hint(message: &str) -> &'static str {
    let starts = |words: &str| message.starts_with(words);
    if starts("unknown host") || starts("unknown network") || starts("unknown ether host") {
        "; names are not looked up: write the address"
    } else if starts("unknown port") || starts("unknown osi proto") || starts("unknown protocol") {
        "; write the number (names are those of /etc/services and /etc/protocols)"
    } else {
        " (the language is that of tcpdump: see pcap-filter(7))"
    }
}

fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
}

/// A line that marks these bytes when printed below the text.
fn underline(text: &str, at: &Range<usize>) -> String {
    let length = |bytes: Range<usize>| text.get(bytes).unwrap_or_default().chars().count();
    " ".repeat(length(0..at.start)) + &"^".repeat(length(at.clone()).max(1))
}
