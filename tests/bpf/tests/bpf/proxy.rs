//! Handshakes that the gateway makes: what client and backend see of one another.

use std::net::SocketAddr;

use ringway_abi::Reason::{
    IcmpToBackend, NatForward, NatReply, NoFlow, ResetNoFlow, ResetNoStamps, SynAnswered,
};
use ringway_abi::Verdict::{Drop, Redirect, Tx};
use ringway_bpf_tests::icmp::complaint;
use ringway_bpf_tests::prelude::*;
use ringway_plan::tables::{BackendRow, RateLimit, ServicePolicy, SynAnswer, SynOffer, SynPolicy};

use crate::limits::{client, policy, vip};
const CLIENT_ISN: u32 = 0xffff_fff0;
const BACKEND_ISN: u32 = 0x1000;
const BACKEND_STAMP: u32 = 7_000_000;

fn proxied(offer: SynOffer) -> ServicePolicy {
    let learnt = RateLimit { packets_per_second: 1_000, burst: 100 };
    let syn = SynPolicy { answer: SynAnswer::Proxy, always: true, offer };
    ServicePolicy { syn, learnt, ..policy(Default::default()) }
}

const ALL: SynOffer = SynOffer { mss: 1460, stamps: true, sack: true, ecn: true };

pub(crate) fn world(offer: SynOffer) -> World {
    let mut world = World::unwatched();
    world.limit(&[ports::ACROSS], proxied(offer));
    world
}

/// A segment that left, as far as handshakes go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_ok: bool,
    pub(crate) stamps: Option<(u32, u32)>,
    pub(crate) blocks: Vec<u32>,
    pub(crate) payload: Vec<u8>,
}

#[track_caller]
pub(crate) fn seen(summary: &Summary) -> Seen {
    let packet = wire::check(&summary.frame).good();
    let l4 = packet.l4;
    let word = |at: usize| u32::from_be_bytes(l4[at..at + 4].try_into().unwrap());
    let head = usize::from(l4[12] >> 4) * 4;
    let mut seen = Seen {
        flags: l4[13],
        seq: word(4),
        ack: word(8),
        window: u16::from_be_bytes([l4[14], l4[15]]),
        payload: l4[head..].to_vec(),
        ..Seen::default()
    };
    let mut at = 20;
    while at < head {
        let len = match l4[at] {
            0 => break,
            1 => 1,
            _ => usize::from(l4[at + 1]),
        };
        match l4[at] {
            2 => seen.mss = Some(u16::from_be_bytes([l4[at + 2], l4[at + 3]])),
            3 => seen.scale = Some(l4[at + 2]),
            4 => seen.sack_ok = true,
            5 => seen.blocks = (at + 2..at + len).step_by(4).map(word).collect(),
            8 => seen.stamps = Some((word(at + 2), word(at + 6))),
            _ => {}
        }
        at += len;
    }
    seen
}

fn stamps(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10][..], &value.to_be_bytes(), &echo.to_be_bytes()].concat()
}

/// As Linux sends them.
fn syn_options(mss: u16, scale: u8) -> Vec<u8> {
    let stamps = [&[4, 2, 8, 10][..], &100u32.to_be_bytes(), &[0; 4]].concat();
    [&[2, 4][..], &mss.to_be_bytes(), &stamps, &[1, 3, 3, scale]].concat()
}

fn syn(from: SocketAddr, options: Vec<u8>) -> Frame {
    let family = Family::of(from.ip());
    Frame::tcp(from, vip(family, ports::ACROSS), SYN)
        .with(|f| (f.seq, f.tcp_options) = (CLIENT_ISN, options))
}

/// A client, and what it was answered.
struct Client {
    syn: Frame,
    answer: Seen,
}

impl Client {
    #[track_caller]
    fn ask(world: &World, from: SocketAddr, options: Vec<u8>) -> Client {
        let syn = syn(from, options);
        let answered = world.send(&syn);
        assert_eq!(answered.pair(), (Tx, SynAnswered));
        let answer = seen(&answered);
        assert_eq!(answer.flags & !0x40, SYN | ACK);
        assert_eq!((answer.ack, answer.window), (CLIENT_ISN.wrapping_add(1), 0));
        Client { syn, answer }
    }

    fn stamps(&self, value: u32) -> Vec<u8> {
        self.answer.stamps.map(|(theirs, _)| stamps(value, theirs)).unwrap_or_default()
    }

    /// Its first segment.
    fn segment(&self) -> Frame {
        self.syn.clone().with(|f| {
            f.flags = ACK;
            f.seq = CLIENT_ISN.wrapping_add(1);
            f.ack = self.answer.seq.wrapping_add(1);
            f.window = 500;
            f.tcp_options = self.stamps(101);
        })
    }
}

/// A connection on its way: the backend has been asked.
struct Asked {
    client: Client,
    backend: BackendRow,
    source: SocketAddr,
    asked: Seen,
}

pub(crate) fn backend_of(world: &World, destination: SocketAddr) -> BackendRow {
    let rows = world.tables.backends.iter();
    let mut fits = rows.filter(|b| (b.address, b.port) == (destination.ip(), destination.port()));
    fits.next().unwrap().clone()
}

impl Asked {
    #[track_caller]
    fn of(world: &World, from: SocketAddr, options: Vec<u8>) -> Asked {
        let client = Client::ask(world, from, options);
        let went = world.send(&client.segment());
        assert_eq!(went.pair(), (Redirect, NatForward));
        let packet = wire::check(&went.frame).good();
        let (source, backend) = (packet.src, backend_of(world, packet.dst));
        Asked { client, backend, source, asked: seen(&went) }
    }

    fn says(&self, flags: u8, sent: u32) -> Frame {
        let hop = self.backend.next_hop.unwrap();
        let here = SocketAddr::new(self.backend.address, self.backend.port);
        Frame::tcp(here, self.source, flags).with(|f| {
            (f.src_mac, f.dst_mac) = (hop.mac, mac_of(hop.iface));
            f.seq = BACKEND_ISN.wrapping_add(sent);
            f.ack = CLIENT_ISN.wrapping_add(1);
            f.window = 65_000;
        })
    }

    fn state(&self, world: &World) -> FlowState {
        let from = self.client.syn.src;
        let mut own = audit::records(world).into_iter().filter(|record| record.client == from);
        let state = own.next().unwrap().key.state;
        assert_eq!(own.next(), None, "one flow");
        state
    }

    fn feed(&self, world: &World, frame: &Frame) -> Summary {
        world.feed(self.backend.next_hop.unwrap().iface, &frame.bytes())
    }

    /// The backend's answer.
    fn syn_ack(&self, scale: Option<u8>) -> Frame {
        self.says(SYN | ACK, 0).with(|f| {
            let scale = scale.map(|scale| [1, 3, 3, scale]).into_iter().flatten();
            let stamps = stamps(BACKEND_STAMP, 101);
            f.tcp_options = [&[2, 4, 5, 0xb4][..], &stamps].concat();
            f.tcp_options.extend(scale);
        })
    }
}

fn pair(world: &World, frame: &Frame) -> (Verdict, Reason) {
    world.send(frame).pair()
}

/// Neither side says more than was agreed.
#[test]
fn what_is_agreed() {
    needs_root!("what_is_agreed");
    let none = SynOffer { mss: 1400, sack: true, ..SynOffer::default() };
    let plain = world(none);
    let asked = Asked::of(&plain, client(Family::V4, 1), syn_options(500, 3));
    assert_eq!((asked.client.answer.mss, asked.client.answer.stamps), (Some(1400), None));
    assert_eq!((asked.asked.mss, asked.asked.stamps), (Some(216), None));
    assert_eq!((asked.asked.window, asked.asked.sack_ok), (4000, true));
    // A SYN without options, as small as they come.
    let asked = Asked::of(&plain, client(Family::V4, 2), Vec::new());
    let answer = &asked.client.answer;
    assert_eq!((answer.mss, answer.scale, answer.sack_ok), (Some(1400), None, false));
    assert_eq!((asked.asked.mss, asked.asked.scale, asked.asked.sack_ok), (Some(536), None, false));
    assert_eq!(asked.asked.window, 500);
    let told = seen(&asked.feed(&plain, &asked.syn_ack(None)));
    assert_eq!(told.window, 65_000, "nothing is scaled");

    // A backend that scales nothing.
    let world = world(ALL);
    let asked = Asked::of(&world, client(Family::V4, 1), syn_options(1460, 4));
    asked.feed(&world, &asked.syn_ack(None));
    let went = seen(&world.send(&asked.client.segment()));
    assert_eq!(went.window, 500 << 4);
    let reply = asked.says(ACK, 1).with(|f| f.window = 64_000);
    assert_eq!(seen(&asked.feed(&world, &reply)).window, 500);
    // Congestion marks, if both want them.
    let syn = syn(client(Family::V4, 3), Vec::new()).with(|f| f.flags |= 0xc0);
    assert_eq!(seen(&world.send(&syn)).flags, SYN | ACK | 0x40);
    assert_eq!(seen(&plain.send(&syn)).flags, SYN | ACK);
}

/// What is lost is sent again by one side or the other.
#[test]
fn segments_may_be_lost() {
    needs_root!("segments_may_be_lost");
    let world = world(ALL);
    let asked = Asked::of(&world, client(Family::V4, 1), syn_options(1460, 7));
    // The backend's SYN: the client probes the window, with the number before.
    let probe = asked.client.segment().with(|f| f.seq = CLIENT_ISN);
    for frame in [&probe, &asked.client.segment()] {
        let again = world.send(frame);
        assert_eq!(again.pair(), (Redirect, NatForward));
        let again = seen(&again);
        assert_eq!((again.flags, again.seq), (SYN, CLIENT_ISN));
        assert_eq!((again.mss, again.scale), (asked.asked.mss, asked.asked.scale));
    }
    assert_eq!(asked.state(&world), FlowState::Syn);
    // The backend's answer, twice; then a later socket of the backend's.
    let first = seen(&asked.feed(&world, &asked.syn_ack(Some(7))));
    assert_eq!(seen(&asked.feed(&world, &asked.syn_ack(Some(7)))), first);
    let other = asked.syn_ack(Some(7)).with(|f| f.seq = 0xf000_0000);
    let told = seen(&asked.feed(&world, &other));
    assert_eq!((told.seq, told.stamps), (first.seq, first.stamps));
    let went = seen(&world.send(&asked.client.segment()));
    assert_eq!(went.ack, 0xf000_0001);
    // The ACK of a client whose probe comes first.
    let client = Client::ask(&world, self::client(Family::V4, 2), syn_options(1460, 7));
    let probe = client.segment().with(|f| f.seq = CLIENT_ISN);
    let went = world.send(&probe);
    assert_eq!(seen(&went).seq, CLIENT_ISN);
}

#[test]
fn nobody_else_gets_in() {
    needs_root!("nobody_else_gets_in");
    let world = world(ALL);
    for family in FAMILIES {
        let me = Client::ask(&world, client(family, 1), syn_options(1460, 7));
        let before = audit::records(&world).len();
        let forged = |change: &dyn Fn(&mut Frame)| {
            let frame = me.segment().with(change);
            let pair = pair(&world, &frame);
            assert_ne!(pair.1, NatForward, "{frame:?}");
        };
        forged(&|f| f.src = client(family, 2));
        forged(&|f| f.src.set_port(f.src.port() ^ 1));
        forged(&|f| f.ack ^= 1 << 12);
        forged(&|f| f.ack ^= 1 << 6);
        forged(&|f| f.seq ^= 1 << 12);
        forged(&|f| f.tcp_options = stamps(101, 7));
        forged(&|f| f.tcp_options.clear());
        assert_eq!(audit::records(&world).len(), before);
        assert_eq!(pair(&world, &me.segment()), (Redirect, NatForward));
    }
}

/// A SYN that acknowledges the backend's number ends no handshake: backends may answer it with an ACK,
/// which then would prove the client's address.
#[test]
fn no_syn_ends_the_handshake() {
    needs_root!("no_syn_ends_the_handshake");
    let world = world(ALL);
    let asked = Asked::of(&world, client(Family::V6, 1), syn_options(1460, 7));
    asked.feed(&world, &asked.syn_ack(Some(7)));
    let ends = asked.client.segment();
    let forged = ends.clone().with(|f| f.flags = SYN | ACK);
    assert_eq!(pair(&world, &forged), (Drop, NoFlow));
    assert_eq!(asked.state(&world), FlowState::SynAck);
    assert_eq!(pair(&world, &ends), (Redirect, NatForward));
    assert_eq!(asked.state(&world), FlowState::Established);
}

/// While nothing is armed, an ACK is what it was, once no cookie holds any more.
#[test]
fn only_who_was_answered_is_connected() {
    needs_root!("only_who_was_answered_is_connected");
    let mut world = world(ALL);
    let [me, other, late] = [1, 2, 3].map(|n| client(Family::V6, n));
    let ask = |world: &World, from| Client::ask(world, from, syn_options(1460, 7)).segment();
    let before = ask(&world, me);
    let policy = proxied(ALL);
    let waiting = SynPolicy { always: false, ..policy.syn };
    world.limit(&[ports::ACROSS], ServicePolicy { syn: waiting, ..policy });
    assert_eq!(pair(&world, &before).1, ResetNoFlow);
    assert_eq!(pair(&world, &syn(me, Vec::new())), (Redirect, NatForward));
    // Armed for a second, the first of a period.
    let id = world.service(Family::V6, TCP, ports::ACROSS).row.id;
    let until = world.now() + 1;
    world.gateway.arm(id, until).unwrap();
    let [other, late] = [other, late].map(|from| ask(&world, from));
    world.advance(97);
    assert_eq!(pair(&world, &other), (Redirect, NatForward));
    world.advance(1);
    assert_eq!(pair(&world, &late).1, ResetNoFlow);
}

/// A refusal by the backend reaches the client with a number that it accepts.
#[test]
fn a_backend_refuses() {
    needs_root!("a_backend_refuses");
    let world = world(ALL);
    let asked = Asked::of(&world, client(Family::V4, 1), syn_options(1460, 7));
    let refusal = asked.says(RST | ACK, 0).with(|f| f.seq = 0);
    let told = seen(&asked.feed(&world, &refusal));
    assert_eq!((told.flags, told.seq), (RST | ACK, asked.client.answer.seq + 1));
}

/// Time stamps were promised, and the backend has none: nobody is left with half a connection.
#[test]
fn a_backend_has_no_time_stamps() {
    needs_root!("a_backend_has_no_time_stamps");
    let world = world(ALL);
    for family in FAMILIES {
        let asked = Asked::of(&world, client(family, 1), syn_options(1460, 7));
        let without = asked.syn_ack(Some(7)).with(|f| f.tcp_options = vec![2, 4, 5, 0xb4]);
        // Of another connection, and damaged: neither ends anything.
        let other = without.clone().with(|f| f.ack ^= 1).bytes();
        let mut damaged = without.bytes();
        *damaged.last_mut().unwrap() ^= 1;
        for frame in [other, damaged] {
            let iface = asked.backend.next_hop.unwrap().iface;
            assert_ne!(world.feed(iface, &frame).reason, ResetNoStamps, "{frame:x?}");
        }
        let told = asked.feed(&world, &without);
        assert_eq!(told.pair(), (Redirect, ResetNoStamps));
        let packet = wire::check(&told.frame).good();
        assert_eq!((packet.src, packet.dst), (asked.client.syn.dst, asked.client.syn.src));
        let told = seen(&told);
        assert_eq!(told.flags, RST | ACK);
        let next = asked.client.answer.seq.wrapping_add(1);
        assert_eq!((told.seq, told.ack), (next, CLIENT_ISN.wrapping_add(1)));
        assert_eq!(asked.state(&world), FlowState::Closed);
        // The backend repeats its answer.
        let told = asked.feed(&world, &without);
        assert_eq!(told.pair(), (Tx, ResetNoStamps));
        let told = seen(&told);
        assert_eq!((told.flags, told.seq), (RST, CLIENT_ISN.wrapping_add(1)));
        // A client that was promised none is connected; so is the next one when the backend has them.
        let plain = Asked::of(&world, client(family, 2), Vec::new());
        let answer = plain.syn_ack(None).with(|f| f.tcp_options.clear());
        assert_eq!(plain.feed(&world, &answer).pair(), (Redirect, NatReply));
        let next = Asked::of(&world, client(family, 1), syn_options(1460, 8));
        assert_eq!(next.feed(&world, &next.syn_ack(Some(7))).pair(), (Redirect, NatReply));
    }
}

/// The client's port is used again while the record of its last connection is there.
#[test]
fn a_port_is_used_again() {
    needs_root!("a_port_is_used_again");
    let world = world(ALL);
    let from = client(Family::V4, 1);
    let asked = Asked::of(&world, from, syn_options(1460, 7));
    asked.feed(&world, &asked.syn_ack(Some(7)));
    world.send(&asked.client.segment());
    // Of a connection that goes on, a SYN is the backend's to judge.
    assert_eq!(pair(&world, &syn(from, syn_options(1460, 7))), (Redirect, NatForward));
    world.send(&asked.client.segment().with(|f| f.flags |= FIN));
    asked.feed(&world, &asked.says(FIN | ACK, 1));
    assert_eq!(asked.state(&world), FlowState::Closed);
    // The cookie that it was opened with opens no other, whoever repeats it.
    let first = asked.client.segment();
    world.send(&first);
    assert_eq!(asked.state(&world), FlowState::Closed);
    let again = Asked::of(&world, from, syn_options(1460, 8));
    let told = again.feed(&world, &again.syn_ack(Some(7)));
    assert_eq!(told.pair(), (Redirect, NatReply));
    assert_eq!(again.state(&world), FlowState::SynAck);
}

/// An error about a shifted segment reaches the backend as one about its own.
#[test]
fn errors_quote_what_was_sent() {
    needs_root!("errors_quote_what_was_sent");
    let world = world(ALL);
    for family in FAMILIES {
        let asked = Asked::of(&world, client(family, 1), syn_options(1460, 7));
        asked.feed(&world, &asked.syn_ack(Some(7)));
        world.send(&asked.client.segment());
        let told = asked.client.answer.seq.wrapping_add(1);
        let about = Frame::tcp(asked.client.syn.dst, asked.client.syn.src, ACK)
            .with(|f| (f.seq, f.ack) = (told, CLIENT_ISN.wrapping_add(1)));
        let error = complaint(&about, asked.client.syn.src.ip(), Says::TooBig(1300));
        let error = error.with(|f| {
            (f.src_mac, f.dst_mac) = (asked.client.syn.src_mac, asked.client.syn.dst_mac);
        });
        let went = world.send(&error);
        assert_eq!(went.pair(), (Redirect, IcmpToBackend));
        let quote = wire::check(&went.frame).good().l4[8..].to_vec();
        let tcp = if family == Family::V4 { 20 } else { 40 };
        let seq = u32::from_be_bytes(quote[tcp + 4..tcp + 8].try_into().unwrap());
        assert_eq!(seq, BACKEND_ISN + 1);
    }
}
