//! The ways from the client to the backends.

use crate::harness::named::named;

named! {
    /// One way from the client to the two backends.
    pub enum Path {
        /// No balancer: the client's own multipath route spreads connections over the two backends.
        Direct = "direct",
        /// nginx's stream module, one worker.
        NginxStream = "nginx-stream",
        /// HAProxy in tcp mode, one thread.
        Haproxy = "haproxy",
        /// nftables: DNAT and masquerade.
        Nftables = "nftables",
        /// IPVS in masquerading mode.
        Ipvs = "ipvs",
        /// The fixed rewriter, generic XDP, in the balancer's container.
        BareGeneric = "bare-generic",
        /// The fixed rewriter, native XDP, in the balancer's container.
        BareNative = "bare-native",
        /// Ringway, generic XDP, in the balancer's container.
        RingwayGeneric = "ringway-generic",
        /// Ringway, native XDP, in the balancer's container.
        RingwayNative = "ringway-native",
        /// Ringway, native XDP, at the host ends of the veth pairs: redirects past the bridge.
        RingwayHost = "ringway-host",
    }
}

impl Path {
    /// Whether it is one of Ringway's own.
    pub fn is_ringway(self) -> bool {
        matches!(self, Self::RingwayGeneric | Self::RingwayNative | Self::RingwayHost)
    }
}
