//! `ringway accept`: an ACK that opens nothing, and what it costs.

use std::net::{SocketAddr, TcpListener};

use ringway_abi::Accept as End;
use ringway_bpf_tests::prelude::*;
use ringway_kernel::Accept;
use ringway_kernel::shield::ChallengeKey;
use rustix::thread::{UnshareFlags, unshare_unsafe};

const KEY: ChallengeKey = ChallengeKey([0x5555_5555_5555_5555; 2]);
const LISTENERS: [&str; 2] = ["203.0.113.9:80", "[2001:db8::9]:80"];
const PASSED: u32 = u32::MAX; // TC_ACT_UNSPEC
const DROPPED: u32 = 2; // TC_ACT_SHOT

struct Host {
    accept: Accept,
    program: Program,
    _listener: TcpListener,
}

/// In a network namespace of its own, where test runs find the listener; nothing where the kernel
/// opens no connections so.
fn on_a_host(work: impl FnOnce(&Host) + Send) {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            // SAFETY: only the network namespace of this short-lived thread changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            let listener = TcpListener::bind("[::]:80").unwrap();
            let at = LISTENERS.map(|one| one.parse::<SocketAddr>().unwrap());
            let accept = match Accept::load(&at, true, KEY) {
                Err(ringway_kernel::Error::NoAccept { .. }) => return,
                loaded => loaded.unwrap(),
            };
            let program = Program::new(accept.program());
            work(&Host { accept, program, _listener: listener });
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// To a listener, from an address that has no connection.
fn ack(listener: &str, stamped: bool) -> Frame {
    let to: SocketAddr = listener.parse().unwrap();
    let mut from = to;
    from.set_port(4711);
    let stamps = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    Frame::tcp(from, to, ACK).with(|frame| {
        (frame.src_mac, frame.dst_mac) = ([0; 6], [0; 6]);
        (frame.seq, frame.ack) = (1, 0x1234_5678);
        frame.tcp_options = if stamped { stamps.to_vec() } else { Vec::new() };
    })
}

impl Host {
    fn result(&self, frame: &Frame) -> u32 {
        self.program.result(&frame.bytes()).unwrap()
    }

    fn counted(&self, listener: &str, end: End) -> u64 {
        self.accept.state().counts().unwrap()[&listener.parse().unwrap()].of(end)
    }

    /// Median of a run.
    fn nanoseconds(&self, frame: &Frame) -> u32 {
        let mut all = [(); 7].map(|()| self.program.nanoseconds(&frame.bytes(), 1_000_000));
        all.sort_unstable();
        all[3]
    }
}

#[test]
fn a_forged_acknowledgement_is_dropped_and_counted() {
    needs_root!("a_forged_acknowledgement_is_dropped_and_counted");
    on_a_host(|host| {
        for listener in LISTENERS {
            for stamped in [false, true] {
                assert_eq!(host.result(&ack(listener, stamped)), DROPPED, "{listener}");
            }
            assert_eq!(host.counted(listener, End::NoCookie), 2, "{listener}");
            let elsewhere = ack(listener, false).with(|frame| frame.dst.set_port(81));
            assert_eq!(host.result(&elsewhere), PASSED, "{listener}");
            let syn = ack(listener, false).with(|frame| frame.flags = SYN);
            assert_eq!(host.result(&syn), PASSED, "{listener}");
            assert_eq!(host.counted(listener, End::Handshake), 1, "{listener}");
        }
    });
}

/// The figures of docs/benchmarks.md.
#[test]
#[ignore = "measures"]
fn the_cost_of_a_forged_acknowledgement() {
    needs_root!("the_cost_of_a_forged_acknowledgement");
    on_a_host(|host| {
        for listener in LISTENERS {
            let say = |what: &str, frame: &Frame| {
                println!("{listener}: {what}: {} ns", host.nanoseconds(frame));
            };
            say("port not listed", &ack(listener, true).with(|frame| frame.dst.set_port(81)));
            say("SYN", &ack(listener, true).with(|frame| frame.flags = SYN));
            say("forged", &ack(listener, false));
            say("forged, with timestamps", &ack(listener, true));
        }
    });
}
