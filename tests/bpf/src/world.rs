//! A gateway with two interfaces and one service for every case, unpinned.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ringway_abi::raw::{rw_iface, rw_ledger, rw_settings, rw_traffic};
use ringway_abi::{
    Faces, FlowState, ForwardMode, FromBytes, IntoBytes, Reason, ShieldMode, Slot, Verdict,
};
use ringway_kernel::forward::ForwardTables;
use ringway_kernel::programs::capture::Session;
use ringway_kernel::shield::{ChallengeKey, Generation};
use ringway_kernel::{Detached, Gateway, GatewayOptions, Interface};
use ringway_plan::prefix_list::ListTables;
use ringway_plan::tables::{
    BackendRow, Protocol, ServiceKey, ServicePolicy, ServiceRow, SynAnswer, Tables,
};

use crate::audit::{self, Record};
use crate::cast::{BACK, BACK_MAC, FRONT, FRONT_ALT_MAC, FRONT_MAC, Family, Mac};
use crate::dry::{Dry, Foretold};
use crate::frame::{Frame, TCP, flags};
use crate::gateway_pool::PooledGateway;
use crate::model::ring_slot;
use crate::run::Program;
use crate::services::{serve_by, standard_tables};
use crate::watch::{self, Node};
use crate::{capture, wire};

/// A service and its backends, as in the tables.
#[derive(Clone, Debug)]
pub struct Service {
    pub row: ServiceRow,
    pub backends: Vec<BackendRow>,
}

#[derive(Clone, Debug)]
pub struct Summary {
    pub verdict: Verdict,
    /// The one reason that was counted.
    pub reason: Reason,
    /// The frame as it was left.
    pub frame: Vec<u8>,
}

impl Summary {
    pub fn pair(&self) -> (Verdict, Reason) {
        (self.verdict, self.reason)
    }
}

#[derive(Clone, Debug)]
pub struct Flow {
    /// The frame that opened it.
    pub request: Frame,
    /// Interface slot it came by.
    pub slot: u32,
    pub backend: BackendRow,
    /// Its source as the backend sees it.
    pub source: SocketAddr,
}

/// The number of a backend's SYN.
const BACKEND_ISN: u32 = 0x2000_0000;

impl Flow {
    /// The flow of its first packet, which left as this frame.
    pub fn opened(world: &World, slot: u32, request: Frame, left: &[u8]) -> Self {
        let backend = world.chosen(&request).unwrap();
        Self { slot, backend, source: wire::check(left).good().src, request }
    }

    /// The client's next segment or datagram.
    pub fn next(&self, tcp_flags: u8) -> Frame {
        let ack = if tcp_flags & flags::ACK != 0 { BACKEND_ISN + 1 } else { 0 };
        let seq = self.request.seq + 1;
        Frame { flags: tcp_flags, ack, seq, ..self.request.clone() }
    }

    /// The backend's answer as it comes in.
    pub fn answer(&self, tcp_flags: u8) -> Frame {
        let hop = self.backend.next_hop.unwrap();
        let here = SocketAddr::new(self.backend.address, self.backend.port);
        Frame::new(self.request.proto, here, self.source).with(|f| {
            f.src_mac = hop.mac;
            f.dst_mac = mac_of(hop.iface);
            f.flags = tcp_flags;
            f.ack = if tcp_flags & flags::ACK != 0 { self.request.seq + 1 } else { 0 };
            f.seq = if tcp_flags & flags::SYN != 0 { BACKEND_ISN } else { BACKEND_ISN + 1 };
            f.payload = b"answer".to_vec();
        })
    }

    /// Where answers come in.
    pub fn back_slot(&self) -> u32 {
        self.backend.next_hop.unwrap().iface
    }

    /// The frame that the backend should get for a request.
    pub fn forwarded(&self, request: &Frame) -> Frame {
        let hop = self.backend.next_hop.unwrap();
        let (src, dst) = (self.source, SocketAddr::new(self.backend.address, self.backend.port));
        let ttl = request.ttl - 1;
        let (src_mac, dst_mac) = (mac_of(hop.iface), hop.mac);
        Frame { src, dst, src_mac, dst_mac, ttl, ..request.clone() }
    }

    /// The frame that the client should get for an answer.
    pub fn returned(&self, answer: &Frame) -> Frame {
        Frame {
            src: self.request.dst,
            dst: self.request.src,
            src_mac: mac_of(self.slot),
            dst_mac: self.request.src_mac,
            ttl: answer.ttl - 1,
            ..answer.clone()
        }
    }
}

/// The loopback device of a network namespace of our own, as a device of any kind: nothing is ever
/// sent.
fn interface(slot: u32, mac: Mac) -> Interface {
    Interface {
        slot,
        name: "lo".to_owned(),
        ifindex: 1,
        mac,
        alt_mac: None,
        mtu: 9000,
        redirect: false,
        layer3: false,
        local: false,
        raw: false,
        vlan: None,
        faces: Faces::Both,
    }
}

pub fn mac_of(slot: u32) -> [u8; 6] {
    if slot == FRONT { FRONT_MAC } else { BACK_MAC }
}

/// The gateway and what it was told.
#[derive(Debug)]
pub struct World {
    pub gateway: PooledGateway,
    /// The tables that [`Gateway::apply`] was last given.
    pub tables: Tables,
    roots: [Program; 2],
    /// Whether the interface of a slot has no Ethernet header.
    layer3: [bool; 2],
    next_port: u16,
    /// The capture that sees each frame, where there is one.
    watch: Mutex<Option<Session>>,
    /// Where it is pinned: after the gateway, which holds it.
    node: Option<Node>,
}

/// Of most worlds: those of one size use one another's gateways.
const USUAL_FLOWS: u32 = 8_192;
/// Gateways of this size are used by one world.
const FRESH_FLOWS: u32 = 1_001;

fn pooled(flows: u32, node: Option<&Node>) -> PooledGateway {
    let pin = node.is_some();
    let spare = if pin || flows == FRESH_FLOWS { None } else { PooledGateway::spare(flows) };
    spare.unwrap_or_else(|| {
        let name = node.map_or_else(String::new, |node| node.name.clone());
        let options =
            GatewayOptions { node: name, flows, tracked: 4_096, pin, ..Default::default() };
        PooledGateway::open(options)
    })
}

/// The dry instance takes as long to verify as the live one, which is most of a test's time where
/// that is emulated.
fn explained() -> bool {
    std::env::var_os("RINGWAY_EXPLAIN").is_none_or(|value| value != "off")
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Room for 12 288 flows, which is plenty.
    pub fn new() -> Self {
        Self::with(USUAL_FLOWS, |_| ())
    }

    /// Room for so many flows, and any change to the tables before they are first applied.
    pub fn with(flows: u32, change: impl FnOnce(&mut Tables)) -> Self {
        match std::env::var_os("RINGWAY_WATCHED") {
            Some(_) => Self::watched_with(flows, change),
            None => Self::build(flows, None, change),
        }
    }

    /// One whose gateway no world had before.
    pub fn fresh() -> Self {
        Self::build(FRESH_FLOWS, None, |_| ())
    }

    /// One that is never watched: for tests of the stages' slots, where a capture has programs of
    /// its own.
    pub fn unwatched() -> Self {
        Self::build(USUAL_FLOWS, None, |_| ())
    }

    /// A pinned one, which captures can begin on.
    pub fn pinned() -> Self {
        Self::build(8_192, Some(Node::new()), |_| ())
    }

    /// One of which a capture sees each frame that is fed, and its record must tell the truth.
    pub fn watched() -> Self {
        Self::watched_with(8_192, |_| ())
    }

    /// The same, otherwise as [`World::with`].
    pub fn watched_with(flows: u32, change: impl FnOnce(&mut Tables)) -> Self {
        let world = Self::build(flows, Some(Node::new()), change);
        let session = watch::start(&world.gateway.view(), "", |_| ()).unwrap();
        *world.watch.lock().unwrap() = Some(session);
        world
    }

    fn build(flows: u32, node: Option<Node>, change: impl FnOnce(&mut Tables)) -> Self {
        private_network();
        let mut gateway = pooled(flows, node.as_ref());
        let front = Interface { alt_mac: Some(FRONT_ALT_MAC), ..interface(FRONT, FRONT_MAC) };
        for iface in [front, interface(BACK, BACK_MAC)] {
            gateway.set_iface(&iface).unwrap();
        }
        let roots = [FRONT, BACK].map(|slot| Program::new(gateway.root_program(slot).unwrap()));
        let (tables, layer3) = (standard_tables(), [false; 2]);
        let watch = Mutex::default();
        let mut world = Self { gateway, tables, roots, layer3, next_port: 30_000, watch, node };
        world.change(change);
        world
    }

    /// Seconds since boot by the packet path's clock, which stands still until it is set.
    pub fn now(&self) -> u32 {
        self.gateway.clock().now().as_secs() as u32
    }

    /// The time of day by that clock.
    pub fn wall_time(&self) -> SystemTime {
        self.gateway.clock().wall_time()
    }

    pub fn advance(&self, seconds: u64) {
        self.advance_by(Duration::from_secs(seconds));
    }

    pub fn advance_by(&self, time: Duration) {
        self.gateway.clock().advance(time).unwrap();
    }

    /// Whether a capture sees each frame: its instance of the gateway stands in for the live one.
    pub fn is_watched(&self) -> bool {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub fn node(&self) -> &str {
        &self.node.as_ref().unwrap().name
    }

    /// Ends a pinned world as `ringway detach` does.
    pub fn detach(self) -> Detached {
        let Self { gateway, roots, watch, mut node, .. } = self;
        drop((gateway, roots, watch));
        node.take().unwrap().detach()
    }

    /// Changes the tables and applies them.
    pub fn change(&mut self, change: impl FnOnce(&mut Tables)) {
        change(&mut self.tables);
        self.gateway.apply(&self.tables).unwrap();
    }

    pub fn change_backend(&mut self, backend: &BackendRow, change: impl FnOnce(&mut BackendRow)) {
        self.change(|tables| change(&mut tables.backends[backend.index as usize]));
    }

    /// The ring of a backend's service goes on with its other backends.
    pub fn serve_without(&mut self, lost: &BackendRow) {
        let is_other = |row: &&BackendRow| row.service == lost.service && row.index != lost.index;
        let others = self.tables.backends.iter().filter(is_other);
        let others: Vec<u32> = others.map(BackendRow::reference).collect();
        self.change(|tables| serve_by(tables, lost.service, &others));
    }

    /// Gives the services of these ports limits.
    pub fn limit(&mut self, ports: &[u16], policy: ServicePolicy) {
        self.gateway.limit();
        if policy.syn.answer != SynAnswer::Forward {
            self.answer_syns(None);
        }
        self.change(|tables| {
            let services = tables.services.iter_mut();
            services
                .filter(|service| ports.contains(&service.key.port))
                .for_each(|service| service.policy = Some(policy));
        });
    }

    /// Gives it a shield that answers SYNs where policies say so, with a key of its own or this one.
    pub fn answer_syns(&mut self, key: Option<[u64; 2]>) {
        self.shield(true, key);
    }

    /// Gives it a shield with nothing but, maybe, answers to SYNs.
    pub fn shield(&mut self, answers: bool, key: Option<[u64; 2]>) {
        self.gateway.limit();
        let generation = Generation {
            mode: ShieldMode::Enforce,
            sanity: false,
            protect_host: false,
            service_modes: false,
            answers,
            challenge_key: key.map(ChallengeKey),
            lists: &ListTables::default(),
            list_names: &[],
            rules: &[],
            program: &[],
        };
        self.gateway.set_shield(Some(&generation)).unwrap();
    }

    /// Forwards between both interfaces.
    pub fn forward(&mut self, mode: ForwardMode) -> ForwardTables {
        self.gateway.undo(|gateway| gateway.end_forwarding().unwrap());
        self.gateway.set_forwarding(mode, &[FRONT, BACK]).unwrap()
    }

    /// The root program of an interface slot.
    pub fn root(&self, slot: u32) -> &Program {
        &self.roots[slot as usize]
    }

    /// Feeds a frame to an interface slot. Whatever it is, it must be counted once, there, with
    /// the verdict that was given; and what is sent must be in order when what came was. And
    /// `ringway explain` must have foretold it, unless `RINGWAY_EXPLAIN=off`.
    pub fn feed(&self, slot: u32, frame: &[u8]) -> Summary {
        let before = [self.ledger(FRONT), self.ledger(BACK)];
        let foretold = explained().then(|| self.foretell(slot, frame));
        let mut out = Vec::new();
        let verdict = self.root(slot).run(frame, &mut out).unwrap();
        let reason = self.counted(slot, &before, verdict);
        let raw = self.layer3[slot as usize];
        // A redirected packet leaves by an Ethernet device.
        let came = if raw { framed(frame) } else { frame.to_vec() };
        let left = if raw && verdict != Verdict::Redirect { framed(&out) } else { out.clone() };
        let sent = matches!(verdict, Verdict::Tx | Verdict::Redirect);
        if sent || verdict == Verdict::Pass && out != frame {
            capture::sent(&left);
        }
        if sent && wire::check(&came).is_good() {
            wire::check(&left).good();
        }
        let summary = Summary { verdict, reason, frame: out };
        if let Some(foretold) = foretold {
            foretold.hold_against(frame, &summary);
            self.hold_record(slot, frame, &summary, &foretold);
        }
        summary
    }

    fn foretell(&self, slot: u32, frame: &[u8]) -> Foretold {
        let mut dry = self.gateway.dry.lock().unwrap_or_else(PoisonError::into_inner);
        dry.get_or_insert_with(|| Dry::new(self)).foretell(self, slot, frame)
    }

    fn hold_record(&self, slot: u32, frame: &[u8], live: &Summary, foretold: &Foretold) {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = watch.as_mut() else { return };
        let seen = watch::seen(session);
        let raw = self.layer3[slot as usize];
        let version = frame.first().map(|first| first >> 4);
        if live.reason == Reason::NoStage || raw && !matches!(version, Some(4 | 6)) {
            assert!(seen.is_empty(), "root ends it: {seen:?}");
            return;
        }
        let header = raw.then(|| inner_header(self.iface(slot).mac, frame));
        watch::hold(&seen, frame, live, header);
        foretold.hold_owners(&seen[0]);
    }

    /// Feeds a frame to the front interface.
    pub fn send(&self, frame: &Frame) -> Summary {
        self.feed(FRONT, &frame.bytes())
    }

    /// The one reason that was counted since.
    fn counted(&self, slot: u32, before: &[rw_ledger; 2], verdict: Verdict) -> Reason {
        let mut found = Vec::new();
        for (at, before) in [FRONT, BACK].into_iter().zip(before) {
            let after = self.ledger(at);
            assert_eq!(after.seen - before.seen, u64::from(at == slot), "seen in slot {at}");
            assert_eq!(after.difference(), before.difference(), "seen and sum in slot {at}");
            for verdict in Verdict::all() {
                for reason in Reason::all() {
                    if after.count(verdict, reason) != before.count(verdict, reason) {
                        let more = after
                            .count(verdict, reason)
                            .wrapping_sub(before.count(verdict, reason));
                        found.push((at, verdict, reason, more));
                    }
                }
            }
        }
        let [(at, counted, reason, 1)] = found[..] else { panic!("counted: {found:?}") };
        assert_eq!((at, counted), (slot, verdict), "counted as {reason}");
        reason
    }

    pub fn ledger(&self, slot: u32) -> rw_ledger {
        self.gateway.view().ledger(slot).unwrap()
    }

    pub fn traffic(&self, backend: &BackendRow) -> rw_traffic {
        self.gateway.view().traffic(backend.index).unwrap()
    }

    /// A client port that no flow of this world has had.
    pub fn client_port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    /// A fresh client of a service.
    pub fn ends(&mut self, family: Family, port: u16) -> (SocketAddr, SocketAddr) {
        ((family.client(), self.client_port()).into(), (family.vip(), port).into())
    }

    /// A fresh client's first packet to a service: a SYN or a datagram, with data.
    pub fn first(&mut self, family: Family, proto: u8, port: u16) -> Frame {
        let (src, dst) = self.ends(family, port);
        Frame { proto, flags: flags::SYN, ..Frame::udp(src, dst) }
    }

    /// A service on the usual address.
    pub fn service(&self, family: Family, proto: u8, port: u16) -> Service {
        let key = ServiceKey::new(family.vip(), port, protocol(proto));
        let row = self.tables.services.iter().find(|s| s.key == key).unwrap().clone();
        let own = |b: &&BackendRow| b.service == row.id;
        let backends = self.tables.backends.iter().filter(own).cloned().collect();
        Service { row, backends }
    }

    /// The backend the ring should choose for this packet.
    pub fn chosen(&self, frame: &Frame) -> Option<BackendRow> {
        let service = self.service(frame.family(), frame.proto, frame.dst.port());
        let ring = self.tables.rings.iter().find(|r| r.id == service.row.ring).unwrap();
        let member = ring.slots.written()[ring_slot(frame.proto, frame.src, frame.dst)];
        let reference = *service.row.members.get(usize::from(member))?;
        service.backends.into_iter().find(|b| b.reference() == reference)
    }

    /// Opens a flow to a service by a SYN or a datagram, and checks what the backend gets.
    pub fn open(&mut self, family: Family, proto: u8, port: u16) -> Flow {
        let (src, dst) = self.ends(family, port);
        let request = match proto {
            TCP => Frame::tcp(src, dst, flags::SYN),
            _ => Frame::udp(src, dst),
        };
        self.open_with(FRONT, request)
    }

    /// Opens a flow by this frame, which may be of an open one.
    pub fn open_with(&mut self, slot: u32, request: Frame) -> Flow {
        let seen = self.feed(slot, &request.bytes());
        assert_eq!(seen.reason, Reason::NatForward, "{request:?}");
        let flow = Flow::opened(self, slot, request, &seen.frame);
        assert_eq!(seen.verdict, verdict(slot, &flow.backend), "{flow:?}");
        assert_eq!(seen.frame, flow.forwarded(&flow.request).bytes(), "{flow:?}");
        flow
    }

    /// Opens a TCP flow and shakes hands.
    pub fn connect(&mut self, family: Family, port: u16) -> Flow {
        let flow = self.open(family, TCP, port);
        self.answer(&flow, flags::SYN | flags::ACK);
        self.request(&flow, flags::ACK);
        self.answer(&flow, flags::ACK);
        flow
    }

    /// [`World::connect`] or, for UDP, [`World::open`].
    pub fn connect_or_open(&mut self, family: Family, proto: u8, port: u16) -> Flow {
        if proto == TCP { self.connect(family, port) } else { self.open(family, proto, port) }
    }

    /// The client's next packet on an open flow must reach the same backend by the same source.
    pub fn request(&self, flow: &Flow, tcp_flags: u8) {
        self.forwards(flow, &flow.next(tcp_flags));
    }

    /// The same for any packet of the client's; what the backend gets.
    #[track_caller]
    pub fn forwards(&self, flow: &Flow, request: &Frame) -> Vec<u8> {
        let seen = self.feed(flow.slot, &request.bytes());
        let expected = (verdict(flow.slot, &flow.backend), Reason::NatForward);
        assert_eq!(seen.pair(), expected, "{request:?}");
        assert!(seen.frame == flow.forwarded(request).bytes(), "{request:?}: {:02x?}", seen.frame);
        seen.frame
    }

    /// The backend's answer on an open flow must reach the client as if from the service.
    pub fn answer(&self, flow: &Flow, tcp_flags: u8) {
        self.returns(flow, &flow.answer(tcp_flags));
    }

    /// The same for any packet of the backend's; what the client gets.
    #[track_caller]
    pub fn returns(&self, flow: &Flow, answer: &Frame) -> Vec<u8> {
        let seen = self.feed(flow.back_slot(), &answer.bytes());
        let expected = if flow.slot == flow.back_slot() { Verdict::Tx } else { Verdict::Redirect };
        assert_eq!(seen.pair(), (expected, Reason::NatReply), "{answer:?}");
        assert!(seen.frame == flow.returned(answer).bytes(), "{answer:?}: {:02x?}", seen.frame);
        seen.frame
    }

    /// The flow's record, however old.
    pub fn record(&self, flow: &Flow) -> Record {
        let id = self.service(flow.request.family(), flow.request.proto, flow.request.dst.port());
        let own = |r: &Record| {
            r.client == flow.request.src
                && r.service == id.row.id
                && r.key.nat_port == flow.source.port()
        };
        let mut found = audit::records(self).into_iter().filter(own);
        let record = found.next().unwrap_or_else(|| panic!("no record of {flow:?}"));
        assert_eq!(found.next(), None, "two records of {flow:?}");
        record
    }

    pub fn state(&self, flow: &Flow) -> FlowState {
        self.record(flow).key.state
    }

    pub fn map(&self, name: &str) -> BorrowedFd<'_> {
        self.gateway.map(name).unwrap()
    }

    /// Changes the settings behind the gateway's back.
    pub fn change_settings(&self, change: impl FnOnce(&mut rw_settings)) {
        let before = settings_of(&self.gateway);
        let mut settings = before;
        change(&mut settings);
        audit::write(self.map("settings"), 0, settings.as_bytes());
        self.gateway.undo(move |gateway| {
            // Rows of services go by the epoch of the tables.
            let services_epoch = settings_of(gateway).services_epoch;
            let settings = rw_settings { services_epoch, ..before };
            audit::write(gateway.map("settings").unwrap(), 0, settings.as_bytes());
        });
    }

    /// Puts a program into a slot of the node's program array, or empties it; says so in the
    /// settings when `told`.
    pub fn set_stage(&self, slot: Slot, program: Option<&Program>, told: bool) {
        self.try_set_stage(slot, program, told).unwrap();
    }

    /// The same; the kernel may refuse.
    pub fn try_set_stage(
        &self,
        slot: Slot,
        program: Option<&Program>,
        told: bool,
    ) -> Result<(), libbpf_rs::Error> {
        let before = audit::find(self.map("slots"), slot as u32);
        let before = before.map(|id| Program::by_id(u32::read_from_bytes(&id).unwrap()));
        audit::set_program(self.map("slots"), slot as u32, program)?;
        self.gateway.undo(move |gateway| {
            let slots = gateway.map("slots").unwrap();
            audit::set_program(slots, slot as u32, before.as_ref()).unwrap();
        });
        let bit = 1 << slot as u32;
        self.change_settings(|settings| {
            settings.stages &= !bit;
            settings.stages |= if told { bit } else { 0 };
        });
        Ok(())
    }

    /// The program in a slot of the node's program array.
    pub fn stage(&self, slot: Slot) -> Program {
        let id = audit::read(self.map("slots"), slot as u32);
        Program::by_id(u32::read_from_bytes(&id).unwrap())
    }

    /// A VLAN device upon the device of a slot, with a slot of its own.
    pub fn add_vlan(&mut self, slot: u32, device: u32, tags: &[(u16, u16)]) {
        self.gateway.spoil();
        let vlan = Some(ringway_kernel::Vlan { device, tags: tags.to_vec() });
        let iface = Interface {
            name: format!("vlan{slot}"),
            mtu: 1500,
            vlan,
            ..interface(slot, mac_of(device))
        };
        self.gateway.set_iface(&iface).unwrap();
    }

    /// Makes the interface of a slot one without an Ethernet header, in the generic path as all of
    /// them are. What it is fed from now on begins with the IP header.
    pub fn make_layer3(&mut self, slot: u32) {
        self.gateway.undo(move |gateway| gateway.set_generic(slot, false).unwrap());
        let iface = Interface { layer3: true, ..interface(slot, [0; 6]) };
        self.gateway.set_iface(&iface).unwrap();
        self.gateway.set_generic(slot, true).unwrap();
        let root = self.gateway.root_program(slot).unwrap();
        self.roots[slot as usize] = Program::new(root);
        self.layer3[slot as usize] = true;
    }

    /// Takes the device out of an interface slot.
    pub fn remove_device(&self, slot: u32) {
        self.gateway.spoil();
        audit::delete(self.map("devices"), slot);
    }

    fn iface(&self, slot: u32) -> rw_iface {
        rw_iface::read_from_bytes(&audit::read(self.map("ifaces"), slot)).unwrap()
    }

    /// Changes what the packet path knows of an interface.
    pub fn change_iface(&self, slot: u32, change: impl FnOnce(&mut rw_iface)) {
        let before = self.iface(slot);
        let mut iface = before;
        change(&mut iface);
        audit::write(self.map("ifaces"), slot, iface.as_bytes());
        self.gateway.undo(move |gateway| {
            audit::write(gateway.map("ifaces").unwrap(), slot, before.as_bytes());
        });
    }
}

fn settings_of(gateway: &Gateway) -> rw_settings {
    rw_settings::read_from_bytes(&audit::read(gateway.map("settings").unwrap(), 0)).unwrap()
}

/// The backend at this address of the service on this port.
pub fn backend_port_of(world: &World, address: std::net::IpAddr, port: u16) -> BackendRow {
    let of = |b: &&BackendRow| {
        let service = world.tables.services.iter().find(|s| s.id == b.service).unwrap();
        b.address == address && service.key.port == port
    };
    world.tables.backends.iter().find(of).unwrap().clone()
}

/// The packet of a device without Ethernet header, with one of zeros before it.
fn framed(packet: &[u8]) -> Vec<u8> {
    [&inner_header([0; 6], packet)[..], packet].concat()
}

/// The header that such a packet has within Ringway.
fn inner_header(mac: [u8; 6], packet: &[u8]) -> [u8; 14] {
    let ethertype: [u8; 2] = match packet.first().map(|first| first >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    let mut header = [0; 14];
    header[..6].copy_from_slice(&mac);
    header[12..].copy_from_slice(&ethertype);
    header
}

/// TX back by the same interface, redirect to another.
fn verdict(came_by: u32, backend: &BackendRow) -> Verdict {
    let out = backend.next_hop.unwrap().iface;
    if out == came_by { Verdict::Tx } else { Verdict::Redirect }
}

/// The plan's name for a protocol number.
pub fn protocol(proto: u8) -> Protocol {
    if proto == TCP { Protocol::Tcp } else { Protocol::Udp }
}

/// A network namespace of this thread's own, gone with it: devices named in tables are its.
fn private_network() {
    use std::cell::Cell;
    thread_local!(static PRIVATE: Cell<bool> = const { Cell::new(false) });
    if !PRIVATE.replace(true) {
        // SAFETY: of the flags that are unsafe (FILES), none is given.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
    }
}
