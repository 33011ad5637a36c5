//! DPDK itself (EAL): it starts once in a process.

use std::ffi::{CStr, CString};
use std::sync::Mutex;

use ringway_host::Host;
use ringway_host::machine::system::HugePages;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::warn;

use crate::error::{Error, last};
use crate::sys;

/// What devices get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Frames of each worker's pool.
    pub frames: u32,
    /// Slots of each receive and transmit ring, as far as the device has them.
    pub slots: u16,
    /// Whether a port whose link is down waits for it to be up again; else its worker ends.
    pub waits_for_link: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { frames: 16_384, slots: 1024, waits_for_link: false }
    }
}

/// DPDK's version, in its own words.
pub fn version() -> String {
    // SAFETY: a text that lives as long as the program.
    unsafe { CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
}

/// Bytes of an mbuf, its buffer and what lies beside them.
const FRAME_BYTES: u64 = 2560;
/// What rings and drivers take beside frames.
const BESIDE: u64 = 64 << 20;
/// Caches of its pool.
const BESIDE_WORKER: u64 = 2 << 20;
const MIB_2: u64 = 2 << 20;

/// None: not yet; then whether it did.
static STARTED: Mutex<Option<bool>> = Mutex::new(None);

/// Starts DPDK with these PCI devices, each with its options, and memory for so many workers of so
/// many frames. What was started before stays as it is.
pub fn start(pci: &[&str], workers: u64, frames: u64) -> Result<(), Error> {
    // A panic leaves no half of a value.
    let mut started = STARTED.lock().unwrap_or_else(|error| error.into_inner());
    match *started {
        Some(true) => return Ok(()),
        Some(false) => return Err(Error::Again),
        None => *started = Some(false),
    }
    let needed = workers * (frames * FRAME_BYTES + BESIDE_WORKER) + BESIDE;
    let (free, all) = huge_bytes();
    // What to write for so many to be free.
    let pages = (all + needed).saturating_sub(free).div_ceil(MIB_2);
    let mut arguments: Vec<String> =
        ["ringway", "--no-telemetry", "--log-level=warning"].map(Into::into).into();
    arguments.push(format!("--lcores=0@{}", first_cpu()));
    match pci {
        [] => arguments.push("--no-pci".into()),
        [first, ..] if free < needed => {
            let port = format!("dpdk:{}", first.split(',').next().unwrap_or_default());
            let (needed, free) = (needed.div_ceil(MIB_2), free / MIB_2);
            *started = None;
            return Err(Error::HugePages { port, needed, free, pages });
        }
        devices => arguments.extend(devices.iter().flat_map(|d| ["-a".into(), (*d).into()])),
    }
    if free < needed {
        warn!(
            "DPDK has too few huge pages and takes the system's own, which costs TLB misses: \
             `echo {pages} >/proc/sys/vm/nr_hugepages`"
        );
        let mib = (needed >> 20).to_string();
        arguments.extend(["--no-huge".into(), "--no-shconf".into(), "-m".into(), mib]);
    } else {
        arguments.push("--in-memory".into());
    }
    init(arguments)?;
    *started = Some(true);
    Ok(())
}

fn init(arguments: Vec<String>) -> Result<(), Error> {
    let texts = arguments.into_iter().map(|text| CString::new(text).unwrap_or_default());
    // DPDK keeps the pointers.
    let mut texts: Vec<_> = texts.map(CString::into_raw).collect();
    let affinity = sched_getaffinity(None);
    // SAFETY: texts that end with a zero and that are never freed; it is called once.
    let done = unsafe { sys::rte_eal_init(texts.len() as i32, texts.as_mut_ptr()) };
    let source = last();
    // It has bound this thread to the first CPU.
    if let Ok(affinity) = affinity {
        let _ = sched_setaffinity(None, &affinity);
    }
    if done >= 0 {
        return Ok(());
    }
    let remedy = match source.raw_os_error() {
        Some(13 | 1) => "; run it as root",
        Some(12) => "; it needs memory: give it huge pages, or ask for fewer frames",
        _ => "",
    };
    Err(Error::Start { source, remedy })
}

fn first_cpu() -> usize {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).find(|n| allowed.is_set(*n)).unwrap_or(0)
}

/// Bytes in huge pages that nobody has, and in all, of any NUMA node.
fn huge_bytes() -> (u64, u64) {
    let sizes = Host::live().huge_pages().unwrap_or_default();
    let bytes =
        |count: fn(&HugePages) -> u64| sizes.iter().map(|one| count(one) * one.size_bytes).sum();
    (bytes(|one| one.free), bytes(|one| one.total))
}
