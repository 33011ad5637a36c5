//! `ringway accept`: an ACK that opens nothing, and what it costs.

use std::net::{SocketAddr, TcpListener};

use ringway_abi::Accept as End;
use ringway_bpf_tests::frame::{Frame, flags};
use ringway_bpf_tests::run::Program;
use ringway_kernel::Accept;
use ringway_kernel::shield::ChallengeKey;
use ringway_testnet::Namespace;

use crate::needs_root;

const KEY: ChallengeKey = ChallengeKey([0x5555_5555_5555_5555; 2]);
const LISTENERS: [&str; 2] = ["127.0.0.1:80", "[::1]:80"];
const PASSED: u32 = u32::MAX; // TC_ACT_UNSPEC
const DROPPED: u32 = 2; // TC_ACT_SHOT

/// In a network namespace of its own, where test runs find the listeners.
struct Host {
    namespace: Namespace,
    accept: Accept,
    program: Program,
    _listeners: Vec<TcpListener>,
}

/// `None` where the kernel opens no connections so.
fn host() -> Option<Host> {
    let namespace = Namespace::new("accept").unwrap();
    let at = LISTENERS.map(|one| one.parse::<SocketAddr>().unwrap());
    let listen = || at.map(|one| TcpListener::bind(one).unwrap());
    let listeners = namespace.run(listen).unwrap().into();
    let accept = match Accept::load(&at, true, KEY) {
        Err(ringway_kernel::Error::NoAccept { .. }) => return None,
        loaded => loaded.unwrap(),
    };
    let program = Program::new(accept.program());
    Some(Host { namespace, accept, program, _listeners: listeners })
}

/// To a listener, from an address that has no connection.
fn ack(listener: &str, stamped: bool) -> Frame {
    let to: SocketAddr = listener.parse().unwrap();
    let mut from = to;
    from.set_port(4711);
    let stamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    Frame::tcp(from, to, flags::ACK).with(|frame| {
        (frame.src_mac, frame.dst_mac) = ([0; 6], [0; 6]);
        (frame.seq, frame.ack) = (1, 0x1234_5678);
        frame.tcp_options = if stamped { stamps.to_vec() } else { Vec::new() };
    })
}

impl Host {
    fn result(&self, frame: &Frame) -> u32 {
        self.namespace.run(|| self.program.result(&frame.bytes()).unwrap()).unwrap()
    }

    fn counted(&self, listener: &str, end: End) -> u64 {
        self.accept.state().counts().unwrap()[&listener.parse().unwrap()].of(end)
    }
}

#[test]
fn a_forged_acknowledgement_is_dropped_and_counted() {
    needs_root!("a_forged_acknowledgement_is_dropped_and_counted");
    let Some(host) = host() else { return };
    for listener in LISTENERS {
        for stamped in [false, true] {
            assert_eq!(host.result(&ack(listener, stamped)), DROPPED, "{listener}");
        }
        assert_eq!(host.counted(listener, End::NoCookie), 2, "{listener}");
        let elsewhere = ack(listener, false).with(|frame| frame.dst.set_port(81));
        assert_eq!(host.result(&elsewhere), PASSED, "{listener}");
        let syn = ack(listener, false).with(|frame| frame.flags = flags::SYN);
        assert_eq!(host.result(&syn), PASSED, "{listener}");
        assert_eq!(host.counted(listener, End::Handshake), 1, "{listener}");
    }
}

/// The figures of docs/benchmarks.md.
#[test]
#[ignore = "measures"]
fn the_cost_of_a_forged_acknowledgement() {
    needs_root!("the_cost_of_a_forged_acknowledgement");
    let Some(host) = host() else { return };
    let median = |frame: &Frame| {
        let one = || host.program.nanoseconds(&frame.bytes(), 1_000_000);
        let mut all = host.namespace.run(|| [(); 7].map(|()| one())).unwrap();
        all.sort_unstable();
        all[3]
    };
    for listener in LISTENERS {
        let unlisted = ack(listener, true).with(|frame| frame.dst.set_port(81));
        println!("{listener}: to a port that is not listed: {} ns", median(&unlisted));
        let syn = ack(listener, true).with(|frame| frame.flags = flags::SYN);
        println!("{listener}: a SYN: {} ns", median(&syn));
        for (what, stamped) in [("without timestamps", false), ("with timestamps", true)] {
            println!("{listener}: forged, {what}: {} ns", median(&ack(listener, stamped)));
        }
    }
}
