//! What is released is what is tested.

use std::fs;

use anyhow::{Result, ensure};
use ringway_net_tests::binary;

/// Tests of the packet path give a gateway another clock, which is a map beside the objects: these
/// are the same, byte by byte.
#[test]
fn the_binary_has_the_objects_that_are_tested() -> Result<()> {
    let released = fs::read(binary()?)?;
    let elf = |at: &usize| released[*at..].starts_with(b"\x7fELF");
    let files: Vec<usize> = (0..released.len()).filter(elf).collect();
    for (name, object) in ringway_kernel::objects() {
        let has = files.iter().any(|at| released[*at..].starts_with(object));
        ensure!(has, "the binary has another {name} than its tests");
    }
    Ok(())
}
