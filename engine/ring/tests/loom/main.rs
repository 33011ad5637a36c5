//! Every order of events that the memory model allows: `RUSTFLAGS="--cfg loom" cargo test -p
//! ringway-ring --release --test loom --target-dir target/loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

mod records;
mod rings;
