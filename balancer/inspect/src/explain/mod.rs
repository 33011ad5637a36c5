//! The loaded program's decision about a packet, and its reason: schema `ringway.explain/1`.
//!
//! Fields are only ever added. Needs root, and no daemon.

pub mod pcap_reader;
pub mod tuple;

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use ringway_abi::{Exemption, Limit, Reason, RuleAction, ShieldMode, Verdict};
use ringway_api::client::node_selector::{self, NodeSelector};
use ringway_api::client::{shield, status_query};
use ringway_api::clock::Timestamp;
use ringway_api::documents::limits::LimitsStatus;
use ringway_api::documents::named;
use ringway_api::documents::status::{self, NextHop, Status};
use ringway_api::error::Error;
use ringway_api::shield::ShieldEntry;
use ringway_config::ListAction;
use ringway_host::Mac;
use ringway_host::netlink::links;
use ringway_kernel::{
    BackendState, Entry, Explained, Explainer, FlowFound, Limited, ListedBy, RingAsked,
    ServiceState, ShieldFinding,
};
use serde::{Serialize, Serializer};

use crate::headers::{self, Headers};

use tuple::{Details, Protocol, Tuple};

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.explain/1";

/// Backends that somebody keeps new flows from: so many are named.
const WITHHELD_SHOWN: usize = 3;

/// Sender of a packet whose MAC address is not given.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 1]);

#[derive(Clone, Debug)]
pub enum What<'a> {
    /// One that is put together.
    Tuple(Tuple, Shape),
    /// One of a capture: the file, and its number in it.
    Captured(&'a Path, u64),
}

/// Properties of a packet that a tuple lacks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub tcp_flags: u8,
    /// Bytes of the IP packet; `None`: headers alone, with a SYN's usual options.
    pub bytes: Option<u16>,
    /// Hops it may still take.
    pub ttl: u8,
    /// `None`: one that nobody has.
    pub source_mac: Option<Mac>,
    /// `None`: the interface's.
    pub destination_mac: Option<Mac>,
    /// VLAN id it is tagged with.
    pub vlan: Option<u16>,
}

impl What<'_> {
    /// The reason is about MAC addresses that were not given.
    fn lacks_addresses(&self, reason: Reason) -> bool {
        match self {
            What::Captured(..) => false,
            What::Tuple(_, shape) => {
                (reason == Reason::BridgeSource && shape.source_mac.is_none())
                    || (reason == Reason::BridgeDestination && shape.destination_mac.is_none())
            }
        }
    }
}

/// The fate of a packet.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    pub schema: &'static str,
    /// `[node] name`.
    pub node: String,
    pub packet: String,
    /// Interface it comes in by.
    pub interface: String,
    /// The packet path's number for it.
    pub slot: u32,
    /// The service it is for; absent where it is for none.
    pub service: Option<Service>,
    /// Where it is for none: services of the address it is sent to, on other ports or protocols.
    pub services_there: Vec<String>,
    /// The shield's finding; absent where there is no shield, or the packet is not for it to judge.
    pub shield: Option<Shield>,
    /// The flow it belongs to.
    pub flow: Option<Flow>,
    /// The source that its backend would see, where it would begin a nat flow. The port is the next
    /// one of this CPU: another may be taken.
    pub begins_as: Option<String>,
    /// The ring's answer, where it was asked.
    pub ring: Option<Ring>,
    /// The backend it is meant for.
    pub backend: Option<Backend>,
    /// Where it would leave, if it would.
    pub next_hop: Option<Way>,
    /// `drop`, `pass`, `tx` or `redirect`.
    #[serde(serialize_with = "named::serialize")]
    pub verdict: Verdict,
    /// Why; as `ringway reasons` has it.
    #[serde(serialize_with = "named::serialize")]
    pub reason: Reason,
    pub meaning: &'static str,
    pub cause: String,
    /// The remedy, if there is one.
    pub next: Option<String>,
    /// The user's own program (`on_pass`) would get it now, and have the last word.
    pub on_pass: bool,
    /// The frame as it would leave, in hexadecimal; absent when it is dropped.
    pub frame: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Service {
    pub name: String,
    /// Address, port or ports, and protocol.
    pub endpoint: String,
    /// How packets reach its backends.
    pub forward: String,
    pub backends: Vec<Backend>,
}

/// The shield in front of the service.
#[derive(Clone, Debug, Serialize)]
pub struct Shield {
    /// Of packets like this one, now.
    #[serde(serialize_with = "named::serialize")]
    pub mode: ShieldMode,
    /// It ends here; otherwise `reason` is why it would if the mode were `enforce`, and it were not
    /// of an established connection of this node.
    pub dropped: bool,
    /// Why the shield refuses it, as `ringway reasons` has it; absent: it does not.
    pub reason: Option<&'static str>,
    /// The list whose file has its source.
    pub list: Option<String>,
    /// Its source was allowed or blocked at run time.
    pub at_run_time: bool,
    /// What was typed, where that is known.
    pub entry: Option<ShieldEntry>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// `drop`, `pass` or `limit`.
    pub rule_action: Option<&'static str>,
    /// The limit of its service that it is over, whether or not it passes all the same.
    #[serde(serialize_with = "limit_name")]
    pub limit: Option<Limit>,
    /// Packets a second of this limit, where a daemon tells.
    pub limit_pps: Option<u32>,
    /// The limit is of an automatic mitigation, until then.
    pub mitigation_until: Option<Timestamp>,
    /// Why it passes all the same: `established` or `learnt`.
    #[serde(serialize_with = "exemption_name")]
    pub exempt: Option<Exemption>,
    /// All limits of its service, where it is over one.
    pub limits: Option<LimitsStatus>,
}

/// A flow that is there.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    pub state: String,
    pub client: String,
    /// The client as its backend sees it.
    pub source: Option<String>,
    /// Its backend; absent when that is gone.
    pub backend: Option<String>,
    /// Seconds since it was noted to be alive.
    pub idle_s: u32,
    /// It may have to give way to new flows.
    pub on_probation: bool,
}

/// A slot of the ring.
#[derive(Clone, Debug, Serialize)]
pub struct Ring {
    pub slot: u32,
    /// It is changing or settling.
    pub changing: bool,
    /// The backend that gets its new flows.
    pub current: Option<String>,
    /// The backend that gets its flows without a record.
    pub former: Option<String>,
    /// A record of this very flow decided.
    pub tracked: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Backend {
    pub address: String,
    /// Whether the packet path takes it for healthy.
    pub up: bool,
    /// It is not, but its established TCP connections go on (`on_down = "keep"`).
    pub kept: bool,
    /// Why not, as far as the daemon says.
    pub reason: Option<String>,
    /// The reason why it gets no new flows though it is up: `is drained by an operator (override)`.
    pub withheld: Option<&'static str>,
    /// Way to it; absent where none is known.
    pub next_hop: Option<NextHop>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// Interface; of packets passed on it is the kernel that finds it.
    pub interface: String,
    /// Link-layer destination; absent where the device has no such.
    pub mac: Option<String>,
}

/// Asks the packet path of a node about a packet that comes in by an interface.
///
/// # Errors
/// It needs root, nothing is loaded, there is no such interface, or the packet is none.
pub fn explain(
    selector: &NodeSelector<'_>,
    interface: &str,
    what: &What<'_>,
) -> Result<Explanation, Error> {
    let failed = |error: ringway_kernel::Error| Error::failed(error.to_string(), "");
    Explainer::permitted().map_err(|error| {
        let what = format!("explain loads a program to ask: {error}");
        Error::failed(what, "sudo ringway explain ...")
    })?;
    let status = status_query::status(selector)?;
    let view = node_selector::view(&status.node)?;
    let slot = slot_of(&status, interface)?;
    let mut explainer = Explainer::new(&view).map_err(failed)?;
    let entry = explainer.entry(slot).map_err(failed)?;
    let entry = entry.ok_or_else(|| failed(ringway_kernel::Error::NoSlot { slot }))?;
    let (packet, frame) = put_together(what, &entry)?;
    if frame.len() < 14 {
        let what = format!("a frame of {} bytes is none", frame.len());
        return Err(Error::configuration(what, "a frame has 14 bytes at least"));
    }
    let explained = explainer.run(entry.device, &frame).map_err(failed)?;
    let services = view.services().map_err(failed)?;
    let names = Names { status: &status, services: &services };
    let mut explanation = names.explanation(packet, slot, &explained);
    if what.lacks_addresses(explained.reason) {
        explanation.cause = "A bridge decides by MAC addresses, and this one was made up.".into();
        explanation.next = Some(
            "name both: --source-mac MAC --destination-mac MAC (bridge fdb show); or take a captured \
             frame: -r FILE"
                .into(),
        );
    }
    let limited = explained.shield.as_ref().and_then(|found| found.limited);
    if let Some(headers) = Headers::of(&frame, entry.layer3, 0) {
        if explanation.service.is_none() && explanation.shield.as_ref().is_some_and(|it| it.dropped)
        {
            explanation.service = names.meant_for(&headers);
        }
        if explanation.service.is_none() {
            explanation.services_there = names.services_at(headers.to);
        }
        if let Some(shield) = explanation.shield.as_mut().filter(|shield| shield.at_run_time) {
            let action =
                if shield.reason.is_some() { ListAction::Block } else { ListAction::Allow };
            shield.entry = typed(selector, action, headers.from);
            if let Some(entry) = shield.entry.as_ref().filter(|_| shield.reason.is_some()) {
                explanation.next = Some(format!("ringway unblock {}", entry.prefix));
            }
        }
        if let Some((shield, limited)) = explanation.shield.as_mut().zip(limited) {
            let service = services.iter().find(|one| Some(one.id) == explained.service);
            shield.limited(limited, service.and_then(|service| limits_of(selector, service)));
        }
        explanation.next =
            explanation.next.map(|it| it.replace("SOURCE", &headers.from.to_string()));
    }
    Ok(explanation)
}

/// What was typed about this source; nothing where neither a daemon nor its file can tell.
fn typed(selector: &NodeSelector<'_>, action: ListAction, source: IpAddr) -> Option<ShieldEntry> {
    let entries = shield::blocked(selector).ok()?.entries;
    let of_source = |entry: &&ShieldEntry| entry.action == action && entry.prefix.contains(source);
    entries.iter().filter(of_source).max_by_key(|entry| entry.prefix.length()).cloned()
}

/// The limits in force; nothing where no daemon can tell.
fn limits_of(selector: &NodeSelector<'_>, service: &ServiceState) -> Option<LimitsStatus> {
    let all = shield::status(selector).ok()?.limits;
    let own = |it: &LimitsStatus| it.service == service.name && it.protocol == service.key.protocol;
    all.into_iter().find(own)
}

fn slot_of(status: &Status, interface: &str) -> Result<u32, Error> {
    // It may have been renamed since it was attached.
    let renamed = || links::by_name(interface).ok().map(|link| link.ifindex);
    let by_name = status.interfaces.iter().find(|one| one.name == interface);
    let by_number = |ifindex| status.interfaces.iter().find(|one| one.ifindex == ifindex);
    let found = by_name.or_else(|| by_number(renamed()?));
    found.map(|one| one.slot).ok_or_else(|| {
        let names: Vec<&str> = status.interfaces.iter().map(|one| one.name.as_str()).collect();
        Error::configuration(
            format!("node {} has no interface {interface:?}", status.node),
            format!("give one of these with -i: {}", names.join(", ")),
        )
    })
}

/// The packet in words, and its frame.
fn put_together(what: &What<'_>, entry: &Entry) -> Result<(String, Vec<u8>), Error> {
    let (tuple, shape) = match what {
        What::Captured(path, n) => {
            let frame = pcap_reader::packet(path, *n, entry.layer3)?;
            return Ok((tuple::describe(&frame, entry.layer3), frame));
        }
        What::Tuple(tuple, shape) => (tuple, shape),
    };
    let details = Details {
        tcp_flags: shape.tcp_flags,
        bytes: shape.bytes,
        ttl: shape.ttl,
        source_mac: shape.source_mac.unwrap_or(NOBODY),
        destination_mac: shape.destination_mac.unwrap_or(Mac(entry.mac)),
        vlans: shape.vlan.map_or_else(|| entry.tags.clone(), |id| vec![(0x8100, id)]),
        layer3: entry.layer3,
    };
    let flags = match tuple.protocol {
        Protocol::Tcp => format!(", {}", headers::flag_names(shape.tcp_flags)),
        Protocol::Udp | Protocol::Icmp => String::new(),
    };
    Ok((format!("{tuple}{flags}"), tuple::frame(tuple, &details)?))
}

/// Names of the packet path's numbers.
struct Names<'a> {
    status: &'a Status,
    services: &'a [ServiceState],
}

impl Names<'_> {
    fn explanation(&self, packet: String, slot: u32, it: &Explained) -> Explanation {
        let reason = if it.on_pass { Reason::OnPass } else { it.reason };
        let (cause, next) = self
            .withheld(it.service, reason)
            .unwrap_or_else(|| (reason.cause().to_owned(), self.next_of(reason, it.backend)));
        Explanation {
            schema: SCHEMA,
            node: self.status.node.clone(),
            packet,
            interface: self.interface(slot),
            slot,
            service: it.service.and_then(|id| self.service(id)),
            services_there: Vec::new(),
            shield: it.shield.as_ref().map(|found| shield_found(found, it)),
            flow: it.flow.map(|flow| self.flow(&flow)),
            begins_as: it.begins.map(|source| source.to_string()),
            ring: it.ring.map(|ring| self.ring(&ring)),
            backend: it.backend.and_then(|index| self.backend(index)),
            next_hop: self.way(it),
            verdict: it.verdict,
            reason,
            meaning: reason.meaning(),
            cause,
            next,
            on_pass: it.on_pass,
            frame: (it.verdict != Verdict::Drop).then(|| hex(&it.frame)),
        }
    }

    fn interface(&self, slot: u32) -> String {
        let found = self.status.interfaces.iter().find(|one| one.slot == slot);
        found.map_or_else(|| format!("slot {slot}"), |one| one.name.clone())
    }

    /// The service that it is sent to: the shield drops before the packet path asks for one.
    fn meant_for(&self, headers: &Headers) -> Option<Service> {
        let (_, to) = headers.ends()?;
        let protocol = match headers.transport {
            headers::Transport::Tcp { .. } => ringway_config::Protocol::Tcp,
            _ => ringway_config::Protocol::Udp,
        };
        let own = |service: &&ServiceState| {
            let key = &service.key;
            (key.address, key.protocol) == (to.ip(), protocol)
                && (key.port..=key.last_port).contains(&to.port())
        };
        self.service(self.services.iter().find(own)?.id)
    }

    fn services_at(&self, address: IpAddr) -> Vec<String> {
        let there = self.services.iter().filter(|service| service.key.address == address);
        there.map(|service| format!("{}, {}", service.name, endpoint(service))).collect()
    }

    fn service(&self, id: u16) -> Option<Service> {
        let found = self.services.iter().find(|service| service.id == id)?;
        Some(Service {
            name: found.name.clone(),
            endpoint: endpoint(found),
            forward: found.forward.to_string(),
            backends: found.backends.iter().filter_map(|one| self.backend(one.index)).collect(),
        })
    }

    fn state(&self, index: u32) -> Option<(&ServiceState, &BackendState)> {
        let in_service = |service| own(service, index).map(|backend| (service, backend));
        self.services.iter().find_map(in_service)
    }

    fn address(&self, index: u32) -> Option<String> {
        self.state(index).map(|(_, backend)| backend.address.to_string())
    }

    fn backend(&self, index: u32) -> Option<Backend> {
        let (service, state) = self.state(index)?;
        let told = self.told(service).find(|one| one.endpoint() == state.address);
        Some(Backend {
            address: state.address.to_string(),
            up: state.up,
            kept: state.kept,
            reason: told.and_then(|backend| backend.reason.clone()),
            withheld: told.and_then(status::Backend::withheld),
            next_hop: state.next_hop.map(|hop| NextHop {
                interface: self.interface(hop.iface),
                mac: Mac(hop.mac),
                mtu_bytes: hop.mtu,
            }),
        })
    }

    /// Backends of a service as the daemon knows them, once for each protocol.
    fn told(&self, service: &ServiceState) -> impl Iterator<Item = &status::Backend> {
        let named = |one: &&status::Service| one.name == service.name;
        self.status.services.iter().filter(named).flat_map(|one| &one.backends)
    }

    /// The remedy for a reason, with the backend that is meant.
    fn next_of(&self, reason: Reason, backend: Option<u32>) -> Option<String> {
        let next = reason.next()?;
        let state = backend.and_then(|index| self.state(index));
        Some(match state {
            Some((_, state)) => next.replace("BACKEND", &state.address.ip().to_string()),
            None => next.to_owned(),
        })
    }

    /// Where nobody takes a packet since an operator, or the file, wants it so: who, and what
    /// undoes it.
    fn withheld(&self, id: Option<u16>, reason: Reason) -> Option<(String, Option<String>)> {
        if !matches!(reason, Reason::NoBackend | Reason::ResetNoBackend) {
            return None;
        }
        let service = self.services.iter().find(|service| Some(service.id) == id)?;
        let able =
            |backend: &&status::Backend| backend.health.is_up() && backend.next_hop.is_some();
        // A service of both protocols has each backend twice.
        let mut causes = Vec::new();
        let mut releases = Vec::new();
        for backend in self.told(service).filter(able) {
            let Some(why) = backend.withheld() else { continue };
            let cause = format!("{} {why}", backend.shown());
            if !causes.contains(&cause) {
                causes.push(cause);
                releases.push(backend.release(&service.name));
            }
        }
        let more = |shown: usize| match causes.len().saturating_sub(shown) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        let cause = causes.iter().take(WITHHELD_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let next = releases.iter().take(WITHHELD_SHOWN).cloned().collect::<Vec<_>>();
        let next = next.join("; or ");
        (!causes.is_empty()).then(|| (format!("{cause}{}.", more(WITHHELD_SHOWN)), Some(next)))
    }

    fn flow(&self, flow: &FlowFound) -> Flow {
        Flow {
            state: flow.state.to_string(),
            client: flow.client.to_string(),
            source: flow.source.map(|source| source.to_string()),
            backend: self.address(flow.backend),
            idle_s: flow.idle_s,
            on_probation: !flow.confirmed,
        }
    }

    fn ring(&self, ring: &RingAsked) -> Ring {
        Ring {
            slot: ring.slot,
            changing: ring.changed,
            current: ring.current.and_then(|index| self.address(index)),
            former: ring.former.and_then(|index| self.address(index)),
            tracked: ring.tracked,
        }
    }

    /// By what sent it: to its backend, to its flow's client, or back.
    fn way(&self, it: &Explained) -> Option<Way> {
        if !matches!(it.verdict, Verdict::Tx | Verdict::Redirect) {
            return None;
        }
        let to_backend = it.backend.and_then(|index| self.state(index)?.1.next_hop);
        let slot = match it.reason {
            Reason::NatForward
            | Reason::DsrL2
            | Reason::DsrIpip
            | Reason::DsrGue
            | Reason::IcmpToBackend => to_backend.map(|hop| hop.iface),
            // Only the frame says where it goes.
            Reason::Bridged | Reason::Routed => None,
            Reason::NatReply | Reason::IcmpToClient => it.flow.map(|flow| flow.iface),
            _ => Some(it.iface),
        };
        let mac = it.frame.first_chunk().map(|mac| Mac(*mac).to_string());
        Some(Way { interface: self.interface(slot?), mac })
    }
}

fn shield_found(found: &ShieldFinding, it: &Explained) -> Shield {
    let list = match &found.listed {
        Some(ListedBy::List(name)) => Some(name.clone()),
        _ => None,
    };
    let (rule, rule_action) = found.rule.clone().unzip();
    Shield {
        mode: found.mode,
        dropped: it.verdict == Verdict::Drop && Some(it.reason) == found.reason,
        reason: found.reason.map(Reason::name),
        list,
        at_run_time: found.listed == Some(ListedBy::RunTime),
        entry: None,
        rule,
        rule_action: rule_action.flatten().map(RuleAction::name),
        limit: None,
        limit_pps: None,
        mitigation_until: None,
        exempt: None,
        limits: None,
    }
}

impl Shield {
    /// It is over this limit; `limits`: of its service, where a daemon tells.
    fn limited(&mut self, found: Limited, limits: Option<LimitsStatus>) {
        (self.limit, self.exempt) = (Some(found.limit), found.exempt);
        let own = limits.as_ref().map(|all| all.by_limit.iter().find(|it| it.limit == found.limit));
        match own {
            Some(own) => {
                self.limit_pps = own.and_then(|own| own.pps);
                self.mitigation_until = own.and_then(|own| own.mitigation_until);
            }
            None => {
                let until = |left: u32| SystemTime::now() + Duration::from_secs(left.into());
                self.mitigation_until = found.armed_s.map(until).map(Timestamp);
            }
        }
        self.limits = limits;
    }
}

fn limit_name<S: Serializer>(limit: &Option<Limit>, to: S) -> Result<S::Ok, S::Error> {
    limit.map(Limit::name).serialize(to)
}

fn exemption_name<S: Serializer>(exempt: &Option<Exemption>, to: S) -> Result<S::Ok, S::Error> {
    exempt.map(Exemption::name).serialize(to)
}

/// Address, port and protocol: `203.0.113.10:80 tcp`.
fn endpoint(service: &ServiceState) -> String {
    format!("{} {}", service.key.endpoint(), service.key.protocol)
}

fn own(service: &ServiceState, index: u32) -> Option<&BackendState> {
    service.backends.iter().find(|backend| backend.index == index)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
