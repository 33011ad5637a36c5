//! What the kernel counts, to compare Ringway's ledger with.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::{fs, io};

use anyhow::{Context, Result, ensure};
use libbpf_rs::{ProgramHandle, libbpf_sys as sys};
use ringway_testnet::Namespace;
use serde_json::Value;

/// Counters and XDP programs of an interface, by `ip -d -s -j link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    pub received: u64,
    /// Id of the attached XDP program, 0: none.
    pub program: u32,
}

impl Device {
    /// Reads one.
    pub fn read(namespace: &Namespace, name: &str) -> Result<Device> {
        let mut ip = namespace.command("ip");
        let output = ip.args(["-d", "-s", "-j", "link", "show", "dev", name]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let links: Value = serde_json::from_slice(&output.stdout)?;
        let received = links[0]["stats64"]["rx"]["packets"].as_u64().context("no counters")?;
        let program = links[0]["xdp"]["prog"]["id"].as_u64().unwrap_or(0);
        Ok(Device { received, program: program as u32 })
    }
}

/// While it lives, the kernel counts how often each program runs. Only then: it costs time.
#[derive(Debug)]
pub struct RunCounts(#[expect(dead_code, reason = "counting ends when it is closed")] OwnedFd);

impl RunCounts {
    /// Begins counting.
    pub fn begin() -> Result<RunCounts> {
        // SAFETY: a plain system call.
        let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
        ensure!(fd >= 0, "BPF_ENABLE_STATS: {}", io::Error::from_raw_os_error(-fd));
        // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
        Ok(RunCounts(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// How often the program with this id has run while counting was on.
    pub fn of(&self, program: u32) -> Result<u64> {
        use std::os::fd::AsFd;
        let program = ProgramHandle::from_prog_id(program)?;
        let mut info = sys::bpf_prog_info::default();
        let mut length = size_of_val(&info) as u32;
        let fd = program.as_fd().as_raw_fd();
        // SAFETY: an open descriptor; the kernel writes at most `length` bytes of a structure all
        // of whose pointers are null.
        let ret =
            unsafe { sys::bpf_obj_get_info_by_fd(fd, (&raw mut info).cast(), &raw mut length) };
        ensure!(ret == 0, "no information: {}", io::Error::from_raw_os_error(-ret));
        Ok(info.run_cnt)
    }
}

/// Detaches the pinned attachment at `path`, as somebody else's tool might.
pub fn detach_link(path: &Path) -> Result<()> {
    ensure!(fs::exists(path)?, "{} is no pin", path.display());
    Ok(libbpf_rs::Link::open(path)?.detach()?)
}

/// Puts a program that passes everything into the pinned attachment at `path`, in place of the one
/// there.
pub fn swap_link(path: &Path) -> Result<()> {
    let link = libbpf_rs::Link::open(path)?;
    let program = pass_program()?;
    // SAFETY: both descriptors are open; null options are allowed (libbpf's OPTS_VALID).
    let ret = unsafe {
        use std::os::fd::AsFd;
        sys::bpf_link_update(link.as_fd().as_raw_fd(), program.as_raw_fd(), std::ptr::null())
    };
    ensure!(ret == 0, "swapping {}: {}", path.display(), io::Error::from_raw_os_error(-ret));
    Ok(())
}

/// `return XDP_PASS;`
fn pass_program() -> Result<OwnedFd> {
    let code = |code: u8, imm: i32| sys::bpf_insn { code, imm, ..Default::default() };
    // r0 = XDP_PASS; exit.
    let program = [code(0xb7, 2), code(0x95, 0)];
    let opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type: sys::BPF_XDP,
        // BPF_F_XDP_HAS_FRAGS
        prog_flags: 1 << 5,
        ..Default::default()
    };
    // SAFETY: terminated strings, instructions and options that outlive the call.
    let ret = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            c"somebody_else".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            &opts as *const _ as *mut _,
        )
    };
    ensure!(ret >= 0, "loading: {}", io::Error::from_raw_os_error(-ret));
    // SAFETY: the kernel has just returned this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(ret) })
}

/// Detaches whatever program is on an interface of the calling thread's network namespace by a
/// link, as `bpftool link detach` does.
pub fn detach_as_somebody_else(interface: &str) -> Result<()> {
    let link = ringway_host::netlink::links::by_name(interface)?;
    let program = link.xdp.first().context("no program is on it")?.program;
    let mut links = libbpf_rs::query::LinkInfoIter::default();
    let id = links.find(|link| link.prog_id == program).context("no link holds it")?.id;
    // SAFETY: takes a number; the descriptor is new, nobody else owns it, and it is open for the
    // other call.
    let ret = unsafe {
        let fd = sys::bpf_link_get_fd_by_id(id);
        ensure!(fd >= 0, "opening link {id}: {fd}");
        let fd = OwnedFd::from_raw_fd(fd);
        sys::bpf_link_detach(fd.as_raw_fd())
    };
    ensure!(ret == 0, "detaching link {id}: {ret}");
    Ok(())
}
