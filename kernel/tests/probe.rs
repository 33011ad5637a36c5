//! The probe program: attached to a device, it sees what leaves by it.

#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;

use ringway_kernel::{ProbeCounts, ProbeProgram};
use ringway_testnet::{Namespace, root_or_skip};

/// By tcx, or on kernels before 6.6 as a clsact filter.
#[test]
fn what_leaves_by_the_device_meets_the_program() {
    if !root_or_skip("what_leaves_by_the_device_meets_the_program") {
        return;
    }
    let namespace = Namespace::new("path").unwrap();
    namespace
        .run(|| {
            // "lo" of the namespace.
            let probe_program = ProbeProgram::load().unwrap().attach(1).unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let own = socket.local_addr().unwrap();
            for sent in 1..=3 {
                // It is dropped, which the kernel may tell.
                let _ = socket.send_to(b"x", own);
                let counts = ProbeCounts { unmarked: sent, ..ProbeCounts::default() };
                assert_eq!(probe_program.counts().unwrap(), counts);
            }
        })
        .unwrap();
}
