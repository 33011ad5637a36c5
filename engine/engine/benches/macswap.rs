//! `memory-macswap`: what a worker costs by itself. Frames of 64 bytes come out of the pool as fast
//! as they are asked for, their addresses change places, and they are freed, in bursts, as
//! testpmd's macswap does between net_null ports.

use divan::Bencher;
use divan::counter::ItemsCount;
use ringway_engine::apps::{L2fwd, Macs};
use ringway_engine::ports::Null;
use ringway_engine::{Worker, WorkerOptions};
use ringway_xsk::{Umem, UmemConfig};

fn main() {
    divan::main();
}

#[divan::bench(args = [32, 64])]
fn memory_macswap(bencher: Bencher<'_, '_>, burst: usize) {
    let umem = Umem::new(&UmemConfig::default()).expect("memory for 4096 frames");
    let pool = umem.pool().expect("a new UMEM has a pool");
    let port = Null::open("null:64".into(), &pool, vec![0; 64]).expect("64 bytes fit");
    let options = WorkerOptions { burst, ..WorkerOptions::default() };
    let mut worker = Worker::new(pool, vec![Box::new(port)], L2fwd::new(Macs::Swap), options);
    bencher.counter(ItemsCount::new(burst)).bench_local(|| worker.round().is_ok());
    assert!(worker.audit().balanced());
}
