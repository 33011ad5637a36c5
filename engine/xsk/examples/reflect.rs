//! Sends every packet back to where it came from, in the frame it came in.
//!
//! ```sh
//! cargo run --release --example reflect -- eth1 0
//! ```
//! Takes CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.

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
    let socket = &mut opened.socket;
    let mut batch = Batch::new(64);
    let mut next = Instant::now();
    loop {
        let received = socket.receive(&mut batch)?;
        for packet in batch.iter_mut() {
            if let Some((destination, rest)) = packet.data_mut().split_first_chunk_mut::<6>()
                && let Some(source) = rest.first_chunk_mut::<6>()
            {
                std::mem::swap(destination, source);
            }
        }
        socket.send(&mut batch)?;
        // Those that TX has no room for are dropped, as a NIC would.
        batch.clear();
        if received == 0 {
            socket.flush()?;
            socket.wait(Duration::from_millis(100))?;
        }
        if Instant::now() >= next {
            socket.check()?;
            println!("{:?}", socket.counts());
            println!("{}", opened.pool.audit(&[socket.rings()]));
            next += Duration::from_secs(1);
        }
    }
}
