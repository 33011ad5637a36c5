//! Floods of SYNs: what an answer costs beside that of a bare program, how many a second there are,
//! and what good traffic and backends notice meanwhile.

mod costs;
mod floods;
mod programs;
mod report;
mod scene;

pub(super) use self::report::SynFigures;
use super::Shield;
use crate::Result;
use crate::benches::packet::path::PacketPath;
use crate::harness::Harness;
use crate::harness::named_enum::named;

named! {
    /// Who answers SYNs.
    pub enum Answerer {
        /// An XDP program that turns each SYN into a SYN and ACK.
        BareAnswer = "bare-answer",
        /// The same with a keyed hash as sequence number.
        BareCookie = "bare-cookie",
        /// The first, which redirects its answers, as Ringway has to upon a veth device.
        BareRedirect = "bare-redirect",
        /// Ringway with `syn = "challenge"`.
        Challenge = "challenge",
        /// Ringway with `syn = "proxy"`.
        Proxy = "proxy",
        /// The backend's kernel, behind Ringway without a shield.
        Backend = "backend",
        /// The kernel of the gateway, which has the listener, by its own SYN cookies.
        KernelCookies = "kernel-cookies",
        /// nftables' synproxy, on a gateway whose kernel forwards.
        NftSynproxy = "nft-synproxy",
    }
}

impl Answerer {
    /// How a SYN goes through Ringway that is answered there.
    fn path(self) -> Option<PacketPath> {
        match self {
            Self::Challenge => Some(PacketPath::SynChallenge),
            Self::Proxy => Some(PacketPath::SynProxy),
            _ => None,
        }
    }

    /// `syn` of the service, where Ringway answers.
    fn syn(self) -> Option<&'static str> {
        self.path().and_then(PacketPath::syn)
    }
}

/// By test run, on the calling thread, which has a network namespace of its own.
pub(super) fn costs(bench: &Shield, harness: &mut Harness<'_>) -> Result<Vec<costs::AnswerCost>> {
    costs::measure(bench, harness)
}

/// Over veth pairs.
pub(super) fn floods(bench: &Shield, harness: &mut Harness<'_>) -> Result<Vec<floods::Flooded>> {
    floods::measure(bench, harness)
}
