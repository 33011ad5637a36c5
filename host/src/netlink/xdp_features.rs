//! XDP features of drivers, by the generic netlink family "netdev" (Linux 6.3).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::netlink::netdev::{HEADER, Netdev};
use crate::netlink::{Message, attributes, u32_of, u64_of};

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;

/// A driver's features for native XDP: enum netdev_xdp_act.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    /// A program runs in the driver.
    pub fn native(self) -> bool {
        self.0 & 1 != 0
    }

    /// It sends packets that others redirect into it. A veth device does while the far end polls:
    /// has GRO or a native program (drivers/net/veth.c).
    pub fn is_target(self) -> bool {
        self.0 & 4 != 0
    }

    /// AF_XDP without a copy.
    pub fn zero_copy(self) -> bool {
        self.0 & 8 != 0
    }
}

/// A driver's features for XDP and AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    pub xdp: XdpFeatures,
    /// Frames of a packet that it sends in zero-copy at most; `None` where it has no zero-copy.
    pub zero_copy_frames: Option<u32>,
    /// enum netdev_xdp_rx_metadata: [`rx_hints`]; `None` before Linux 6.7.
    pub rx_hints: Option<u64>,
    /// enum netdev_xsk_flags: [`tx_metadata`]; `None` before Linux 6.8.
    pub tx_metadata: Option<u64>,
}

/// Metadata of received packets that a driver gives to XDP programs, by the kernel's names:
/// "timestamp", "hash", "vlan-tag".
pub fn rx_hints(bits: u64) -> Vec<&'static str> {
    named(bits, &["timestamp", "hash", "vlan-tag"])
}

/// Offloads of a driver for packets that AF_XDP sends: "tx-timestamp", "tx-checksum",
/// "tx-launch-time-fifo".
pub fn tx_metadata(bits: u64) -> Vec<&'static str> {
    named(bits, &["tx-timestamp", "tx-checksum", "tx-launch-time-fifo"])
}

/// Names of the set bits, from the lowest on; bits without a name here are left out.
fn named(bits: u64, names: &[&'static str]) -> Vec<&'static str> {
    let is = |(n, name): (usize, &&'static str)| (bits >> n & 1 != 0).then_some(*name);
    names.iter().enumerate().filter_map(is).collect()
}

/// [`Features::xdp`] by interface index; `None` where this kernel does not tell.
pub fn all() -> Result<Option<BTreeMap<u32, XdpFeatures>>> {
    let bits = |devices: BTreeMap<u32, Features>| {
        devices.into_iter().map(|(index, features)| (index, features.xdp)).collect()
    };
    Ok(devices()?.map(bits))
}

/// By interface index; `None` where this kernel does not tell (before 6.3).
pub fn devices() -> Result<Option<BTreeMap<u32, Features>>> {
    let Some(mut netdev) = Netdev::open()? else { return Ok(None) };
    let what = "listing what drivers can do with XDP";
    let devices = netdev.dump(what, NETDEV_CMD_DEV_GET, None, device)?;
    Ok(Some(devices.into_iter().collect()))
}

fn device(message: Message) -> Option<(u32, Features)> {
    let body = message.body.get(HEADER..)?;
    let find = |kind| attributes(body).find(|a| a.kind == kind);
    let ifindex = u32_of(find(NETDEV_A_DEV_IFINDEX)?.data)?;
    let bits = |kind| find(kind).and_then(|attribute| u64_of(attribute.data));
    let features = Features {
        xdp: XdpFeatures(bits(NETDEV_A_DEV_XDP_FEATURES)?),
        zero_copy_frames: find(NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(|a| u32_of(a.data)),
        rx_hints: bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
        tx_metadata: bits(NETDEV_A_DEV_XSK_FEATURES),
    };
    Some((ifindex, features))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Request;

    #[test]
    fn loopback_has_no_native_xdp() {
        if let Some(features) = all().unwrap() {
            assert!(!features[&1].native(), "{features:?}");
        }
    }

    #[test]
    fn bits_have_names() {
        assert_eq!(rx_hints(0), [""; 0]);
        assert_eq!(rx_hints(5), ["timestamp", "vlan-tag"]);
        assert_eq!(tx_metadata(0xf2), ["tx-checksum"]);
    }

    /// As Linux 6.3 answers, and as 6.8 does for a driver with everything.
    #[test]
    fn what_kernels_tell() {
        let told = |request: Request| {
            let bytes = request.finish(1);
            device(crate::netlink::messages(&bytes).next().unwrap())
        };
        let begin = || {
            let request = Request::new(30, 0, &[NETDEV_CMD_DEV_GET, 1, 0, 0]);
            let request = request.attribute(NETDEV_A_DEV_IFINDEX, &7_u32.to_ne_bytes());
            request.attribute(NETDEV_A_DEV_XDP_FEATURES, &15_u64.to_ne_bytes())
        };
        let old = Features { xdp: XdpFeatures(15), ..Features::default() };
        assert_eq!(told(begin()), Some((7, old)));
        let new = begin()
            .attribute(NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &8_u32.to_ne_bytes())
            .attribute(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES, &7_u64.to_ne_bytes())
            .attribute(NETDEV_A_DEV_XSK_FEATURES, &3_u64.to_ne_bytes());
        let all =
            Features { zero_copy_frames: Some(8), rx_hints: Some(7), tx_metadata: Some(3), ..old };
        assert_eq!(told(new), Some((7, all)));
        assert_eq!(told(Request::new(30, 0, &[1])), None);
    }
}
