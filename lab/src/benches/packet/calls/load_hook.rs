//! Puts counters into programs on their way from libbpf to the kernel.
//!
//! libbpf lets its user prepare programs of a section just before it loads them. What loads them
//! knows nothing of it: here that is the gateway's own code.

use std::cell::RefCell;
use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::slice;
use std::sync::OnceLock;

use libbpf_rs::MapHandle;
use libbpf_rs::libbpf_sys as sys;

use super::MOST_COUNTERS;
use super::instrument::{Event, Instruction, Instrumented};
use crate::{CountError, Result};

thread_local! {
    /// Set while this thread loads programs that are to have counters.
    static LOADING: RefCell<Option<Loading>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Loading {
    /// The map of counters.
    map: RawFd,
    /// What is counted, by the counters' number.
    events: Vec<Event>,
    /// Places of functions, which the kernel reads when the program is loaded.
    functions: Vec<Vec<u8>>,
    failed: Option<CountError>,
}

/// Runs `load`. Programs for XDP that this thread loads meanwhile count in this map; what each of
/// its counters counts is in the result.
pub(super) fn with_counters<T>(
    map: &MapHandle,
    load: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Event>)> {
    register()?;
    LOADING.set(Some(Loading { map: map.as_fd().as_raw_fd(), ..Default::default() }));
    let loaded = load();
    match LOADING.take().unwrap_or_default() {
        Loading { failed: Some(error), .. } => Err(error.into()),
        Loading { events, .. } => Ok((loaded?, events)),
    }
}

/// Gives libbpf the handler, once in a process and for good: its table of handlers has no lock, and
/// objects keep pointers into it. On threads that are not [`LOADING`] the handler does what libbpf
/// does without.
fn register() -> Result<()> {
    static REGISTERED: OnceLock<c_int> = OnceLock::new();
    let registered = *REGISTERED.get_or_init(|| {
        let options = sys::libbpf_prog_handler_opts {
            sz: size_of::<sys::libbpf_prog_handler_opts>() as sys::size_t,
            prog_prepare_load_fn: Some(prepare),
            ..Default::default()
        };
        // SAFETY: libbpf copies the section's name and the options, which are as long as they say.
        // In ringway-lab no other thread opens an object meanwhile; one of a test's finds the table
        // empty or with this handler.
        unsafe {
            sys::libbpf_register_prog_handler(
                c"xdp.frags".as_ptr(),
                sys::BPF_PROG_TYPE_XDP,
                sys::BPF_XDP,
                &options,
            )
        }
    });
    if registered < 0 {
        return Err(CountError::Handler(io::Error::from_raw_os_error(-registered)).into());
    }
    Ok(())
}

/// libbpf's last step before it loads a program; a negative error number ends the loading.
unsafe extern "C" fn prepare(
    program: *mut sys::bpf_program,
    options: *mut sys::bpf_prog_load_opts,
    _cookie: c_long,
) -> c_int {
    // SAFETY: libbpf gives the options of the program that it is about to load on this thread.
    let options = unsafe { &mut *options };
    // libbpf's own handler of the section does this and no more.
    options.prog_flags |= sys::BPF_F_XDP_HAS_FRAGS;
    LOADING.with_borrow_mut(|loading| {
        let Some(loading) = loading else { return 0 };
        // SAFETY: the program is the one that libbpf gave, and the options are its.
        match unsafe { loading.add_counters(program, options) } {
            Ok(result) => result,
            Err(error) => {
                loading.failed = Some(error);
                -libc::EINVAL
            }
        }
    })
}

impl Loading {
    /// # Safety
    /// `program` is about to be loaded by this thread with these options, as libbpf made them.
    unsafe fn add_counters(
        &mut self,
        program: *mut sys::bpf_program,
        options: &mut sys::bpf_prog_load_opts,
    ) -> Result<c_int, CountError> {
        // SAFETY: the program has so many instructions until they are replaced, and an Instruction
        // is laid out as one.
        let original = unsafe {
            slice::from_raw_parts(
                sys::bpf_program__insns(program).cast::<Instruction>(),
                sys::bpf_program__insn_cnt(program) as usize,
            )
        };
        let mut counted = Instrumented::new(original, self.map, self.events.len())?;
        self.events.append(&mut counted.events);
        if self.events.len() > MOST_COUNTERS {
            return Err(CountError::TooMany);
        }
        // SAFETY: the options are libbpf's own.
        unsafe { self.move_functions(options, &counted) }?;
        // No line of the source is where it was; only the verifier's log would name them.
        options.line_info = std::ptr::null();
        options.line_info_cnt = 0;
        let length = counted.code.len() as sys::size_t;
        // SAFETY: libbpf copies so many instructions, which are laid out as its own.
        Ok(unsafe {
            sys::bpf_program__set_insns(program, counted.code.as_mut_ptr().cast(), length)
        })
    }

    /// Tells the kernel where the program's functions begin now. A record begins with the number of
    /// an instruction (struct bpf_func_info).
    ///
    /// # Safety
    /// The options are as libbpf made them.
    unsafe fn move_functions(
        &mut self,
        options: &mut sys::bpf_prog_load_opts,
        counted: &Instrumented,
    ) -> Result<(), CountError> {
        let record = options.func_info_rec_size as usize;
        if options.func_info.is_null() || record < size_of::<u32>() {
            return Ok(());
        }
        let length = options.func_info_cnt as usize * record;
        // SAFETY: libbpf's table of so many records, each of this length.
        let table = unsafe { slice::from_raw_parts(options.func_info.cast::<u8>(), length) };
        let mut table = table.to_vec();
        for place in table.chunks_exact_mut(record).filter_map(<[u8]>::first_chunk_mut) {
            *place = counted.entry(u32::from_ne_bytes(*place))?.to_ne_bytes();
        }
        options.func_info = table.as_ptr().cast();
        // Moving the Vec moves no record.
        self.functions.push(table);
        Ok(())
    }
}
