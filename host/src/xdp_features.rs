//! What drivers can do with XDP, by the generic netlink family "netdev" (Linux 6.3).

use std::collections::BTreeMap;

use netlink_sys::protocols::NETLINK_GENERIC;
use serde::{Deserialize, Serialize};

use crate::netlink::{Message, Netlink, Request, attributes, u16_of, u32_of, u64_of};
use crate::{Error, Result};

// linux/genetlink.h, linux/netdev.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
/// Length of struct genlmsghdr: command, version, reserved.
const HEADER: usize = 4;
/// NETDEV_XDP_ACT_BASIC: a program runs in the driver.
pub const NATIVE: u64 = 1;

/// What a driver can do with XDP and AF_XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// enum netdev_xdp_act: [`NATIVE`].
    pub xdp: u64,
    /// Frames of a packet that it sends in zero-copy at most; `None` where it has no zero-copy.
    pub zero_copy_frames: Option<u32>,
    /// enum netdev_xdp_rx_metadata: [`rx_hints`]; `None` before Linux 6.7.
    pub rx_hints: Option<u64>,
    /// enum netdev_xsk_flags: [`tx_metadata`]; `None` before Linux 6.8.
    pub tx_metadata: Option<u64>,
}

/// What a driver tells XDP programs of packets that arrive, by the kernel's names: "timestamp", "hash", "vlan-tag".
pub fn rx_hints(bits: u64) -> Vec<&'static str> {
    named(bits, &["timestamp", "hash", "vlan-tag"])
}

/// What a driver does for AF_XDP as it sends a packet: "tx-timestamp", "tx-checksum", "tx-launch-time-fifo".
pub fn tx_metadata(bits: u64) -> Vec<&'static str> {
    named(bits, &["tx-timestamp", "tx-checksum", "tx-launch-time-fifo"])
}

/// Of bits from the lowest on; those that have no name here are left out.
fn named(bits: u64, names: &[&'static str]) -> Vec<&'static str> {
    let is = |(n, name): (usize, &&'static str)| (bits >> n & 1 != 0).then_some(*name);
    names.iter().enumerate().filter_map(is).collect()
}

/// The bits of [`Features::xdp`] by interface index; `None` where this kernel does not tell.
pub fn all() -> Result<Option<BTreeMap<u32, u64>>> {
    let bits = |devices: BTreeMap<u32, Features>| {
        devices.into_iter().map(|(index, features)| (index, features.xdp)).collect()
    };
    Ok(devices()?.map(bits))
}

/// By interface index; `None` where this kernel does not tell (before 6.3).
pub fn devices() -> Result<Option<BTreeMap<u32, Features>>> {
    let mut netlink = Netlink::of(NETLINK_GENERIC, &[])?;
    let request = Request::new(GENL_ID_CTRL, libc::NLM_F_REQUEST, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
        .attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
    let family = match netlink.get("looking for the netlink family netdev", request, family) {
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            return Ok(None);
        }
        found => found?,
    };
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(family, flags, &[NETDEV_CMD_DEV_GET, 1, 0, 0]);
    let devices = netlink.dump("listing what drivers can do with XDP", request, device)?;
    Ok(Some(devices.into_iter().collect()))
}

fn family(message: Message) -> Option<u16> {
    let mut found = attributes(message.body.get(HEADER..)?);
    u16_of(found.find(|a| a.kind == CTRL_ATTR_FAMILY_ID)?.data)
}

fn device(message: Message) -> Option<(u32, Features)> {
    let body = message.body.get(HEADER..)?;
    let find = |kind| attributes(body).find(|a| a.kind == kind);
    let ifindex = u32_of(find(NETDEV_A_DEV_IFINDEX)?.data)?;
    let bits = |kind| find(kind).and_then(|attribute| u64_of(attribute.data));
    let features = Features {
        xdp: bits(NETDEV_A_DEV_XDP_FEATURES)?,
        zero_copy_frames: find(NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(|a| u32_of(a.data)),
        rx_hints: bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES),
        tx_metadata: bits(NETDEV_A_DEV_XSK_FEATURES),
    };
    Some((ifindex, features))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_native_xdp() {
        if let Some(features) = all().unwrap() {
            assert_eq!(features[&1] & NATIVE, 0, "{features:?}");
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
        let old = Features { xdp: 15, ..Features::default() };
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
