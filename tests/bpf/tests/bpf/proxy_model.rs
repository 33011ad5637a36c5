//! The promises of `syn = "proxy"`, as a specification: clients and backends that know nothing of one
//! another's numbers, with and without time stamps, SACK and window scaling, on a network that loses,
//! doubles and reorders, and somebody who forges segments.
//!
//! - Each segment arrives as it was meant: the same bytes at the same place of their stream, the same
//!   acknowledgements, SACK blocks, time stamps and window, in the receiver's own numbers.
//! - In the end all bytes of both streams have arrived.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::Range;

use ringway_bpf_tests::clock::seed;
use ringway_bpf_tests::mutate::Random;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{BackendRow, SynOffer};

use crate::limits::vip;
use crate::proxy::{Seen, backend_of, seen, world};

/// Seeds of runs that failed once, and some more.
const SEEDS: [u64; 5] = [1, 2, 3, 4, 5];
const STEPS: usize = 1_000;
const CLIENTS: usize = 3;
/// Of each stream; its FIN is one more.
const BYTES: usize = 80;
/// Bytes of a segment at most.
const MSS: usize = 40;
/// What clients are told of windows (RFC 7323).
const OFFERED_SCALE: u8 = 7;

/// The byte at a place of a stream: another in each.
fn byte(connection: usize, client: bool, at: usize) -> u8 {
    (connection * 31 + at * 7 + usize::from(client) * 101 + (at >> 5)) as u8
}

/// One end of a connection.
#[derive(Clone, Debug)]
struct End {
    /// Its own number, and the other's as it knows it.
    isn: u32,
    peer: u32,
    stamps: bool,
    sack: bool,
    scale: Option<u8>,
    clock: u32,
    /// The other's newest time stamp, as it came.
    newest: u32,
    /// What of its stream the other has acknowledged, and what it has of the other's.
    acked: usize,
    got: [bool; BYTES + 1],
}

impl End {
    /// Bytes and FIN that it has without a gap.
    fn acks(&self) -> usize {
        self.got.iter().take_while(|got| **got).count()
    }

    /// The first piece that it has beyond a gap.
    fn block(&self) -> Option<Range<usize>> {
        let start = self.acks() + self.got[self.acks()..].iter().position(|got| *got)?;
        let len = self.got[start..].iter().take_while(|got| **got).count();
        Some(start..start + len)
    }

    fn is_done(&self) -> bool {
        self.acked == BYTES + 1 && self.acks() == BYTES + 1
    }
}

/// A segment on its way, as its sender means it. Places are those of streams.
#[derive(Clone, Debug)]
struct Meant {
    connection: usize,
    from_client: bool,
    syn: bool,
    at: usize,
    /// Bytes, and the FIN.
    len: usize,
    acks: usize,
    block: Option<Range<usize>>,
    /// Its own time stamp, and the one that it echoes.
    stamps: Option<(u32, u32)>,
    window: u16,
    frame: Frame,
}

/// A connection; the client has been answered.
#[derive(Clone, Debug)]
struct Connection {
    number: usize,
    from: SocketAddr,
    client: End,
    /// The window has been opened.
    open: bool,
    mss: u16,
    /// Its socket at the backend, by whose row and from where; and whether that is established.
    backend: Option<(End, BackendRow, SocketAddr, bool)>,
    /// What the backend's time stamps are shifted by.
    shift: Option<u32>,
    /// The time stamp of the answer.
    answered: Option<u32>,
}

struct Model {
    world: World,
    random: Random,
    family: Family,
    live: Vec<Option<Connection>>,
    on_the_way: Vec<Meant>,
    begun: usize,
    /// Connections on the port of one before.
    again: usize,
    used: HashSet<SocketAddr>,
    finished: usize,
    delivered: usize,
}

fn options(stamps: Option<(u32, u32)>, rest: &[u8]) -> Vec<u8> {
    let mut all = rest.to_vec();
    if let Some((value, echo)) = stamps {
        all.extend([8, 10]);
        all.extend(value.to_be_bytes());
        all.extend(echo.to_be_bytes());
    }
    all.resize(all.len().next_multiple_of(4), 1);
    all
}

impl Model {
    fn new(seed: u64, family: Family) -> Model {
        let offer = SynOffer { mss: 1460, stamps: true, sack: true, ecn: false };
        Model {
            world: world(offer),
            random: Random::new(seed),
            family,
            live: vec![None; CLIENTS],
            on_the_way: Vec::new(),
            begun: 0,
            again: 0,
            used: HashSet::new(),
            finished: 0,
            delivered: 0,
        }
    }

    fn chance(&mut self, of: usize) -> bool {
        self.random.below(of) == 0
    }

    /// Near the end of numbers as often as not.
    fn number(&mut self) -> u32 {
        let word = self.random.word() as u32;
        if word & 1 == 0 { word } else { u32::MAX - word % (2 * BYTES as u32) }
    }

    fn end(&mut self, (stamps, sack, scale): (bool, bool, Option<u8>)) -> End {
        End {
            isn: self.number(),
            peer: 0,
            stamps,
            sack,
            scale,
            clock: self.number(),
            newest: 0,
            acked: 0,
            got: [false; BYTES + 1],
        }
    }

    fn step(&mut self) {
        let n = self.random.below(CLIENTS);
        match self.random.below(16) {
            0..2 if self.live[n].is_none() => self.begin(n),
            0..4 => self.client_sends(n),
            4..7 => self.backend_sends(n),
            7 => self.forge(n),
            _ => self.deliver(),
        }
    }

    /// A SYN, and its answer. On the port of its last connection, where the gateway knows its end.
    fn begin(&mut self, n: usize) {
        let wanted = (self.chance(2), self.chance(2), [None, Some(0), Some(3), Some(14)]);
        let scale = *self.random.pick(&wanted.2);
        let mut client = self.end((wanted.0, wanted.1, scale));
        let mss = *self.random.pick(&[216, 536, 1460]);
        let mut rest = [&[2, 4][..], &u16::to_be_bytes(mss)].concat();
        rest.extend(scale.iter().flat_map(|scale| [3, 3, *scale]));
        if client.sack {
            rest.extend([4, 2]);
        }
        let stamps = client.stamps.then_some((client.clock, 0));
        for port in [40_000, 41_000 + self.begun as u16] {
            let from = SocketAddr::new(self.family.nth_client(n as u16), port);
            let syn = Frame::tcp(from, vip(self.family, ports::ACROSS), SYN)
                .with(|f| (f.seq, f.tcp_options) = (client.isn, options(stamps, &rest)));
            let answered = self.world.send(&syn);
            if answered.reason != Reason::SynAnswered {
                continue;
            }
            let answer = seen(&answered);
            assert_eq!((answer.ack, answer.window), (client.isn.wrapping_add(1), 0));
            assert_eq!(
                (answer.mss, answer.scale),
                (Some(1460), client.scale.map(|_| OFFERED_SCALE))
            );
            assert_eq!((answer.sack_ok, answer.stamps.is_some()), (client.sack, client.stamps));
            assert!(answer.stamps.is_none_or(|(_, echo)| echo == client.clock), "{answer:?}");
            let answered = answer.stamps.map(|(theirs, _)| theirs);
            client.peer = answer.seq;
            client.newest = answered.unwrap_or(0);
            self.again += usize::from(!self.used.insert(from));
            self.begun += 1;
            self.live[n] = Some(Connection {
                number: self.begun,
                from,
                client,
                open: false,
                mss,
                backend: None,
                shift: None,
                answered,
            });
            return;
        }
        panic!("a SYN from a new port got no answer");
    }

    /// A segment from one end: new bytes, old ones, or an acknowledgement alone.
    fn segment(
        &mut self,
        connection: &Connection,
        from_client: bool,
        at: usize,
        len: usize,
    ) -> Meant {
        let (window, data) = (self.random.word() as u16 | 1, self.random.below(3));
        let own = match (&connection.backend, from_client) {
            (Some((backend, ..)), false) => backend,
            _ => &connection.client,
        };
        let stamps = own.stamps.then_some((own.clock, own.newest));
        let block = own.block().filter(|_| own.sack);
        let fin = len > 0 && at + len == BYTES + 1;
        let mut rest = Vec::new();
        if let Some(block) = &block {
            // At an odd place, sometimes.
            rest.extend([1, 1, 1].iter().take(data));
            rest.extend([5, 10]);
            for edge in [block.start, block.end] {
                rest.extend(own.peer.wrapping_add(1 + edge as u32).to_be_bytes());
            }
        }
        let bytes = at..at + len - usize::from(fin);
        let number = connection.number;
        let mut frame = match (&connection.backend, from_client) {
            (Some((_, row, source, _)), false) => {
                let here = SocketAddr::new(row.address, row.port);
                let hop = row.next_hop.unwrap();
                Frame::tcp(here, *source, ACK)
                    .with(|f| (f.src_mac, f.dst_mac) = (hop.mac, mac_of(hop.iface)))
            }
            _ => Frame::tcp(connection.from, vip(self.family, ports::ACROSS), ACK),
        };
        frame.flags |= if fin { FIN } else { 0 } | if len > 0 { PSH } else { 0 };
        frame.seq = own.isn.wrapping_add(1 + at as u32);
        frame.ack = own.peer.wrapping_add(1 + own.acks() as u32);
        frame.window = window;
        frame.tcp_options = options(stamps, &rest);
        frame.payload = bytes.map(|at| byte(number, from_client, at)).collect();
        let (connection, acks) = (number, own.acks());
        Meant { connection, from_client, syn: false, at, len, acks, block, stamps, window, frame }
    }

    /// What comes first of what was not acknowledged, or something later, or nothing.
    fn piece(&mut self, acked: usize) -> (usize, usize) {
        if acked > BYTES || self.chance(4) {
            return (acked, 0);
        }
        let ahead = if self.chance(2) { 0 } else { self.random.below(MSS) };
        let at = (acked + ahead).min(BYTES);
        (at, (1 + self.random.below(MSS)).min(BYTES + 1 - at))
    }

    fn client_sends(&mut self, n: usize) {
        let Some(mut connection) = self.live[n].clone() else { return };
        connection.client.clock = connection.client.clock.wrapping_add(1);
        let acked = connection.client.acked;
        let (at, len) = if connection.open { self.piece(acked) } else { (0, 0) };
        let mut meant = self.segment(&connection, true, at, len);
        if !connection.open && self.chance(3) {
            // A probe of the window.
            meant.frame.seq = connection.client.isn;
        }
        self.on_the_way.push(meant);
        self.live[n] = Some(connection);
    }

    fn backend_sends(&mut self, n: usize) {
        let Some(mut connection) = self.live[n].clone() else { return };
        let Some((backend, _, _, established)) = &mut connection.backend else { return };
        backend.clock = backend.clock.wrapping_add(1);
        let (acked, established) = (backend.acked, *established);
        let (at, len) = if established { self.piece(acked) } else { (0, 0) };
        let meant = self.segment(&connection, false, at, len);
        self.on_the_way.push(if established { meant } else { syn_ack(&connection, meant) });
        self.live[n] = Some(connection);
    }

    /// With the client's address, and any numbers.
    fn forge(&mut self, n: usize) {
        let Some(connection) = &self.live[n] else { return };
        let from = connection.from;
        let flags = *self.random.pick(&[RST, RST, FIN | ACK, ACK, PSH | ACK, SYN | ACK]);
        let (seq, ack) = (self.random.word() as u32, self.random.word() as u32);
        let frame = Frame::tcp(from, vip(self.family, ports::ACROSS), flags)
            .with(|f| (f.seq, f.ack) = (seq, ack));
        self.world.send(&frame);
    }

    /// In any order, some never and some twice.
    fn deliver(&mut self) {
        if self.on_the_way.is_empty() {
            return;
        }
        let at = self.random.below(self.on_the_way.len());
        let meant = self.on_the_way.swap_remove(at);
        match self.random.below(8) {
            0 => return,
            1 => self.on_the_way.push(meant.clone()),
            _ => {}
        }
        self.pass(&meant);
    }

    /// By the gateway to the other end.
    fn pass(&mut self, meant: &Meant) {
        let mine = |one: &Option<Connection>| {
            one.as_ref().is_some_and(|one| one.number == meant.connection)
        };
        let Some(n) = self.live.iter().position(mine) else { return };
        let mut connection = self.live[n].take().expect("found");
        let summary = if meant.from_client {
            self.world.send(&meant.frame)
        } else {
            let iface = connection.backend.as_ref().unwrap().1.next_hop.unwrap().iface;
            self.world.feed(iface, &meant.frame.bytes())
        };
        match (summary.verdict, summary.reason) {
            (Verdict::Redirect, Reason::NatForward) => {
                let source = wire::check(&summary.frame).good();
                let ends = (source.src, source.dst);
                self.backend_gets(&mut connection, meant, &seen(&summary), ends);
                self.delivered += 1;
            }
            (Verdict::Redirect, Reason::NatReply) => {
                let to = wire::check(&summary.frame).good().dst;
                assert_eq!(to, connection.from, "{meant:?}");
                client_gets(&mut connection, meant, &seen(&summary));
                self.delivered += 1;
            }
            (Verdict::Drop, _) => {}
            other => panic!("{other:?}: {meant:?}"),
        }
        let done = connection.client.is_done()
            && connection.backend.as_ref().is_some_and(|(backend, ..)| backend.is_done());
        if done {
            self.finished += 1;
            self.end_again(&connection);
        }
        self.live[n] = Some(connection).filter(|_| !done);
    }

    /// Both FINs once more, and nothing behind them: the gateway knows that it is over.
    fn end_again(&mut self, connection: &Connection) {
        let fins = [true, false].map(|client| self.segment(connection, client, BYTES, 1));
        self.world.send(&fins[0].frame);
        let Some((_, row, ..)) = &connection.backend else { return };
        self.world.feed(row.next_hop.unwrap().iface, &fins[1].frame.bytes());
    }

    fn backend_gets(
        &mut self,
        connection: &mut Connection,
        meant: &Meant,
        seen: &Seen,
        (source, to): (SocketAddr, SocketAddr),
    ) {
        let client = &connection.client;
        if seen.flags & SYN != 0 {
            assert!(meant.len == 0 && meant.acks == 0, "{seen:?} for {meant:?}");
            assert_eq!((seen.seq, seen.mss), (client.isn, Some(connection.mss)), "{meant:?}");
            assert_eq!((seen.sack_ok, seen.scale), (client.sack, client.scale), "{meant:?}");
            assert_eq!(seen.stamps, meant.stamps.map(|(value, _)| (value, 0)), "{meant:?}");
            let window = u32::from(meant.window) << client.scale.unwrap_or(0);
            assert_eq!(u32::from(seen.window), window.min(0xffff), "{meant:?}");
            let scale = client.scale.and(*self.random.pick(&[None, Some(2), Some(7), Some(11)]));
            let (stamps, isn) = (client.stamps, client.isn);
            let sack = client.sack;
            let row = backend_of(&self.world, to);
            let mut end = self.end((stamps, sack, scale));
            end.peer = isn;
            let (backend, known, from, _) =
                connection.backend.get_or_insert((end, row.clone(), source, false));
            assert_eq!((known.endpoint(), *from), (row.endpoint(), source), "{meant:?}");
            let value = seen.stamps.map_or(0, |(value, _)| value);
            backend.newest = value;
            return;
        }
        let Some((backend, row, from, established)) = &mut connection.backend else {
            panic!("{seen:?} before a SYN");
        };
        assert_eq!((to, source), (row.endpoint(), *from), "{meant:?}");
        let window = match (client.scale, backend.scale) {
            (Some(scale), None) => (u32::from(meant.window) << scale).min(0xffff) as u16,
            _ => meant.window,
        };
        let stamps = meant.stamps.map(|(value, echo)| {
            let shift = connection.shift.expect("the backend has answered");
            (value, echo.wrapping_sub(shift))
        });
        check(backend, connection.number, meant, seen, stamps, window);
        *established = true;
        take(backend, meant, stamps);
    }

    /// Nothing is lost any more: all that is missing arrives.
    fn finish(&mut self) {
        for _ in 0..40 {
            for n in 0..CLIENTS {
                for client in [true, false] {
                    self.rest_of(n, client);
                }
            }
            while let Some(meant) = self.on_the_way.pop() {
                self.pass(&meant);
            }
        }
        let left: Vec<_> = self.live.iter().flatten().collect();
        assert!(left.is_empty(), "{} connections stand still: {:?}", left.len(), left[0]);
    }

    fn rest_of(&mut self, n: usize, from_client: bool) {
        let Some(connection) = self.live[n].clone() else { return };
        let established = connection.backend.as_ref().is_some_and(|(.., established)| *established);
        let (begins, acked) = match (&connection.backend, from_client) {
            (_, true) => (!connection.open, connection.client.acked),
            (None, false) => return,
            (Some((backend, ..)), false) => (!established, backend.acked),
        };
        let len = if begins { 0 } else { MSS.min(BYTES + 1 - acked) };
        let meant = self.segment(&connection, from_client, acked, len);
        let is_syn_ack = !from_client && begins;
        self.on_the_way.push(if is_syn_ack { syn_ack(&connection, meant) } else { meant });
    }
}

/// The backend's answer, in place of a segment of its.
fn syn_ack(connection: &Connection, mut meant: Meant) -> Meant {
    let Some((backend, ..)) = &connection.backend else { return meant };
    let scale = backend.scale.iter().flat_map(|scale| [1, 3, 3, *scale]);
    let mut rest: Vec<u8> = [2, 4, 5, 0xb4].into_iter().chain(scale).collect();
    if backend.sack {
        rest.extend([1, 1, 4, 2]);
    }
    meant.frame.flags = SYN | ACK;
    meant.frame.seq = backend.isn;
    meant.frame.tcp_options =
        options(backend.stamps.then_some((backend.clock, backend.newest)), &rest);
    meant.syn = true;
    meant
}

fn client_gets(connection: &mut Connection, meant: &Meant, seen: &Seen) {
    let Some((backend, ..)) = &connection.backend else { panic!("{seen:?} of nobody") };
    let (client, number) = (&mut connection.client, connection.number);
    let stamps = meant.stamps.map(|(value, echo)| {
        let (came, _) = seen.stamps.expect("a time stamp");
        let shift = *connection.shift.get_or_insert(came.wrapping_sub(value));
        (value.wrapping_add(shift), echo)
    });
    // The scale of a SYN's window is 0.
    let scale = if meant.syn { 0 } else { backend.scale.unwrap_or(0) };
    let window = match client.scale {
        Some(_) => {
            let bytes = u64::from(meant.window) << scale;
            (bytes >> OFFERED_SCALE).clamp(1, 0xffff) as u16
        }
        None => meant.window,
    };
    if meant.syn {
        assert_eq!((seen.flags, &seen.payload[..]), (ACK, &[0][..]), "{meant:?}");
        assert_eq!((seen.seq, seen.ack), (client.peer, client.isn.wrapping_add(1)), "{meant:?}");
        assert_eq!((seen.window, seen.stamps), (window, stamps), "{meant:?}");
        let first = !connection.open;
        if first && let Some(answered) = connection.answered {
            assert_eq!(stamps.map(|(value, _)| value), Some(answered), "time goes on");
        }
        connection.open = true;
        return;
    }
    check(client, number, meant, seen, stamps, window);
    take(client, meant, stamps);
}

/// A segment in the receiver's numbers.
fn check(
    to: &End,
    connection: usize,
    meant: &Meant,
    seen: &Seen,
    stamps: Option<(u32, u32)>,
    window: u16,
) {
    let place = |base: u32, at: usize| base.wrapping_add(1 + at as u32);
    assert_eq!(seen.ack, place(to.isn, meant.acks), "{meant:?}");
    if meant.len > 0 {
        assert_eq!(seen.seq, place(to.peer, meant.at), "{meant:?}");
    }
    let fin = meant.len > 0 && meant.at + meant.len == BYTES + 1;
    assert_eq!(seen.flags & (SYN | RST | FIN | ACK), ACK | if fin { FIN } else { 0 });
    let bytes = meant.at..meant.at + meant.len - usize::from(fin);
    let bytes: Vec<u8> = bytes.map(|at| byte(connection, meant.from_client, at)).collect();
    assert_eq!(seen.payload, bytes, "{meant:?}");
    assert_eq!((seen.stamps, seen.window), (stamps, window), "{meant:?}");
    let block = meant.block.iter().flat_map(|block| [block.start, block.end]);
    let block: Vec<u32> = block.map(|edge| place(to.isn, edge)).collect();
    assert_eq!(seen.blocks, block, "{meant:?}");
}

fn take(to: &mut End, meant: &Meant, stamps: Option<(u32, u32)>) {
    to.got[meant.at..meant.at + meant.len].fill(true);
    to.acked = to.acked.max(meant.acks);
    if let Some((value, _)) = stamps {
        to.newest = value;
    }
}

#[test]
fn every_byte_arrives_where_it_belongs() {
    needs_root!("every_byte_arrives_where_it_belongs");
    let (mut finished, mut again) = (0, 0);
    for seed in SEEDS.into_iter().chain([seed()]) {
        let family = FAMILIES[seed as usize % 2];
        println!("RINGWAY_SEED={seed}, {family:?}: if it fails, keep it among SEEDS");
        let mut model = Model::new(seed, family);
        for _ in 0..STEPS {
            model.step();
        }
        model.finish();
        finished += model.finished;
        again += model.again;
    }
    assert!(finished > 30 && again > 10, "{finished} connections, {again} on a former one's port");
}
