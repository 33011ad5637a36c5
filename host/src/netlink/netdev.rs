//! The generic netlink family "netdev" (Linux 6.3).

use netlink_sys::protocols::NETLINK_GENERIC;

use crate::netlink::{Message, Netlink, Request, attributes, u16_of};
use crate::{Error, Result};

// linux/genetlink.h
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Length of struct genlmsghdr: command, version, reserved.
pub(crate) const HEADER: usize = 4;

pub(crate) struct Netdev {
    netlink: Netlink,
    family: u16,
}

impl Netdev {
    /// `None` where this kernel does not have it.
    pub(crate) fn open() -> Result<Option<Self>> {
        let mut netlink = Netlink::of(NETLINK_GENERIC, &[])?;
        let request =
            Request::new(GENL_ID_CTRL, libc::NLM_F_REQUEST, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
                .attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        match netlink.get("looking for the netlink family netdev", request, family) {
            Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
                Ok(None)
            }
            found => Ok(Some(Self { netlink, family: found? })),
        }
    }

    /// Everything that a command lists, narrowed by an attribute.
    pub(crate) fn dump<T>(
        &mut self,
        what: &str,
        command: u8,
        only: Option<(u16, u32)>,
        read: impl Fn(Message) -> Option<T>,
    ) -> Result<Vec<T>> {
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        let request = || {
            let request = Request::new(self.family, flags, &[command, 1, 0, 0]);
            match only {
                Some((kind, value)) => request.attribute(kind, &value.to_ne_bytes()),
                None => request,
            }
        };
        self.netlink.dump(what, request, read)
    }
}

fn family(message: Message) -> Option<u16> {
    let mut found = attributes(message.body.get(HEADER..)?);
    u16_of(found.find(|a| a.kind == CTRL_ATTR_FAMILY_ID)?.data)
}
