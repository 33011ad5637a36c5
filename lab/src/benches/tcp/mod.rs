//! The cost of TCP on this machine: memory, connections by the million, the time to make one.

use std::io;

pub(crate) mod connect;
pub(crate) mod memory;
pub(crate) mod million;

mod counters;
pub(crate) mod limits;
pub(crate) mod memcg;
mod slab;
pub(crate) mod socket;

/// Helper processes of these benches, run by this binary itself as `ringway-lab bench inner JOB`.
///
/// # Errors
/// An unknown job, or it could not be done.
pub fn inner(job: &str) -> io::Result<()> {
    let fields: Vec<&str> = job.split(',').collect();
    let unknown = || io::Error::new(io::ErrorKind::InvalidInput, format!("no such job: {job}"));
    million::inner(&fields).unwrap_or_else(|| Err(unknown()))
}
