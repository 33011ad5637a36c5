//! libpcap's filter compiler and interpreter. It captures nothing here, opens nothing and asks
//! nobody for a name (names.rs). The compiler can be called from several threads at once (since
//! libpcap 1.8).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::classic::Classic;

/// The frames begin with an Ethernet header.
const DLT_EN10MB: c_int = 1;

/// Nothing is known of the network, so that `ip broadcast` is refused.
const NETMASK_UNKNOWN: u32 = u32::MAX;

#[repr(C)]
struct BpfProgram {
    length: u32,
    instructions: *mut Classic,
}

unsafe extern "C" {
    fn pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut c_void;
    fn pcap_close(handle: *mut c_void);
    fn pcap_geterr(handle: *mut c_void) -> *mut c_char;
    fn pcap_compile(
        handle: *mut c_void,
        program: *mut BpfProgram,
        expression: *const c_char,
        optimize: c_int,
        netmask: u32,
    ) -> c_int;
    fn pcap_freecode(program: *mut BpfProgram);
    fn bpf_filter(program: *const Classic, packet: *const u8, wire: u32, present: u32) -> u32;
}

struct Handle(NonNull<c_void>);

impl Handle {
    fn new(snaplen: u32) -> Option<Self> {
        let snaplen = c_int::try_from(snaplen).unwrap_or(c_int::MAX).max(1);
        // SAFETY: takes numbers, returns a handle or null when there is no memory.
        NonNull::new(unsafe { pcap_open_dead(DLT_EN10MB, snaplen) }).map(Self)
    }

    fn message(&self) -> String {
        // SAFETY: the handle is live; its message is always a string within it, read before
        // anything changes it.
        let message = unsafe { CStr::from_ptr(pcap_geterr(self.0.as_ptr())) };
        message.to_string_lossy().into_owned()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is from pcap_open_dead and closed once.
        unsafe { pcap_close(self.0.as_ptr()) };
    }
}

/// Compiles an expression; else what libpcap has against it.
pub(crate) fn compile(
    expression: &CStr,
    snaplen: u32,
    optimize: bool,
) -> Result<Vec<Classic>, String> {
    let handle = Handle::new(snaplen).ok_or("there is no memory")?;
    let mut program = BpfProgram { length: 0, instructions: std::ptr::null_mut() };
    // SAFETY: handle and string are live, `program` is written when the result is 0.
    let result = unsafe {
        let optimize = c_int::from(optimize);
        pcap_compile(
            handle.0.as_ptr(),
            &mut program,
            expression.as_ptr(),
            optimize,
            NETMASK_UNKNOWN,
        )
    };
    if result != 0 {
        return Err(handle.message());
    }
    // SAFETY: pcap_compile has left an array of that length, of the same layout.
    let compiled = unsafe {
        std::slice::from_raw_parts(program.instructions, program.length as usize).to_vec()
    };
    // SAFETY: from pcap_compile, freed once.
    unsafe { pcap_freecode(&mut program) };
    Ok(compiled)
}

/// Runs a program on a packet and returns its result: 0 for no match. `program` must have gone
/// through `classic::decode`: the interpreter checks nothing.
pub(crate) fn run(program: &[Classic], packet: &[u8], wire_len: u32) -> u32 {
    let present = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    // SAFETY: every path through the program ends within it at a return, as decode() has seen to,
    // and accesses of memory and packet are within bounds, which decode() and the interpreter have.
    unsafe { bpf_filter(program.as_ptr(), packet.as_ptr(), wire_len, present) }
}
