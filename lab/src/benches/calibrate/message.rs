//! A message over TCP: what a server's end of it costs.

use std::net::{Ipv4Addr, SocketAddrV4};

use ringway_testnet::Namespace;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;

use super::clock;
use crate::benches::tcp::socket::{Pair, address, listener, receive_all, send_all};
use crate::harness::cpu::{Cpus, pin};
use crate::{Error, Result};

/// Connections that take turns.
const CONNECTIONS: usize = 64;
/// Messages of a round, each with its answer.
const MESSAGES: usize = 40_000;
const BYTES: usize = 100;

/// Nanoseconds of one end: waiting for a message by epoll, reading it and writing one, the kernel's
/// work for both with it.
///
/// Both ends are this thread's, so that all of the work is its own: over lo, what one end writes is
/// received before the call returns. The two ends do the same, so that one is half.
pub(super) fn round() -> Result<f64> {
    let cpu = Cpus::here()?.measured;
    let namespace = Namespace::new("calibrate")?;
    namespace.ip("link set lo up")?;
    namespace.run(|| {
        pin(cpu)?;
        ends().map_err(|source| Error::Socket { what: "messages", source })
    })?
}

fn ends() -> std::io::Result<f64> {
    let listener = listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), 128, false)?;
    let to = address(&listener)?;
    let [clients, servers] = [(); 2].map(|()| epoll::create(epoll::CreateFlags::CLOEXEC));
    let (clients, servers) = (clients?, servers?);
    let mut pairs = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let pair = Pair::connect(&listener, to)?;
        let (Some(client), Some(server)) = (pair.client, pair.server) else { continue };
        for (set, end) in [(&clients, &client), (&servers, &server)] {
            epoll::add(set, end, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        pairs.push((client, server));
    }
    let turn = |(client, server): &(OwnedFd, OwnedFd)| -> std::io::Result<()> {
        for (from, set, to) in [(client, &servers, server), (server, &clients, client)] {
            let mut bytes = [7; BYTES];
            send_all(from, &bytes)?;
            let mut events = Vec::with_capacity(1);
            let time = Timespec { tv_sec: 1, tv_nsec: 0 };
            rustix::io::retry_on_intr(|| {
                epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&time))
            })?;
            receive_all(to, &mut bytes)?;
        }
        Ok(())
    };
    // Caches, and TCP's windows.
    pairs.iter().try_for_each(turn)?;
    let before = clock::thread();
    pairs.iter().cycle().take(MESSAGES).try_for_each(turn)?;
    Ok(clock::each(clock::thread() - before, 2 * MESSAGES as u64))
}
