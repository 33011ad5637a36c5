//! Sockets on a veth pair between two network namespaces. As root; skipped aloud otherwise.
#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use ringway_testnet::{
    End, Namespace, VethOptions, root_or_skip, skip, veth, wait_for, wait_until,
};
use ringway_xsk::{
    Batch, Cause, Error, Mode, Packet, Pool, Redirect, Socket, SocketConfig, Step, Umem,
    UmemConfig, XdpMode, memory_map,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const SOON: Duration = Duration::from_secs(30);
/// Without one packet. How long all of them take depends on who else uses an emulated processor.
const STALLED: Duration = Duration::from_secs(120);

/// Two namespaces whose `eth0` are a pair.
struct Pair {
    left: Namespace,
    right: Namespace,
}

impl Pair {
    fn new(options: &VethOptions) -> Self {
        let (left, right) = (Namespace::new("left").unwrap(), Namespace::new("right").unwrap());
        let end = |ns, address: &str| End::new(ns, "eth0").address(address);
        veth(&end(&left, "10.9.0.1/24"), &end(&right, "10.9.0.2/24"), options).unwrap();
        Self { left, right }
    }
}

/// Runs a test on a thread of its own, which can change its namespace and its privileges.
fn on_a_pair(name: &str, options: &VethOptions, test: impl FnOnce(&Pair) + Send) {
    if !root_or_skip(name) {
        return;
    }
    let pair = Pair::new(options);
    thread::scope(|scope| {
        scope.spawn(|| test(&pair)).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn pool(frames: u32) -> Pool {
    Umem::new(&UmemConfig { frames, ..UmemConfig::default() }).unwrap().pool().unwrap()
}

/// A socket on queue 0 of the `eth0` of a namespace, and a program that fills it.
fn open(ns: &Namespace, pool: &Pool, mode: XdpMode, config: &SocketConfig) -> (Socket, Redirect) {
    ns.enter().unwrap();
    let redirect = Redirect::attach("eth0", mode, 4).unwrap();
    let socket = Socket::open(pool, "eth0", 0, config).unwrap();
    redirect.map().insert(0, &socket).unwrap();
    (socket, redirect)
}

fn open_native(ns: &Namespace, pool: &Pool) -> (Socket, Redirect) {
    open(ns, pool, XdpMode::Native, &SocketConfig::default())
}

fn small() -> SocketConfig {
    SocketConfig { fill: 64, completion: 64, rx: 64, tx: 64, ..SocketConfig::default() }
}

/// Takes what has arrived until the packet with this number is there, which stays alone.
fn receive(socket: &mut Socket, batch: &mut Batch, wanted: u64) {
    wait_until("the packet over there", SOON, || {
        socket.receive(batch).unwrap();
        batch.retain(|packet| number(packet) == Some(wanted));
        !batch.is_empty()
    })
    .unwrap();
}

/// Another socket on queue 0 of `eth0`, which the one before may hold a moment longer: a process
/// that another test is starting has inherited it.
fn open_again(pool: &Pool, config: &SocketConfig) -> Socket {
    wait_for("the queue", SOON, || Socket::open(pool, "eth0", 0, config)).unwrap()
}

/// Destination, source, a type for experiments, and a number.
fn numbered(pool: &Pool, number: u64, len: usize) -> Packet {
    let mut packet = pool.allocate().unwrap();
    packet.append(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]).unwrap();
    packet.append(&number.to_be_bytes()).unwrap();
    let bytes: Vec<u8> = (packet.len()..len).map(|n| n as u8).collect();
    packet.append(&bytes).unwrap();
    packet
}

/// The number of a packet of ours; none of what a kernel's own stack sends.
fn number(packet: &Packet) -> Option<u64> {
    let data = packet.data();
    (data.get(12..14)? == [0x88, 0xb5])
        .then(|| u64::from_be_bytes(data[14..22].try_into().unwrap()))
}

/// Every packet comes back, in order, in the frame in which it arrived over there; and
/// the ledger balances.
fn reflect(name: &str, mode: XdpMode, config: SocketConfig) {
    const ALL: u64 = 20_000;
    on_a_pair(name, &VethOptions::default(), |pair| {
        let (near, far) = (pool(4096), pool(4096));
        let (mut left, _left_program) = open(&pair.left, &near, mode, &config);
        let (mut right, _right_program) = open(&pair.right, &far, mode, &config);
        assert!(!left.granted().zero_copy, "veth has none");
        let (mut batch, mut sent, mut back) = (Batch::new(32), 0, 0);
        let mut progress = Instant::now();
        while back < ALL {
            assert!(
                progress.elapsed() < STALLED,
                "{back} of {sent} came back, and no more; {:?} {:?}",
                left.counts(),
                right.counts()
            );
            while sent < ALL && sent - back < 128 && batch.room() > 0 {
                batch.push(numbered(&near, sent, 64)).unwrap();
                sent += 1;
            }
            left.send(&mut batch).unwrap();
            // Packets that did not fit into TX.
            sent -= batch.len() as u64;
            batch.clear();

            right.receive(&mut batch).unwrap();
            for packet in batch.iter_mut().filter(|p| number(p).is_some()) {
                let data = packet.data_mut();
                let (destination, source) = data[..12].split_at_mut(6);
                destination.swap_with_slice(source);
            }
            batch.retain(|packet| number(packet).is_some());
            right.send(&mut batch).unwrap();
            assert!(batch.is_empty(), "TX is larger than the window");

            left.receive(&mut batch).unwrap();
            for packet in batch.iter() {
                let Some(number) = number(packet) else { continue };
                assert_eq!((number, packet.data()[5]), (back, 1));
                back += 1;
                progress = Instant::now();
            }
            batch.clear();
            left.flush().unwrap();
            right.flush().unwrap();
        }
        for (pool, socket) in [(&near, &left), (&far, &right)] {
            let audit = pool.audit(&[socket.rings()]);
            assert!(audit.balanced(), "{audit}");
            assert!(socket.counts().sent_packets >= ALL);
            let kernel = socket.kernel_counts().unwrap();
            assert_eq!((kernel.rx_invalid_descs, kernel.tx_invalid_descs), (0, 0));
        }
        drop((left, right));
        assert_eq!((near.free(), far.free()), (4096, 4096));
        assert!(near.audit(&[]).balanced() && far.audit(&[]).balanced());
    });
}

#[test]
fn reflect_native() {
    reflect("reflect_native", XdpMode::Native, SocketConfig::default());
}

#[test]
fn reflect_generic_and_always_waking() {
    let config = SocketConfig {
        need_wakeup: false,
        several_frames: false,
        mode: Mode::Copy,
        ..SocketConfig::default()
    };
    reflect("reflect_generic_and_always_waking", XdpMode::Generic, config);
}

/// One UMEM, two interfaces: what came by one leaves by the other without a copy of ours.
#[test]
fn sockets_share_a_umem() {
    on_a_pair("sockets_share_a_umem", &VethOptions::default(), |pair| {
        let pool = pool(8192);
        let (mut left, _left_program) = open_native(&pair.left, &pool);
        let (mut right, _right_program) = open_native(&pair.right, &pool);
        assert!(!left.granted().shared_umem && right.granted().shared_umem);
        let mut batch = Batch::new(8);
        batch.push(numbered(&pool, 7, 60)).unwrap();
        left.send(&mut batch).unwrap();
        receive(&mut right, &mut batch, 7);
        left.flush().unwrap();
        let audit = pool.audit(&[left.rings(), right.rings()]);
        assert!(audit.balanced() && audit.found.held == 1, "{audit}");
        // Without the first, the registration lives on in the second, and a third can share it.
        drop(left);
        pair.left.enter().unwrap();
        let left = open_again(&pool, &SocketConfig::default());
        assert!(left.granted().shared_umem);
        assert!(pool.audit(&[left.rings(), right.rings()]).balanced());
    });
}

#[test]
fn longer_than_a_frame() {
    let options = VethOptions { mtu: 9000, ..VethOptions::default() };
    on_a_pair("longer_than_a_frame", &options, |pair| {
        let pool = pool(8192);
        let (mut left, _left_program) = open_native(&pair.left, &pool);
        if !left.granted().several_frames {
            return skip("longer_than_a_frame", left.granted().refusals.join("; "));
        }
        let (mut right, program) = open_native(&pair.right, &pool);
        assert!(program.several_frames());
        let mut batch = Batch::new(8);
        let packet = numbered(&pool, 7, 8000);
        assert!(packet.frames() > 4);
        let bytes: Vec<u8> = packet.segments().flatten().copied().collect();
        batch.push(packet).unwrap();
        left.send(&mut batch).unwrap();
        receive(&mut right, &mut batch, 7);
        assert!(batch[0].frames() > 1 && batch[0].segments().flatten().eq(&bytes));
        batch.clear();
        let audit = pool.audit(&[left.rings(), right.rings()]);
        assert!(audit.balanced(), "{audit}");
    });
}

#[test]
fn queues_that_cannot_be_had() {
    on_a_pair("queues_that_cannot_be_had", &VethOptions::default(), |pair| {
        let pool = pool(256);
        let small = small();
        let open = |interface: &str, queue, config: &SocketConfig| {
            let error = Socket::open(&pool, interface, queue, config).err().unwrap();
            (error.cause, error.to_string())
        };
        pair.left.enter().unwrap();
        let (cause, text) = open("eth0", 7, &small);
        assert_eq!(cause, Cause::NoQueue, "{text}");
        let words = "eth0, queue 7: binding: it has no such queue; `ethtool -l`";
        assert!(text.starts_with(words), "{text}");
        let (cause, text) = open("eth9", 0, &small);
        assert_eq!(cause, Cause::NoInterface, "{text}");
        let (cause, text) = open("eth0", 0, &SocketConfig { mode: Mode::ZeroCopy, ..small });
        assert_eq!(cause, Cause::NoZeroCopy, "{text}");
        let (cause, text) = open("eth0", 0, &SocketConfig { tx: 100, ..small });
        assert_eq!(cause, Cause::RingSize, "{text}");

        let greedy = Socket::open(&pool, "eth0", 0, &SocketConfig::default()).unwrap();
        let said = greedy.granted().refusals.join("; ");
        assert!(said.contains("all 256 frames"), "{said}");
        drop(greedy);
        let first = open_again(&pool, &small);
        // This holds for either value of FILL's flag at the bind.
        assert_eq!(first.counts().rx_wakeups, 1);
        let before = pool.counts();
        let (cause, text) = open("eth0", 0, &small);
        // Drivers take what FILL has as they are bound to it, so it was filled by then. All of it
        // came back.
        let counts = pool.counts();
        assert_eq!((counts.filled - before.filled, counts.unfilled - before.unfilled), (64, 64));
        assert_eq!(cause, Cause::QueueTaken, "{text}");
        assert!(text.contains("ss --xdp"), "{text}");
        assert!(pool.audit(&[first.rings()]).balanced());
        drop(first);
        drop(open_again(&pool, &small));
        assert_eq!(pool.free(), 256);
    });
}

/// drivers/net/veth.c, veth_xdp_set: what the far end sends by has to arrive somewhere.
#[test]
fn a_veth_with_too_few_queues() {
    let options = VethOptions { queues: 4, ..VethOptions::default() };
    on_a_pair("a_veth_with_too_few_queues", &options, |pair| {
        pair.left.enter().unwrap();
        let fewer = pair.left.command("ethtool").args(["-L", "eth0", "rx", "1"]).output();
        if !fewer.is_ok_and(|output| output.status.success()) {
            return skip("a_veth_with_too_few_queues", "no ethtool that sets queues");
        }
        let error = Redirect::attach("eth0", XdpMode::Native, 4).unwrap_err();
        assert_eq!(error.cause, Cause::FewQueues, "{error}");
        assert!(error.to_string().contains("`ethtool -L IFACE tx N`"), "{error}");
        // The advice helps.
        let there = pair.right.command("ethtool").args(["-L", "eth0", "tx", "1"]).output().unwrap();
        assert!(there.status.success());
        drop(Redirect::attach("eth0", XdpMode::Native, 4).unwrap());
    });
}

#[test]
fn without_capabilities() {
    on_a_pair("without_capabilities", &VethOptions::default(), |pair| {
        let pool = pool(256);
        let small = small();
        pair.left.enter().unwrap();
        let helper = rustix::net::socket(
            rustix::net::AddressFamily::XDP,
            rustix::net::SocketType::RAW,
            None,
        )
        .unwrap();
        let redirect = Redirect::attach("eth0", XdpMode::Native, 1).unwrap();
        let mut none = capabilities(None).unwrap();
        (none.effective, none.permitted) = (CapabilitySet::empty(), CapabilitySet::empty());
        set_capabilities(None, none).unwrap();

        let error = Socket::open(&pool, "eth0", 0, &small).err().unwrap();
        assert_eq!((error.step, error.cause), (Step::Open, Cause::NoPermission("CAP_NET_RAW")));
        assert!(error.to_string().contains("it takes CAP_NET_RAW"), "{error}");
        let error = Redirect::attach("eth0", XdpMode::Native, 1).unwrap_err();
        assert!(error.to_string().contains("it takes CAP_BPF and CAP_NET_ADMIN"), "{error}");
        // A socket that a helper opened needs none of them.
        let socket = Socket::open_on(helper, &pool, "eth0", 0, &small).unwrap();
        redirect
            .map()
            .insert(0, &socket)
            .unwrap_or_else(|e| assert!(e.to_string().contains("CAP_BPF")));
    });
}

#[test]
fn an_interface_that_goes_away() {
    on_a_pair("an_interface_that_goes_away", &VethOptions::default(), |pair| {
        let pool = pool(4096);
        let (mut left, program) = open_native(&pair.left, &pool);
        let granted = left.granted();
        assert_eq!(granted.refusals.is_empty(), granted.several_frames, "{granted:?}");
        let map = memory_map(&left.parts()).unwrap();
        let rings = map.iter().filter(|m| m.name.starts_with("socket:") && m.parts.len() == 1);
        assert_eq!(rings.count(), 4, "{map:#?}");
        left.check().unwrap();
        pair.left.ip("link set eth0 down\n").unwrap();
        let error = left.check().unwrap_err().to_string();
        assert!(error.contains("ip link set"), "{error}");
        pair.left.ip("link set eth0 up\n").unwrap();
        left.check().unwrap();
        pair.left.ip("link del eth0\n").unwrap();
        let error = left.check().unwrap_err();
        assert!(
            matches!(&error, Error::Wake { source, .. } if source.raw_os_error() == Some(libc::ENXIO)),
            "{error}"
        );
        let mut batch = Batch::new(1);
        batch.push(numbered(&pool, 0, 60)).unwrap();
        assert!(left.send(&mut batch).unwrap_err().to_string().contains("the interface is gone"));
        assert!(pool.audit(&[left.rings()]).balanced());
        drop((left, program));
        assert_eq!(pool.free(), 4096);
        assert!(pool.audit(&[]).balanced());
    });
}

/// The kernel goes on filling the frames of a socket that somebody else has open, so nobody gets
/// them.
#[test]
fn a_socket_that_is_open_elsewhere_keeps_its_frames() {
    let name = "a_socket_that_is_open_elsewhere_keeps_its_frames";
    on_a_pair(name, &VethOptions::default(), |pair| {
        const FILL: u32 = 64;
        let (near, far) = (pool(4096), pool(256));
        let (mut left, _program) = open_native(&pair.left, &near);
        let config = SocketConfig { fill: FILL, rx: FILL, ..SocketConfig::default() };
        let (right, _right_program) = open(&pair.right, &far, XdpMode::Native, &config);
        let copy = right.as_fd().try_clone_to_owned().unwrap();
        drop(right);
        let mut batch = Batch::new(256);
        far.allocate_burst(&mut batch, 256);
        batch.iter_mut().for_each(|packet| packet.buffer_mut().fill(0xaa));
        let mut sent = Batch::new(FILL as usize);
        (0..u64::from(FILL)).for_each(|n| sent.push(numbered(&near, n, 64)).unwrap());
        assert_eq!(left.send(&mut sent).unwrap(), FILL as usize);
        wait_until("all packets at the far end", SOON, || {
            left.flush().unwrap();
            left.unsent() == 0
        })
        .unwrap();
        let untouched = |packet: &mut Packet| packet.buffer_mut().iter().all(|byte| *byte == 0xaa);
        assert!(batch.iter_mut().all(untouched));
        assert_eq!(batch.len(), 256 - FILL as usize);
        drop(copy);
        let audit = far.audit(&[]);
        assert!(audit.balanced() && audit.found.kernel_rx == u64::from(FILL), "{audit}");
        // Of one that nobody else has open they come back.
        let free = near.free();
        drop(left);
        assert!(near.free() > free);
    });
}

/// Packets of a queue without a socket go to the kernel, and there is one program at a time.
#[test]
fn the_rest_passes() {
    on_a_pair("the_rest_passes", &VethOptions::default(), |pair| {
        let pool = pool(4096);
        pair.right.enter().unwrap();
        let program = Redirect::attach("eth0", XdpMode::Native, 1).unwrap();
        let error = Redirect::attach("eth0", XdpMode::Native, 1).unwrap_err();
        assert_eq!(error.cause, Cause::ProgramThere, "{error}");
        let receiver = UdpSocket::bind("10.9.0.2:7").unwrap();
        receiver.set_read_timeout(Some(SOON)).unwrap();
        pair.left.enter().unwrap();
        let sender = UdpSocket::bind("10.9.0.1:0").unwrap();
        sender.send_to(b"to the kernel", "10.9.0.2:7").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 13);

        pair.right.enter().unwrap();
        let mut socket = Socket::open(&pool, "eth0", 0, &SocketConfig::default()).unwrap();
        program.map().insert(0, &socket).unwrap();
        sender.send_to(b"to the socket", "10.9.0.2:7").unwrap();
        let mut batch = Batch::new(8);
        wait_until("the datagram in the socket", SOON, || {
            // Woken by whatever arrives.
            socket.wait(Duration::from_millis(100)).unwrap();
            socket.receive(&mut batch).unwrap();
            batch.retain(|packet| packet.data().ends_with(b"to the socket"));
            !batch.is_empty()
        })
        .unwrap();
        program.map().remove(0).unwrap();
        program.map().remove(0).unwrap();
        sender.send_to(b"to the kernel again", "10.9.0.2:7").unwrap();
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 19);
        drop(program);
        drop(Redirect::attach("eth0", XdpMode::Generic, 1).unwrap());
    });
}
