//! `ringway bench`: measurements.

use ringway_gateway::problem::Error;

use crate::cli::{Bench, BenchArgs};
use crate::exit::Exit;

/// Runs a benchmark.
pub fn main(args: &BenchArgs) -> anyhow::Result<Exit> {
    match &args.what {
        Bench::Lb(_) => Err(Error::failed("this benchmark is not part of this build", "").into()),
    }
}
