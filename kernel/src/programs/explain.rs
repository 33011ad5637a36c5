//! The packet path's decision about a frame: a second, dry instance of the gateway upon
//! the maps of the first (bpf/gateway/dry.bpf.h), run by BPF_PROG_TEST_RUN. Nothing that anybody
//! else reads is written, and nothing is sent.

use std::collections::{BTreeMap, btree_map};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringway_abi::raw::{RW_CONFIRMED, RW_FLOW_SHIFTED, rw_iface, rw_ledger, rw_scratch, rw_trace};
use ringway_abi::{
    BackendRef, Exemption, FlowKey, FlowState, Limit, Reason, RuleAction, ShieldMode, Slot,
    Verdict, addr_from_words,
};

use crate::forward;
use crate::load::{load_dry, load_dry_icmp, load_root, log};
use crate::maps::{Map, Maps};
use crate::shield::generation::{self, Made};
use crate::testrun::{self, Frame, TestRun};
use crate::{Error, Result, View, requirements};

/// A dry instance of a node's packet path. Sees every change of the tables at once.
#[derive(Debug)]
pub struct Explainer {
    maps: Maps,
    trace: Map<u32, rw_trace>,
    /// Root programs, by slot and whether its device lacks an Ethernet header.
    roots: BTreeMap<(u32, bool), OwnedFd>,
    balance: OwnedFd,
    /// Loaded for the first packet that comes to it.
    icmp: Option<OwnedFd>,
    /// What forwards, by the id of the live program; `None`: it is none of ours.
    forward: Option<(u32, Option<OwnedFd>)>,
    /// The shield in force, by the id of the live program.
    shield: Option<(u32, OwnedFd, Made)>,
    live: View,
}

/// The fate of a frame, and the findings on its way.
#[derive(Clone, Debug)]
pub struct Explained {
    pub verdict: Verdict,
    /// Its reason, as it would be counted.
    pub reason: Reason,
    /// The frame as it would leave or be passed on.
    pub frame: Vec<u8>,
    /// Slot of the interface it came in by: of the VLAN device, where it has tags of one.
    pub iface: u32,
    /// Id of its service; `None` where it came to none.
    pub service: Option<u16>,
    /// `None`: it is not for the shield to judge, or there is none.
    pub shield: Option<ShieldFinding>,
    /// The flow it belongs to.
    pub flow: Option<FlowFound>,
    /// It would begin a flow, and this is the source that the backend would see.
    pub begins: Option<SocketAddr>,
    /// The ring was asked.
    pub ring: Option<RingAsked>,
    /// Index of the backend that it was meant for, whether or not it can get there.
    pub backend: Option<u32>,
    /// The user's own program would have the last word: it is not run.
    pub on_pass: bool,
}

/// How frames of an interface come in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Slot of the device they come in by: its own, or that of the device below a VLAN device.
    pub device: u32,
    /// Its tags: ethertype and VLAN id, outer first.
    pub tags: Vec<(u16, u16)>,
    /// MAC address of frames to us.
    pub mac: [u8; 6],
    /// Its frames have no Ethernet header.
    pub layer3: bool,
}

/// What the shield in force found about a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShieldFinding {
    /// Of packets like this one, now.
    pub mode: ShieldMode,
    /// Why the shield refused it, or would.
    pub reason: Option<Reason>,
    pub listed: Option<ListedBy>,
    /// The rule that decided, by its name, and what the rule does.
    pub rule: Option<(String, Option<RuleAction>)>,
    /// It is over a limit of its service.
    pub limited: Option<Limited>,
}

/// A limit that a frame is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    pub limit: Limit,
    /// Why it passes all the same.
    pub exempt: Option<Exemption>,
    /// The limit is of an automatic mitigation, for so many seconds more.
    pub armed_s: Option<u32>,
}

/// Where the source of a frame is allowed or blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedBy {
    /// A list file, by the name of the list.
    List(String),
    RunTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowFound {
    /// Where it is in its life.
    pub state: FlowState,
    pub client: SocketAddr,
    /// The client's source as the backend sees it; `None` where that is not known any more.
    pub source: Option<SocketAddr>,
    pub backend: u32,
    /// Interface slot of its client's last packet.
    pub iface: u32,
    /// Link-layer source of its client's last packet.
    pub mac: [u8; 6],
    /// Seconds since it was last noted to be alive.
    pub idle_s: u32,
    /// Not on probation any more: no new flow can take its place.
    pub confirmed: bool,
}

/// The ring's answer. Backends by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAsked {
    /// The slot, below `RW_RING_SLOTS`.
    pub slot: u32,
    /// The slot is changing or settling: its flows may have records.
    pub changed: bool,
    /// Reference of the backend that gets its new flows.
    pub current: Option<u32>,
    /// Reference of the backend that gets its flows without a record.
    pub former: Option<u32>,
    /// A record of this very flow decided.
    pub tracked: bool,
}

impl Explainer {
    /// Whether this process may load programs: asked before anything else, which would fail with
    /// less to say.
    ///
    /// # Errors
    /// It may not, and what it lacks.
    pub fn permitted() -> Result<()> {
        match requirements::missing_capabilities()? {
            missing if missing.is_empty() => Ok(()),
            missing => Err(Error::NotPermitted { missing }),
        }
    }

    /// Loads the dry instance upon the maps of a node. Takes some hundred milliseconds.
    pub fn new(view: &View) -> Result<Self> {
        log::install();
        let (balance, maps, trace) = load_dry(view.maps())?;
        Ok(Self {
            maps,
            trace,
            roots: BTreeMap::new(),
            balance,
            icmp: None,
            forward: None,
            shield: None,
            live: view.clone(),
        })
    }

    /// How frames of an interface slot come in; `None`: the slot is not in use.
    pub fn entry(&self, slot: u32) -> Result<Option<Entry>> {
        let iface = self.maps.ifaces.find(&slot)?;
        Ok(iface.filter(|iface| iface.ifindex != 0).map(|iface| Entry {
            device: iface.device,
            tags: iface.tags().collect(),
            mac: iface.mac,
            layer3: iface.is_layer3(),
        }))
    }

    /// What would become of a frame that comes in by the device of this interface slot: from the
    /// Ethernet header on, or from the IP header where the device has none; at least 14 bytes.
    pub fn run(&mut self, slot: u32, frame: &[u8]) -> Result<Explained> {
        let (mut run, mut reason, mut scratch) = self.once(slot, frame)?;
        if self.icmp.is_none() && for_icmp(reason) && self.is_filled(Slot::Icmp) {
            self.icmp = Some(load_dry_icmp(self.live.maps(), (&self.maps, &self.trace))?);
            (run, reason, scratch) = self.once(slot, frame)?;
        }
        let trace = self.trace.get(0)?;
        let settings = self.maps.settings.get(0)?;
        let on_pass = settings.stages & 1 << Slot::OnPass as u32 != 0
            && run.verdict == Verdict::Pass
            && reason != Reason::PassRewritten
            && self.is_filled(Slot::OnPass);
        let flow = self.flow(&trace)?;
        let ring = asked(&trace);
        let begun = (scratch.opening.key != 0 && run.verdict != Verdict::Drop)
            .then(|| FlowKey::unpack(scratch.opening.key).ok())
            .flatten();
        let chosen = BackendRef::unpack(trace.chosen);
        let backend = match (begun, ring) {
            (Some(key), _) => Some(key.backend_index()),
            (None, Some(_)) => (trace.chosen != 0).then_some(chosen.index),
            (None, None) => flow.map(|flow| flow.backend),
        };
        let begins = match begun {
            Some(key) => {
                let client = addr_from_words(scratch.tuple.saddr);
                self.source(key, client)?.map(|ip| SocketAddr::new(ip, key.nat_port))
            }
            None => None,
        };
        Ok(Explained {
            verdict: run.verdict,
            reason,
            frame: run.data,
            iface: scratch.iface,
            service: self.service(&scratch, &trace, backend)?,
            shield: self.shield_finding(&trace)?,
            flow,
            begins,
            ring,
            backend,
            on_pass,
        })
    }

    /// Runs it on the programs that are loaded, and tells what was left behind.
    fn once(&mut self, slot: u32, frame: &[u8]) -> Result<(TestRun, Reason, rw_scratch)> {
        self.clear_last_frame()?;
        self.follow_shield()?;
        self.follow_forwarding()?;
        self.fill_slots()?;
        let before = self.ledgers(slot)?;
        let iface = self.maps.ifaces.get(slot)?;
        let root = self.root(slot, &iface)?;
        let run = testrun::run(root, Frame::new(frame))?;
        let (cpu, reason) = counted(&before, &self.ledgers(slot)?)?;
        let all = self.maps.scratch.percpu(&0)?;
        Ok((run, reason, all.get(cpu).copied().unwrap_or_default()))
    }

    fn root(&mut self, slot: u32, iface: &rw_iface) -> Result<BorrowedFd<'_>> {
        if iface.ifindex == 0 {
            return Err(Error::NoSlot { slot });
        }
        let layer3 = iface.is_layer3();
        let root: &OwnedFd = match self.roots.entry((slot, layer3)) {
            btree_map::Entry::Occupied(root) => root.into_mut(),
            btree_map::Entry::Vacant(none) => none.insert(load_root(slot, layer3, &self.maps)?),
        };
        Ok(root.as_fd())
    }

    fn is_filled(&self, slot: Slot) -> bool {
        matches!(self.live.maps().slots.find(&(slot as u32)), Ok(Some(_)))
    }

    /// Loads the generation of the shield that is in force.
    fn follow_shield(&mut self) -> Result<()> {
        let live = self.live.maps().slots.find(&(Slot::Shield as u32))?;
        if live != self.shield.as_ref().map(|(id, ..)| *id) {
            let load = |id| {
                let dry = generation::load_dry(id, &self.maps, &self.trace)?;
                Ok::<_, Error>(dry.map(|(program, made)| (id, program, made)))
            };
            self.shield = live.map(load).transpose()?.flatten();
        }
        Ok(())
    }

    /// Loads what forwards, as it is in force.
    fn follow_forwarding(&mut self) -> Result<()> {
        let live = self.live.maps().slots.find(&(Slot::Forward as u32))?;
        if live != self.forward.as_ref().map(|(id, _)| *id) {
            let load = |id| Ok::<_, Error>((id, forward::load_dry(id, &self.maps)?));
            self.forward = live.map(load).transpose()?;
        }
        Ok(())
    }

    /// Our programs, where the live ones are.
    fn fill_slots(&self) -> Result<()> {
        let shield = self.shield.as_ref().map(|(_, program, _)| program);
        let forward = self.forward.as_ref().and_then(|(_, program)| program.as_ref());
        let programs = [
            (Slot::Forward, forward),
            (Slot::Icmp, self.icmp.as_ref()),
            (Slot::Balance, Some(&self.balance)),
            (Slot::Shield, shield),
        ];
        for (slot, program) in programs {
            match program.filter(|_| self.is_filled(slot)) {
                Some(program) => self.maps.slots.put_fd(slot as u32, program.as_fd())?,
                None => self.maps.slots.remove(&(slot as u32))?,
            }
        }
        Ok(())
    }

    fn clear_last_frame(&self) -> Result<()> {
        self.trace.put(&0, &rw_trace::default())?;
        self.maps.scratch.put_percpu(&0, &rw_scratch::default())
    }

    fn shield_finding(&self, trace: &rw_trace) -> Result<Option<ShieldFinding>> {
        let mode =
            trace.shield_mode.checked_sub(1).and_then(|mode| ShieldMode::try_from(mode).ok());
        let (Some(mode), Some((.., made))) = (mode, &self.shield) else { return Ok(None) };
        let live = self.live.maps();
        let list = trace.shield_list.checked_sub(1);
        let listed = match list.map(|number| made.list_name(live, number)).transpose()? {
            Some(name) => Some(ListedBy::List(name)),
            None => (trace.shield_runtime != 0).then_some(ListedBy::RunTime),
        };
        let rule = trace.shield_rule.checked_sub(1);
        Ok(Some(ShieldFinding {
            mode,
            reason: Reason::try_from(trace.shield_reason).ok().filter(|it| *it != Reason::None),
            listed,
            rule: rule.map(|number| made.rule(live, number)).transpose()?,
            limited: limited(trace, self.maps.sources.clock.now_seconds()),
        }))
    }

    fn ledgers(&self, slot: u32) -> Result<Vec<rw_ledger>> {
        self.maps.ledger.percpu(&slot)
    }

    fn flow(&self, trace: &rw_trace) -> Result<Option<FlowFound>> {
        let number = match trace.flow_place & 3 {
            0 => return Ok(None),
            place => place as usize - 1,
        };
        let bucket = self.maps.flows.get(trace.flow_place >> 2)?;
        // A state of another version's is no flow that could be shown.
        let Ok(key) = FlowKey::unpack(trace.flow_key) else { return Ok(None) };
        let flow = bucket.flows[number];
        let client = addr_from_words(flow.client);
        let now = self.maps.sources.clock.now_seconds();
        Ok(Some(FlowFound {
            state: key.state,
            client: SocketAddr::new(client, u16::from_be(flow.client_port_be)),
            source: self.source(key, client)?.map(|ip| SocketAddr::new(ip, key.nat_port)),
            backend: key.backend_index(),
            iface: u32::from(flow.iface) & !RW_FLOW_SHIFTED,
            mac: flow.client_mac,
            idle_s: now.saturating_sub(flow.seen),
            confirmed: u32::from(flow.confirmed) & RW_CONFIRMED != 0,
        }))
    }

    /// The address that a flow's backend sees.
    fn source(&self, key: FlowKey, client: IpAddr) -> Result<Option<IpAddr>> {
        if key.nat_addr == FlowKey::CLIENT {
            return Ok(Some(client));
        }
        let own = self.maps.nat_addrs.find(&u32::from(key.nat_addr))?;
        Ok(own.map(|own| addr_from_words(own.addr)))
    }

    /// By the key that was looked up, by the flow's record, or by whom it was meant for. The shield
    /// looks up replies, too, which have no service's key.
    fn service(
        &self,
        scratch: &rw_scratch,
        trace: &rw_trace,
        backend: Option<u32>,
    ) -> Result<Option<u16>> {
        if scratch.key.proto != 0
            && let Some(service) = self.maps.services.find(&scratch.key)?
        {
            return Ok(Some(service.id as u16));
        }
        if trace.flow_place & 3 != 0 {
            let bucket = self.maps.flows.get(trace.flow_place >> 2)?;
            return Ok(Some(bucket.flows[(trace.flow_place & 3) as usize - 1].service));
        }
        let Some(index) = backend else { return Ok(None) };
        let row = self.maps.backends.get(index)?;
        Ok(Some(row.service))
    }
}

/// Whether a packet ended where it did because the program for ICMP was not there: the reasons that
/// gateway.bpf.c and refuse.bpf.h have behind their calls of it.
fn for_icmp(reason: Reason) -> bool {
    matches!(reason, Reason::NoStage | Reason::TooBig | Reason::TtlExpired | Reason::NoState)
}

fn limited(trace: &rw_trace, now: u32) -> Option<Limited> {
    let limit = Limit::try_from(trace.limit).ok().filter(|limit| *limit != Limit::None)?;
    let exempt = Exemption::try_from(trace.exempt).ok();
    Some(Limited {
        limit,
        exempt: exempt.filter(|exempt| *exempt != Exemption::Not),
        armed_s: trace.armed_until.checked_sub(now).filter(|left| *left > 0),
    })
}

fn asked(trace: &rw_trace) -> Option<RingAsked> {
    let index = |reference: u32| (reference != 0).then(|| BackendRef::unpack(reference).index);
    (trace.ring != 0).then(|| RingAsked {
        slot: trace.ring_slot,
        changed: trace.changed != 0,
        current: index(trace.current),
        former: index(trace.former),
        tracked: trace.tracked != 0,
    })
}

/// The one CPU and reason that was counted.
fn counted(before: &[rw_ledger], after: &[rw_ledger]) -> Result<(usize, Reason)> {
    let lost = || Error::Content {
        map: "ledger".to_owned(),
        detail: "the packet was not counted once".to_owned(),
    };
    let seen = before.iter().zip(after).position(|(b, a)| a.seen != b.seen).ok_or_else(lost)?;
    let (before, after) = (&before[seen], &after[seen]);
    let mut reasons = Verdict::all().flat_map(|verdict| Reason::all().map(move |r| (verdict, r)));
    let found = reasons.find(|(verdict, reason)| {
        after.count(*verdict, *reason) != before.count(*verdict, *reason)
    });
    Ok((seen, found.ok_or_else(lost)?.1))
}
