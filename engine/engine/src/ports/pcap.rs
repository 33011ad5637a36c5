//! `pcap:IN:OUT`: packets out of one capture file into another. Either name may be empty.
//!
//! A packet from a file has its time at the beginning of its frame, in free room, and is in a stage
//! of its own (`CAPTURED`). A port of this worker that writes it to a capture knows by the stage
//! that the time is this packet's, not a former one's.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapHeader, PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, PcapError, TsResolution};
use ringway_xsk::{Batch, MAX_FRAMES, Packet, Place, Pool, Watch};
use tracing::warn;

use crate::app::CAPTURED;
use crate::port::{Port, PortError, PortStatistics};

const REMEDY_READ: &str =
    "give a capture of Ethernet in pcap format (editcap -F pcap turns others into it)";
const REMEDY_WRITE: &str = "choose another place to write to";
const REMEDY_OPEN: &str = "give the path of a capture that this user may read";
/// Bytes of a time, in nanoseconds since 1970.
const TIME: usize = size_of::<u64>();

/// Capture files in place of an interface.
pub struct Pcap {
    name: String,
    pool: Pool,
    input: Option<Input>,
    output: Option<(PathBuf, PcapWriter<BufWriter<File>>)>,
    /// The longest packet there can be.
    longest: usize,
    /// Where a packet of several frames is put together.
    joined: Vec<u8>,
    /// Where the stages of packets are read.
    watch: Watch,
    statistics: PortStatistics,
}

/// A file that is read.
struct Input {
    path: PathBuf,
    reader: PcapReader<BufReader<File>>,
    /// The packet read last, from 1.
    number: u64,
    bytes: Vec<u8>,
    /// Its time, since 1970.
    time: Duration,
    /// There was no frame for it yet.
    waits: bool,
}

impl Input {
    /// Reads the next packet, if the last one does not wait. False at the end of the file.
    fn read(&mut self, port: &str) -> Result<bool, PortError> {
        if self.waits {
            return Ok(true);
        }
        self.number += 1;
        let resolution = self.reader.header().ts_resolution;
        match self.reader.next_raw_packet() {
            None => return Ok(false),
            Some(Err(PcapError::IoError(e))) if e.kind() == ErrorKind::UnexpectedEof => {
                return Err(PortError::Truncated {
                    port: port.into(),
                    packet: self.number,
                    file: self.path.display().to_string(),
                });
            }
            Some(Err(source)) => return Err(capture(port, &self.path, source, REMEDY_READ)),
            Some(Ok(raw)) => {
                self.bytes.clear();
                self.bytes.extend_from_slice(&raw.data);
                let nanoseconds = match resolution {
                    TsResolution::MicroSecond => 1000,
                    TsResolution::NanoSecond => 1,
                };
                let fraction = u64::from(raw.ts_frac) * nanoseconds;
                self.time = Duration::from_secs(raw.ts_sec.into()) + Duration::from_nanos(fraction);
            }
        }
        self.waits = true;
        Ok(true)
    }
}

/// A file, however it is named: its device and inode, or of one that is not there yet those of its
/// directory, and its name.
#[derive(PartialEq, Eq)]
struct Identity(u64, u64, Option<OsString>);

impl Identity {
    /// None of what cannot be overwritten: terminals, pipes, places that are not there.
    fn of(path: &Path) -> Option<Self> {
        if let Ok(there) = fs::metadata(path) {
            return there.is_file().then(|| Self(there.dev(), there.ino(), None));
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = fs::metadata(directory.unwrap_or(Path::new("."))).ok()?;
        Some(Self(directory.dev(), directory.ino(), Some(path.file_name()?.into())))
    }
}

/// Of files to be read and to be written: one to be written that is another one of them, by
/// whatever name or link, and that other one. To be asked before any is opened.
pub fn written_over<'a>(
    read: impl IntoIterator<Item = &'a Path>,
    written: impl IntoIterator<Item = &'a Path>,
) -> Option<(&'a Path, &'a Path)> {
    let known = |path: &'a Path| Identity::of(path).map(|identity| (path, identity));
    let mut others: Vec<_> = read.into_iter().filter_map(known).collect();
    for (path, identity) in written.into_iter().filter_map(known) {
        if let Some((other, _)) = others.iter().find(|(_, other)| *other == identity) {
            return Some((path, other));
        }
        others.push((path, identity));
    }
    None
}

impl Pcap {
    /// Opens the files; the former contents of `output` are lost.
    ///
    /// # Errors
    /// A file cannot be read or written, is no capture of Ethernet, or both are one file.
    pub fn open(
        name: String,
        pool: &Pool,
        input: Option<&Path>,
        output: Option<&Path>,
    ) -> Result<Self, PortError> {
        // Without an output it ends in a colon.
        let shown = name.trim_end_matches(':');
        if let Some((written, _)) = written_over(input, output) {
            let why = format!("{} is the file that it reads, too", written.display());
            let remedy = "give it another file to write to";
            return Err(PortError::Refused { port: shown.into(), why, remedy });
        }
        let input = input.map(|path| reader(shown, path)).transpose()?;
        let output = output.map(|path| writer(shown, path)).transpose()?;
        let frames = MAX_FRAMES.min(pool.free() as usize);
        let longest = frames * pool.umem().room() as usize;
        // So that nothing is allocated later.
        let joined = Vec::with_capacity(pool.umem().chunk().bytes() as usize * MAX_FRAMES);
        pool.name_stage(CAPTURED, "pcap: read");
        let (pool, watch) = (pool.clone(), pool.umem().watch());
        let statistics = PortStatistics::default();
        Ok(Self { name, pool, input, output, longest, joined, watch, statistics })
    }

    /// The next packet of the file; none at its end, or if no frame is free.
    fn next(&mut self) -> Result<Option<Packet>, PortError> {
        while let Some(input) = &mut self.input {
            match input.read(&self.name) {
                Ok(true) => (),
                Ok(false) => self.input = None,
                Err(error) => {
                    self.input = None;
                    return Err(error);
                }
            }
            let Some(input) = &mut self.input else { break };
            if input.bytes.len() > self.longest {
                input.waits = false;
                too_long(&self.name, &mut self.statistics, input.bytes.len(), self.longest);
                continue;
            }
            let Some(mut packet) = self.pool.allocate() else { break };
            if packet.append(&input.bytes).is_err() {
                break;
            }
            input.waits = false;
            // It ends in the year 2554.
            let time = (input.time.as_nanos() as u64).to_ne_bytes();
            packet.set_stage(CAPTURED);
            packet.buffer_mut()[..TIME].copy_from_slice(&time);
            return Ok(Some(packet));
        }
        self.statistics.no_frame_times += u64::from(self.input.is_some());
        Ok(None)
    }

    /// The time of a captured packet; none if it was not captured, or its room for the time is
    /// taken.
    fn captured(&self, packet: &mut Packet) -> Option<Duration> {
        let record = self.watch.record(packet.frame())?;
        let known = (record.place, record.stage) == (Place::Held, CAPTURED);
        let time = packet.buffer_mut().first_chunk().filter(|_| known)?;
        let time = Duration::from_nanos(u64::from_ne_bytes(*time));
        (packet.headroom() >= TIME).then_some(time)
    }

    fn write(&mut self, packet: &mut Packet) -> Result<(), PortError> {
        let captured = self.output.is_some().then(|| self.captured(packet)).flatten();
        let Some((path, writer)) = &mut self.output else { return Ok(()) };
        self.joined.clear();
        packet.segments().for_each(|bytes| self.joined.extend_from_slice(bytes));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = captured.unwrap_or_else(now);
        // A packet has far fewer bytes; the format's seconds end in 2106.
        let len = self.joined.len() as u32;
        let (ts_sec, ts_frac) = (time.as_secs() as u32, time.subsec_nanos());
        let data = self.joined.as_slice().into();
        let raw = RawPcapPacket { ts_sec, ts_frac, incl_len: len, orig_len: len, data };
        let written = writer.write_raw_packet(&raw).map(drop);
        written.map_err(|source| capture(&self.name, path, source, REMEDY_WRITE))
    }
}

/// Counts a packet that cannot come in, and logs the first one.
pub(super) fn too_long(port: &str, statistics: &mut PortStatistics, bytes: usize, longest: usize) {
    statistics.too_long_packets += 1;
    if statistics.too_long_packets == 1 {
        warn!(
            "{port}: a packet of {bytes} bytes is left out, as all that are longer than {MAX_FRAMES} frames take ({longest} bytes); \
             counted as too long: `--frame-size 4096` takes longer ones"
        );
    }
}

fn capture(port: &str, path: &Path, source: PcapError, remedy: &'static str) -> PortError {
    PortError::Capture { port: port.into(), file: path.display().to_string(), source, remedy }
}

/// The error of the system, which [`PcapError`] does not show.
fn not_opened(
    port: &str,
    verb: &str,
    path: &Path,
    error: io::Error,
    remedy: &'static str,
) -> PortError {
    let why = format!("{verb} {}: {error}", path.display());
    PortError::Refused { port: port.into(), why, remedy }
}

fn reader(port: &str, path: &Path) -> Result<Input, PortError> {
    let failed = |source| capture(port, path, source, REMEDY_READ);
    let file = File::open(path).map_err(|e| not_opened(port, "reading", path, e, REMEDY_OPEN))?;
    let reader = PcapReader::new(BufReader::new(file)).map_err(failed)?;
    match reader.header().datalink {
        DataLink::ETHERNET => {
            let (path, bytes, time) = (path.into(), Vec::new(), Duration::ZERO);
            Ok(Input { path, reader, number: 0, bytes, time, waits: false })
        }
        other => Err(PortError::Refused {
            port: port.into(),
            why: format!("{} is a capture of {other:?}, not of Ethernet", path.display()),
            remedy: "capture on an Ethernet interface",
        }),
    }
}

fn writer(port: &str, path: &Path) -> Result<(PathBuf, PcapWriter<BufWriter<File>>), PortError> {
    let failed = |source| capture(port, path, source, REMEDY_WRITE);
    let file =
        File::create(path).map_err(|e| not_opened(port, "writing", path, e, REMEDY_WRITE))?;
    let header = PcapHeader { ts_resolution: TsResolution::NanoSecond, ..PcapHeader::default() };
    Ok((path.into(), PcapWriter::with_header(BufWriter::new(file), header).map_err(failed)?))
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while batch.room() > 0 {
            let Some(packet) = self.next()? else { break };
            self.statistics.received_packets += 1;
            // There was room.
            let _ = batch.push(packet);
        }
        Ok(batch.len() - before)
    }

    /// Without an output all is sent to nowhere.
    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len();
        for mut packet in batch.drain() {
            self.write(&mut packet)?;
            self.statistics.transmitted_packets += 1;
        }
        Ok(count)
    }

    fn statistics(&mut self) -> PortStatistics {
        self.statistics
    }

    fn is_finished(&self) -> bool {
        self.input.is_none()
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        let Some((path, writer)) = self.output.take() else { return };
        if let Err(error) = writer.into_writer().flush() {
            eprintln!("{}: {}: {error}; {REMEDY_WRITE}", self.name, path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_xsk::{Umem, UmemConfig};

    fn pool() -> Pool {
        Umem::new(&UmemConfig::default()).unwrap().pool().unwrap()
    }

    #[test]
    fn out_of_one_file_into_another() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("1.pcap"), dir.path().join("2.pcap"));
        let pool = pool();
        let mut batch = Batch::new(8);
        for len in [60, 1514, 9000] {
            let mut packet = pool.allocate().unwrap();
            packet.append(&vec![len as u8; len]).unwrap();
            batch.push(packet).unwrap();
        }
        let mut port = Pcap::open("pcap::1".into(), &pool, None, Some(&one)).unwrap();
        assert!(port.is_finished());
        assert_eq!(port.tx_burst(&mut batch).unwrap(), 3);
        drop(port);
        let mut port = Pcap::open("pcap:1:2".into(), &pool, Some(&one), Some(&two)).unwrap();
        assert_eq!(port.rx_burst(&mut batch).unwrap(), 3);
        let read: Vec<_> = batch.iter().map(|p| (p.len(), p.data()[0])).collect();
        assert_eq!(read, [(60, 60), (1514, 1514_usize as u8), (9000, 9000_usize as u8)]);
        assert_eq!(port.rx_burst(&mut batch).unwrap(), 0);
        assert!(port.is_finished());
        assert_eq!(port.tx_burst(&mut batch).unwrap(), 3);
        drop(port);
        assert_eq!(std::fs::metadata(&one).unwrap().len(), std::fs::metadata(&two).unwrap().len());
        let audit = pool.audit(&[]);
        assert!(audit.balanced() && audit.found.held == 0, "{audit}");
    }

    #[test]
    fn files_that_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none.pcap");
        let text = dir.path().join("text.pcap");
        std::fs::write(&text, "no capture, but a text of more than one header's length").unwrap();
        let open = |path: &Path| {
            Pcap::open("pcap:x:".into(), &pool(), Some(path), None).err().unwrap().to_string()
        };
        let error = open(&text);
        assert!(error.contains("text.pcap") && error.contains("editcap"), "{error}");
        let error = open(&none);
        let missing = format!("pcap:x: reading {}: No such file", none.display());
        assert!(error.starts_with(&missing) && !error.contains("editcap"), "{error}");
        let error = Pcap::open("pcap::x".into(), &pool(), None, Some(dir.path())).err().unwrap();
        assert!(error.to_string().contains("another place"), "{error}");
    }
}
