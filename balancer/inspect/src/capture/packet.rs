//! A captured packet with the names of what was decided about it.

use ringway_abi::{Reason, Verdict};

use crate::headers::Headers;

/// A packet: as it came, what became of it, and as it leaves where that is otherwise.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// When, nanoseconds since 1970.
    pub unix_ns: u64,
    pub fate: &'a Fate,
    /// As it came.
    pub before: Frame<'a>,
    /// As it leaves; absent when it was dropped, or passed on as it came.
    pub after: Option<Frame<'a>>,
}

/// The fate of a packet; many have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    pub verdict: Verdict,
    pub reason: Reason,
    pub service: Option<String>,
    /// Address and port of its backend.
    pub backend: Option<String>,
    /// All of it in words: `redirect nat-forward, service web, backend 10.0.0.2:80`.
    pub words: String,
}

/// A frame on an interface.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    pub slot: u32,
    pub interface: &'a str,
    /// It has no Ethernet header.
    pub raw: bool,
    /// As much of it as was captured.
    pub bytes: &'a [u8],
    pub wire_len: u32,
}

impl Fate {
    /// One of these parts.
    pub fn new(
        verdict: Verdict,
        reason: Reason,
        service: Option<String>,
        backend: Option<String>,
    ) -> Fate {
        let mut words = format!("{verdict} {reason}");
        for (what, name) in [("service", &service), ("backend", &backend)] {
            if let Some(name) = name {
                words += &format!(", {what} {name}");
            }
        }
        Fate { verdict, reason, service, backend, words }
    }
}

impl Frame<'_> {
    /// Its headers; `None`: it is not IP.
    pub fn headers(&self) -> Option<Headers> {
        let cut = (self.wire_len as usize).saturating_sub(self.bytes.len());
        Headers::of(self.bytes, self.raw, cut)
    }

    /// The fate in words.
    pub fn words(&self) -> String {
        if let Some(headers) = self.headers() {
            return headers.to_string();
        }
        let kind = self.bytes.get(12..14).filter(|_| !self.raw);
        match kind.map(|kind| u16::from_be_bytes([kind[0], kind[1]])) {
            Some(0x0806) => format!("arp, {} bytes", self.wire_len),
            Some(kind) => format!("ethertype {kind:#06x}, {} bytes", self.wire_len),
            None => format!("{} bytes", self.wire_len),
        }
    }
}
