//! The files: reading, including, identity, and what is shown of them.

pub(crate) mod identity;
pub(crate) mod include;
pub(crate) mod redact;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use crate::DEFAULT_PATH;

/// The largest configuration worth parsing, bytes: ten times what every limit reached at once
/// takes.
pub(crate) const MAX_FILE: u64 = 32 << 20;

/// The text, or what is wrong with the file as a whole; `limit`: bytes.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String, String> {
    let remedy = match path == Path::new(DEFAULT_PATH) {
        true => "name the file with -c FILE",
        false => "give the path of a configuration file that this user may read",
    };
    let unreadable = |error: io::Error| format!("cannot be read ({error}): {remedy}");
    // Before it is opened: to open a named pipe waits for its writer. A pipe behind a link is one
    // that is open already: `-c <(...)`, /dev/fd/N.
    let kind = fs::metadata(path).map_err(unreadable)?.file_type();
    let link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    if !(kind.is_file() || kind.is_fifo() && link) {
        return Err(format!("is not a regular file: {remedy}"));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err("is larger than 32 MiB: this is no configuration".into());
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("is not UTF-8 in line {line}: save it as UTF-8 text")
    })
}
