//! Counts what arrives at a queue, and prints the counters every second.
//!
//! ```sh
//! cargo run --release --example rx_count -- eth1 0
//! ```
//! Takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. The queue's packets end here until the program
//! does.

mod common;

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ringway_xsk::Batch;

fn main() -> ExitCode {
    let Err(error) = run();
    eprintln!("{error}");
    ExitCode::FAILURE
}

fn run() -> Result<Infallible, Box<dyn Error>> {
    let mut opened = common::open()?;
    let mut batch = Batch::new(64);
    let (mut bytes, mut next) = (0, Instant::now());
    loop {
        if opened.socket.receive(&mut batch)? == 0 {
            opened.socket.wait(Duration::from_millis(100))?;
        }
        bytes += batch.iter().map(|packet| packet.len()).sum::<usize>();
        batch.clear();
        if Instant::now() >= next {
            opened.socket.check()?;
            let packets = opened.socket.counts().received_packets;
            println!("{packets} packets, {bytes} bytes; {:?}", opened.socket.kernel_counts()?);
            println!("{}", opened.pool.audit(&[opened.socket.rings()]));
            next += Duration::from_secs(1);
        }
    }
}
