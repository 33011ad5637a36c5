//! One row = a name, a frame in, and what must come of it.

use ringway_abi::{Reason, Verdict};

use crate::capture;
use crate::cast::FRONT;
use crate::frame::{Arp, Frame};
use crate::{Summary, World};

#[derive(Clone, Debug)]
pub enum Out {
    /// Not a byte changed.
    Same,
    Exactly(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Row {
    name: String,
    slot: u32,
    frame: Vec<u8>,
    out: Out,
    counted: (Verdict, Reason),
}

/// A frame on the front interface that must be left as it is: passed or dropped.
pub fn row(name: &str, frame: impl Into<Bytes>, verdict: Verdict, reason: Reason) -> Row {
    let frame = frame.into().0;
    Row { name: name.to_owned(), slot: FRONT, frame, out: Out::Same, counted: (verdict, reason) }
}

impl Row {
    /// On another interface.
    pub fn on(self, slot: u32) -> Self {
        Self { slot, ..self }
    }

    /// It must leave as this.
    pub fn gives(self, out: impl Into<Bytes>) -> Self {
        Self { out: Out::Exactly(out.into().0), ..self }
    }
}

/// Anything that is a frame.
pub struct Bytes(Vec<u8>);

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&Frame> for Bytes {
    fn from(frame: &Frame) -> Self {
        Self(frame.bytes())
    }
}

impl From<Frame> for Bytes {
    fn from(frame: Frame) -> Self {
        Self(frame.bytes())
    }
}

impl From<Arp> for Bytes {
    fn from(arp: Arp) -> Self {
        Self(arp.bytes())
    }
}

/// Feeds all rows; panics with every one that went wrong.
pub fn check(world: &World, rows: &[Row]) {
    let wrong: Vec<String> = rows.iter().filter_map(|row| differs(world, row)).collect();
    assert!(wrong.is_empty(), "{} of {} rows:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

fn differs(world: &World, row: &Row) -> Option<String> {
    let fed = capture::row(&row.name, || world.feed(row.slot, &row.frame));
    let Summary { verdict, reason, frame } = fed;
    let (wanted_verdict, wanted_reason) = row.counted;
    if (verdict, reason) != row.counted {
        return Some(format!(
            "{}: {verdict}/{reason} instead of {wanted_verdict}/{wanted_reason}",
            row.name
        ));
    }
    let wanted = match &row.out {
        Out::Same => &row.frame,
        Out::Exactly(bytes) => bytes,
    };
    (frame != *wanted)
        .then(|| format!("{}: frame\n  {}\ninstead of\n  {}", row.name, hex(&frame), hex(wanted)))
}

/// The first bytes of a frame, for a message.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(120).map(|byte| format!("{byte:02x}")).collect()
}
