//! A user's own XDP program behind Ringway's, for what Ringway passes on (`[node] on_pass`).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::{MapHandle, MapType};
use ringway_abi::Slot;
use ringway_abi::raw::rw_settings;

use crate::gateway::Gateway;
use crate::map;
use crate::{Error, Result};

/// linux/bpf.h: the program takes packets of several buffers.
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;

/// Whether a pinned program can stand behind Ringway's; its name.
///
/// # Errors
/// There is none, it is no XDP program, or not one that takes packets of several buffers.
pub fn check_on_pass(path: &Path) -> Result<String> {
    let (program, name) = open(path)?;
    // The kernel tells only by refusing to mix them in one array.
    let array = MapHandle::create(
        MapType::ProgArray,
        Some("rw_on_pass"),
        4,
        4,
        1,
        &sys::bpf_map_create_opts {
            sz: size_of::<sys::bpf_map_create_opts>() as sys::size_t,
            ..Default::default()
        },
    )
    .map_err(map::map_error("create", "rw_on_pass"))?;
    let ours = with_frags().map_err(|source| refused(path, format!("not tried: {source}")))?;
    map::put_fd(&array, 0, ours.as_fd())?;
    put(&array, 0, program.as_fd(), path)?;
    Ok(name)
}

impl Gateway {
    /// Puts a pinned program behind the gateway's stages, or takes away the one that is there: it
    /// decides about every packet that would have been passed to the kernel.
    ///
    /// # Errors
    /// As those of [`check_on_pass`].
    pub fn set_on_pass(&mut self, path: Option<&Path>) -> Result<()> {
        let (slot, bit) = (Slot::OnPass as u32, 1 << Slot::OnPass as u32);
        match path {
            Some(path) => {
                let (program, _) = open(path)?;
                put(&self.maps().slots, slot, program.as_fd(), path)?;
                self.set_stages(|stages| stages | bit)
            }
            None => {
                self.set_stages(|stages| stages & !bit)?;
                map::remove(&self.maps().slots, &slot)
            }
        }
    }

    fn set_stages(&self, change: impl Fn(u32) -> u32) -> Result<()> {
        let settings: rw_settings = map::get(&self.maps().settings, 0)?;
        let stages = change(settings.stages);
        if stages == settings.stages {
            return Ok(());
        }
        map::put(&self.maps().settings, &0u32, &rw_settings { stages, ..settings })
    }
}

fn refused(path: &Path, why: impl Into<String>) -> Error {
    Error::OnPass { path: path.to_owned(), why: why.into() }
}

fn put(array: &MapHandle, slot: u32, program: BorrowedFd<'_>, path: &Path) -> Result<()> {
    map::put_fd(array, slot, program).map_err(|_| {
        refused(
            path,
            "the program was not loaded as ours are, with packets of several buffers: compile it with \
             SEC(\"xdp.frags\") and load it with libbpf (bpftool prog load FILE.o PATH)",
        )
    })
}

/// The pinned program and its name.
fn open(path: &Path) -> Result<(OwnedFd, String)> {
    let file = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| refused(path, "this cannot be the name of a file"))?;
    // SAFETY: a NUL-terminated string that outlives the call.
    let ret = unsafe { sys::bpf_obj_get(file.as_ptr()) };
    if ret < 0 {
        let source = io::Error::from_raw_os_error(-ret);
        let why = format!("cannot be opened ({source}): pin it with bpftool prog load FILE.o PATH");
        return Err(refused(path, why));
    }
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(ret) };
    let mut info = sys::bpf_prog_info::default();
    let mut length = size_of::<sys::bpf_prog_info>() as u32;
    // SAFETY: `info` is plain old data of the length told, and outlives the call.
    let ret = unsafe {
        sys::bpf_obj_get_info_by_fd(fd.as_raw_fd(), (&raw mut info).cast(), &raw mut length)
    };
    // What is pinned there may be a map or a link, which have other facts.
    let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let is_program = target.is_ok_and(|target| target.to_string_lossy().contains("bpf-prog"));
    if ret != 0 || !is_program || info.type_ != sys::BPF_PROG_TYPE_XDP {
        return Err(refused(path, "what is pinned there is no XDP program: pin one"));
    }
    let name = info.name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
    Ok((fd, String::from_utf8(name).unwrap_or_default()))
}

/// A program of the kind that all of ours are.
fn with_frags() -> io::Result<OwnedFd> {
    let program = crate::machine::pass_instructions();
    let opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        prog_flags: BPF_F_XDP_HAS_FRAGS,
        // As libbpf loads all of ours; newer kernels' arrays compare it, too.
        expected_attach_type: sys::BPF_XDP,
        ..Default::default()
    };
    // SAFETY: terminated strings, instructions and options that outlive the call.
    let ret = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            c"rw_frags".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            &opts as *const _ as *mut _,
        )
    };
    if ret < 0 {
        return Err(io::Error::from_raw_os_error(-ret));
    }
    // SAFETY: the kernel has just returned this descriptor to us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(ret) })
}
