//! `pcap:IN:OUT`: packets out of one capture file into another. Either name may be empty.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use pcap_file::pcap::{PcapReader, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, PcapError};
use ringway_xsk::{Batch, MAX_FRAMES, Packet, Pool};

use crate::port::{Port, PortError, PortStatistics};

const REMEDY_READ: &str =
    "give a capture of Ethernet in pcap format (editcap -F pcap turns others into it)";
const REMEDY_WRITE: &str = "choose another place to write to";

/// Capture files in place of an interface.
pub struct Pcap {
    name: String,
    pool: Pool,
    input: Option<(PathBuf, PcapReader<BufReader<File>>)>,
    output: Option<(PathBuf, PcapWriter<BufWriter<File>>)>,
    /// Where a packet of several frames is put together.
    joined: Vec<u8>,
    statistics: PortStatistics,
}

impl Pcap {
    /// Opens the files; what `output` held before is lost.
    ///
    /// # Errors
    /// Where a file cannot be read or written, or is no capture of Ethernet.
    pub fn open(
        name: String,
        pool: &Pool,
        input: Option<&Path>,
        output: Option<&Path>,
    ) -> Result<Self, PortError> {
        let input = input.map(|path| reader(&name, path)).transpose()?;
        let output = output.map(|path| writer(&name, path)).transpose()?;
        // The longest packet there can be, so that nothing is allocated later.
        let joined = Vec::with_capacity(pool.umem().chunk().bytes() as usize * MAX_FRAMES);
        let statistics = PortStatistics::default();
        Ok(Self { name, pool: pool.clone(), input, output, joined, statistics })
    }

    /// The next packet of the file; none at its end.
    fn next(&mut self) -> Result<Option<Packet>, PortError> {
        let Some((path, reader)) = &mut self.input else { return Ok(None) };
        // First, since what was read cannot be put back.
        let Some(mut packet) = self.pool.allocate() else {
            self.statistics.no_frame_times += 1;
            return Ok(None);
        };
        match reader.next_raw_packet() {
            Some(Ok(raw)) => {
                if packet.append(&raw.data).is_err() {
                    self.statistics.no_frame_times += 1;
                    return Ok(None);
                }
                Ok(Some(packet))
            }
            Some(Err(source)) => Err(capture(&self.name, path, source, REMEDY_READ)),
            None => {
                self.input = None;
                Ok(None)
            }
        }
    }

    fn write(&mut self, packet: &Packet) -> Result<(), PortError> {
        let Some((path, writer)) = &mut self.output else { return Ok(()) };
        self.joined.clear();
        packet.segments().for_each(|bytes| self.joined.extend_from_slice(bytes));
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A packet has far fewer bytes; the format's seconds end in 2106.
        let len = self.joined.len() as u32;
        let (ts_sec, ts_frac) = (time.as_secs() as u32, time.subsec_micros());
        let data = self.joined.as_slice().into();
        let raw = RawPcapPacket { ts_sec, ts_frac, incl_len: len, orig_len: len, data };
        let written = writer.write_raw_packet(&raw).map(drop);
        written.map_err(|source| capture(&self.name, path, source, REMEDY_WRITE))
    }
}

fn capture(port: &str, path: &Path, source: PcapError, remedy: &'static str) -> PortError {
    PortError::Capture { port: port.into(), file: path.display().to_string(), source, remedy }
}

fn reader(port: &str, path: &Path) -> Result<(PathBuf, PcapReader<BufReader<File>>), PortError> {
    let failed = |source| capture(port, path, source, REMEDY_READ);
    let file = File::open(path).map_err(|e| failed(PcapError::IoError(e)))?;
    let reader = PcapReader::new(BufReader::new(file)).map_err(failed)?;
    match reader.header().datalink {
        DataLink::ETHERNET => Ok((path.into(), reader)),
        other => Err(PortError::Refused {
            port: port.into(),
            why: format!("{} is a capture of {other:?}, not of Ethernet", path.display()),
            remedy: "capture on an Ethernet interface",
        }),
    }
}

fn writer(port: &str, path: &Path) -> Result<(PathBuf, PcapWriter<BufWriter<File>>), PortError> {
    let failed = |source| capture(port, path, source, REMEDY_WRITE);
    let file = File::create(path).map_err(|e| failed(PcapError::IoError(e)))?;
    Ok((path.into(), PcapWriter::new(BufWriter::new(file)).map_err(failed)?))
}

impl Port for Pcap {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        while batch.room() > 0 {
            let Some(packet) = self.next()? else { break };
            // There was room.
            let _ = batch.push(packet);
        }
        self.statistics.received_packets += (batch.len() - before) as u64;
        Ok(batch.len() - before)
    }

    /// Without an output all is sent to nowhere.
    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len();
        for packet in batch.drain() {
            self.write(&packet)?;
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
        let open = |path: &Path| Pcap::open("pcap:x:".into(), &pool(), Some(path), None);
        for path in [&none, &text] {
            let error = open(path).err().unwrap().to_string();
            assert!(
                error.contains(&path.display().to_string()) && error.contains("editcap"),
                "{error}"
            );
        }
        let error = Pcap::open("pcap::x".into(), &pool(), None, Some(dir.path())).err().unwrap();
        assert!(error.to_string().contains("another place"), "{error}");
    }
}
