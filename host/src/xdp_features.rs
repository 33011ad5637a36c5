//! What drivers can do with XDP, by the generic netlink family "netdev" (Linux 6.3).

use std::collections::BTreeMap;

use netlink_sys::protocols::NETLINK_GENERIC;

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
/// Length of struct genlmsghdr: command, version, reserved.
const HEADER: usize = 4;
/// NETDEV_XDP_ACT_BASIC: a program runs in the driver.
pub const NATIVE: u64 = 1;

/// Feature bits (enum netdev_xdp_act) by interface index; `None` where this kernel does not tell.
pub fn all() -> Result<Option<BTreeMap<u32, u64>>> {
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

fn device(message: Message) -> Option<(u32, u64)> {
    let body = message.body.get(HEADER..)?;
    let find = |kind| attributes(body).find(|a| a.kind == kind);
    let ifindex = u32_of(find(NETDEV_A_DEV_IFINDEX)?.data)?;
    Some((ifindex, u64_of(find(NETDEV_A_DEV_XDP_FEATURES)?.data)?))
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
}
