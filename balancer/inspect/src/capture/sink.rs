//! One output of a capture: what it is written as, and where to.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;

use ringway_api::error::Error;

use super::lines::Printer;
use super::names::Interface;
use super::options::{CaptureOptions, CaptureTarget};
use super::packet::Packet;
use super::pcapng::{Pcapng, Totals};
use crate::capture::output::{Output, OutputPieces, Stopped};

#[derive(Debug)]
pub struct Sink {
    outlet: Output,
    pieces: OutputPieces,
    kind: Kind,
    /// Packets lost since the last one.
    pub missing: u64,
}

#[derive(Debug)]
enum Kind {
    Pcapng(Pcapng),
    Text(Printer),
}

impl Sink {
    /// Every output that is asked for, the one that packets are counted by first.
    ///
    /// # Errors
    /// One cannot be opened.
    pub fn open(
        options: &CaptureOptions,
        interfaces: &[Interface],
        slot: Option<u32>,
    ) -> Result<Vec<Sink>, Error> {
        let mut sinks = Vec::new();
        if let Some(target) = &options.target {
            let outlet = match target {
                CaptureTarget::File(path) => Output::create(path, options.overwrite)?,
                CaptureTarget::Stdout => {
                    refuse_terminal()?;
                    Output::stdout()?
                }
            };
            sinks.push(Sink::pcapng(outlet, options, interfaces, slot));
        }
        if let Some(form) = options.form {
            let kind = Kind::Text(Printer::new(form));
            sinks.push(Sink {
                outlet: Output::stdout()?,
                pieces: OutputPieces::default(),
                kind,
                missing: 0,
            });
        }
        Ok(sinks)
    }

    /// Every interface that packets may come by is described before any packet, so that a reader
    /// can show them when none has come.
    fn pcapng(
        outlet: Output,
        options: &CaptureOptions,
        interfaces: &[Interface],
        slot: Option<u32>,
    ) -> Sink {
        let mut pieces = OutputPieces::default();
        let mut pcapng = Pcapng::begin(&mut pieces.bytes, &options.filter, options.snaplen);
        for one in interfaces.iter().filter(|one| slot.is_none_or(|slot| slot == one.slot)) {
            pcapng.interface(&mut pieces.bytes, one.slot, one.layer3, &one.name);
        }
        pieces.end_head();
        Sink { outlet, pieces, kind: Kind::Pcapng(pcapng), missing: 0 }
    }

    pub fn packet(&mut self, packet: &Packet<'_>) {
        let bytes = &mut self.pieces.bytes;
        match &mut self.kind {
            Kind::Pcapng(pcapng) => pcapng.packet(bytes, packet, self.missing),
            Kind::Text(printer) => printer.packet(bytes, packet),
        }
        self.missing = 0;
        self.pieces.end_packet();
    }

    /// Adds what a file ends with.
    pub fn statistics(&mut self, received: impl Fn(u32) -> Option<u64>, all: &Totals) {
        if let Kind::Pcapng(pcapng) = &self.kind {
            pcapng.statistics(&mut self.pieces.bytes, received, all);
            self.pieces.end_head();
        }
    }

    /// Writes what was added.
    ///
    /// # Errors
    /// Why it went no further.
    pub fn write(&mut self, stop: &AtomicBool) -> Result<(), Stopped> {
        self.outlet.write(&mut self.pieces, stop)
    }

    /// Bytes that are not written yet.
    pub fn waiting_bytes(&self) -> usize {
        self.pieces.bytes.len()
    }

    /// Bytes that are written.
    pub fn bytes_written(&self) -> u64 {
        self.outlet.written().0
    }

    /// Packets that are written.
    pub fn packets_written(&self) -> u64 {
        self.outlet.written().1
    }

    /// Whether nobody will read it.
    pub fn is_closed(&self) -> bool {
        self.outlet.is_closed()
    }

    pub fn name(&self) -> &str {
        self.outlet.name()
    }
}

fn refuse_terminal() -> Result<(), Error> {
    if !std::io::stdout().is_terminal() {
        return Ok(());
    }
    Err(Error::configuration(
        "a terminal cannot show a pcapng file",
        "write `... -w - | tcpdump -nr -`, or leave out -w to have packets printed",
    ))
}
