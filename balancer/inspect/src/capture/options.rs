//! Options of a capture: packets, target and end.

use std::path::PathBuf;
use std::time::Duration;

use super::Form;
use super::selection::Selection;

/// Options of a capture.
#[derive(Clone, Debug)]
pub struct CaptureOptions {
    /// Filter in the language of tcpdump; empty: every packet.
    pub filter: String,
    /// Which packets, by what was decided.
    pub selection: Selection,
    /// Bytes to keep of each packet.
    pub snaplen: u32,
    /// One in so many packets; 0 and 1: all.
    pub sample: u32,
    /// Room between the packet path and this process, in bytes.
    pub buffer_bytes: u32,
    /// Where to write them as pcapng.
    pub target: Option<CaptureTarget>,
    /// Replace a file that is there.
    pub overwrite: bool,
    /// How to print them to standard output, which is not the target's then.
    pub form: Option<Form>,
    /// When to end by itself.
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureTarget {
    File(PathBuf),
    Stdout,
}

/// When a capture ends by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After so many packets.
    pub packets: Option<u64>,
    pub duration: Option<Duration>,
    /// After so many bytes of output.
    pub bytes: Option<u64>,
}
