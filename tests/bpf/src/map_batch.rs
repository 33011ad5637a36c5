//! Maps, read or emptied at once.

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys as sys;
use ringway_abi::IntoBytes;

pub(crate) fn info_of(map: BorrowedFd<'_>) -> sys::bpf_map_info {
    let mut info = sys::bpf_map_info::default();
    let mut len = size_of::<sys::bpf_map_info>() as u32;
    // SAFETY: `info` is as long as `len` says.
    let ret = unsafe { sys::bpf_map_get_info_by_fd(map.as_raw_fd(), &mut info, &mut len) };
    assert_eq!(ret, 0, "reading a map's info");
    info
}

/// Everything in a map, of all CPUs.
pub(crate) fn dump(map: BorrowedFd<'_>) -> Vec<u8> {
    let info = info_of(map);
    let entries = info.max_entries as usize;
    let mut keys = vec![0u8; entries * info.key_size as usize];
    let mut values = vec![0u8; entries * value_size(&info)];
    let (mut count, mut next) = (info.max_entries, 0u64);
    // SAFETY: both buffers have room for as many entries as `count` says; `next` for a position.
    let ret = unsafe {
        sys::bpf_map_lookup_batch(
            map.as_raw_fd(),
            std::ptr::null_mut(),
            (&raw mut next).cast(),
            keys.as_mut_ptr().cast(),
            values.as_mut_ptr().cast(),
            &mut count,
            std::ptr::null(),
        )
    };
    assert!(ret == 0 || ret == -2, "reading a map at once: {ret}");
    assert_ne!(count, 0, "nothing was read");
    keys.extend(values);
    keys
}

/// Fills an array with zeros, for all CPUs.
pub(crate) fn clear(map: BorrowedFd<'_>) {
    let info = info_of(map);
    let keys: Vec<u32> = (0..info.max_entries).collect();
    for keys in keys.chunks(4096) {
        let zeros = vec![0u8; keys.len() * value_size(&info)];
        let mut count = keys.len() as u32;
        // SAFETY: both buffers hold as many entries as `count` says.
        let ret = unsafe {
            sys::bpf_map_update_batch(
                map.as_raw_fd(),
                keys.as_bytes().as_ptr().cast(),
                zeros.as_ptr().cast(),
                &mut count,
                std::ptr::null(),
            )
        };
        assert_eq!(ret, 0, "emptying a map");
    }
}

fn value_size(info: &sys::bpf_map_info) -> usize {
    let per_cpu = [sys::BPF_MAP_TYPE_PERCPU_ARRAY, sys::BPF_MAP_TYPE_PERCPU_HASH];
    match per_cpu.contains(&info.type_) {
        true => {
            (info.value_size as usize).next_multiple_of(8) * libbpf_rs::num_possible_cpus().unwrap()
        }
        false => info.value_size as usize,
    }
}
