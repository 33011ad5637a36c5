//! Where a capture is written: a file, or a pipe or terminal that may keep us waiting or go away.

use std::fs::{self, File};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringway_api::error::Error;
use ringway_api::output_file;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a pipe takes without keeping us, once it says that it takes something (PIPE_BUF, pipe(7)).
const MORSEL: usize = 4096;
/// How often a wait for a slow reader looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);

/// Something to write, in pieces that are of no use by half.
#[derive(Debug, Default)]
pub struct OutputPieces {
    /// The bytes; to be appended to.
    pub bytes: Vec<u8>,
    /// Where pieces end, and how many packets each is.
    ends: Vec<(usize, u64)>,
}

impl OutputPieces {
    /// Ends a packet.
    pub fn end_packet(&mut self) {
        self.ends.push((self.bytes.len(), 1));
    }

    /// Ends a part of the file that is no packet.
    pub fn end_head(&mut self) {
        self.ends.push((self.bytes.len(), 0));
    }
}

/// Why nothing more can be written.
#[derive(Debug)]
pub enum Stopped {
    /// The reader has gone away.
    Closed,
    /// It does not read, and we were asked to end.
    Waiting,
    /// The system says no: a full disk.
    Refused(io::Error),
}

/// An open file, pipe or terminal.
#[derive(Debug)]
pub struct Output {
    file: File,
    name: String,
    regular: bool,
    /// Where the file is; standard output has no place.
    path: Option<PathBuf>,
    /// It may keep us waiting, or go away.
    waits: bool,
    /// Bytes and packets written, of whole pieces alone.
    whole: (u64, u64),
}

impl Output {
    /// A new file; in place of one that is there only with `overwrite`.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn create(path: &Path, overwrite: bool) -> Result<Output, Error> {
        let file = output_file::create(path, overwrite)?;
        let outlet = Output::of(file, path.display().to_string());
        Ok(Output { path: Some(path.to_owned()), ..outlet })
    }

    /// Standard output.
    ///
    /// # Errors
    /// It is closed.
    pub fn stdout() -> Result<Output, Error> {
        let out = io::stdout().as_fd().try_clone_to_owned();
        let out: OwnedFd =
            out.map_err(|error| Error::failed(format!("standard output: {error}"), ""))?;
        Ok(Output::of(out.into(), "standard output".to_owned()))
    }

    fn of(file: File, name: String) -> Output {
        let kind = file.metadata().map(|about| about.file_type());
        let regular = kind.as_ref().is_ok_and(|kind| kind.is_file());
        let waits = kind.is_ok_and(|kind| kind.is_fifo() || kind.is_socket()) || file.is_terminal();
        Output { file, name, regular, path: None, waits, whole: (0, 0) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes and packets written.
    pub fn written(&self) -> (u64, u64) {
        self.whole
    }

    /// Whether nobody will ever read what is written.
    pub fn is_closed(&self) -> bool {
        // A file's end without readers is none (poll(2): POLLERR for the write end of a pipe).
        self.waits && self.ready(PollFlags::empty(), Duration::ZERO).contains(PollFlags::ERR)
    }

    /// Writes and forgets the pieces. Gives up on a reader that does not read once `stop` is set.
    /// What is in a regular file afterwards are whole pieces, in every case.
    ///
    /// # Errors
    /// Why it went no further.
    pub fn write(&mut self, pieces: &mut OutputPieces, stop: &AtomicBool) -> Result<(), Stopped> {
        let mut done = 0;
        let outcome = loop {
            if done == pieces.bytes.len() {
                break Ok(());
            }
            match self.some(&pieces.bytes[done..], stop) {
                Ok(n) => done += n,
                Err(stopped) => break Err(stopped),
            }
        };
        let whole = pieces.ends.iter().take_while(|(end, _)| *end <= done);
        let sum = whole.fold((0, 0), |(_, packets), (end, own)| (*end as u64, packets + own));
        self.whole = (self.whole.0 + sum.0, self.whole.1 + sum.1);
        pieces.bytes.clear();
        pieces.ends.clear();
        if outcome.is_err() && self.regular {
            // Half a block at its end would make readers complain of the whole file.
            let _ = self.file.set_len(self.whole.0);
            if let Some(path) = self.path.as_ref().filter(|_| self.whole.0 == 0) {
                // And one without anything in it is no capture.
                let _ = fs::remove_file(path);
            }
        }
        outcome
    }

    fn some(&mut self, bytes: &[u8], stop: &AtomicBool) -> Result<usize, Stopped> {
        let mut bytes = bytes;
        if self.waits {
            while !self.ready(PollFlags::OUT, PATIENCE).intersects(PollFlags::OUT | PollFlags::ERR)
            {
                if stop.load(Ordering::Relaxed) {
                    return Err(Stopped::Waiting);
                }
            }
            bytes = &bytes[..bytes.len().min(MORSEL)];
        }
        match self.file.write(bytes) {
            Ok(0) => Err(Stopped::Refused(ErrorKind::WriteZero.into())),
            Ok(n) => Ok(n),
            Err(error) => match error.kind() {
                ErrorKind::Interrupted | ErrorKind::WouldBlock => Ok(0),
                ErrorKind::BrokenPipe => Err(Stopped::Closed),
                _ => Err(Stopped::Refused(error)),
            },
        }
    }

    fn ready(&self, wanted: PollFlags, timeout: Duration) -> PollFlags {
        let mut fds = [PollFd::new(&self.file, wanted)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        match poll(&mut fds, Some(&timeout)) {
            Ok(1..) => fds[0].revents(),
            _ => PollFlags::empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn pieces(each: &[&[u8]]) -> OutputPieces {
        let mut pieces = OutputPieces::default();
        for piece in each {
            pieces.bytes.extend(*piece);
            pieces.end_packet();
        }
        pieces
    }

    fn pipe() -> (File, Output) {
        let (reader, writer) = io::pipe().expect("a pipe");
        let writer: OwnedFd = writer.into();
        let reader: OwnedFd = reader.into();
        (reader.into(), Output::of(writer.into(), "a pipe".into()))
    }

    #[test]
    fn a_file_takes_whole_pieces() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("capture.pcapng");
        let mut outlet = Output::create(&path, false).expect("created");
        let go = AtomicBool::new(false);
        outlet.write(&mut pieces(&[b"one", b"three"]), &go).expect("written");
        outlet.write(&mut pieces(&[b"five"]), &go).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), b"onethreefive");
        assert_eq!((outlet.written(), outlet.is_closed()), ((12, 3), false));
    }

    /// /dev/full (full(4)) is what a full disk is, but for the half that fitted.
    #[test]
    fn a_full_disk_is_told() {
        let mut outlet = Output::create(Path::new("/dev/full"), false).expect("opened");
        match outlet.write(&mut pieces(&[b"one"]), &AtomicBool::new(false)) {
            Err(Stopped::Refused(error)) => assert_eq!(error.kind(), ErrorKind::StorageFull),
            other => panic!("{other:?}"),
        }
        assert_eq!(outlet.written(), (0, 0));
    }

    /// RLIMIT_FSIZE of the process would be the tests' own: a file that is open for reading refuses
    /// as a full disk does.
    #[test]
    fn a_file_that_takes_nothing_is_not_left_behind() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("capture.pcapng");
        for whole in [0, 7] {
            fs::write(&path, b"earlier").expect("written");
            let file = File::open(&path).expect("opened");
            let outlet = Output::of(file, "a file".into());
            let mut outlet = Output { path: Some(path.clone()), whole: (whole, 0), ..outlet };
            let outcome = outlet.write(&mut pieces(&[b"one"]), &AtomicBool::new(false));
            assert!(matches!(outcome, Err(Stopped::Refused(_))), "{outcome:?}");
            assert_eq!(path.exists(), whole > 0);
        }
    }

    #[test]
    fn a_reader_that_went_away() {
        let (reader, mut outlet) = pipe();
        assert!(!outlet.is_closed());
        drop(reader);
        assert!(outlet.is_closed());
        let outcome = outlet.write(&mut pieces(&[b"one"]), &AtomicBool::new(false));
        assert!(matches!(outcome, Err(Stopped::Closed)), "{outcome:?}");
    }

    #[test]
    fn a_reader_that_does_not_read_keeps_nobody() {
        let (mut reader, mut outlet) = pipe();
        let stop = AtomicBool::new(true);
        let big = vec![7; 1 << 20];
        let outcome = outlet.write(&mut pieces(&[b"small", &big]), &stop);
        assert!(matches!(outcome, Err(Stopped::Waiting)), "{outcome:?}");
        assert_eq!(outlet.written(), (5, 1));
        drop(outlet);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("read");
        assert!(read.starts_with(b"small") && read.len() < big.len());
    }
}
