//! XDP programs from instructions, and the kernel's description of programs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::{error, fmt, io};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::link::ATTACH_XDP;
use crate::{bpf, descriptor, fill_info, name, object_info};

const PROG_LOAD: libc::c_int = 5;
const PROG_GET_FD_BY_ID: libc::c_int = 13;
const PROG_TYPE_XDP: u32 = 6;
/// The program takes packets of several buffers.
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// An instruction: opcode, registers (destination in the lower four bits, source in the upper),
/// offset, immediate.
pub type Instruction = (u8, u8, i16, i32);

/// `return XDP_PASS;`
pub const PASS: [Instruction; 2] = [(0xb7, 0, 0, 2), (0x95, 0, 0, 0)];

/// An XDP program that is to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// As `bpftool` shows it: 15 bytes.
    pub name: &'a str,
    /// At most 1 000 000.
    pub instructions: &'a [Instruction],
    /// It takes packets of several buffers (Linux 5.18).
    pub frags: bool,
}

#[derive(Debug)]
pub struct LoadError {
    pub source: io::Error,
    /// The end of the verifier's log; empty where it did not get that far.
    pub log: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the kernel refuses the program")?;
        if self.log.is_empty() { Ok(()) } else { write!(f, ": {}", self.log) }
    }
}

impl error::Error for LoadError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Program<'_> {
    /// Loads it. Takes CAP_BPF and CAP_NET_ADMIN.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(&self) -> Result<OwnedFd, LoadError> {
        // The verifier writes only when somebody reads: it is asked again where it refuses.
        self.load_with(&mut []).or_else(|_| {
            let mut log = vec![0; 16 << 10];
            self.load_with(&mut log).map_err(|source| {
                let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                let log = String::from_utf8_lossy(&log[..end]).trim_end().to_owned();
                LoadError { source, log }
            })
        })
    }

    fn load_with(&self, log: &mut [u8]) -> io::Result<OwnedFd> {
        #[repr(C)]
        #[derive(IntoBytes, Immutable)]
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
        let code: Vec<u8> = self.instructions.iter().copied().flat_map(encode).collect();
        let attributes = Attributes {
            prog_type: PROG_TYPE_XDP,
            insn_cnt: self.instructions.len() as u32,
            insns: code.as_ptr() as u64,
            license: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: u32::from(!log.is_empty()),
            log_size: log.len() as u32,
            log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
            kern_version: 0,
            prog_flags: if self.frags { XDP_HAS_FRAGS } else { 0 },
            prog_name: name(self.name),
            prog_ifindex: 0,
            // As libbpf loads all of ours; newer kernels' arrays compare it, too.
            expected_attach_type: ATTACH_XDP,
        };
        // SAFETY: laid out as the kernel's; code, licence and log are there, and as long as said.
        descriptor(unsafe { bpf(PROG_LOAD, &attributes) })
    }
}

fn encode((opcode, registers, offset, immediate): Instruction) -> [u8; 8] {
    let ([a, b], [c, d, e, f]) = (offset.to_ne_bytes(), immediate.to_ne_bytes());
    // Registers are two bit fields, and bit fields begin at the other end where bytes do (struct
    // bpf_insn).
    let registers = if cfg!(target_endian = "big") { registers.rotate_left(4) } else { registers };
    [opcode, registers, a, b, c, d, e, f]
}

/// Opens the program with this id.
///
/// # Errors
/// The kernel's. Needs CAP_SYS_ADMIN.
pub fn by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the attributes begin with the id, and zeros follow; they point to nothing.
    descriptor(unsafe { bpf(PROG_GET_FD_BY_ID, &[id, 0, 0]) })
}

/// A program's description (the head of struct bpf_prog_info).
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
pub struct ProgramInfo {
    /// BPF_PROG_TYPE_*.
    pub kind: u32,
    pub id: u32,
    pub tag: [u8; 8],
    /// Bytes of machine code; 0: it is interpreted.
    pub jited_len: u32,
    /// Bytes of instructions.
    pub translated_len: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by: u32,
    map_count: u32,
    maps: u64,
    name: [u8; 16],
}

impl ProgramInfo {
    pub fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }

    /// Whether it is an XDP program.
    pub fn is_xdp(&self) -> bool {
        self.kind == PROG_TYPE_XDP
    }
}

/// The kernel's description of a program.
///
/// # Errors
/// The kernel's.
pub fn info(program: BorrowedFd<'_>) -> io::Result<ProgramInfo> {
    object_info(program)
}

/// The ids of a program's maps: the first [`MOST_MAPS`] of them.
///
/// # Errors
/// The kernel's.
pub fn map_ids(program: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = vec![0; MOST_MAPS];
    let mut info = ProgramInfo::new_zeroed();
    (info.map_count, info.maps) = (MOST_MAPS as u32, ids.as_mut_ptr() as u64);
    // SAFETY: there is room for as many ids as is said, and the other pointers are zero.
    unsafe { fill_info(program, &mut info) }?;
    // The number of maps; the kernel has written as many ids as there was room for.
    ids.truncate(info.map_count as usize);
    Ok(ids)
}

/// More than any of ours has.
pub const MOST_MAPS: usize = 64;
