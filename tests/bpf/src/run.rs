//! BPF_PROG_TEST_RUN and the few other system calls that tests need and the gateway does not.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null;

use libbpf_rs::libbpf_sys as sys;
use ringway_abi::Verdict;
use ringway_filter::Instruction;

/// One program to run frames through. Shared by threads.
#[derive(Debug)]
pub struct Program(OwnedFd);

/// Room for what a program may add to a frame.
const GROWTH: usize = 64;

impl Program {
    /// Another handle to a loaded program.
    pub fn new(fd: BorrowedFd<'_>) -> Self {
        Self(fd.try_clone_to_owned().unwrap())
    }

    pub fn another(&self) -> Self {
        Self::new(self.0.as_fd())
    }

    /// Ids of the maps that it uses.
    pub fn map_ids(&self) -> Vec<u32> {
        ringway_bpf_sys::map_ids(self.0.as_fd()).unwrap()
    }

    /// A handle to the program with this id.
    pub fn by_id(id: u32) -> Self {
        // SAFETY: takes a number, gives a new descriptor that nobody else owns.
        unsafe {
            let fd = sys::bpf_prog_get_fd_by_id(id);
            assert!(fd >= 0, "opening program {id}: {fd}");
            Self(OwnedFd::from_raw_fd(fd))
        }
    }

    /// Runs a frame through it. `out` receives the frame as the program left it.
    pub fn run(&self, frame: &[u8], out: &mut Vec<u8>) -> Result<Verdict, std::io::Error> {
        Ok(Verdict::try_from(self.test_run(frame, &[], 1, out)?.retval).unwrap())
    }

    /// What a program returns for a frame, whatever it means.
    pub fn result(&self, frame: &[u8]) -> Result<u32, std::io::Error> {
        Ok(self.test_run(frame, &[], 1, &mut Vec::new())?.retval)
    }

    /// Runs a frame through a program of the traffic control hook, from a socket of this mark: its
    /// action (TC_ACT_*), and the frame as it left it.
    pub fn run_marked(&self, frame: &[u8], mark: u32) -> (u32, Vec<u8>) {
        let mut out = Vec::new();
        // The head of struct __sk_buff (linux/bpf.h): length, packet type, mark.
        let ran = self.test_run(frame, &[0, 0, mark], 1, &mut out).unwrap();
        (ran.retval, out)
    }

    /// Nanoseconds of one run of many, one after the other.
    pub fn nanoseconds(&self, frame: &[u8], runs: u32) -> u32 {
        self.test_run(frame, &[], runs, &mut Vec::new()).unwrap().duration
    }

    /// Runs it so often. `context`: the first bytes of the program's context; nothing for an empty
    /// one.
    fn test_run(
        &self,
        frame: &[u8],
        context: &[u32],
        runs: u32,
        out: &mut Vec<u8>,
    ) -> Result<sys::bpf_test_run_opts, std::io::Error> {
        out.resize(frame.len() + GROWTH, 0);
        let mut opts = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ctx_in: if context.is_empty() { null() } else { context.as_ptr().cast() },
            ctx_size_in: size_of_val(context) as u32,
            repeat: runs as i32,
            ..Default::default()
        };
        // SAFETY: buffers and context are as long as said and outlive the call; the kernel writes
        // only to `out` and to `opts` itself.
        let ret = unsafe { sys::bpf_prog_test_run_opts(self.0.as_raw_fd(), &mut opts) };
        if ret < 0 {
            return Err(std::io::Error::from_raw_os_error(-ret));
        }
        out.truncate(opts.data_size_out as usize);
        Ok(opts)
    }

    /// How often the kernel has run it, while [`count_runs`] was held.
    pub fn run_count(&self) -> u64 {
        self.info().run_cnt
    }

    /// Instructions that the verifier looked at when it was loaded.
    pub fn verified_instructions(&self) -> u32 {
        self.info().verified_insns
    }

    fn info(&self) -> sys::bpf_prog_info {
        let mut info = sys::bpf_prog_info::default();
        let mut len = size_of::<sys::bpf_prog_info>() as u32;
        // SAFETY: `info` is as long as `len` says and asks for no array.
        let ret = unsafe { sys::bpf_prog_get_info_by_fd(self.0.as_raw_fd(), &mut info, &mut len) };
        assert_eq!(ret, 0, "reading a program's info");
        info
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Moves the calling thread to a CPU. On a machine without it, it stays where it is.
pub fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// The kernel counts the runs of every program until the guard is dropped.
pub fn count_runs() -> OwnedFd {
    // SAFETY: takes a number, gives a new descriptor that nobody else owns.
    unsafe {
        let fd = sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME);
        assert!(fd >= 0, "BPF_ENABLE_STATS: {fd}");
        OwnedFd::from_raw_fd(fd)
    }
}

/// Somebody else's XDP program, with or without the frags flag: it gives one verdict, always.
pub fn foreign_program(verdict: Verdict, frags: bool) -> Result<Program, std::io::Error> {
    const MOV_R0: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    let insn = |code, imm| sys::bpf_insn { code, imm, off: 0, ..Default::default() };
    load_xdp(&[insn(MOV_R0, verdict as i32), insn(EXIT, 0)], frags)
}

/// A filter's program, with the frags flag.
pub fn filter_program(program: &[Instruction]) -> Result<Program, std::io::Error> {
    let insns: Vec<sys::bpf_insn> = program
        .iter()
        .map(|insn| {
            let mut raw = sys::bpf_insn {
                code: insn.code,
                off: insn.offset,
                imm: insn.immediate,
                ..Default::default()
            };
            raw.set_dst_reg(insn.dst());
            raw.set_src_reg(insn.src());
            raw
        })
        .collect();
    load_xdp(&insns, true)
}

fn load_xdp(insns: &[sys::bpf_insn], frags: bool) -> Result<Program, std::io::Error> {
    try_load_xdp(insns, frags, &mut []).map_err(|error| {
        let mut log = vec![0; 1 << 24];
        let _ = try_load_xdp(insns, frags, &mut log);
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.trim_end_matches('\0').lines().rev().take(40).collect();
        let last: Vec<&str> = lines.into_iter().rev().collect();
        std::io::Error::new(error.kind(), format!("{error}\n{}", last.join("\n")))
    })
}

fn try_load_xdp(
    insns: &[sys::bpf_insn],
    frags: bool,
    log: &mut [u8],
) -> Result<Program, std::io::Error> {
    const HAS_FRAGS: u32 = 1 << 5; // BPF_F_XDP_HAS_FRAGS, linux/bpf.h
    let mut opts = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as sys::size_t,
        expected_attach_type: sys::BPF_XDP,
        prog_flags: if frags { HAS_FRAGS } else { 0 },
        ..Default::default()
    };
    if !log.is_empty() {
        opts.log_level = 1;
        opts.log_size = log.len() as u32;
        opts.log_buf = log.as_mut_ptr().cast();
    }
    // SAFETY: strings end with NUL, `insns` and `log` are as long as said; the new descriptor is
    // ours.
    unsafe {
        let fd = sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_XDP,
            c"foreign".as_ptr(),
            c"GPL".as_ptr(),
            insns.as_ptr(),
            insns.len() as sys::size_t,
            &mut opts,
        );
        if fd < 0 {
            return Err(std::io::Error::from_raw_os_error(-fd));
        }
        Ok(Program(OwnedFd::from_raw_fd(fd)))
    }
}
