//! Errors: where, what is wrong, what to write instead.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Errors shown; a file with more has one cause for most of them.
const SHOWN: usize = 20;
/// Longest piece of a line shown under an error, in characters.
const SNIPPET: usize = 100;

/// The text of a configuration and its name.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    filename: Arc<str>,
    text: Arc<str>,
}

impl Source {
    pub(crate) fn new(filename: &str, text: &str) -> Source {
        Source { filename: filename.into(), text: text.into() }
    }

    pub(crate) fn filename(&self) -> &str {
        &self.filename
    }

    /// What is written at a span, on one line and not too long.
    pub(crate) fn excerpt(&self, span: &Range<usize>) -> String {
        let text = self.text.get(span.clone()).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let short: String = line.chars().take(40).collect();
        if short.len() < text.trim_end().len() { format!("{short}...") } else { short }
    }

    /// Line and column (of characters), both from 1, and the line itself.
    fn locate(&self, offset: usize) -> (usize, usize, &str) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = self.text[start..].lines().next().unwrap_or_default();
        let number = before.matches('\n').count() + 1;
        (number, before[start..].chars().count() + 1, line)
    }
}

/// One thing wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Name of the file.
    pub file: String,
    /// Line, from 1; 0 when the error is about the file as a whole.
    pub line: usize,
    /// Column in characters, from 1; 0 when the error is about the file as a whole.
    pub column: usize,
    /// What is wrong, where, and what to write instead.
    pub message: String,
    snippet: String,
    caret: Range<usize>,
}

impl Error {
    /// At a span; a default, written nowhere, has none: then the file as a whole.
    pub(crate) fn at_value(source: &Source, span: Range<usize>, message: String) -> Error {
        match span.is_empty() {
            true => Error::of_file(source.filename(), message),
            false => Error::at(source, span, message),
        }
    }

    pub(crate) fn at(source: &Source, span: Range<usize>, message: String) -> Error {
        let (line, column, text) = source.locate(span.start);
        let marked = source.text.get(span).unwrap_or_default();
        let width = marked.lines().next().unwrap_or_default().chars().count().max(1);
        // Of a long line, show the part around the error.
        let skip = (column - 1).saturating_sub(SNIPPET / 2);
        let snippet: String = text.chars().skip(skip).take(SNIPPET).collect();
        let from = column - 1 - skip;
        let caret = from..(from + width).min(SNIPPET).max(from + 1);
        Error { file: source.filename().into(), line, column, message, snippet, caret }
    }

    /// The file as a whole: it could not be read.
    pub(crate) fn of_file(filename: &str, message: String) -> Error {
        let file = filename.into();
        Error { file, line: 0, column: 0, message, snippet: String::new(), caret: 0..0 }
    }
}

/// `FILE:LINE:COL: message`, then the line with the place marked.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "{}: {}", self.file, self.message);
        }
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        if self.snippet.trim().is_empty() {
            return Ok(());
        }
        // A tab is as wide as the terminal likes: keep it above the caret too.
        let pad: String = self
            .snippet
            .chars()
            .take(self.caret.start)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let shown: String = self
            .snippet
            .chars()
            .map(|c| if c.is_control() && c != '\t' { '?' } else { c })
            .collect();
        let carets = "^".repeat(self.caret.len());
        write!(f, "\n{:5} | {shown}\n      | {pad}{carets}", self.line)
    }
}

impl std::error::Error for Error {}

/// Everything found wrong, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// The errors, by line and column.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.0.iter()
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Errors {
        Errors(vec![error])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        match self.0.len() {
            1 => Ok(()),
            n if n > SHOWN => write!(f, "\n{n} errors, the first {SHOWN} shown"),
            n => write!(f, "\n{n} errors"),
        }
    }
}

impl std::error::Error for Errors {}

/// Gathers errors while a configuration is read.
pub(crate) struct Report {
    pub(crate) source: Source,
    errors: RefCell<Vec<Error>>,
}

impl Report {
    pub(crate) fn new(source: Source) -> Report {
        Report { source, errors: RefCell::default() }
    }

    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) {
        self.errors.borrow_mut().push(Error::at(&self.source, span, message.into()));
    }

    /// The value, when it is there and nothing was wrong; else the errors.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Errors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| (error.line, error.column));
        errors.dedup();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(Errors(errors)),
        }
    }
}
