//! `[node] on_pass`: a program of the user's own decides about what Ringway passes on.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use libbpf_rs::libbpf_sys as sys;
use ringway_net_tests::{Gateway, Site, WEB, all_answered, get, needs_root};
use ringway_testnet::Namespace;

/// A pinned XDP program that drops ICMP; unpinned with this.
struct Pinned(PathBuf);

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Pinned {
    fn new(namespace: &Namespace, name: &str, frags: bool) -> Result<Pinned> {
        let path = Path::new("/sys/fs/bpf").join(format!("{}-{name}", namespace.name()));
        let pinned = Pinned(path);
        let program = load(frags)?;
        let file = CString::new(pinned.0.to_string_lossy().as_bytes())?;
        // SAFETY: an open descriptor and a NUL-terminated string that outlives the call.
        let ret = unsafe { sys::bpf_obj_pin(program.as_raw_fd(), file.as_ptr()) };
        ensure!(ret == 0, "pinning {}: {}", pinned.0.display(), io::Error::from_raw_os_error(-ret));
        Ok(pinned)
    }
}

fn load(frags: bool) -> Result<OwnedFd> {
    let code = |code: u8, dst: u8, src: u8, off: i16, imm: i32| {
        let mut insn = sys::bpf_insn { code, off, imm, ..Default::default() };
        insn.set_dst_reg(dst);
        insn.set_src_reg(src);
        insn
    };
    // r1 = data, r2 = data_end; shorter than IPv4's header, no IPv4 or no ICMP: pass, else drop.
    let program = [
        code(0x61, 2, 1, 4, 0),
        code(0x61, 1, 1, 0, 0),
        code(0xbf, 3, 1, 0, 0),
        code(0x07, 3, 0, 0, 34),
        code(0x2d, 3, 2, 6, 0),
        code(0x69, 4, 1, 12, 0),
        code(0x55, 4, 0, 4, i32::from(0x0800u16.to_be())),
        code(0x71, 4, 1, 23, 0),
        code(0x55, 4, 0, 2, 1),
        code(0xb7, 0, 0, 0, 1),
        code(0x95, 0, 0, 0, 0),
        code(0xb7, 0, 0, 0, 2),
        code(0x95, 0, 0, 0, 0),
    ];
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        // BPF_F_XDP_HAS_FRAGS
        prog_flags: if frags { 1 << 5 } else { 0 },
        expected_attach_type: sys::BPF_XDP,
        ..Default::default()
    };
    // SAFETY: terminated strings, instructions and options that outlive the call.
    let ret = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            c"no_icmp".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as sys::size_t,
            &raw mut opts,
        )
    };
    ensure!(ret >= 0, "loading: {}", io::Error::from_raw_os_error(-ret));
    // SAFETY: the kernel has just returned this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(ret) })
}

fn pings(site: &Site) -> Result<bool> {
    let mut ping = site.client().command("ping");
    Ok(ping.args(["-c", "2", "-i", "0.2", "-W", "1", "10.1.0.1"]).output()?.status.success())
}

fn with(text: &str, path: &Path) -> String {
    text.replace("[node]\n", &format!("[node]\non_pass = {path:?}\n"))
}

#[test]
fn decides_about_what_is_passed_on_if_it_can() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let text = site.configuration(&site.service("web", WEB, ""));
    let linear = Pinned::new(ns, "linear", false)?;
    let none = Path::new("/sys/fs/bpf/no-such-program");
    for (path, words) in [(linear.0.as_path(), "xdp.frags"), (none, "cannot be opened")] {
        let mut gateway = Gateway::launch(ns, &with(&text, path))?;
        let (code, said) = gateway.refusal()?;
        ensure!(code == 2 && said.contains("ringway.toml:2:11"), "exit code {code}: {said}");
        ensure!(said.contains(words), "{said}");
        ensure!(!gateway.pins().exists(), "a refused start leaves pins");
    }
    let mine = Pinned::new(ns, "mine", true)?;
    let mut gateway = Gateway::start(ns, &with(&text, &mine.0))?;
    get(site.client(), WEB)?;
    ensure!(!pings(&site)?, "ICMP to the gateway itself is not passed on");
    let status = gateway.status()?;
    let counted = status["counters"]
        .as_array()
        .is_some_and(|counters| counters.iter().any(|counter| counter["reason"] == "on-pass"));
    ensure!(counted && status["ledger"]["difference_packets"] == 0, "{status}");
    let check = gateway.ringway(&["check", "--host"])?;
    ensure!(check.out.contains("program \"no_icmp\" decides about what we pass on"), "{check:?}");

    gateway.terminate()?;
    gateway.rewrite(&text)?;
    gateway.start_healthy()?;
    ensure!(all_answered(site.client(), "10.1.0.1", 2, "0.2")?, "taken away");
    get(site.client(), WEB)?;
    Ok(())
}
