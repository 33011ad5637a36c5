//! Where everything lies: this process's mappings, as the kernel tells (/proc/self/smaps), with the names of what is in them.

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;

use crate::socket::Socket;
use crate::umem::Umem;

/// Something that lies in a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// "UMEM: frames", "eth0, queue 3: RX".
    pub name: String,
    /// Addresses.
    pub range: Range<usize>,
}

/// A mapping of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses.
    pub range: Range<usize>,
    /// What the kernel calls it: a file, "[heap]", "socket:[4711]"; empty where it has no name.
    pub name: String,
    /// "rw-s": what it may be used for, and whether it is shared or private.
    pub access: String,
    /// Bytes of its pages.
    pub page_bytes: usize,
    /// Bytes that are in memory now. Pages that the hardware's tables hold only through a driver are not counted.
    pub resident_bytes: usize,
    /// Of these, bytes in pages that the kernel made large by itself.
    pub transparent_huge_bytes: usize,
    /// What is known to lie in it, in order.
    pub parts: Vec<Part>,
}

impl Umem {
    /// Its parts.
    pub fn parts(&self) -> Vec<Part> {
        let (begin, frames, books) = self.place();
        let part = |name: &str, range| Part { name: name.into(), range };
        vec![
            part("UMEM: frames", begin..begin + frames),
            part("UMEM: books", begin + frames..begin + frames + books),
        ]
    }
}

impl Socket {
    /// Its rings.
    pub fn parts(&self) -> Vec<Part> {
        let named = |(ring, range): &(&str, Range<usize>)| Part {
            name: format!("{}: {ring}", self.name()),
            range: range.clone(),
        };
        self.kernel().rings().iter().map(named).collect()
    }
}

/// All mappings of this process, in order, with those of `parts` that are in them.
///
/// # Errors
/// Where /proc is not mounted.
pub fn memory_map(parts: &[Part]) -> io::Result<Vec<Mapping>> {
    let mut mappings = parse(&fs::read_to_string("/proc/self/smaps")?);
    for mapping in &mut mappings {
        let within = |part: &&Part| mapping.range.contains(&part.range.start);
        mapping.parts = parts.iter().filter(within).cloned().collect();
        mapping.parts.sort_by_key(|part| part.range.start);
    }
    Ok(mappings)
}

/// Lines that begin a mapping look like "7f00-7f10 rw-s 00000000 00:01 4711   /path with spaces", the others "Rss:   4 kB".
fn parse(smaps: &str) -> Vec<Mapping> {
    let mut mappings = Vec::<Mapping>::new();
    for line in smaps.lines() {
        if let Some(mapping) = begin(line) {
            mappings.push(mapping);
        } else if let (Some((key, value)), Some(mapping)) =
            (line.split_once(':'), mappings.last_mut())
        {
            let kib = value.trim().strip_suffix(" kB").and_then(|n| n.parse::<usize>().ok());
            let Some(bytes) = kib.map(|kib| kib << 10) else { continue };
            match key {
                "KernelPageSize" => mapping.page_bytes = bytes,
                // Those of hugetlbfs are not in Rss.
                "Rss" | "Shared_Hugetlb" | "Private_Hugetlb" => mapping.resident_bytes += bytes,
                "AnonHugePages" | "ShmemPmdMapped" => mapping.transparent_huge_bytes += bytes,
                _ => {}
            }
        }
    }
    mappings
}

fn begin(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (begin, end) = fields.next()?.split_once('-')?;
    let number = |hex| usize::from_str_radix(hex, 16).ok();
    let access = fields.next()?.to_owned();
    let name = fields.nth(3).unwrap_or_default().trim().to_owned();
    Some(Mapping { range: number(begin)?..number(end)?, access, name, ..Mapping::default() })
}

impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(
            f,
            "{start:#014x}-{end:#014x} {} {:>9} KiB, {:>9} resident, pages of {:>7} KiB  {}",
            self.access,
            (end - start) >> 10,
            self.resident_bytes >> 10,
            self.page_bytes >> 10,
            self.name
        )?;
        self.parts.iter().try_for_each(|Part { name, range: Range { start, end } }| {
            write!(
                f,
                "\n  {start:#014x}-{end:#014x}      {:>9} KiB  {name}",
                (end - start).div_ceil(1024)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::umem::UmemConfig;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:10 4711                       /memfd:ringway-umem (deleted)
Size:               4096 kB
KernelPageSize:     2048 kB
MMUPageSize:        2048 kB
Rss:                   0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:    4096 kB
VmFlags: rd wr sh mr mw me ms de ht sd
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
KernelPageSize:        4 kB
Rss:                  12 kB
";

    #[test]
    fn as_the_kernel_writes_it() {
        let [umem, stack] = &*parse(SMAPS) else { panic!("two mappings") };
        assert_eq!(umem.range, 0x7f00_0000_0000..0x7f00_0040_0000);
        assert_eq!((&*umem.name, &*umem.access), ("/memfd:ringway-umem (deleted)", "rw-s"));
        assert_eq!((umem.page_bytes, umem.resident_bytes), (2 << 20, 4 << 20));
        assert_eq!(
            (&*stack.name, stack.page_bytes, stack.resident_bytes),
            ("[stack]", 4096, 12 << 10)
        );
    }

    #[test]
    fn of_this_process() {
        let umem = Umem::new(&UmemConfig { frames: 64, ..UmemConfig::default() }).unwrap();
        let map = memory_map(&umem.parts()).unwrap();
        let [mapping] = &*map.iter().filter(|m| !m.parts.is_empty()).collect::<Vec<_>>() else {
            panic!("one mapping has it: {map:?}")
        };
        // All of it is in memory from the beginning.
        assert_eq!(mapping.resident_bytes, mapping.range.len());
        assert_eq!(mapping.page_bytes, umem.obtained().pages.bytes());
        assert_eq!(mapping.parts, umem.parts());
        assert_eq!(mapping.parts[0].range.len(), 64 * 2048);
        assert!(map.iter().any(|m| m.name == "[stack]"));
        assert!(mapping.to_string().contains("UMEM: books"), "{mapping}");
    }
}
