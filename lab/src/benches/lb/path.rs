//! The ways from the client to the backends.

use crate::Error;
use crate::harness::named::named;

/// One way from the client to the two backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// No balancer: the client's own multipath route spreads connections over the two backends.
    Direct,
    /// nginx's stream module, one worker.
    NginxStream,
    /// HAProxy in tcp mode, one thread.
    Haproxy,
    /// nftables: DNAT and masquerade.
    Nftables,
    /// IPVS in masquerading mode.
    Ipvs,
    /// The fixed rewriter, generic XDP, in the balancer's container.
    BareGeneric,
    /// The fixed rewriter, native XDP, in the balancer's container.
    BareNative,
    /// Ringway, generic XDP, in the balancer's container.
    RingwayGeneric,
    /// Ringway, native XDP, in the balancer's container.
    RingwayNative,
    /// Ringway, native XDP, at the host ends of the veth pairs: redirects past the bridge.
    RingwayHost,
}

impl Path {
    /// All of them, in the order of measurement.
    pub const ALL: [Self; 10] = [
        Self::Direct,
        Self::NginxStream,
        Self::Haproxy,
        Self::Nftables,
        Self::Ipvs,
        Self::BareGeneric,
        Self::BareNative,
        Self::RingwayGeneric,
        Self::RingwayNative,
        Self::RingwayHost,
    ];

    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::NginxStream => "nginx-stream",
            Self::Haproxy => "haproxy",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
            Self::BareGeneric => "bare-generic",
            Self::BareNative => "bare-native",
            Self::RingwayGeneric => "ringway-generic",
            Self::RingwayNative => "ringway-native",
            Self::RingwayHost => "ringway-host",
        }
    }

    /// Whether it is one of Ringway's own.
    pub fn is_ringway(self) -> bool {
        matches!(self, Self::RingwayGeneric | Self::RingwayNative | Self::RingwayHost)
    }
}

named!(Path, Error::NoSuchPath);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for path in Path::ALL {
            assert_eq!(path.name().parse::<Path>().unwrap(), path);
        }
        let error = "ngnix".parse::<Path>().unwrap_err().to_string();
        assert!(error.contains("ngnix") && error.contains("nginx-stream"), "{error}");
    }
}
