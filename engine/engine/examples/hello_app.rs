//! A packet program in forty lines, over a cable in memory:
//! `cargo run -p ringway-engine --example hello_app`.

use std::error::Error;

use ringway_engine::ports::Memory;
use ringway_engine::{App, Burst, Cycles, Port as _, Reason, Verdict, Worker, WorkerOptions};
use ringway_xsk::{Batch, Umem, UmemConfig};

/// Sends every "hello" back as "world".
struct Hello;

impl App for Hello {
    fn name(&self) -> &'static str {
        "hello"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let from = burst.from();
        burst.decide(|packet| match packet.data_mut() {
            [_ethernet @ .., h, e, l, l2, o] if [*h, *e, *l, *l2, *o] == *b"hello" => {
                [*h, *e, *l, *l2, *o] = *b"world";
                Verdict::Forward(from)
            }
            _ => Verdict::Drop(Reason::BadRequest),
        });
    }
}

/// Sends one, and checks the audit.
pub fn main() -> Result<(), Box<dyn Error>> {
    let pool = Umem::new(&UmemConfig::default())?.pool().ok_or("all pools are in use")?;
    let (mut outside, inside) = Memory::pair("a", &pool, 64)?;
    let mut worker =
        Worker::new(pool.clone(), vec![Box::new(inside)], Hello, WorkerOptions::default());
    let mut packet = pool.allocate().ok_or("no frame is free")?;
    packet.append(&[0; 14])?;
    packet.append(b"hello")?;
    let mut batch = Batch::new(1);
    batch.push(packet).map_err(|_| "no room")?;
    outside.tx_burst(&mut batch)?;
    worker.round()?;
    outside.rx_burst(&mut batch)?;
    println!("{}\n{}", String::from_utf8_lossy(&batch[0].data()[14..]), worker.status());
    assert!(worker.audit().frames.balanced() && batch[0].data().ends_with(b"world"));
    Ok(())
}
