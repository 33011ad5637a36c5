//! The text of a list file: prefixes with their lines, and the lines that are none.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use super::{Family, Prefix, PrefixError};

/// The most entries of one family in a file, and of one family in all lists of a kind together.
pub const MAX_ENTRIES: usize = 1_000_000;

/// The most bad lines of a file that are kept; the others are counted.
pub const MAX_BAD_LINES: usize = 1_000;

/// The most characters of a bad line that are kept.
const MAX_TEXT: usize = 80;

/// What a list file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFile {
    /// Its prefixes, in the file's order. One may occur twice, or lie within another.
    pub entries: Vec<Entry>,
    /// The first [`MAX_BAD_LINES`] of the lines that are no prefix.
    pub bad: Vec<BadLine>,
    /// How many lines are no prefix.
    pub bad_lines: usize,
}

/// A prefix of a list file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The prefix.
    pub prefix: Prefix,
    /// Its line, from 1.
    pub line: u32,
}

/// A line, or a JSON object, that is no prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The line, from 1.
    pub line: u32,
    /// How it begins: at most 80 characters.
    pub text: String,
    /// What is wrong with it.
    pub why: Why,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {:?}, {}", self.line, self.text, self.why)
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// It is no prefix.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// It is no JSON, in a file that begins as JSON.
    #[error("no JSON (column {column}): write one object a line, {{\"cidr\": \"192.0.2.0/24\"}}")]
    Json {
        /// Where, in bytes from 1.
        column: usize,
    },
    /// It is JSON, but no object with a prefix.
    #[error("no object with a string \"cidr\": write {{\"cidr\": \"192.0.2.0/24\"}}")]
    NoCidr,
}

/// Why a file is no list at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListFileError {
    /// It has a byte that no text has.
    #[error("line {line} has the byte {byte:#04x}: this is no text; unpack or convert the file")]
    Binary {
        /// The line, from 1.
        line: u32,
        /// The byte.
        byte: u8,
    },
    /// It begins as a JSON array, but is none.
    #[error("line {line}, column {column}: no JSON array ({cause}): was the file cut off?")]
    Array {
        /// The line, from 1.
        line: usize,
        /// Where in the line, in bytes from 1.
        column: usize,
        /// What the JSON reader says.
        cause: String,
    },
    /// It has too many entries.
    #[error(transparent)]
    TooMany(#[from] TooMany),
}

/// More prefixes of one family than the packet path takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{entries} {family} prefixes are more than {MAX_ENTRIES}: aggregate them")]
pub struct TooMany {
    /// The family.
    pub family: Family,
    /// How many valid entries of the family there are.
    pub entries: usize,
}

impl TooMany {
    pub(super) fn check(family: Family, entries: usize) -> Result<(), TooMany> {
        if entries > MAX_ENTRIES { Err(TooMany { family, entries }) } else { Ok(()) }
    }
}

/// Reads the text of a list file, in one of two formats:
///
/// - a prefix a line. An address alone is a prefix of its full length. `#` and `;` begin a comment.
/// - JSON as Spamhaus publishes DROP: an object a line, `{"cidr": "192.0.2.0/24"}`, or an array
///   of such objects. Other members are ignored, and so is an object whose `type` is `metadata`.
///
/// The file is JSON when it begins with `{` or `[`. A byte order mark, empty lines and carriage
/// returns at the end of a line are ignored.
///
/// A line that cannot be read is in [`ListFile::bad`]; the caller decides what that means.
pub fn parse(text: &[u8]) -> Result<ListFile, ListFileError> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if let Some(place) = text.iter().position(|byte| !may_be_text(*byte)) {
        return Err(ListFileError::Binary { line: line_at(text, place), byte: text[place] });
    }
    let mut reader = Reader::default();
    match text.trim_ascii_start().first() {
        Some(b'[') => reader.array(text)?,
        Some(b'{') => reader.lines(text, record),
        _ => reader.lines(text, plain),
    }
    reader.finish()
}

fn may_be_text(byte: u8) -> bool {
    !byte.is_ascii_control() || byte.is_ascii_whitespace()
}

/// The line of a place, from 1.
fn line_at(text: &[u8], place: usize) -> u32 {
    let before = text[..place].iter().filter(|byte| **byte == b'\n').count();
    u32::try_from(before + 1).unwrap_or(u32::MAX)
}

/// A line without JSON; `None` when it says nothing.
fn plain(line: &[u8]) -> Option<Result<Prefix, Why>> {
    let comment = line.iter().position(|byte| matches!(byte, b'#' | b';'));
    let said = line[..comment.unwrap_or(line.len())].trim_ascii();
    (!said.is_empty()).then(|| {
        let said = std::str::from_utf8(said).map_err(|_| PrefixError::Address)?;
        Ok(said.parse()?)
    })
}

/// What Ringway reads of an object of DROP.
#[derive(Deserialize)]
struct Record {
    cidr: Option<String>,
    r#type: Option<String>,
}

/// A line or an element with a JSON object; `None` when it says nothing.
fn record(text: &[u8]) -> Option<Result<Prefix, Why>> {
    match text.trim_ascii().first()? {
        b'{' => {}
        _ => return Some(Err(Why::NoCidr)),
    }
    let record: Record = match serde_json::from_slice(text) {
        Ok(record) => record,
        Err(error) if error.is_data() => return Some(Err(Why::NoCidr)),
        Err(error) => return Some(Err(Why::Json { column: error.column() })),
    };
    match record {
        Record { r#type: Some(kind), .. } if kind == "metadata" => None,
        Record { cidr: Some(cidr), .. } => Some(cidr.parse().map_err(Why::from)),
        Record { cidr: None, .. } => Some(Err(Why::NoCidr)),
    }
}

/// A file while it is read.
#[derive(Default)]
struct Reader {
    file: ListFile,
    v4: usize,
    v6: usize,
}

impl Reader {
    fn lines(&mut self, text: &[u8], read: fn(&[u8]) -> Option<Result<Prefix, Why>>) {
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let number = u32::try_from(number + 1).unwrap_or(u32::MAX);
            self.add(number, line, read(line));
        }
    }

    fn array(&mut self, text: &[u8]) -> Result<(), ListFileError> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let elements = Elements { reader: self, text };
        let read = json.deserialize_seq(elements).and_then(|()| json.end());
        read.map_err(|error| ListFileError::Array {
            line: error.line(),
            column: error.column(),
            cause: error.to_string(),
        })
    }

    fn add(&mut self, line: u32, text: &[u8], read: Option<Result<Prefix, Why>>) {
        match read {
            None => {}
            Some(Ok(prefix)) => {
                let count = match prefix.family() {
                    Family::V4 => &mut self.v4,
                    Family::V6 => &mut self.v6,
                };
                *count += 1;
                if *count <= MAX_ENTRIES {
                    self.file.entries.push(Entry { prefix, line });
                }
            }
            Some(Err(why)) => {
                self.file.bad_lines += 1;
                if self.file.bad.len() < MAX_BAD_LINES {
                    let text = String::from_utf8_lossy(text.trim_ascii());
                    let text = text.chars().take(MAX_TEXT).collect();
                    self.file.bad.push(BadLine { line, text, why });
                }
            }
        }
    }

    fn finish(self) -> Result<ListFile, ListFileError> {
        TooMany::check(Family::V4, self.v4)?;
        TooMany::check(Family::V6, self.v6)?;
        Ok(self.file)
    }
}

/// The elements of an array, one after the other: a file of them may have as many as it has bytes.
struct Elements<'r, 't> {
    reader: &'r mut Reader,
    text: &'t [u8],
}

impl<'t> Visitor<'t> for Elements<'_, 't> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of objects")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut elements: A) -> Result<(), A::Error> {
        let (mut line, mut counted) = (1, 0);
        while let Some(element) = elements.next_element::<&'t RawValue>()? {
            let element = element.get().as_bytes();
            let place = element.as_ptr().addr() - self.text.as_ptr().addr();
            line += line_at(&self.text[counted..], place - counted) - 1;
            counted = place;
            self.reader.add(line, element, record(element));
        }
        Ok(())
    }
}
