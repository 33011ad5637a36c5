//! What veth knows of packets that arrive from a kernel's stack.

use std::collections::HashSet;

use ringway_xsk::{HintKinds, RxHints};

use super::*;

/// A datagram to each of some ports: so many hashes.
const FLOWS: u16 = 20;

fn send_flows(pair: &Pair) {
    pair.left.enter().unwrap();
    let sender = UdpSocket::bind("10.9.0.1:0").unwrap();
    for port in 0..FLOWS {
        sender.send_to(&port.to_be_bytes(), ("10.9.0.2", 1000 + port)).unwrap();
    }
}

#[test]
fn what_the_driver_knows() {
    on_a_pair("what_the_driver_knows", &VethOptions::default(), |pair| {
        let pool = pool(4096);
        pair.right.enter().unwrap();
        let redirect = match Redirect::attach_with_hints("eth0", 4, HintKinds::ALL) {
            Err(error) if error.cause == Cause::NoHints => {
                return skip("what_the_driver_knows", error);
            }
            other => other.unwrap(),
        };
        let reader = redirect.hints().unwrap();
        let mut socket = Socket::open(&pool, "eth0", 0, &SocketConfig::default()).unwrap();
        redirect.map().insert(0, &socket).unwrap();
        pair.left.ip("neighbour add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0\n").unwrap();
        send_flows(pair);
        let (mut batch, mut hashes) = (Batch::new(64), HashSet::new());
        wait_until("all datagrams", SOON, || {
            socket.receive(&mut batch).unwrap();
            batch.retain(|packet| packet.data().get(23) == Some(&17));
            for packet in batch.iter() {
                let hints = packet.rx_hints(reader).unwrap();
                hashes.insert(hints.hash.unwrap().value);
                // Software sent it, without a tag.
                assert_eq!(hints, RxHints { hash: hints.hash, ..RxHints::default() });
            }
            batch.clear();
            hashes.len() >= usize::from(FLOWS) - 1
        })
        .unwrap();
        let audit = pool.audit(&[socket.rings()]);
        assert!(audit.balanced(), "{audit}");

        // Of another program's packets nothing is known, even in frames that hold what was told before.
        drop((socket, redirect));
        pair.right.enter().unwrap();
        for asks in [false, true] {
            // Other tests' children have the former attachment open until they are programs of their own.
            let redirect = wait_for("the former program's end", SOON, || match asks {
                true => Redirect::attach_with_hints("eth0", 4, HintKinds::ALL),
                false => Redirect::attach("eth0", Hook::Native, 4),
            })
            .unwrap();
            assert_eq!(redirect.hints().is_some(), asks);
            let mut socket = Socket::open(&pool, "eth0", 0, &SocketConfig::default()).unwrap();
            redirect.map().insert(0, &socket).unwrap();
            send_flows(pair);
            pair.right.enter().unwrap();
            let mut seen = 0;
            wait_until("all datagrams", SOON, || {
                socket.receive(&mut batch).unwrap();
                batch.retain(|packet| packet.data().get(23) == Some(&17));
                assert!(batch.iter().all(|packet| packet.rx_hints(reader).is_none()));
                seen += batch.len();
                batch.clear();
                seen >= usize::from(FLOWS)
            })
            .unwrap();
        }
    });
}

/// What is not asked for is not told; and a driver that is not there cannot be asked.
#[test]
fn only_what_is_asked_for() {
    on_a_pair("only_what_is_asked_for", &VethOptions::default(), |pair| {
        pair.right.enter().unwrap();
        let of = |interface, kinds| Redirect::attach_with_hints(interface, 4, kinds);
        let error = of("eth0", HintKinds::default()).unwrap_err();
        assert_eq!(error.cause, Cause::NoHints, "{error}");
        let timestamps = HintKinds { timestamp: true, ..HintKinds::default() };
        assert!(of("eth9", timestamps).is_err());
        let redirect = match of("eth0", timestamps) {
            Err(error) if error.cause == Cause::NoHints => {
                return skip("only_what_is_asked_for", error);
            }
            other => other.unwrap(),
        };
        let pool = pool(4096);
        let mut socket = Socket::open(&pool, "eth0", 0, &SocketConfig::default()).unwrap();
        redirect.map().insert(0, &socket).unwrap();
        pair.left.ip("neighbour add 10.9.0.2 lladdr 02:00:00:00:00:02 dev eth0\n").unwrap();
        send_flows(pair);
        let mut batch = Batch::new(64);
        wait_until("a datagram", SOON, || {
            socket.receive(&mut batch).unwrap();
            batch.retain(|packet| packet.data().get(23) == Some(&17));
            !batch.is_empty()
        })
        .unwrap();
        let hints = batch[0].rx_hints(redirect.hints().unwrap()).unwrap();
        assert_eq!(hints, RxHints::default());
    });
}
