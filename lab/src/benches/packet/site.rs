//! A gateway to be fed: the real programs and tables, attached to nothing and pinned nowhere.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;

use ringway_abi::raw::rw_ledger;
use ringway_abi::{Reason, ShieldMode, Verdict};
use ringway_kernel::shield::Generation;
use ringway_kernel::{Gateway, GatewayOptions, Interface, Place, View};
use ringway_plan::prefix_list::ListTables;
use ringway_plan::tables::{BackendRow, NextHop, Tables};
use ringway_plan::{Ids, Observed, Planner};

use super::feeder::{Feeder, Meal, Reply};
use super::path::{Clients, Course, Ip, POOL, PacketPath};
use crate::benches::packet::path::frame::{self, NEXT_MAC, OUR_MAC, PORT};
use crate::{Error, Result};

const BACKENDS: u8 = 100;
/// Source addresses of ours: enough ports for ten million flows many times over.
const OWN: u8 = 16;
const SLOT: u32 = 0;
pub(in crate::benches) const MTU: u16 = 9000;

/// How many packets in a thousand may end otherwise than their path says: a flow that found no room
/// when it was opened is reset.
const STRAYS_PER_MILLE: u64 = 1;

/// A gateway with one service.
pub(in crate::benches) struct Site {
    path: PacketPath,
    ip: Ip,
    gateway: Gateway,
    view: View,
    backends: Vec<BackendRow>,
    clients: Clients,
    /// The end of packets that the shield does not let pass.
    refused: Option<(Verdict, Reason)>,
    /// Where replies come from and go to, of every flow that is open.
    replies: Rc<[Reply]>,
}

impl Site {
    /// Loads the programs and fills the tables as the daemon would, with room for so many flows.
    pub(in crate::benches) fn new(path: PacketPath, ip: Ip, room: u32) -> Result<Self> {
        let unpinned = GatewayOptions { pin: false, ..GatewayOptions::default() };
        let options = match path {
            PacketPath::DsrChanging => GatewayOptions { tracked: room, ..unpinned },
            _ => GatewayOptions { flows: room, ..unpinned },
        };
        Self::with(path, ip, &options)
    }

    /// The same with a say in how the gateway is opened.
    pub(in crate::benches) fn with(
        path: PacketPath,
        ip: Ip,
        options: &GatewayOptions,
    ) -> Result<Self> {
        let (mut gateway, _) = Gateway::open(options)?;
        gateway.set_iface(&interface(SLOT))?;
        // The first use of it loads it.
        gateway.root_program(SLOT)?;
        let tables = tables(path, ip)?;
        gateway.apply(&tables)?;
        if path.syn().is_some() {
            enforce(&mut gateway)?;
        }
        let (view, replies) = (gateway.view(), [].into());
        Ok(Self {
            path,
            ip,
            gateway,
            view,
            backends: tables.backends,
            clients: Clients::default(),
            refused: None,
            replies,
        })
    }

    /// The same with clients that come from elsewhere.
    pub(in crate::benches) fn clients(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// Puts this shield in force, or takes it out; the packets that are measured end so, if they do
    /// not pass.
    pub(in crate::benches) fn set_shield(
        &mut self,
        shield: Option<&Generation<'_>>,
        refused: Option<(Verdict, Reason)>,
    ) -> Result<()> {
        self.refused = refused;
        Ok(self.gateway.set_shield(shield)?)
    }

    /// The program that a packet meets first.
    pub(in crate::benches) fn root_program(&mut self) -> Result<OwnedFd> {
        let program = self.gateway.root_program(SLOT)?.try_clone_to_owned();
        program.map_err(Error::Settle)
    }

    pub(in crate::benches) fn ledger(&self) -> Result<rw_ledger> {
        Ok(self.view.ledger(SLOT)?)
    }

    /// Opens so many flows, where the path wants them open.
    pub(in crate::benches) fn open_flows(
        &mut self,
        feeder: &mut Feeder<'_>,
        flows: u32,
    ) -> Result<()> {
        match self.path {
            PacketPath::Nat | PacketPath::NatReply => {
                let (ip, frame) = (self.ip, self.segment(frame::SYN));
                let clients = self.clients;
                let meal =
                    Meal { ip, frame: &frame, clients, replies: None, flows, packets: flows };
                self.feed(feeder, &meal, PacketPath::Nat)?;
                self.gateway.finish_handshakes()?;
                self.replies = self.read_replies()?;
            }
            PacketPath::DsrChanging => {
                let before = self.records_sought()?;
                self.feed_own(feeder, flows, flows)?;
                let opened = self.records_sought()? - before;
                if opened < least(flows.into()) {
                    return Err(self.other_way(format!("{opened} of {flows} flows got a record")));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Nanoseconds per packet, with the feeder's own.
    pub(in crate::benches) fn measure(
        &mut self,
        feeder: &mut Feeder<'_>,
        flows: u32,
        packets: u32,
    ) -> Result<u64> {
        let before = self.records_sought()?;
        let ns = self.feed_own(feeder, flows, packets)?;
        let (without, all) = (self.records_sought()? - before, u64::from(packets));
        if without > all - least(all) {
            return Err(self.other_way(format!("{without} of {all} packets found no record")));
        }
        Ok(ns)
    }

    fn feed_own(&mut self, feeder: &mut Feeder<'_>, flows: u32, packets: u32) -> Result<u64> {
        let (frame, replies) = (self.frame(), self.fed_replies());
        let meal = self.meal(&frame, replies.as_deref(), flows, packets);
        self.feed(feeder, &meal, self.path)
    }

    /// The feeder's own nanoseconds, on the same packets.
    pub(in crate::benches) fn measure_nothing(
        &self,
        feeder: &mut Feeder<'_>,
        flows: u32,
        packets: u32,
    ) -> Result<u64> {
        let (frame, replies) = (self.frame(), self.fed_replies());
        let meal = self.meal(&frame, replies.as_deref(), flows, packets);
        feeder.nothing(&meal)
    }

    /// The nanoseconds of another program, which is fed the same packets.
    pub(in crate::benches) fn measure_peer(
        &self,
        feeder: &mut Feeder<'_>,
        peer: BorrowedFd<'_>,
        flows: u32,
        packets: u32,
    ) -> Result<u64> {
        let (frame, replies) = (self.frame(), self.fed_replies());
        feeder.program(peer, &self.meal(&frame, replies.as_deref(), flows, packets))
    }

    /// Packets of so many flows, each made from this frame.
    pub(in crate::benches) fn meal<'f>(
        &self,
        frame: &'f [u8],
        replies: Option<&'f [Reply]>,
        flows: u32,
        packets: u32,
    ) -> Meal<'f> {
        Meal { ip: self.ip, frame, clients: self.clients, replies, flows, packets }
    }

    pub(in crate::benches) fn view(&self) -> &View {
        &self.view
    }

    /// Every packet, but for what the feeder puts in.
    pub(in crate::benches) fn frame(&self) -> Vec<u8> {
        let tcp_flags = self.path.course().tcp_flags;
        match self.path {
            PacketPath::NatReply => frame::reply(self.ip, tcp_flags),
            _ if self.path.syn().is_some() => frame::syn(self.clients, frame::service(self.ip)),
            _ => self.segment(tcp_flags),
        }
    }

    fn fed_replies(&self) -> Option<Rc<[Reply]>> {
        (self.path == PacketPath::NatReply).then(|| Rc::clone(&self.replies))
    }

    /// In the order of clients, which is none of the flow table's.
    fn read_replies(&self) -> Result<Rc<[Reply]>> {
        let (flows, ours) = (self.view.nat_flows()?, self.view.nat_addresses()?);
        let theirs: HashMap<u32, IpAddr> =
            self.backends.iter().map(|row| (row.reference(), row.address)).collect();
        let mut found = BTreeMap::new();
        flows.visit(0..flows.buckets(), |place| {
            let Place::Live(flow) = place else { return };
            let address = ours.get(usize::from(flow.key.nat_addr));
            if let (Some(theirs), Some(ours)) = (theirs.get(&flow.key.backend), address) {
                let ends = (last_byte(*theirs), last_byte(*ours));
                found.insert(flow.client, Reply { ends, port: flow.key.nat_port });
            }
        });
        Ok(found.into_values().collect())
    }

    fn segment(&self, tcp_flags: u8) -> Vec<u8> {
        let to = if self.path == PacketPath::Pass {
            frame::elsewhere(self.ip)
        } else {
            frame::service(self.ip)
        };
        frame::segment(self.clients, to, tcp_flags)
    }

    /// Feeds packets, and compares the gateway's own ledger: a packet that took another way would
    /// be another figure.
    fn feed(&mut self, feeder: &mut Feeder<'_>, meal: &Meal<'_>, path: PacketPath) -> Result<u64> {
        let before = (self.view.ledger(SLOT)?, self.flows_begun()?);
        let ns = feeder.program(self.gateway.root_program(SLOT)?, meal)?;
        let after = (self.view.ledger(SLOT)?, self.flows_begun()?);
        let packets = u64::from(meal.packets);
        let ends = self.refused.unwrap_or(path.course().ends);
        let wrong = ended_otherwise(&before.0, &after.0, packets, ends);
        let begun = after.1 - before.1;
        match wrong {
            Some(what) => Err(self.other_way(what)),
            None if begun * 1000 < packets * self.path.opens_per_mille() => {
                Err(self.other_way(format!("{begun} of {packets} packets opened a flow")))
            }
            None => Ok(ns),
        }
    }

    fn other_way(&self, what: String) -> Error {
        Error::OtherWay { path: self.path.name(), what }
    }

    fn flows_begun(&self) -> Result<u64> {
        let begun = |row: &BackendRow| Ok(self.view.traffic(row.index)?.flows);
        self.backends.iter().map(begun).sum()
    }

    /// Packets of tracked flows that had no record: it was opened, or refused.
    fn records_sought(&self) -> Result<u64> {
        let tracking = self.view.tracking()?;
        Ok(tracking.opened + tracking.adopted + tracking.refused_full + tracking.refused_quota)
    }
}

/// A shield without lists and rules, as it is without any in the configuration.
fn enforce(gateway: &mut Gateway) -> Result<()> {
    let shield = Generation {
        mode: ShieldMode::Enforce,
        sanity: true,
        protect_host: false,
        service_modes: false,
        answers: true,
        challenge_key: None,
        lists: &ListTables::default(),
        list_names: &[],
        rules: &[],
        program: &[],
    };
    Ok(gateway.set_shield(Some(&shield))?)
}

/// An interface of the namespace that this thread has to itself: nothing is ever sent.
pub(in crate::benches) fn interface(slot: u32) -> Interface {
    Interface {
        slot,
        name: "lo".to_owned(),
        ifindex: 1,
        mac: OUR_MAC,
        alt_mac: None,
        mtu: MTU,
        redirect: false,
        layer3: false,
        local: false,
        raw: false,
        vlan: None,
        faces: Default::default(),
    }
}

fn last_byte(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}

fn least(packets: u64) -> u64 {
    packets - packets * STRAYS_PER_MILLE / 1000
}

/// The ledger's counts in words, unless nearly all packets ended as expected and every one was
/// counted.
fn ended_otherwise(
    before: &rw_ledger,
    after: &rw_ledger,
    packets: u64,
    (verdict, reason): (Verdict, Reason),
) -> Option<String> {
    let count = |of: &rw_ledger| of.count(verdict, reason);
    let seen = after.seen - before.seen;
    if seen == packets
        && after.sum() - before.sum() == packets
        && count(after) - count(before) >= least(packets)
    {
        return None;
    }
    let mut what = format!("of {packets} packets {seen} were seen");
    for (verdict, reason, total) in after.entries() {
        let packets = total - before.count(verdict, reason);
        if packets > 0 {
            // Writing to a String cannot fail.
            let _ = write!(what, ", {packets} {verdict} {reason}");
        }
    }
    Some(what)
}

fn tables(path: PacketPath, ip: Ip) -> Result<Tables> {
    let mut observed = Observed::default();
    for n in 1..=BACKENDS {
        let hop = NextHop { iface: SLOT, mac: NEXT_MAC, mtu: MTU };
        observed.next_hops.insert(frame::backend(ip, n), hop);
    }
    let mut planner = Planner::new(Ids::default());
    let mut plan = |weighted| {
        let config = ringway_config::parse(&configuration(path, ip, weighted), "bench packet")
            .map_err(|e| Error::Tables(e.to_string()))?;
        planner.plan(&config, &observed).map_err(|e| Error::Tables(e.to_string()))
    };
    let half = BACKENDS / 2;
    let mut tables = match path {
        // Drained ones count as none at all.
        PacketPath::Drop => plan(0..=0)?,
        // Every slot gets another owner, and the former one lives.
        PacketPath::DsrChanging => {
            plan(1..=half)?;
            plan(half + 1..=BACKENDS)?
        }
        _ => plan(1..=BACKENDS)?,
    };
    if path == PacketPath::NewFlow {
        // Over before it began: so every SYN opens a flow, however often its client has been seen.
        tables.timeouts.syn = u32::MAX;
    }
    // All IPv6 clients have one prefix.
    tables.track_quota = 0;
    Ok(tables)
}

/// The configuration of a path's gateway: one service, its flows for as long as this takes. Only
/// the backends `weighted` get new flows.
fn configuration(path: PacketPath, ip: Ip, weighted: RangeInclusive<u8>) -> String {
    let Course { forward, .. } = path.course();
    let backend = |n| {
        let weight = u8::from(weighted.contains(&n));
        format!("{{ address = \"{}\", weight = {weight} }}", frame::backend(ip, n))
    };
    let backends: Vec<String> = (1..=BACKENDS).map(backend).collect();
    let own: Vec<String> = (1..=OWN).map(|n| format!("\"{}\"", frame::own(ip, n))).collect();
    let sources = match path {
        PacketPath::FullPool => {
            let last = 10_000 + POOL / u32::from(BACKENDS) - 1;
            format!("[nat]\naddresses = [{}]\nports = \"10000-{last}\"", own[0])
        }
        PacketPath::DsrL2 | PacketPath::DsrIpip | PacketPath::DsrChanging | PacketPath::DsrGue => {
            format!("[tunnel]\nsource = {}", own[0])
        }
        _ => format!("[nat]\naddresses = [{}]\ntimeouts = {{ syn = \"1h\" }}", own.join(", ")),
    };
    let (shield, syn) = path.syn().map_or_else(Default::default, |syn| {
        ("[shield]\nsyn = { always = true }\n", format!("syn = {syn:?}\n"))
    });
    format!(
        "[node]\nname = \"bench\"\ninterfaces = [\"lo\"]\n{sources}\n{shield}[[service]]\n\
         name = \"bench\"\naddress = \"{}\"\nport = {PORT}\nforward = \"{forward}\"\n{syn}\
         when_none_healthy = \"drop\"\nbackends = [{}]\n",
        frame::service(ip),
        backends.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_tables() {
        for path in PacketPath::ALL {
            for ip in Ip::ALL {
                let tables = tables(path, ip).unwrap();
                assert_eq!(
                    (tables.services.len(), tables.backends.len()),
                    (1, BACKENDS.into()),
                    "{path}"
                );
                let ring = tables.rings[0].written();
                let changed = (0..ring.slots.len()).filter(|slot| ring.is_changed(*slot)).count();
                let all = if path == PacketPath::DsrChanging { ring.slots.len() } else { 0 };
                assert_eq!(changed, all, "{path}");
            }
        }
    }

    #[test]
    fn the_ledger_shows_another_way() {
        let (mut after, nat) = (rw_ledger::default(), (Verdict::Tx, Reason::NatForward));
        after.seen = 10_000;
        after.counts[Verdict::Tx as usize][Reason::NatForward as usize] = 9_990;
        after.counts[Verdict::Tx as usize][Reason::ResetNoFlow as usize] = 10;
        let judge = |after: &rw_ledger, packets| {
            ended_otherwise(&rw_ledger::default(), after, packets, nat)
        };
        assert_eq!(judge(&after, 10_000), None);
        assert!(judge(&after, 9_999).is_some(), "one too many");
        after.counts[Verdict::Tx as usize][Reason::NatForward as usize] -= 1;
        assert!(judge(&after, 10_000).unwrap().contains("9989 "), "one uncounted");
        after.counts[Verdict::Tx as usize][Reason::ResetNoFlow as usize] += 1;
        assert!(judge(&after, 10_000).unwrap().contains("11 tx reset-no-flow"), "too many strays");
    }
}
