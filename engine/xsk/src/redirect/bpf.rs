//! bpf(2), as much of it as a map of sockets, a program of six instructions and its attachment need (linux/bpf.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::Plain;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;
const LINK_DETACH: libc::c_int = 34;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The program takes packets of several buffers.
pub(crate) const XDP_HAS_FRAGS: u32 = 1 << 5;
/// The program may ask one interface's driver, and runs there alone.
const XDP_DEV_BOUND_ONLY: u32 = 1 << 6;

/// An instruction: opcode, destination and source register, offset, immediate.
pub(crate) type Instruction = (u8, u8, i16, i32);

/// # Safety
/// `attributes` is laid out as the kernel's union for this command, has no padding, and what it points to is there.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<i32> {
    // SAFETY: the caller's; the kernel reads as many bytes as the attributes have.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) };
    // Descriptors fit.
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn descriptor(result: io::Result<i32>) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just returned it; nobody else owns it.
    result.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name(name: &[u8]) -> [u8; 16] {
    std::array::from_fn(|n| if n < 15 { name.get(n).copied().unwrap_or(0) } else { 0 })
}

/// A map from queue to AF_XDP socket.
pub(crate) fn create_xskmap(queues: u32) -> io::Result<OwnedFd> {
    create_map(MAP_TYPE_XSKMAP, 4, queues)
}

/// A map whose keys have four bytes.
pub(crate) fn create_map(map_type: u32, value_size: u32, max_entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    let attributes = Attributes {
        map_type,
        key_size: 4,
        value_size,
        max_entries,
        map_flags: 0,
        inner_map_fd: 0,
        numa_node: 0,
        map_name: name(b"rw_sockets"),
    };
    // SAFETY: laid out as the kernel's, integers of four bytes and bytes; it points to nothing.
    descriptor(unsafe { bpf(MAP_CREATE, &attributes) })
}

/// A map from queues to sockets. Other maps may have longer keys and values, of which the kernel
/// would read more than is there.
#[derive(Clone, Copy)]
pub(crate) struct Xskmap<'a>(BorrowedFd<'a>);

impl<'a> Xskmap<'a> {
    pub(crate) fn new(map: BorrowedFd<'a>) -> io::Result<Self> {
        // Of what is no map this is another kind, and the kernel refuses it as a map.
        match info::<u32>(map)? {
            MAP_TYPE_XSKMAP => Ok(Self(map)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no map of sockets")),
        }
    }
}

#[repr(C)]
struct Element {
    map_fd: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    fn new(map: Xskmap<'_>, key: &u32, value: Option<&u32>) -> Self {
        let address = |place: &u32| (&raw const *place) as u64;
        // Descriptors are not negative.
        let map_fd = map.0.as_raw_fd() as u32;
        Self { map_fd, zero: 0, key: address(key), value: value.map_or(0, address), flags: 0 }
    }
}

pub(crate) fn update(map: Xskmap<'_>, key: u32, value: u32) -> io::Result<()> {
    // SAFETY: laid out as the kernel's; key and value are there, and as long as those of a map of sockets.
    unsafe { bpf(MAP_UPDATE, &Element::new(map, &key, Some(&value))) }.map(drop)
}

pub(crate) fn delete(map: Xskmap<'_>, key: u32) -> io::Result<()> {
    // SAFETY: as above.
    unsafe { bpf(MAP_DELETE, &Element::new(map, &key, None)) }.map(drop)
}

/// Loads an XDP program; `driver`: the interface whose driver it asks.
pub(crate) fn load(
    instructions: &[Instruction],
    flags: u32,
    driver: Option<u32>,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
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
    let code: Vec<u8> = instructions.iter().copied().flat_map(encode).collect();
    let mut log = vec![0_u8; 16 << 10];
    let attributes = Attributes {
        prog_type: PROG_TYPE_XDP,
        // A handful.
        insn_cnt: instructions.len() as u32,
        insns: code.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 1,
        log_size: log.len() as u32,
        log_buf: log.as_mut_ptr() as u64,
        kern_version: 0,
        prog_flags: flags | driver.map_or(0, |_| XDP_DEV_BOUND_ONLY),
        prog_name: name(b"rw_redirect"),
        prog_ifindex: driver.unwrap_or(0),
        expected_attach_type: ATTACH_XDP,
    };
    // SAFETY: laid out as the kernel's, without padding; code, licence and log are there, and as long as said.
    descriptor(unsafe { bpf(PROG_LOAD, &attributes) })
}

fn encode((opcode, registers, offset, immediate): Instruction) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    // Registers are two bit fields, and bit fields begin at the other end where bytes do (struct bpf_insn).
    let registers = if cfg!(target_endian = "big") { registers.rotate_left(4) } else { registers };
    [opcode, registers, a, b, c, d, e, f]
}

/// Attaches a program to an interface for as long as the descriptor is open.
pub(crate) fn link(program: BorrowedFd<'_>, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        prog_fd: u32,
        target_ifindex: u32,
        attach_type: u32,
        flags: u32,
    }
    // Descriptors are not negative.
    let prog_fd = program.as_raw_fd() as u32;
    let attributes =
        Attributes { prog_fd, target_ifindex: ifindex, attach_type: ATTACH_XDP, flags };
    // SAFETY: laid out as the kernel's; it points to nothing.
    descriptor(unsafe { bpf(LINK_CREATE, &attributes) })
}

/// Puts a program in the place of the one that a link has: every packet meets either of them.
pub(crate) fn replace(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link_fd: u32,
        new_prog_fd: u32,
        flags: u32,
        old_prog_fd: u32,
    }
    // Descriptors are not negative.
    let (link_fd, new_prog_fd) = (link.as_raw_fd() as u32, program.as_raw_fd() as u32);
    let attributes = Attributes { link_fd, new_prog_fd, flags: 0, old_prog_fd: 0 };
    // SAFETY: laid out as the kernel's; it points to nothing.
    unsafe { bpf(LINK_UPDATE, &attributes) }.map(drop)
}

/// Detaches a link's program, whoever else has the link open.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // Descriptors are not negative.
    let link_fd = link.as_raw_fd() as u32;
    // SAFETY: the kernel's attributes are the descriptor alone; it points to nothing.
    unsafe { bpf(LINK_DETACH, &link_fd) }.map(drop)
}

/// How a link to an interface is (struct bpf_link_info).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    /// 0: detached, or the interface is gone.
    ifindex: u32,
    pad_too: u32,
}

pub(crate) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    info(link)
}

// SAFETY: integers of one size.
unsafe impl Plain for LinkInfo {}

/// The first bytes of what the kernel tells of an object.
fn info<T: Plain + Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    #[repr(C)]
    struct Attributes {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = T::default();
    let attributes = Attributes {
        // Descriptors are not negative.
        bpf_fd: object.as_raw_fd() as u32,
        info_len: size_of::<T>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: laid out as the kernel's, without padding; the info is there, any bytes are one, and it
    // is as long as said. The kernel finds no pointers in it: it is zero.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &attributes) }?;
    Ok(info)
}
