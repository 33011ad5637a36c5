//! What frames can go through: each a program, or the kernel alone.

use std::net::IpAddr;

use ringway_testnet::{End, Namespace, bridge};

use crate::harness::named_enum::named;
use crate::{Error, Result, programs};

named! {
    /// What forwards.
    pub enum Road {
        /// The kernel's bridge.
        LinuxBridge = "linux-bridge",
        /// The kernel's routing.
        LinuxRoute = "linux-route",
        /// That routing, with nftables' flowtable between the two interfaces.
        LinuxFlowtable = "linux-flowtable",
        /// `ringway forward` beside that bridge.
        XdpBridge = "xdp-bridge",
        /// `ringway forward --route` beside that routing.
        XdpRoute = "xdp-route",
        /// The engine's l2fwd on AF_XDP sockets.
        AfXdp = "af_xdp",
        /// The engine's l2fwd on packet sockets.
        AfPacket = "af_packet",
        /// The engine's l2fwd on DPDK's net_af_xdp: `ringway-dpdk`.
        Dpdk = "dpdk",
        /// dpdk-testpmd between the same devices.
        DpdkTestpmd = "dpdk-testpmd",
        /// What joins the two of --interfaces.
        Outside = "outside",
    }
}

/// A flow is the flowtable's from its second packet on.
const FLOWTABLE: &str = "table inet lab {
    flowtable lab { hook ingress priority 0; devices = { f0, f1 }; }
    chain forward { type filter hook forward priority 0; meta l4proto udp flow add @lab; }
}
";

/// Devices of the roads with DPDK.
pub(super) const DPDK_DEVICES: [&str; 2] = ["net_af_xdp0,iface=f0", "net_af_xdp1,iface=f1"];

/// The bridge of a road that has one.
const BRIDGE: &str = "br0";

/// A host of the network on this side: of RFC 2544, appendix C.2.2, or of RFC 5180, section 8. The
/// first is the device.
pub(super) fn network(side: usize, ipv6: bool, host: u8) -> IpAddr {
    match ipv6 {
        false => [198, 18 + side as u8, 0, host].into(),
        true => [0x2001, 2, 0, side as u16, 0, 0, 0, host.into()].into(),
    }
}

impl Road {
    /// Those that need no interfaces of the machine.
    pub(super) fn own() -> Vec<Self> {
        Self::ALL.into_iter().filter(|road| *road != Self::Outside).collect()
    }

    /// Whether frames are sent to the device's own addresses.
    pub(super) fn routes(self) -> bool {
        matches!(self, Self::LinuxRoute | Self::LinuxFlowtable | Self::XdpRoute)
    }

    /// The kernel's own road that does the same.
    pub(super) fn kernels(self) -> Option<Self> {
        match self {
            Self::LinuxBridge | Self::LinuxRoute | Self::Outside => None,
            Self::LinuxFlowtable | Self::XdpRoute => Some(Self::LinuxRoute),
            _ => Some(Self::LinuxBridge),
        }
    }

    /// Arguments of `ringway` for what forwards between `f0` and `f1`; none: the kernel does.
    pub(super) fn arguments(self) -> Option<&'static [&'static str]> {
        match self {
            Self::LinuxBridge
            | Self::LinuxRoute
            | Self::LinuxFlowtable
            | Self::DpdkTestpmd
            | Self::Outside => None,
            Self::XdpBridge => Some(&["forward", "-i", "f0,f1"]),
            Self::XdpRoute => Some(&["forward", "-i", "f0,f1", "--route"]),
            Self::AfXdp => Some(&["engine", "l2fwd", "-p", "af_xdp:f0:0", "-p", "af_xdp:f1:0"]),
            Self::AfPacket => {
                Some(&["engine", "l2fwd", "-p", "af_packet:f0", "-p", "af_packet:f1"])
            }
            Self::Dpdk => Some(&[
                "engine",
                "l2fwd",
                "-p",
                "dpdk:net_af_xdp0,iface=f0",
                "-p",
                "dpdk:net_af_xdp1,iface=f1",
            ]),
        }
    }

    /// Whether the kernel or XDP in it forwards, in a thread for each interface; else a program does,
    /// and the kernel's half of reception is the sender's processor's.
    pub(super) fn is_kernel(self) -> bool {
        !matches!(self, Self::AfXdp | Self::AfPacket | Self::Dpdk | Self::DpdkTestpmd)
    }

    /// Whether a process forwards, or keeps what forwards in its place.
    pub(super) fn has_program(self) -> bool {
        !self.is_kernel() || self.arguments().is_some()
    }

    /// Before there are interfaces.
    pub(super) fn prepare(self, device: &Namespace) -> Result<()> {
        match self {
            Self::LinuxBridge | Self::XdpBridge => Ok(bridge(device, BRIDGE, &[])?),
            _ if self.routes() => {
                device.sysctl("net/ipv6/conf/all/forwarding", "1")?;
                Ok(device.sysctl("net/ipv4/ip_forward", "1")?)
            }
            _ => Ok(()),
        }
    }

    /// Once there are interfaces.
    pub(super) fn begin(self, device: &Namespace) -> Result<()> {
        if self != Self::LinuxFlowtable {
            return Ok(());
        }
        let missing = |error: ringway_testnet::Error| Error::Unavailable(error.to_string());
        let mut command = device.tool("nft").map_err(missing)?;
        command.args(["-f", "-"]);
        programs::feed(command, "nft", FLOWTABLE).map_err(|error| {
            let error = error.to_string();
            let error = error.lines().next().unwrap_or_default();
            Error::Unavailable(format!(
                "{error}; flowtables take a kernel with nf_flow_table: `modprobe -a nft_flow_offload nf_flow_table_inet`"
            ))
        })
    }

    /// The device's interface on this side.
    pub(super) fn end(self, device: &Namespace, side: usize, ipv6: bool) -> End {
        let end = End::new(device, &format!("f{side}"));
        match self {
            Self::LinuxBridge | Self::XdpBridge => end.port_of(BRIDGE),
            _ if self.routes() => {
                let length = if ipv6 { 64 } else { 24 };
                end.address(format!("{}/{length}", network(side, ipv6, 1)))
            }
            _ => end,
        }
    }
}
