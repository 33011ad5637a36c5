//! An XDP program that passes everything, and a veth that receives what XDP sends.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use ringway_host::ethtool::{Ethtool, Offload};
use ringway_host::netlink::links::{self, XdpMode};

use crate::{Error, Namespace, Result};

/// How a veth end is made ready for frames that XDP sends from its peer. Without, veth drops them silently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpReceive {
    /// Not at all.
    #[default]
    No,
    /// GRO on: enough for redirected frames, **not for XDP_TX**; see [`enable_napi`].
    Gro,
    /// A native program that passes everything: enough for all. Occupies the interface's XDP hook;
    /// [`detach_pass`] frees it.
    Pass,
}

/// Turns NAPI on for a veth device, by switching GRO on, so that frames that its peer **redirects** into it arrive.
///
/// Frames that the peer sends with XDP_TX are taken, counted as sent, and then lie in the ring until something
/// else wakes this device: veth_xdp_flush (drivers/net/veth.c) wakes the receiver only where it has a native
/// program. For those use [`attach_pass`]. (Measured on Linux 6.18.)
pub fn enable_napi(namespace: &Namespace, interface: &str) -> Result<()> {
    namespace.run(|| Ok(Ethtool::open()?.set(interface, Offload::Gro, true)?))?
}

/// Attaches a native XDP program that passes everything. It stays until [`detach_pass`] or the device's end.
pub fn attach_pass(namespace: &Namespace, interface: &str) -> Result<()> {
    let program = load().map_err(|source| Error::Start {
        program: "an XDP program that passes everything".into(),
        namespace: namespace.name().into(),
        source,
    })?;
    namespace.run(|| {
        let ifindex = links::by_name(interface)?.ifindex;
        Ok(links::set_xdp(ifindex, Some(program.as_fd()), XdpMode::Native)?)
    })?
}

/// Detaches what [`attach_pass`] attached. Nothing attached is no error.
pub fn detach_pass(namespace: &Namespace, interface: &str) -> Result<()> {
    namespace.run(|| {
        let ifindex = links::by_name(interface)?.ifindex;
        Ok(links::set_xdp(ifindex, None, XdpMode::Native)?)
    })?
}

/// The head of union bpf_attr for BPF_PROG_LOAD (linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Loads `return XDP_PASS;` by the bare system call: a loader library would be out of proportion.
fn load() -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: libc::c_int = 5;
    const BPF_PROG_TYPE_XDP: u32 = 6;
    const BPF_XDP: u32 = 37;
    const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
    // r0 = XDP_PASS (2); exit. One instruction: opcode, registers, offset (2 bytes), immediate (4 bytes, host order).
    let [a, b, c, d] = 2i32.to_ne_bytes();
    let instructions: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, a, b, c, d], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    let license = c"GPL";
    let mut attr = ProgLoad {
        prog_type: BPF_PROG_TYPE_XDP,
        insn_cnt: 2,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        prog_flags: BPF_F_XDP_HAS_FRAGS,
        expected_attach_type: BPF_XDP,
        ..ProgLoad::default()
    };
    attr.prog_name[..13].copy_from_slice(b"rw_test_pass\0");
    // SAFETY: attr is laid out as the kernel's union, as long as said, and the buffers it points to outlive the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut attr, size_of::<ProgLoad>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
