//! The cost of a frame apart from the kernel: `cargo bench -p ringway-xsk`. Figures are for 32
//! packets.

use divan::Bencher;
use ringway_xsk::{Batch, Pool, Umem, UmemConfig, Use, fake_kernel};

const BURST: usize = 32;

fn main() {
    divan::main();
}

fn pool() -> Pool {
    let umem = Umem::new(&UmemConfig::default()).unwrap_or_else(|e| panic!("{e}"));
    umem.pool().unwrap_or_else(|| panic!("a new UMEM has a pool"))
}

/// Allocated and freed in bursts.
#[divan::bench]
fn burst(bencher: Bencher) {
    let (pool, mut batch) = (pool(), Batch::new(BURST));
    bencher.bench_local(|| {
        pool.allocate_burst(&mut batch, BURST);
        divan::black_box(&mut batch).clear();
    });
}

/// Allocated and freed one by one, the list growing and shrinking.
#[divan::bench]
fn one_by_one(bencher: Bencher) {
    let pool = pool();
    bencher.bench_local(|| {
        let packets: [_; BURST] = std::array::from_fn(|_| pool.allocate());
        divan::black_box(packets)
    });
}

/// Sent, and completed by a kernel that is played, whose part is in it.
#[divan::bench]
fn sent_and_completed(bencher: Bencher) {
    let (pool, mut batch) = (pool(), Batch::new(BURST));
    let usage = Use { fill: 64, need_wakeup: true, busy_poll: false, several_frames: false };
    let (mut queue, mut kernel) = fake_kernel::queue(&pool, 64, 0, usage);
    bencher.bench_local(|| {
        pool.allocate_burst(&mut batch, BURST);
        for packet in batch.iter_mut() {
            // A frame has room for it.
            let _ = packet.set_range(256..320);
        }
        let sent = queue.send(&mut batch);
        kernel.take_tx();
        divan::black_box(sent).is_ok()
    });
}
