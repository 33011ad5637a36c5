//! What can be wrong with a filter.

/// Why an expression is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libpcap does not understand it, or a name in it.
    #[error("the filter is not understood: {message}\n  {expression}\n  {}", underline(.expression, .at))]
    Syntax {
        /// The expression.
        expression: String,
        /// What libpcap says.
        message: String,
        /// Which bytes of the expression, as near as can be told.
        at: std::ops::Range<usize>,
    },
    /// No packet can match it.
    #[error("no packet can ever match the filter {expression:?}: {reason}")]
    NeverMatches {
        /// The expression.
        expression: String,
        /// Why.
        reason: String,
    },
    /// Compiled, it has more instructions than can be translated.
    #[error(
        "the filter is too long: it has {instructions} instructions when compiled, at most {limit} are possible; split it into several"
    )]
    TooLong {
        /// How many it has.
        instructions: usize,
        /// How many it may have.
        limit: usize,
    },
}

/// A result whose error is [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A line that marks these bytes of the text when printed below it.
fn underline(text: &str, at: &std::ops::Range<usize>) -> String {
    let width = |bytes: &str| bytes.chars().count();
    let before = width(text.get(..at.start).unwrap_or(text));
    let marked = width(text.get(at.clone()).unwrap_or_default()).max(1);
    " ".repeat(before) + &"^".repeat(marked)
}
