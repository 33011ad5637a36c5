//! Errors: where, what is wrong, what to write instead.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use toml::de::DeTable;

/// Errors shown; a file with more has one cause for most of them.
const SHOWN: usize = 20;
/// Longest piece of a line shown under an error, in characters.
const SNIPPET: usize = 100;

/// The texts of a configuration and their names. A place is a byte of all of them, one after
/// another with a byte between: so a span says which file it is in.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Never empty; the first is the main file.
    files: Vec<File>,
    /// Options of a command stand in place of a file, which is empty then.
    of_options: bool,
}

#[derive(Clone, Debug)]
struct File {
    name: Arc<str>,
    text: Arc<str>,
    /// Byte offset of the file among all.
    base: usize,
}

impl Source {
    pub(crate) fn new(filename: &str, text: &str) -> Source {
        let files = vec![File { name: filename.into(), text: text.into(), base: 0 }];
        Source { files, of_options: false }
    }

    /// Options of a command, under the name that errors give them.
    pub(crate) fn options(name: &str) -> Source {
        Source { of_options: true, ..Source::new(name, "") }
    }

    pub(crate) fn is_file(&self) -> bool {
        !self.of_options
    }

    /// Adds a file; where it begins.
    fn add(&mut self, filename: &str, text: &str) -> usize {
        let base = self.files.last().map_or(0, |last| last.base + last.text.len() + 1);
        self.files.push(File { name: filename.into(), text: text.into(), base });
        base
    }

    /// Name of the main file.
    pub(crate) fn filename(&self) -> &str {
        &self.files[0].name
    }

    fn number(&self, offset: usize) -> usize {
        self.files.partition_point(|file| file.base <= offset).saturating_sub(1)
    }

    fn file(&self, offset: usize) -> &File {
        &self.files[self.number(offset)]
    }

    fn text(&self, span: &Range<usize>) -> &str {
        let file = self.file(span.start);
        file.text.get(span.start - file.base..span.end - file.base).unwrap_or_default()
    }

    /// The text of a span, on one line and not too long.
    fn excerpt(&self, span: &Range<usize>) -> String {
        let text = self.text(span);
        let line = text.lines().next().unwrap_or_default();
        let short: String = line.chars().take(40).collect();
        if short.len() < text.trim_end().len() { format!("{short}...") } else { short }
    }

    /// Where a key of a section of the main file is written; 0..0: nowhere.
    pub(crate) fn key(&self, section: &str, key: &str) -> Range<usize> {
        let (document, _) = DeTable::parse_recoverable(&self.files[0].text);
        let table = document.get_ref().get(section).and_then(|found| found.get_ref().as_table());
        let found = table.and_then(|table| table.iter().find(|(name, _)| *name.get_ref() == key));
        found.map_or(0..0, |(name, value)| name.span().start..value.span().end)
    }

    /// `FILE:LINE:COL`
    fn place(&self, offset: usize) -> String {
        let (line, column, _) = self.locate(offset);
        format!("{}:{line}:{column}", self.file(offset).name)
    }

    /// Line and column (of characters), both from 1, and the line itself.
    fn locate(&self, offset: usize) -> (usize, usize, &str) {
        let File { text, base, .. } = self.file(offset);
        let mut offset = (offset - base).min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = text[start..].lines().next().unwrap_or_default();
        let number = before.matches('\n').count() + 1;
        (number, before[start..].chars().count() + 1, line)
    }
}

/// One thing wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub file: String,
    /// Line, from 1; 0 when the error is about the file as a whole.
    pub line: usize,
    /// Column in characters, from 1; 0 when the error is about the file as a whole.
    pub column: usize,
    /// The error, its place, and what to write instead.
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
        let file = source.file(span.start).name.to_string();
        let marked = source.text(&span);
        let width = marked.lines().next().unwrap_or_default().chars().count().max(1);
        // A long line is shown around the error only.
        let skip = (column - 1).saturating_sub(SNIPPET / 2);
        let snippet: String = text.chars().skip(skip).take(SNIPPET).collect();
        let from = column - 1 - skip;
        let caret = from..(from + width).min(SNIPPET).max(from + 1);
        Error { file, line, column, message, snippet, caret }
    }

    /// The file as a whole: it could not be read.
    pub(crate) fn of_file(filename: &str, message: String) -> Error {
        let file = filename.into();
        Error { file, line: 0, column: 0, message, snippet: String::new(), caret: 0..0 }
    }

    /// `FILE:LINE:COL: message` alone, for logs and lists.
    pub fn brief(&self) -> String {
        match self.line {
            0 => format!("{}: {}", self.file, self.message),
            line => format!("{}:{line}:{}: {}", self.file, self.column, self.message),
        }
    }
}

/// `FILE:LINE:COL: message`, then the line with the place marked.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.brief())?;
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

/// Everything found wrong, in the order of the files; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Error>);

impl Errors {
    /// These; `None` when there are none.
    pub fn new(errors: Vec<Error>) -> Option<Errors> {
        (!errors.is_empty()).then_some(Errors(errors))
    }

    /// The errors, by file, line and column.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.0.iter()
    }

    /// The errors in one line, for logs and lists: without the lines of the files.
    pub fn brief(&self) -> String {
        self.joined("; ", Error::brief)
    }

    fn joined(&self, between: &str, shown: impl Fn(&Error) -> String) -> String {
        let mut parts: Vec<String> = self.0.iter().take(SHOWN).map(shown).collect();
        match self.0.len() {
            1 => {}
            n if n > SHOWN => parts.push(format!("{n} errors, the first {SHOWN} shown")),
            n => parts.push(format!("{n} errors")),
        }
        parts.join(between)
    }
}

impl From<Error> for Errors {
    fn from(error: Error) -> Errors {
        Errors(vec![error])
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.joined("\n", Error::to_string))
    }
}

impl std::error::Error for Errors {}

/// Gathers files and errors while a configuration is read.
pub(crate) struct Diagnostics {
    source: RefCell<Source>,
    /// With the number of the file, which orders them.
    errors: RefCell<Vec<(usize, Error)>>,
}

impl Diagnostics {
    pub(crate) fn new(source: Source) -> Diagnostics {
        Diagnostics { source: source.into(), errors: RefCell::default() }
    }

    /// Adds a file; where its text begins among all of them.
    pub(crate) fn add(&self, filename: &str, text: &str) -> usize {
        self.source.borrow_mut().add(filename, text)
    }

    /// The files read so far.
    pub(crate) fn source(&self) -> Source {
        self.source.borrow().clone()
    }

    /// The text of a span, on one line and not too long.
    pub(crate) fn excerpt(&self, span: &Range<usize>) -> String {
        self.source.borrow().excerpt(span)
    }

    /// `FILE:LINE:COL`
    pub(crate) fn place(&self, offset: usize) -> String {
        self.source.borrow().place(offset)
    }

    /// " (FILE:LINE:COL)" of a place in another file than `here`, else nothing.
    pub(crate) fn other_place(&self, here: &Range<usize>, there: &Range<usize>) -> String {
        let source = self.source.borrow();
        match source.number(here.start) == source.number(there.start) {
            true => String::new(),
            false => format!(" ({})", source.place(there.start)),
        }
    }

    /// Where these bytes of a string are written, whose value has this span; the whole of it where
    /// escapes are among them.
    pub(crate) fn within(
        &self,
        span: &Range<usize>,
        value: &str,
        at: &Range<usize>,
    ) -> Range<usize> {
        let source = self.source.borrow();
        match source.text(span).get(1..).is_some_and(|rest| rest.starts_with(value)) {
            true => span.start + 1 + at.start..span.start + 1 + at.end,
            false => span.clone(),
        }
    }

    pub(crate) fn error(&self, span: Range<usize>, message: impl Into<String>) {
        let source = self.source.borrow();
        let file = source.number(span.start);
        self.errors.borrow_mut().push((file, Error::at(&source, span, message.into())));
    }

    /// About a file that could not be read.
    pub(crate) fn error_of(&self, filename: &str, message: String) {
        self.errors.borrow_mut().push((usize::MAX, Error::of_file(filename, message)));
    }

    /// Whether nothing is wrong so far.
    pub(crate) fn is_clean(&self) -> bool {
        self.errors.borrow().is_empty()
    }

    /// The value, when it is there and nothing was wrong; else the errors.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Errors> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|(file, error)| (*file, error.line, error.column));
        let mut errors: Vec<Error> = errors.into_iter().map(|(_, error)| error).collect();
        errors.dedup();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => Err(Errors(errors)),
        }
    }
}
