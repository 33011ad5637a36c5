//! Attachments to interfaces, ours and others'.

pub(crate) mod attach;
pub(crate) mod attach_state;
pub(crate) mod xdp_owner;

use std::path::Path;

use ringway_bpf_sys::{LinkInfo, XdpLink, XdpMode};
use ringway_host::netlink::links::{self, Xdp};

use crate::Result;
use crate::pins::pin_error;

pub(crate) fn open_link(path: &Path) -> Result<XdpLink> {
    XdpLink::open(path).map_err(pin_error("open", path))
}

/// How a pinned attachment is.
pub(crate) fn info_of(link: &XdpLink, path: &Path) -> Result<LinkInfo> {
    link.info().map_err(pin_error("read", path))
}

/// XDP programs on an interface of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnInterface(Vec<Xdp>);

impl OnInterface {
    pub(crate) fn query(ifindex: u32) -> ringway_host::Result<Self> {
        Ok(Self(links::by_index(ifindex)?.xdp))
    }

    /// Where this program is one of them.
    pub(crate) fn mode_of(&self, program: u32) -> Option<XdpMode> {
        self.0.iter().find(|xdp| xdp.program == program).map(|xdp| xdp.mode)
    }

    /// Whether this program is one of them.
    pub(crate) fn has(&self, program: u32) -> bool {
        self.mode_of(program).is_some()
    }

    /// The first of them: native before generic.
    pub(crate) fn first(&self) -> Option<Xdp> {
        self.0.iter().copied().min_by_key(|xdp| xdp.mode)
    }

    /// Where the program is that has been taken over.
    pub(crate) fn mode(&self) -> XdpMode {
        let generic = self.0.iter().any(|xdp| xdp.mode == XdpMode::Generic);
        if generic { XdpMode::Generic } else { XdpMode::Native }
    }
}
