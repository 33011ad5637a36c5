//! Where everything lies: this process's mappings, as the kernel tells (/proc/self/smaps), with the
//! names of what is in them.

use std::ops::Range;
use std::{fmt, fs, io};

use crate::ledger::watch::Inspector;
use crate::ledger::without_controls;
use crate::socket::Socket;
use crate::umem::Umem;

/// Something that lies in a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// "UMEM: frames", "eth0, queue 3: RX".
    pub name: String,
    /// Addresses in the process.
    pub range: Range<usize>,
}

/// A mapping of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Addresses in the process.
    pub range: Range<usize>,
    /// Where in its file it begins; of a socket's rings, which one it is.
    pub offset: u64,
    /// The kernel's name for it: a file, `[heap]`, `socket:[4711]`; empty where it has no name.
    pub name: String,
    /// "rw-s": what it may be used for, and whether it is shared or private.
    pub access: String,
    /// Bytes of its pages.
    pub page_bytes: usize,
    /// Bytes that are in memory now. Pages that the hardware's tables hold only through a driver
    /// are not counted.
    pub resident_bytes: usize,
    /// Of these, bytes in pages that the kernel made large by itself.
    pub transparent_huge_bytes: usize,
    /// Its known contents, in order.
    pub parts: Vec<Part>,
}

impl Umem {
    /// The parts of this mapping.
    pub fn parts(&self) -> Vec<Part> {
        let (begin, frames, ledger) = self.place();
        let part = |name: &str, range| Part { name: name.into(), range };
        vec![
            part("UMEM: frames", begin..begin + frames),
            part("UMEM: ledger", begin + frames..begin + frames + ledger),
        ]
    }
}

impl Socket {
    /// The rings of this socket.
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

/// All mappings of another process, in order, with what can be told of what is in them from
/// outside: by names, by places in files and by neighbours. Takes what it takes to trace that
/// process.
///
/// # Errors
/// Where there is no such process, or it may not be looked at.
pub fn memory_map_of(pid: u32, umem: Option<&Inspector>) -> io::Result<Vec<Mapping>> {
    let mut mappings = parse(&fs::read_to_string(format!("/proc/{pid}/smaps"))?);
    let mut guard_end = None;
    for mapping in &mut mappings {
        mapping.parts = recognised(mapping, guard_end, umem);
        guard_end = (mapping.access == "---p").then_some(mapping.range.end);
    }
    Ok(mappings)
}

/// Where each ring begins in its socket (`XDP_PGOFF_RX_RING` and so on, linux/if_xdp.h).
const RINGS: [(u64, &str); 4] = [
    (0, "ring: RX"),
    (1 << 31, "ring: TX"),
    (1 << 32, "ring: FILL"),
    (3 << 31, "ring: COMPLETION"),
];

fn recognised(mapping: &Mapping, guard_end: Option<usize>, umem: Option<&Inspector>) -> Vec<Part> {
    let range = mapping.range.clone();
    let whole = |name: &str| vec![Part { name: name.into(), range: range.clone() }];
    match (&*mapping.name, umem) {
        (name, Some(umem)) if name.starts_with("/memfd:ringway-umem") => {
            let (frames, ledger) = umem.sizes();
            let end = range.start + frames;
            vec![
                Part { name: "UMEM: frames".into(), range: range.start..end },
                Part { name: "UMEM: ledger".into(), range: end..end + ledger },
            ]
        }
        (name, _) if name.starts_with("socket:[") => {
            let ring = RINGS.into_iter().find(|(offset, _)| *offset == mapping.offset);
            ring.map(|(_, name)| whole(name)).unwrap_or_default()
        }
        ("[stack]", _) => whole("stack of the first thread"),
        // A stack grows towards a page that nobody may touch.
        ("", _) if mapping.access == "rw-p" && guard_end == Some(range.start) => {
            whole("stack of a thread")
        }
        (name, _) if mapping.access.contains('x') && name.starts_with('/') => whole("code"),
        _ => Vec::new(),
    }
}

/// Lines that begin a mapping look like "7f00-7f10 rw-s 00000000 00:01 4711 /path with spaces", the
/// others "Rss: 4 kB".
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
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    // Another process has chosen it.
    let name = without_controls(fields.nth(2).unwrap_or_default().trim());
    let range = number(begin)?..number(end)?;
    Some(Mapping { range, access, offset, name, ..Mapping::default() })
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
        let wanted = ("[stack]", 4096, 12 << 10);
        assert_eq!((&*stack.name, stack.page_bytes, stack.resident_bytes), wanted);
    }

    #[test]
    fn rings_and_stacks_are_recognised() {
        let begin = |line| begin(line).unwrap();
        let ring = begin("7f00-7f10 rw-s 180000000 00:08 99                  socket:[4711]");
        assert_eq!(recognised(&ring, None, None)[0].name, "ring: COMPLETION");
        let stack = begin("7f00-7f10 rw-p 00000000 00:00 0 ");
        assert_eq!(recognised(&stack, Some(0x7f00), None)[0].name, "stack of a thread");
        assert_eq!(recognised(&stack, Some(0x6f00), None), []);
        let code = begin("7f00-7f10 r-xp 00001000 00:1b 5 /usr/bin/ringway\x1b[2J");
        assert_eq!(code.name, "/usr/bin/ringway\u{fffd}[2J");
        assert_eq!(recognised(&code, None, None)[0].name, "code");
    }

    #[test]
    fn from_outside() {
        let umem = Umem::new(&UmemConfig { frames: 64, ..UmemConfig::default() }).unwrap();
        // SAFETY: nothing is written there.
        let file = unsafe { umem.file() }.try_clone_to_owned().unwrap();
        let inspector = Inspector::of_file(file).unwrap();
        let map = memory_map_of(std::process::id(), Some(&inspector)).unwrap();
        let parts: Vec<_> = map.iter().flat_map(|mapping| mapping.parts.clone()).collect();
        // As this process knows it itself, and once more where the inspector has mapped it.
        for part in umem.parts() {
            assert!(parts.contains(&part), "{part:?} of {parts:?}");
        }
        for name in ["code", "stack of the first thread", "stack of a thread"] {
            assert!(parts.iter().any(|part| part.name == name), "{name} of {parts:?}");
        }
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
        assert!(mapping.to_string().contains("UMEM: ledger"), "{mapping}");
    }
}
