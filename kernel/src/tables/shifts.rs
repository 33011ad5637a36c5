//! The table of shifts, made when the first service needs it.

use std::os::fd::{AsFd as _, AsRawFd as _};

use libbpf_rs::libbpf_sys::BPF_F_INNER_MAP;
use libbpf_rs::{MapCore as _, MapType};
use ringway_abi::raw::rw_shift_bucket;

use crate::Result;
use crate::maps::{self, Maps};

/// A bucket for each of the flow table's.
pub(super) fn make(maps: &Maps) -> Result<()> {
    if maps.shifts.find(&0)?.is_some() {
        return Ok(());
    }
    let sizes = (4, size_of::<rw_shift_bucket>() as u32);
    let buckets = maps.flows.max_entries();
    let table = maps::create(MapType::Array, "rw_shifts", sizes, buckets, BPF_F_INNER_MAP)?;
    maps.shifts.put(&0, &(table.as_fd().as_raw_fd().cast_unsigned()))
}
