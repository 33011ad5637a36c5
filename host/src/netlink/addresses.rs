//! Addresses of the calling thread's network namespace, by RTM_GETADDR.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::netlink::{Message, Netlink, Request, address, attributes, u32_of};

// linux/if_addr.h
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;
const IFA_F_OPTIMISTIC: u32 = 0x04;

/// An address that the kernel answers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The interface that holds it.
    pub ifindex: u32,
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix: u8,
    /// Valid on this link or host only (fe80::/10, 127.0.0.0/8, ::1).
    pub local_scope: bool,
    /// Duplicate address detection still runs, or has failed: not to be used.
    pub unusable: bool,
    /// Not to be used for new connections (RFC 4862).
    pub deprecated: bool,
}

pub fn all() -> Result<Vec<Address>> {
    // struct ifaddrmsg: family (0 = all), prefixlen, flags, scope, index.
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETADDR, flags, &[0; 8]);
    Netlink::open()?.dump("listing addresses", request, read)
}

/// The entry of this very address; `None` if no interface has it. For "does the kernel take packets
/// to it", which includes whole local prefixes, ask `routes::route_to` for the kind `Local`.
pub fn holder(wanted: IpAddr) -> Result<Option<Address>> {
    Ok(all()?.into_iter().find(|a| a.address == wanted))
}

/// RTM_NEWADDR or RTM_DELADDR into an address.
pub(crate) fn read(message: Message) -> Option<Address> {
    if !matches!(message.kind, libc::RTM_NEWADDR | libc::RTM_DELADDR) {
        return None;
    }
    let header = message.body.get(..8)?;
    let (mut local, mut remote, mut flags) = (None, None, u32::from(header[2]));
    for attribute in attributes(&message.body[8..]) {
        match attribute.kind {
            IFA_LOCAL => local = address(attribute.data),
            IFA_ADDRESS => remote = address(attribute.data),
            IFA_FLAGS => flags = u32_of(attribute.data)?,
            _ => {}
        }
    }
    let tentative = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    Some(Address {
        ifindex: u32_of(&header[4..])?,
        // On a point-to-point link IFA_ADDRESS is the far end.
        address: local.or(remote)?,
        prefix: header[1],
        local_scope: header[3] >= libc::RT_SCOPE_LINK,
        unusable: tentative || flags & IFA_F_DADFAILED != 0,
        deprecated: flags & IFA_F_DEPRECATED != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    #[test]
    fn point_to_point_and_flags() {
        let bytes = Request::new(libc::RTM_NEWADDR, 0, &[2, 32, 0, 0, 5, 0, 0, 0])
            .attribute(IFA_ADDRESS, &[10, 0, 0, 9])
            .attribute(IFA_LOCAL, &[10, 0, 0, 1])
            .attribute(IFA_FLAGS, &(IFA_F_TENTATIVE | IFA_F_DEPRECATED).to_ne_bytes())
            .finish(1);
        let address = read(messages(&bytes).next().unwrap()).unwrap();
        assert_eq!(address.address, IpAddr::from([10, 0, 0, 1]));
        assert_eq!((address.ifindex, address.prefix), (5, 32));
        assert!(address.unusable && address.deprecated && !address.local_scope);
    }
}
