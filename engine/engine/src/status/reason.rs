//! Why a packet was dropped.

use std::fmt;

use ringway_wire::{BuildError, Layer, Malformed};
use ringway_xsk::NoRoom;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $reason:ident = $name:literal,)* own: $($own:ident)*) => {
        /// Why a packet was dropped; counted by worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[doc = $doc])+ $reason,)* $(#[doc(hidden)] $own,)* }

        impl Reason {
            /// All there are, beside those of apps of your own.
            pub const ALL: &[Reason] = &[$(Reason::$reason,)*];
            const OWN: &[Reason] = &[$(Reason::$own,)*];

            /// As it is written in tables and JSON.
            pub fn name(self) -> &'static str {
                match self { $(Reason::$reason => $name,)* $(Reason::$own)|* => "own" }
            }

            pub fn explanation(self) -> &'static str {
                match self {
                    $(Reason::$reason => concat!($($doc,)+).trim_ascii(),)*
                    $(Reason::$own)|* => "A reason of the app's own.",
                }
            }
        }
    };
}

reasons! {
    /// The app is where packets end, and wanted it.
    Consumed = "consumed",
    /// Shorter than an Ethernet header.
    MalformedEthernet = "malformed-ethernet",
    /// It ends within a VLAN tag.
    MalformedVlan = "malformed-vlan",
    /// ARP that is not between Ethernet and IPv4, or is cut off.
    MalformedArp = "malformed-arp",
    /// An IPv4 header whose version or lengths cannot be.
    MalformedIpv4 = "malformed-ipv4",
    /// An IPv6 header whose version or lengths cannot be.
    MalformedIpv6 = "malformed-ipv6",
    /// An IPv6 extension header that cannot be.
    MalformedIpv6Extension = "malformed-ipv6-extension",
    /// ICMP that is cut off.
    MalformedIcmp = "malformed-icmp",
    /// ICMPv6 or neighbour discovery that cannot be.
    MalformedIcmpv6 = "malformed-icmpv6",
    /// UDP whose length cannot be.
    MalformedUdp = "malformed-udp",
    /// Any other header that cannot be.
    MalformedOther = "malformed-other",
    /// A checksum is wrong, or one that must be there is missing.
    BadChecksum = "bad-checksum",
    /// It was sent to another link-layer address.
    OtherMac = "other-mac",
    /// It was sent to another IP address, or looks for one.
    OtherAddress = "other-address",
    /// Nothing here speaks its protocol.
    OtherProtocol = "other-protocol",
    /// A fragment; nothing here puts them together.
    Fragment = "fragment",
    /// It has IPv4 options or IPv6 extension headers, which are not answered.
    Options = "options",
    /// Its source address is no host's: answering would reach many, or nobody.
    BadSource = "bad-source",
    /// The payload is not a request of the app's protocol.
    BadRequest = "bad-request",
    /// Its client is none that the app knows.
    UnknownClient = "unknown-client",
    /// It lies in several frames, which the app does not read.
    SeveralFrames = "several-frames",
    /// The frame has no room for the answer.
    NoRoom = "no-room",
    /// The app forwarded it to a port that the worker does not have.
    NoSuchPort = "no-such-port",
    /// The port took no more, for longer than packets can wait for it.
    PortFull = "port-full",
    /// The port cannot send it: shorter than an Ethernet header, longer than its interface's MTU
    /// allows, or of another pool.
    Unsendable = "unsendable",
    /// The port failed while it was to be sent.
    PortFailed = "port-failed",
    /// The app did not decide about it.
    Undecided = "undecided",
    /// It waited to be sent when the worker ended.
    Stopped = "stopped",
    /// It was sent to a UDP port on which nothing here listens. Its sender is not told: no port
    /// unreachable.
    OtherPort = "other-port",
    own: Own0 Own1 Own2 Own3 Own4 Own5 Own6 Own7 Own8 Own9 Own10 Own11 Own12 Own13 Own14 Own15
}

impl Reason {
    /// How many there are, those of apps included.
    pub(crate) const COUNT: usize = Self::ALL.len() + Self::OWN.len();

    /// A reason of an app's own, named by [`crate::App::reasons`]. Best a constant:
    ///
    /// ```
    /// use ringway_engine::{App, Burst, Cycles, Reason, Verdict};
    ///
    /// const NO_QUESTION: Reason = Reason::own(0);
    ///
    /// struct Resolver;
    ///
    /// impl App for Resolver {
    ///     fn name(&self) -> &'static str {
    ///         "resolver"
    ///     }
    ///
    ///     fn reasons(&self) -> &'static [&'static str] {
    ///         &["no-question"]
    ///     }
    ///
    ///     fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
    ///         burst.decide(|_packet| Verdict::Drop(NO_QUESTION));
    ///     }
    /// }
    /// ```
    ///
    /// # Panics
    /// Where `n` is above 15.
    pub const fn own(n: u8) -> Self {
        Self::OWN[n as usize]
    }

    /// Each, in the order of their numbers.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::ALL.iter().chain(Self::OWN).copied()
    }

    /// Its name in an app that calls its own reasons so.
    pub(crate) fn name_in(self, own: &[&'static str]) -> &'static str {
        let n = (self as usize).checked_sub(Self::ALL.len());
        n.and_then(|n| own.get(n)).copied().unwrap_or(self.name())
    }
}

impl From<NoRoom> for Reason {
    fn from(_: NoRoom) -> Self {
        Reason::NoRoom
    }
}

/// A packet that an app builds is too long for its frame, or for the header's length field.
impl From<BuildError> for Reason {
    fn from(_: BuildError) -> Self {
        Reason::NoRoom
    }
}

impl From<Malformed> for Reason {
    fn from(malformed: Malformed) -> Self {
        match malformed.layer {
            Layer::Ethernet => Reason::MalformedEthernet,
            Layer::Vlan => Reason::MalformedVlan,
            Layer::Arp => Reason::MalformedArp,
            Layer::Ipv4 => Reason::MalformedIpv4,
            Layer::Ipv6 => Reason::MalformedIpv6,
            Layer::Ipv6Extension => Reason::MalformedIpv6Extension,
            Layer::Icmp => Reason::MalformedIcmp,
            Layer::Icmpv6 | Layer::NeighbourDiscovery => Reason::MalformedIcmpv6,
            Layer::Udp => Reason::MalformedUdp,
            _ => Reason::MalformedOther,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_name_and_says_what_it_means() {
        for (n, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, n);
            assert_eq!(reason.name_in(&["mine"]), reason.name());
            assert!(reason.explanation().ends_with('.'), "{reason}");
            assert!(Reason::ALL[..n].iter().all(|other| other.name() != reason.name()), "{reason}");
        }
    }
    #[test]
    fn an_apps_own_are_counted_behind_the_others() {
        let names = (0..16).map(|n| Reason::own(n).name_in(&["first", "second"]));
        assert!(names.eq(["first", "second"].into_iter().chain(["own"; 14])));
        assert_eq!(Reason::own(15) as usize + 1, Reason::COUNT);
    }
}
