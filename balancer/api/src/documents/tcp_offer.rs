//! What is offered in TCP handshakes: part of `ringway.status/1` and `ringway.shield/1`.

use std::fmt;

use ringway_plan::tables::SynOffer;
use serde::{Deserialize, Serialize};

/// Options of a backend's handshakes, or of answers in the name of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpOffer {
    /// Largest segment without options (MSS); null: not known.
    pub mss_bytes: Option<u16>,
    /// RFC 7323
    pub timestamps: bool,
    /// RFC 2018
    pub selective_ack: bool,
    /// RFC 3168
    pub ecn: bool,
}

impl From<SynOffer> for TcpOffer {
    fn from(SynOffer { mss, stamps, sack, ecn }: SynOffer) -> TcpOffer {
        let mss_bytes = Some(mss).filter(|mss| *mss > 0);
        TcpOffer { mss_bytes, timestamps: stamps, selective_ack: sack, ecn }
    }
}

impl fmt::Display for TcpOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mss_bytes {
            Some(bytes) => write!(f, "MSS {bytes}")?,
            None => f.write_str("MSS unknown")?,
        }
        let options =
            [(self.selective_ack, "SACK"), (self.timestamps, "timestamps"), (self.ecn, "ECN")];
        options
            .iter()
            .filter(|(offered, _)| *offered)
            .try_for_each(|(_, name)| write!(f, ", {name}"))
    }
}
