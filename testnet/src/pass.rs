//! An XDP program that passes everything, and a veth that receives what XDP sends.

use std::io;
use std::os::fd::AsFd;

use ringway_bpf_sys::{PASS, Program, XdpMode};
use ringway_host::ethtool::{Ethtool, Offload};
use ringway_host::netlink::links;

use crate::{Error, Namespace, Result};

/// How a veth end is made ready for frames that XDP sends from its peer. Without, veth drops them
/// silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpReceive {
    #[default]
    No,
    /// GRO on: enough for redirected frames, **not for XDP_TX**; see [`enable_napi`].
    Gro,
    /// A native program that passes everything: enough for all. Occupies the interface's XDP hook;
    /// [`detach_pass`] frees it.
    Pass,
}

/// Turns NAPI on for a veth device, by switching GRO on, so that frames that its peer **redirects**
/// into it arrive.
///
/// Frames that the peer sends with XDP_TX are taken, counted as sent, and then lie in the ring
/// until something else wakes this device: veth_xdp_flush (drivers/net/veth.c) wakes the receiver
/// only where it has a native program. For those use [`attach_pass`]. (Measured on Linux 6.18.)
pub fn enable_napi(namespace: &Namespace, interface: &str) -> Result<()> {
    namespace.run(|| Ok(Ethtool::open()?.set(interface, Offload::Gro, true)?))?
}

/// Attaches a native XDP program that passes everything. It stays until [`detach_pass`] or the
/// device's end.
pub fn attach_pass(namespace: &Namespace, interface: &str) -> Result<()> {
    attach(namespace, interface, XdpMode::Native)
}

/// The same in generic mode, where the kernel has copied a packet before the program sees it.
pub fn attach_generic_pass(namespace: &Namespace, interface: &str) -> Result<()> {
    attach(namespace, interface, XdpMode::Generic)
}

fn attach(namespace: &Namespace, interface: &str, mode: XdpMode) -> Result<()> {
    let program = Program { name: "rw_test_pass", instructions: &PASS, frags: true };
    let program = program.load().map_err(|error| Error::Start {
        program: "an XDP program that passes everything".into(),
        namespace: namespace.name().into(),
        source: io::Error::other(error),
    })?;
    namespace.run(|| {
        let ifindex = links::by_name(interface)?.ifindex;
        Ok(links::set_xdp(ifindex, Some(program.as_fd()), mode)?)
    })?
}

/// Detaches what [`attach_pass`] attached. Nothing attached is no error.
pub fn detach_pass(namespace: &Namespace, interface: &str) -> Result<()> {
    namespace.run(|| {
        let ifindex = links::by_name(interface)?.ifindex;
        Ok(links::set_xdp(ifindex, None, XdpMode::Native)?)
    })?
}
