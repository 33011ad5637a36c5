//! XDP programs one by one, without an object file: loaded from instructions, pinned, opened.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_rs::ProgramHandle;
use libbpf_rs::libbpf_sys as sys;

use crate::link::{c_path, check, owned};

/// linux/bpf.h: the program takes packets of several buffers.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// Room for what the verifier says: it keeps the end.
const LOG_BYTES: usize = 16 * 1024;

/// Loads a program of the kind that all of ours are. On failure also what the verifier says.
pub(crate) fn load_xdp(
    name: &CStr,
    instructions: &[sys::bpf_insn],
) -> Result<OwnedFd, (io::Error, String)> {
    let mut log = vec![0u8; LOG_BYTES];
    try_load(name, instructions, &mut []).or_else(|_| {
        try_load(name, instructions, &mut log).map_err(|error| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
            (error, String::from_utf8_lossy(&log[..end]).trim_end().to_owned())
        })
    })
}

fn try_load(name: &CStr, instructions: &[sys::bpf_insn], log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        prog_flags: BPF_F_XDP_HAS_FRAGS,
        // As libbpf loads all of ours; newer kernels' arrays compare it, too.
        expected_attach_type: sys::BPF_XDP,
        ..Default::default()
    };
    if !log.is_empty() {
        opts.log_level = 1;
        opts.log_size = log.len() as u32;
        opts.log_buf = log.as_mut_ptr().cast();
    }
    // SAFETY: terminated strings, instructions, options and a log buffer as long as said, all of
    // which outlive the call.
    let ret = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            name.as_ptr(),
            c"GPL".as_ptr(),
            instructions.as_ptr(),
            instructions.len() as sys::size_t,
            &mut opts,
        )
    };
    owned(ret)
}

/// Pins a program, so that it outlives this process.
pub(crate) fn pin(program: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: an open descriptor and a NUL-terminated string that outlives the call.
    let ret = unsafe { sys::bpf_obj_pin(program.as_raw_fd(), path.as_ptr()) };
    check(ret).map(drop)
}

/// Opens what is pinned.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: a NUL-terminated string that outlives the call.
    let ret = unsafe { sys::bpf_obj_get(path.as_ptr()) };
    owned(ret)
}

/// Opens the program with this id. Needs CAP_SYS_ADMIN.
pub(crate) fn by_id(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes a number, gives a new descriptor.
    let ret = unsafe { sys::bpf_prog_get_fd_by_id(id) };
    owned(ret)
}

/// What the kernel tells of a program.
pub(crate) fn info(program: impl AsFd) -> io::Result<sys::bpf_prog_info> {
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is plain old data of the length told, and outlives the call.
    let ret = unsafe {
        sys::bpf_obj_get_info_by_fd(
            program.as_fd().as_raw_fd(),
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    check(ret).map(|_| info)
}

/// What a program returns that looks at no packet. The kernel wants one nevertheless.
pub(crate) fn result_of(program: BorrowedFd<'_>) -> crate::Result<u32> {
    let ethernet = [0u8; 14];
    let mut opts = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
        data_in: ethernet.as_ptr().cast(),
        data_size_in: ethernet.len() as u32,
        ..Default::default()
    };
    // SAFETY: the frame outlives the call; the kernel writes to `opts` alone.
    let ret = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut opts) };
    match ret {
        0.. => Ok(opts.retval),
        _ => Err(crate::Error::TestRun { source: io::Error::from_raw_os_error(-ret) }),
    }
}

/// Name of a loaded program; `None` when there is none with this id, or it may not be read.
pub fn program_name(id: u32) -> Option<String> {
    let program = ProgramHandle::from_prog_id(id).ok()?;
    Some(program.name().to_string_lossy().into_owned())
}
