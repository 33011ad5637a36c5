//! The layout of pinned tables, which another version may have made.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use ringway_abi::raw::RW_LAYOUT;

use crate::maps::map_error;
use crate::{Error, Result};

/// Refuses the settings of another layout.
pub(crate) fn check_layout(node: &str, settings: &MapHandle) -> Result<()> {
    match layout_of(settings)? {
        RW_LAYOUT => Ok(()),
        found => Err(Error::Layout { node: node.to_owned(), found, expected: RW_LAYOUT }),
    }
}

/// The layout is the first word of the settings, whatever else a version keeps there; 0: there is
/// none.
pub(crate) fn layout_of(settings: &MapHandle) -> Result<u32> {
    let bytes = settings.lookup(&[0; 4], MapFlags::ANY).map_err(map_error("read", "settings"))?;
    let word = bytes.as_deref().and_then(|bytes| bytes.first_chunk());
    Ok(word.map_or(0, |word| u32::from_ne_bytes(*word)))
}
