//! Numbers of the kernel's functions that XDP programs may call, from its own description (/sys/kernel/btf/vmlinux, linux/btf.h).

use std::{fs, io};

const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const KIND_FUNC: u32 = 12;

/// For each name its function's number; none where the kernel has no such function.
pub(crate) fn functions<const N: usize>(names: [&str; N]) -> io::Result<[Option<u32>; N]> {
    find(&fs::read(VMLINUX)?, names).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{VMLINUX} is not understood"))
    })
}

fn find<const N: usize>(btf: &[u8], names: [&str; N]) -> Option<[Option<u32>; N]> {
    let u32_at = |at: usize| Some(u32::from_ne_bytes(btf.get(at..at + 4)?.try_into().ok()?));
    let magic = u16::from_ne_bytes(btf.get(..2)?.try_into().ok()?);
    // struct btf_header: offsets count from its end.
    let header = u32_at(4)? as usize;
    let (types, len) = (header + u32_at(8)? as usize, u32_at(12)? as usize);
    let strings = btf.get(header + u32_at(16)? as usize..)?;
    if magic != MAGIC {
        return None;
    }
    let (mut found, mut at, mut number) = ([None; N], types, 0);
    while at < types + len {
        number += 1;
        let (name, info) = (u32_at(at)? as usize, u32_at(at + 4)?);
        if info >> 24 & 0x1f == KIND_FUNC {
            let rest = strings.get(name..)?;
            let is = |wanted: &&str| {
                rest.strip_prefix(wanted.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
            };
            if let Some(n) = names.iter().position(is) {
                found[n] = Some(number);
            }
        }
        at += 12 + behind(info)?;
    }
    Some(found)
}

/// Bytes that follow struct btf_type. None: of a kind that is not known, so that no more can be read.
fn behind(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    match info >> 24 & 0x1f {
        // Pointers, names for others, functions.
        2 | 7..=12 | 16 | 18 => Some(0),
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => Some(4),
        3 => Some(12),
        // Structs, unions, sections, enums of 64 bits.
        4 | 5 | 15 | 19 => Some(12 * count),
        // Enums, parameters.
        6 | 13 => Some(8 * count),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two functions behind a struct of two members.
    #[test]
    fn functions_are_found_by_their_names() {
        let strings = b"\0s\0one\0one_more\0";
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let types: Vec<u32> = [
            [1, kind(4, 2), 8].as_slice(),
            &[0; 6],
            &[7, kind(KIND_FUNC, 0), 0],
            &[3, kind(KIND_FUNC, 0), 0],
        ]
        .concat();
        let header = [24, 0, 60, 60, strings.len() as u32];
        let mut btf = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        btf.extend(header.iter().chain(&types).flat_map(|word: &u32| word.to_ne_bytes()));
        btf.extend(strings);
        assert_eq!(find(&btf, ["one_more", "none", "one"]), Some([Some(2), None, Some(3)]));
        assert_eq!(find(&btf[..40], ["one"]), None);
        assert_eq!(find(&[0; 64], ["one"]), None);
        btf[24 + 7] = 31;
        assert_eq!(find(&btf, ["one"]), None);
    }
}
