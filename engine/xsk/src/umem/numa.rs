//! NUMA: the node of a queue's device, and memory on it.

use std::ffi::c_ulong;
use std::ptr::{self, NonNull};
use std::{fs, io};

const MPOL_PREFERRED: libc::c_int = 1;
const MPOL_F_NODE: c_ulong = 1;
const MPOL_F_ADDR: c_ulong = 2;

/// The node that an interface's device is attached to; none where it is virtual, or the machine has one node.
pub fn node_of_interface(interface: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{interface}/device/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Asks for the pages of a mapping, which are not present yet, to be of `node`.
pub(crate) fn prefer(base: NonNull<u8>, len: usize, node: u32) -> io::Result<()> {
    let one: c_ulong = 1;
    let mask = one.checked_shl(node).ok_or(io::ErrorKind::InvalidInput)?;
    // The kernel takes one bit less than it is told.
    let bits = c_ulong::BITS as c_ulong + 1;
    // SAFETY: a policy of a range of ours changes where pages come from, not what lies in them; the mask outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len, MPOL_PREFERRED, &raw const mask, bits, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The node of the page at `base`.
pub(crate) fn node_of(base: NonNull<u8>) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    let no_mask = ptr::null_mut::<c_ulong>();
    // SAFETY: the kernel writes the node and nothing else; the address is looked up, not accessed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            no_mask,
            0,
            base.as_ptr(),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(|_| io::ErrorKind::NotFound.into())
}

/// Why memory is not on the node that was asked for.
pub(crate) fn refusal(
    asked: Option<u32>,
    preferred: Option<io::Result<()>>,
    node: Option<u32>,
) -> Option<String> {
    let asked = asked?;
    match (preferred, node) {
        (Some(Err(e)), _) => Some(format!(
            "NUMA node {asked} refused: {e}; /sys/devices/system/node/online lists those there are"
        )),
        (_, Some(node)) if node != asked => Some(format!(
            "NUMA node {asked} had no room, so that it is on node {node}; `numactl -H` shows what is free"
        )),
        (_, None) => Some(format!(
            "NUMA node {asked} was asked for, and this kernel does not tell which it is"
        )),
        _ => None,
    }
}
