//! An inspection of an engine from another process: the owners of frames and since when, the
//! contents of the oldest, and the NIC's counters. The engine does not notice: its memory is mapped
//! for reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::{fmt, io};

use ringway_host::netlink::counters::{Traffic, traffic_of_process};
use ringway_wire::Line;
use ringway_xsk::{Inspector, Mapping, Place, Record, UmemError, Watch, memory_map_of};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;

use crate::status::table;

/// Why a process cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    #[error("there is no process {0}; `pgrep -af 'ringway engine'` lists engines")]
    NoProcess(u32),
    /// It belongs to another user.
    #[error("permission denied for process {0}: run this as root, or as the user that it runs as")]
    NotPermitted(u32),
    /// It has no memory of an engine.
    #[error(
        "process {0} is no engine: it has no packet memory; `pgrep -af 'ringway engine'` lists engines"
    )]
    NoEngine(u32),
    /// Its memory cannot be read.
    #[error("process {pid}: {source}")]
    Umem { pid: u32, source: UmemError },
    #[error("process {0} has ended")]
    Ended(u32),
    /// The system refused something.
    #[error("process {pid}: {source}; check that /proc is mounted")]
    System { pid: u32, source: io::Error },
}

/// An engine that is inspected.
#[derive(Debug)]
pub struct Inspection {
    pid: u32,
    /// Process numbers are used again; this descriptor stays with its process.
    process: OwnedFd,
    inspector: Inspector,
}

/// The result of an inspection.
#[derive(Clone, Debug, Serialize)]
pub struct InspectionSample {
    /// "ringway.inspect/1".
    pub schema: &'static str,
    pub pid: u32,
    /// Frames by owner.
    pub owners: Vec<Owner>,
    /// The frames that are held, to be sent or between workers for the longest time, oldest first.
    pub oldest: Vec<Frame>,
    /// The counters of the interfaces that it receives from.
    pub interfaces: Vec<Interface>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// The number of the pool, which is its worker's.
    pub pool: u8,
    /// "free", "fill", "held", "tx" or "away" (between workers).
    pub place: &'static str,
    /// Of held frames the app's stage, of those with the kernel the queue.
    pub whose: String,
    pub frames: u64,
    /// Age of the oldest there, in milliseconds.
    pub oldest_ms: u32,
}

#[derive(Clone, Debug, Serialize)]
pub struct Frame {
    pub frame: u32,
    pub pool: u8,
    pub place: &'static str,
    pub whose: String,
    /// Its age there, in milliseconds.
    pub age_ms: u32,
    /// The bytes at the place where received packets begin.
    pub packet: String,
    /// Its first 64 bytes.
    pub hex: String,
}

/// The counters of an interface, in both directions, since it was made.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    pub interface: String,
    #[serde(flatten)]
    pub traffic: Traffic,
}

impl Inspection {
    /// Opens the engine of the process of this number.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub fn open(pid: u32) -> Result<Self, InspectError> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or(InspectError::NoProcess(pid))?;
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT | libc::EINVAL) => InspectError::NoProcess(pid),
            Some(libc::EACCES | libc::EPERM) => InspectError::NotPermitted(pid),
            _ => InspectError::System { pid, source: error },
        };
        let process = pidfd_open(number, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        let umem = umem_of(pid).map_err(failed)?.ok_or(InspectError::NoEngine(pid))?;
        let inspector = Inspector::of_file(umem.into());
        let inspector = inspector.map_err(|source| InspectError::Umem { pid, source })?;
        Ok(Self { pid, process, inspector })
    }

    /// The present state, with the `oldest` oldest frames.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub fn sample(&self, oldest: usize) -> Result<InspectionSample, InspectError> {
        let watch = self.inspector.watch();
        let seen: Vec<_> =
            self.inspector.records().filter(|(_, r)| r.pool < watch.pools()).collect();
        let sample = InspectionSample {
            schema: "ringway.inspect/1",
            pid: self.pid,
            owners: owners(&watch, &seen),
            oldest: self.frames(&watch, &seen, oldest),
            interfaces: self.interfaces(&watch, &seen),
        };
        // The sample of a process that has ended may show another one's memory.
        if self.has_ended() { Err(InspectError::Ended(self.pid)) } else { Ok(sample) }
    }

    /// The map of its memory.
    ///
    /// # Errors
    /// See [`InspectError`].
    pub fn memory_map(&self) -> Result<Vec<Mapping>, InspectError> {
        let map = memory_map_of(self.pid, Some(&self.inspector));
        map.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => InspectError::Ended(self.pid),
            io::ErrorKind::PermissionDenied => InspectError::NotPermitted(self.pid),
            _ => InspectError::System { pid: self.pid, source },
        })
    }

    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.process, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn frames(&self, watch: &Watch, seen: &[(u32, Record)], most: usize) -> Vec<Frame> {
        let of_interest =
            |record: &Record| matches!(record.place, Place::Held | Place::Tx | Place::Away);
        let mut aged: Vec<_> = seen
            .iter()
            .filter(|(_, record)| of_interest(record))
            .map(|(frame, record)| (age_ms(watch, record), *frame, *record))
            .collect();
        aged.sort_by_key(|(age, frame, _)| (std::cmp::Reverse(*age), *frame));
        let frame = |(age_ms, frame, record): (u32, u32, Record)| {
            let bytes = self.inspector.packet(frame);
            let hex = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
            let (pool, place, whose) = owner(watch, &record);
            Frame { frame, pool, place, whose, age_ms, packet: Line(&bytes).to_string(), hex }
        };
        aged.into_iter().take(most).map(frame).collect()
    }

    /// Those whose queues have frames.
    fn interfaces(&self, watch: &Watch, seen: &[(u32, Record)]) -> Vec<Interface> {
        let with_kernel = seen.iter().filter(|(_, r)| matches!(r.place, Place::Fill | Place::Tx));
        let queues: BTreeSet<_> = with_kernel.map(|(_, r)| (r.pool, r.stage)).collect();
        let names: BTreeSet<String> = queues
            .into_iter()
            .filter_map(|(pool, queue)| {
                Some(watch.queue_name(pool, queue).split_once(", queue ")?.0.to_owned())
            })
            .collect();
        let all = traffic_of_process(self.pid).unwrap_or_default();
        let ours = all.into_iter().filter(|(name, _)| names.contains(name));
        ours.map(|(interface, traffic)| Interface { interface, traffic }).collect()
    }
}

/// The file that its packets lie in: it may have it open several times.
fn umem_of(pid: u32) -> io::Result<Option<File>> {
    let mut found: Option<File> = None;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let of_umem = |target: std::path::PathBuf| {
            target.to_string_lossy().starts_with("/memfd:ringway-umem")
        };
        // One that was closed meanwhile is none.
        if !fs::read_link(&path).is_ok_and(of_umem) {
            continue;
        }
        let file = File::open(&path)?;
        let inode = |file: &File| file.metadata().map(|metadata| metadata.ino());
        // Several engines in one process: the first.
        if found.as_ref().is_none_or(|f| inode(f).ok() > inode(&file).ok()) {
            found = Some(file);
        }
    }
    Ok(found)
}

fn age_ms(watch: &Watch, record: &Record) -> u32 {
    let age = watch.now(record.pool).wrapping_sub(record.since);
    // Written since the pool's time was read.
    if age > u32::MAX / 2 { 0 } else { age }
}

fn owner(watch: &Watch, record: &Record) -> (u8, &'static str, String) {
    let (pool, stage) = (record.pool, record.stage);
    let (place, whose) = match record.place {
        Place::Free => ("free", String::new()),
        Place::Fill => ("fill", watch.queue_name(pool, stage)),
        Place::Held => ("held", watch.stage_name(pool, stage)),
        Place::Tx => ("tx", watch.queue_name(pool, stage)),
        Place::Away => ("away", watch.stage_name(pool, stage)),
    };
    (pool, place, whose)
}

fn owners(watch: &Watch, seen: &[(u32, Record)]) -> Vec<Owner> {
    let mut owners = BTreeMap::<(u8, &str, String), (u64, u32)>::new();
    for (_, record) in seen {
        let (frames, oldest) = owners.entry(owner(watch, record)).or_default();
        *frames += 1;
        *oldest = age_ms(watch, record).max(*oldest);
    }
    let owner = |((pool, place, whose), (frames, oldest_ms))| Owner {
        pool,
        place,
        whose,
        frames,
        oldest_ms,
    };
    owners.into_iter().map(owner).collect()
}

fn seconds(ms: u32) -> String {
    format!("{:.1} s", f64::from(ms) / 1000.0)
}

impl fmt::Display for InspectionSample {
    /// With `{:#}` the bytes of its frames, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "process {}", self.pid)?;
        let mut rows = vec![["frames", "pool", "count", "oldest"].map(String::from)];
        rows.extend(self.owners.iter().map(|o| {
            let name = format!("{} {}", o.place, o.whose).trim().to_owned();
            [name, o.pool.to_string(), o.frames.to_string(), seconds(o.oldest_ms)]
        }));
        table(f, &rows)?;
        if !self.interfaces.is_empty() {
            let heading =
                ["interface", "rx", "errors", "dropped", "fifo", "tx", "errors", "dropped"];
            let mut rows = vec![heading.map(String::from)];
            rows.extend(self.interfaces.iter().map(|i| {
                let t = &i.traffic;
                let [a, b, c, d] = [t.rx_packets, t.rx_errors, t.rx_dropped, t.rx_fifo];
                let [e, g, h] = [t.tx_packets, t.tx_errors, t.tx_dropped];
                let [a, b, c, d, e, g, h] = [a, b, c, d, e, g, h].map(|n| n.to_string());
                [i.interface.clone(), a, b, c, d, e, g, h]
            }));
            table(f, &rows)?;
        }
        let hex = f.alternate();
        self.oldest.iter().try_for_each(|frame| match hex {
            true => writeln!(f, "  {frame:#}"),
            false => writeln!(f, "  {frame}"),
        })
    }
}

impl fmt::Display for Frame {
    /// With `{:#}` its bytes, too.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frame, place, whose, age_ms, packet, hex, .. } = self;
        write!(f, "frame {frame}, {place} {whose} for {}: {packet}", seconds(*age_ms))?;
        if f.alternate() {
            write!(f, "\n    {hex}")?;
        }
        Ok(())
    }
}
