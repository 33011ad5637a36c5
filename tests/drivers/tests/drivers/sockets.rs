//! AF_XDP on real drivers: datagrams go to an address that only a socket here answers for, and come
//! back with the same bytes.

use std::net::UdpSocket;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_driver_tests::Cell;
use ringway_testnet::slowed;
use ringway_xsk::{
    Batch, Chunk, Mode, Packet, Pool, Redirect, SetupError, Socket, SocketConfig, Umem, UmemConfig,
    XdpMode,
};

use crate::bench::{Bench, Nic};
use crate::capabilities::{QUEUES, names, queues_now};

/// The host part of the address that sockets answer for.
const OURS: u8 = 9;
/// Host parts of senders: a NIC spreads datagrams over queues by their addresses and ports.
const SENDERS: std::ops::Range<u8> = 100..116;
const PORT: u16 = 7;
/// Within this an answer is there, on a real processor.
const PATIENCE: Duration = Duration::from_millis(500);

/// How sockets are opened.
#[derive(Clone, Copy)]
struct Way {
    xdp: XdpMode,
    mode: Mode,
    need_wakeup: bool,
    /// One memory for all queues.
    shared: bool,
}

/// Sockets on all queues of a NIC, and the program that fills them.
struct Open {
    // Dropped in this order.
    sockets: Vec<Socket>,
    pools: Vec<Pool>,
    redirect: Redirect,
    mac: [u8; 6],
}

impl Open {
    fn new(nic: &Nic, way: Way) -> Result<Open> {
        let link = nic.link()?;
        let mac = link.mac.context("no MAC address")?.0;
        let redirect = Redirect::attach(&nic.name, way.xdp, QUEUES);
        let redirect = redirect.with_context(|| format!("{}: {:?}", nic.name, way.xdp))?;
        let count = queues_now(nic)?;
        let open = || -> Result<Open, SetupError> {
            let config = SocketConfig {
                mode: way.mode,
                need_wakeup: way.need_wakeup,
                ..SocketConfig::default()
            };
            let (mut sockets, mut pools) = (Vec::new(), Vec::new());
            for queue in 0..count {
                if !way.shared || pools.is_empty() {
                    let frames = 8192 * if way.shared { count } else { 1 };
                    // igb takes whole KiB in zero-copy: of 2 KiB, less the kernel's headroom, one.
                    let chunk = if way.mode == Mode::ZeroCopy && nic.driver == "igb" {
                        Chunk::Bytes4096
                    } else {
                        Chunk::Bytes2048
                    };
                    let umem = Umem::new(&UmemConfig { frames, chunk, ..UmemConfig::default() })
                        .expect("memory");
                    pools.push(umem.pool().expect("the first"));
                }
                let pool = pools.last().expect("pushed above");
                let socket = Socket::open(pool, &nic.name, queue, &config)?;
                redirect.map().insert(queue, &socket)?;
                sockets.push(socket);
            }
            Ok(Open { sockets, pools, redirect, mac })
        };
        let opened =
            open().with_context(|| format!("{}: {:?} {:?}", nic.name, way.xdp, way.mode))?;
        address(nic, opened.mac)?;
        nic.wait_link()?;
        Ok(opened)
    }

    /// Sends back what came for us; returns the count.
    fn reflect(&mut self, batch: &mut Batch) -> Result<u64> {
        let mut reflected = 0;
        for socket in &mut self.sockets {
            socket.receive(batch)?;
            batch.retain(|packet| is_ours(packet.data()));
            batch.iter_mut().for_each(turn);
            reflected += socket.send(batch)? as u64;
            batch.clear();
            socket.flush()?;
        }
        Ok(reflected)
    }

    /// Reflects until `over`; sleeps where nothing comes.
    fn serve(&mut self, over: &AtomicBool) -> Result<u64> {
        let (mut batch, mut all) = (Batch::new(64), 0);
        while !over.load(Relaxed) {
            let reflected = self.reflect(&mut batch)?;
            all += reflected;
            if reflected == 0 {
                self.sockets[0].wait(Duration::from_millis(1))?;
            }
        }
        Ok(all)
    }

    /// For a failure: what sockets and kernel counted.
    fn told(&self) -> String {
        let of = |socket: &Socket| {
            format!("{}: {:?} {:?}", socket.name(), socket.counts(), socket.kernel_counts())
        };
        self.sockets.iter().map(of).collect::<Vec<_>>().join("; ")
    }

    fn balanced(&self) -> Result<()> {
        for pool in &self.pools {
            let rings: Vec<_> = self
                .sockets
                .iter()
                .filter(|s| s.pool().umem().is(pool.umem()))
                .map(|s| s.rings())
                .collect();
            let audit = pool.audit(&rings);
            ensure!(audit.balanced(), "{audit}");
        }
        for socket in &self.sockets {
            let kernel = socket.kernel_counts()?;
            ensure!((kernel.rx_invalid_descs, kernel.tx_invalid_descs) == (0, 0), "{kernel:?}");
        }
        Ok(())
    }
}

/// The far end finds our address without asking, and has several of its own.
fn address(nic: &Nic, mac: [u8; 6]) -> Result<()> {
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    let mut lines =
        format!("neigh replace {} lladdr {mac} dev eth0 nud permanent\n", nic.address(OURS));
    for host in SENDERS {
        lines += &format!("addr replace {}/24 dev eth0\n", nic.address(host));
    }
    Ok(nic.far.ip(&lines)?)
}

/// UDP over IPv4 to our address and port.
fn is_ours(frame: &[u8]) -> bool {
    frame.len() >= 42
        && frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && frame[23] == 17
        && frame[33] == OURS
        && frame[36..38] == PORT.to_be_bytes()
}

/// Back to its sender, by the same headers the other way round: no checksum changes.
fn turn(packet: &mut Packet) {
    let data = packet.data_mut();
    for (start, len) in [(0, 6), (26, 4), (34, 2)] {
        let (a, b) = data[start..start + 2 * len].split_at_mut(len);
        a.swap_with_slice(b);
    }
}

/// Datagrams of every sender, of all lengths, compared; how many had to be sent again, because no
/// answer came for so long.
fn exchange(nic: &Nic, rounds: u32, patience: Duration) -> Result<u32> {
    let mut again = 0;
    for host in SENDERS {
        // Of a few ports alone every one may belong to the same queue.
        let flows = || (0..rounds.div_ceil(4)).map(|_| UdpSocket::bind((nic.address(host), 0)));
        let flows = nic.far.run(|| flows().collect::<std::io::Result<Vec<_>>>())??;
        for bound in &flows {
            bound.connect((nic.address(OURS), PORT))?;
            bound.set_read_timeout(Some(patience))?;
        }
        for round in 0..rounds {
            let bound = &flows[round as usize / 4];
            let length = 20 + (round * 397 + u32::from(host) * 31) % 1400;
            let text: Vec<u8> = (0..length).map(|n| (n + round + u32::from(host)) as u8).collect();
            let mut back = [0; 2048];
            let mut tries = 0;
            loop {
                bound.send(&text)?;
                // A late answer to an earlier try is another's.
                match bound.recv(&mut back) {
                    Ok(got) if back[..got] == text => break,
                    _ if tries < 20 => tries += 1,
                    other => anyhow::bail!(
                        "{} to {}: {other:?} after {tries} tries",
                        nic.address(host),
                        nic.name
                    ),
                }
            }
            again += tries;
        }
    }
    Ok(again)
}

/// Runs `work` while these sockets reflect.
fn while_reflecting<T: Send>(
    open: &mut Open,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let done = work();
            over.store(true, Relaxed);
            done
        });
        let served = open.serve(&over);
        over.store(true, Relaxed);
        let done = worker.join().expect("no panic");
        served.and(done)
    })
}

/// Modes, wake-ups, one memory or several; all queues get some of it.
fn works(nic: &Nic, way: Way) -> Result<()> {
    let mut open = Open::new(nic, way)?;
    let zero_copy = open.sockets.iter().all(|socket| socket.granted().zero_copy);
    ensure!(zero_copy == (way.mode == Mode::ZeroCopy), "zero-copy: {zero_copy}");
    let start = Instant::now();
    let exchanged = while_reflecting(&mut open, || exchange(nic, 20, slowed(PATIENCE)));
    let far = || nic.far.command("ip").args(["-s", "link", "show", "eth0"]).output();
    let again = exchanged.with_context(|| {
        let far = far().map(|far| String::from_utf8_lossy(&far.stdout).into_owned());
        format!("{}\n{}", open.told(), far.unwrap_or_default())
    })?;
    let counts: Vec<u64> =
        open.sockets.iter().map(|socket| socket.counts().received_packets).collect();
    println!(
        "  {}: {:?}, {:?}, wake-ups {}, shared {}: {counts:?} packets by queue, {again} sent again, {} ms",
        nic.name,
        way.xdp,
        way.mode,
        way.need_wakeup,
        way.shared,
        start.elapsed().as_millis()
    );
    // QEMU's vmxnet3 spreads nothing.
    let spreads = nic.row != "vmxnet3";
    ensure!(!spreads || counts.iter().all(|count| *count > 0), "a queue got nothing: {counts:?}");
    ensure!(again * 100 <= 16 * 20, "{again} of {} datagrams had to be sent again", 16 * 20);
    open.balanced()
}

fn ways(bench: &Bench, nic: &Nic, mode: Mode) -> Vec<Way> {
    let xdp = bench.xdp_mode(nic);
    let way = |need_wakeup, shared| Way { xdp, mode, need_wakeup, shared };
    let all = [way(true, false), way(false, false), way(true, true)];
    if bench.quick { all[..1].to_vec() } else { all.to_vec() }
}

pub fn copy(bench: &Bench, nic: &Nic) -> Result<()> {
    ways(bench, nic, Mode::Copy).into_iter().try_for_each(|way| works(nic, way))
}

/// What the driver lacks is refused.
pub fn zero_copy(bench: &Bench, nic: &Nic) -> Result<()> {
    if bench.has(nic, Cell::ZeroCopy) {
        ways(bench, nic, Mode::ZeroCopy).into_iter().try_for_each(|way| works(nic, way))?;
        return bench.see(nic, Cell::ZeroCopy, "yes");
    }
    let word = match Open::new(nic, ways(bench, nic, Mode::ZeroCopy)[0]) {
        Ok(_) => "yes",
        Err(error) => {
            names(bench, nic, &format!("{error:#}"), &["zero-copy", "ask for copies"])?;
            "no"
        }
    };
    bench.see(nic, Cell::ZeroCopy, word)
}

/// Datagrams as fast as the far end sends them.
fn flood(nic: &Nic, over: &AtomicBool) -> Result<()> {
    let socket = nic.far.run(|| UdpSocket::bind((nic.address(SENDERS.start), 0)))??;
    socket.connect((nic.address(OURS), PORT))?;
    while !over.load(Relaxed) {
        // A full queue of the device is no error here.
        let _ = socket.send(&[7; 200]);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Runs `work` while datagrams come.
fn under_load<T>(nics: &[&Nic], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let floods: Vec<_> = nics.iter().map(|nic| scope.spawn(|| flood(nic, &over))).collect();
        let done = work();
        over.store(true, Relaxed);
        for flood in floods {
            flood.join().expect("no panic")?;
        }
        done
    })
}

fn best(bench: &Bench, nic: &Nic) -> Way {
    let mode = if bench.has(nic, Cell::ZeroCopy) { Mode::ZeroCopy } else { Mode::Copy };
    ways(bench, nic, mode)[0]
}

/// Opened and closed a hundred times while packets come, and then it still works.
pub fn closed_under_load(bench: &Bench, nic: &Nic) -> Result<()> {
    let way = best(bench, nic);
    let first = Open::new(nic, way)?;
    let Open { sockets, pools, redirect, .. } = first;
    drop(sockets);
    let config = SocketConfig { mode: way.mode, ..SocketConfig::default() };
    under_load(&[nic], || {
        for round in 0..100 {
            let socket = Socket::open(&pools[0], &nic.name, 0, &config);
            let mut socket = socket.with_context(|| format!("round {round}"))?;
            redirect.map().insert(0, &socket)?;
            let mut batch = Batch::new(64);
            for _ in 0..5 {
                socket.receive(&mut batch)?;
                batch.clear();
                thread::sleep(Duration::from_millis(1));
            }
            drop(socket);
            ensure!(pools[0].audit(&[]).balanced(), "round {round}: {}", pools[0].audit(&[]));
        }
        Ok(())
    })?;
    drop((pools, redirect));
    works(nic, way)
}

/// Nobody reads for a minute while packets come; then the next datagrams come back within a second
/// of a real processor.
/// All NICs at once.
pub fn stopped_reader(bench: &Bench) -> Result<()> {
    bench.nics.iter().try_for_each(|nic| nic.use_all_queues(true))?;
    let done = nobody_reads(bench);
    bench.nics.iter().try_for_each(|nic| nic.use_all_queues(false)).and(done)
}

fn nobody_reads(bench: &Bench) -> Result<()> {
    let nics: Vec<&Nic> = bench.nics.iter().collect();
    let mut all: Vec<Open> =
        nics.iter().map(|nic| Open::new(nic, best(bench, nic))).collect::<Result<_>>()?;
    under_load(&nics, || {
        thread::sleep(Duration::from_secs(60));
        Ok(())
    })?;
    let mut failed = Vec::new();
    for (nic, open) in nics.iter().zip(&mut all) {
        let start = Instant::now();
        let came = while_reflecting(open, || exchange(nic, 1, slowed(PATIENCE)));
        let took = start.elapsed();
        // 16 datagrams, one after the other; the first waits for what lay in the rings.
        println!("  {}: {came:?} sent again, {} ms", nic.name, took.as_millis());
        if came.is_err() || took > slowed(Duration::from_secs(1)) {
            failed.push(format!("{}: {came:?} after {} ms", nic.name, took.as_millis()));
        }
        open.balanced()?;
    }
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(())
}
