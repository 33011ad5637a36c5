//! Stderr that is never waited for: a reader that does not read costs lines, not the daemon's time.
//!
//! Where systemd's journal reads it, each line begins with its priority: sd-daemon(3), `<4>`.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use ringway_terminal::journal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// A pipe that is ready takes so much without waiting (PIPE_BUF).
const PIECE: usize = 4096;

#[derive(Debug)]
pub struct Stderr {
    journal: bool,
    /// Lines that nobody would read, since the last that was written.
    lost: Mutex<u64>,
}

impl Stderr {
    pub fn new() -> Stderr {
        Stderr::of(journal::reads_stderr())
    }

    /// One that the journal reads, or somebody else.
    fn of(journal: bool) -> Stderr {
        Stderr { journal, lost: Mutex::default() }
    }

    pub fn is_journal(&self) -> bool {
        self.journal
    }

    /// Writes one event to a descriptor, or counts it as lost. What was lost before is told first.
    fn put(&self, to: &impl AsFd, priority: u8, text: &[u8]) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if *lost > 0 {
            let news = format!("{lost} lines of this log were lost: nobody read it in time\n");
            if !write(to, &self.lines(4, news.as_bytes())) {
                *lost += 1;
                return;
            }
            *lost = 0;
        }
        if !write(to, &self.lines(priority, text)) {
            *lost += 1;
        }
    }

    /// A text as the reader wants its lines.
    fn lines(&self, priority: u8, text: &[u8]) -> Vec<u8> {
        if self.journal { journal::marked(priority, text) } else { text.to_vec() }
    }
}

/// Whether all of it was taken without waiting; the rest of a text whose beginning was taken is not
/// tried again.
fn write(to: &impl AsFd, text: &[u8]) -> bool {
    text.chunks(PIECE).all(|piece| is_ready(to) && write_all(to, piece))
}

fn write_all(to: &impl AsFd, mut piece: &[u8]) -> bool {
    while !piece.is_empty() {
        match rustix::io::write(to, piece) {
            Ok(length) => piece = &piece[length..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

fn is_ready(to: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(to, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::OUT)
}

/// syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

#[derive(Debug)]
pub struct Event<'s> {
    stderr: &'s Stderr,
    priority: u8,
}

impl Write for Event<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.stderr.put(&io::stderr(), self.priority, text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'s> MakeWriter<'s> for Stderr {
    type Writer = Event<'s>;

    fn make_writer(&'s self) -> Event<'s> {
        Event { stderr: self, priority: priority(Level::INFO) }
    }

    fn make_writer_for(&'s self, about: &Metadata<'_>) -> Event<'s> {
        Event { stderr: self, priority: priority(*about.level()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_journal_gets_a_priority_for_each_line() {
        let text = b"first\n  second\n";
        assert_eq!(Stderr::of(true).lines(4, text), b"<4>first\n<4>  second\n");
        assert_eq!(Stderr::of(false).lines(4, text), text);
        let priorities = [Level::ERROR, Level::WARN, Level::INFO, Level::TRACE].map(priority);
        assert_eq!(priorities, [3, 4, 6, 7]);
    }

    #[test]
    fn a_reader_that_does_not_read_is_not_waited_for() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let stderr = Stderr::of(false);
        let line = [vec![b'x'; 999], vec![b'\n']].concat();
        // Twice what a pipe holds.
        (0..131).for_each(|_| stderr.put(&writer, 6, &line));
        let lost = *stderr.lost.lock().expect("unpoisoned");
        assert!(lost > 50, "{lost} of 131 lines lost");
        let mut taken = vec![0; (131 - lost as usize) * line.len()];
        reader.read_exact(&mut taken).expect("what was taken");
        stderr.put(&writer, 6, b"again\n");
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).expect("the rest");
        let wanted = format!("{lost} lines of this log were lost: nobody read it in time\nagain\n");
        assert_eq!(rest, wanted);
    }
}
