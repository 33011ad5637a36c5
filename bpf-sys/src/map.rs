//! Maps from queues to AF_XDP sockets.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use zerocopy::{Immutable, IntoBytes};

use crate::{bpf, descriptor, name, number, object_info};

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const MAP_TYPE_XSKMAP: u32 = 17;

/// A map whose keys have four bytes; `map_type` is a BPF_MAP_TYPE_*.
///
/// # Errors
/// The kernel's. Needs CAP_BPF.
pub fn create_map(map_type: u32, value_size: u32, max_entries: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(IntoBytes, Immutable)]
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
        map_name: name("rw_sockets"),
    };
    // SAFETY: laid out as the kernel's; it points to nothing.
    descriptor(unsafe { bpf(MAP_CREATE, &attributes) })
}

/// A map from queues to sockets (BPF_MAP_TYPE_XSKMAP). Other maps may have longer keys and values,
/// of which the kernel would read more than is there.
#[derive(Clone, Copy, Debug)]
pub struct Xskmap<'a>(BorrowedFd<'a>);

impl<'a> Xskmap<'a> {
    /// One for queues below `queues`.
    ///
    /// # Errors
    /// The kernel's. Needs CAP_BPF.
    pub fn create(queues: u32) -> io::Result<OwnedFd> {
        create_map(MAP_TYPE_XSKMAP, 4, queues)
    }

    /// Looks whether it is one.
    ///
    /// # Errors
    /// It is another map.
    pub fn of(map: BorrowedFd<'a>) -> io::Result<Self> {
        // For another object the first word means something else; the kernel refuses it as a map.
        match object_info::<u32>(map)? {
            MAP_TYPE_XSKMAP => Ok(Self(map)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no map of sockets")),
        }
    }

    /// Leads a queue to a socket.
    ///
    /// # Errors
    /// The kernel's: E2BIG where the map has no such queue.
    pub fn insert(self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let socket = number(socket);
        // SAFETY: laid out as the kernel's; key and value are there, and as long as those of a map
        // of sockets.
        unsafe { bpf(MAP_UPDATE, &Element::new(self, &queue, Some(&socket))) }.map(drop)
    }

    /// Leads a queue to none.
    ///
    /// # Errors
    /// The kernel's: ENOENT where it led to none.
    pub fn remove(self, queue: u32) -> io::Result<()> {
        // SAFETY: as above.
        unsafe { bpf(MAP_DELETE, &Element::new(self, &queue, None)) }.map(drop)
    }
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
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
        let (key, value) = (address(key), value.map_or(0, address));
        Self { map_fd: number(map.0), zero: 0, key, value, flags: 0 }
    }
}
