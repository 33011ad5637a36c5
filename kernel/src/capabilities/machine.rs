//! What this kernel and its drivers can do, found out by asking them and not by their names.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys as sys;

/// What an interface's driver has of native XDP (linux/netdev.h, since Linux 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures(pub u64);

impl XdpFeatures {
    const BASIC: u64 = 1;
    const REDIRECT: u64 = 2;
    const TARGET: u64 = 4;
    const ZERO_COPY: u64 = 8;

    /// Programs can be attached in the driver.
    pub fn native(self) -> bool {
        self.0 & Self::BASIC != 0
    }

    /// They can redirect.
    pub fn redirects(self) -> bool {
        self.0 & Self::REDIRECT != 0
    }

    /// AF_XDP without a copy.
    pub fn zero_copy(self) -> bool {
        self.0 & Self::ZERO_COPY != 0
    }

    /// What others redirect into it is sent. On veth this is so while the far end polls: has GRO or
    /// a native program (drivers/net/veth.c).
    pub fn is_target(self) -> bool {
        self.0 & Self::TARGET != 0
    }
}

/// What the driver of an interface of this network namespace says; `None` where the kernel is too old
/// to tell.
pub fn xdp_features(ifindex: u32) -> Option<XdpFeatures> {
    let mut opts = sys::bpf_xdp_query_opts {
        sz: size_of::<sys::bpf_xdp_query_opts>() as sys::size_t,
        ..Default::default()
    };
    let index = i32::try_from(ifindex).ok()?;
    // SAFETY: `opts` is initialised, tells how much of it may be written, and outlives the call.
    let ret = unsafe { sys::bpf_xdp_query(index, 0, &mut opts) };
    let known = crate::capabilities::running_kernel() >= (6, 3);
    (ret == 0 && known).then_some(XdpFeatures(opts.feature_flags))
}

/// Whether the kernel compiles programs, instead of interpreting them; `None` when this process may not
/// load any.
pub fn compiles_programs() -> Option<bool> {
    let program = pass_instructions();
    // SAFETY: terminated strings and instructions that outlive the call; null options are allowed.
    let ret = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            c"rw_jit".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            std::ptr::null_mut(),
        )
    };
    if ret < 0 {
        return None;
    }
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(ret) };
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is plain old data of the length told, and outlives the call.
    let ret = unsafe {
        sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
    };
    (ret == 0).then_some(info.jited_prog_len > 0)
}

/// The shortest XDP program. BPF_ALU64 | BPF_MOV | BPF_K of r0 = XDP_PASS; BPF_JMP | BPF_EXIT
/// (linux/bpf.h).
pub(crate) fn pass_instructions() -> [sys::bpf_insn; 2] {
    let mut pass = sys::bpf_insn { code: 0xb7, imm: 2, ..Default::default() };
    pass.set_dst_reg(0);
    [pass, sys::bpf_insn { code: 0x95, ..Default::default() }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_bits() {
        let features = XdpFeatures(3);
        assert!(features.native() && features.redirects() && !features.is_target());
        assert!(!XdpFeatures(0).native());
    }
}
