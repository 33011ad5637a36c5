//! The state of the machine that the rules need, looked up once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread::{self, Builder};
use std::time::Duration;

use ringway_api::client::http;
use ringway_api::documents::status;
use ringway_config::Config;
use ringway_doctor::Sample;
use ringway_host::ethtool::{Channels, Ethtool, Offloads};
use ringway_host::firewall::Rule;
use ringway_host::netlink::addresses::{self, Address};
use ringway_host::netlink::links::{self, Link};
use ringway_host::netlink::neighbours::{self, Neighbour};
use ringway_host::netlink::routes::{self, RouteKind};
use ringway_host::netlink::xdp_features::{self, XdpFeatures};
use ringway_host::{Host, Mac};
use ringway_kernel::{
    DEFAULT_BPFFS, Probe, View, XdpMode, XdpOwner, bpffs_is_hidden, check_on_pass,
};

use crate::network::forward::Facts;

/// The machine, as seen from the calling thread's network namespace.
#[derive(Debug)]
pub struct MachineState {
    /// The kernel's release, and this process's capabilities.
    pub probe: Result<Probe, String>,
    pub links: Vec<Link>,
    /// Offloads by interface name.
    pub offloads: HashMap<String, Offloads>,
    /// Drivers by interface name.
    pub drivers: HashMap<String, String>,
    pub addresses: Vec<Address>,
    /// Interfaces that carry a default route.
    pub default_route_links: BTreeSet<u32>,
    /// The way the kernel would send to each backend and service address.
    pub paths: HashMap<IpAddr, Result<routes::Path, String>>,
    pub neighbours: Vec<Neighbour>,
    /// Whether this is the machine's first network namespace.
    pub first_namespace: Option<bool>,
    /// net.ipv4.ip_local_port_range.
    pub local_ports: Option<(u16, u16)>,
    /// How the stack treats what comes in, by interface name; absent where it cannot be read.
    pub receiving: HashMap<String, Receiving>,
    /// Interfaces on which this node's own program is attached already, and how; `None` when this
    /// process may not look.
    pub own_links: Option<BTreeMap<u32, XdpMode>>,
    /// Pins cannot be seen here: that none are found means nothing.
    pub bpffs_hidden: bool,
    /// The owners of XDP programs on interfaces, by program, as far as they are known.
    pub xdp_owners: HashMap<u32, XdpOwner>,
    /// Native XDP of the drivers, by interface name; absent where the kernel does not tell.
    pub features: HashMap<String, XdpFeatures>,
    /// Queues, by interface name.
    pub channels: HashMap<String, Channels>,
    pub cpus: u32,
    /// Files that the doctor's rules read.
    pub files: Sample,
    /// The program of `[node] on_pass`: its name, or why it cannot be used.
    pub on_pass: Option<Result<String, String>>,
    /// What forwarding between interfaces depends on, or why it is not known; `None`: nothing is
    /// forwarded.
    pub forward: Option<Result<Facts, String>>,
    /// Looked at what takes time or asks others, too: what follows.
    pub thorough: bool,
    /// Rules of the firewall that name destinations, or why they are not known.
    pub firewall: Option<Result<Vec<Rule>, String>>,
    /// The machines that answer for addresses of dsr services on their backends' links, and for
    /// next hops whose MAC addresses are not known.
    pub answering: HashMap<IpAddr, Result<Vec<Answerer>, String>>,
    /// Services as a running daemon sees them.
    pub health: Option<Vec<status::Service>>,
    /// Errors of what could not be read.
    pub errors: Vec<String>,
    /// Links, addresses or routes are among that: what seems to be missing may be there.
    pub blind: bool,
}

/// Somebody else who answers for an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answerer {
    /// The interface by which the answer came.
    pub interface: String,
    /// The sender.
    pub mac: Mac,
}

/// How the stack treats packets that come in by an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiving {
    pub forwards_v4: bool,
    /// Forwards IPv6; of all interfaces alike.
    pub forwards_v6: bool,
    /// Takes IPv4 from an address of the node's own for what it is.
    pub accepts_local: bool,
    /// 0: does not check where IPv4 comes from, 1: strictly, 2: loosely.
    pub rp_filter: i64,
}

impl Default for MachineState {
    /// Nothing is known.
    fn default() -> MachineState {
        MachineState {
            probe: Err("not looked at".into()),
            links: Vec::new(),
            offloads: HashMap::new(),
            drivers: HashMap::new(),
            addresses: Vec::new(),
            default_route_links: BTreeSet::new(),
            paths: HashMap::new(),
            neighbours: Vec::new(),
            first_namespace: None,
            local_ports: None,
            receiving: HashMap::new(),
            own_links: None,
            bpffs_hidden: false,
            xdp_owners: HashMap::new(),
            features: HashMap::new(),
            channels: HashMap::new(),
            cpus: 1,
            files: Sample::default(),
            on_pass: None,
            forward: None,
            thorough: false,
            firewall: None,
            answering: HashMap::new(),
            health: None,
            errors: Vec::new(),
            blind: false,
        }
    }
}

impl MachineState {
    /// Looks. What cannot be read is an entry in `errors`, and unknown to the rules.
    pub fn gather(config: &Config) -> MachineState {
        let mut state = MachineState::of_devices();
        let errors = &mut state.errors;
        let backends = config.services.iter().flat_map(|service| &service.backends);
        let services = config.services.iter().map(|service| *service.address);
        let nat = config.nat.addresses.iter().map(|address| **address);
        let wanted = backends.map(|backend| *backend.address).chain(services).chain(nat);
        let known = errors.len();
        state.probe = ringway_kernel::probe().map_err(|e| e.to_string());
        state.addresses = noted(addresses::all(), errors);
        for address in wanted {
            match routes::route_to(address) {
                Err(error) if !matches!(error, ringway_host::Error::NoRoute { .. }) => {
                    errors.push(error.to_string());
                }
                path => drop(state.paths.insert(address, path.map_err(|e| e.to_string()))),
            }
        }
        state.neighbours = noted(neighbours::all(), errors);
        state.blind |= errors.len() > known;
        state.local_ports = Host::live().local_ports().ok().map(RangeInclusive::into_inner);
        state.receiving = receiving(&state.links);
        state.own_links = own_links(&config.node.name);
        state.bpffs_hidden = bpffs_is_hidden(Path::new(DEFAULT_BPFFS));
        state.xdp_owners = xdp_owners(&state.links);
        state.cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let on_pass = config.node.on_pass.as_ref();
        state.on_pass = on_pass.map(|path| check_on_pass(path).map_err(|e| e.to_string()));
        let forward = config.forward.as_ref();
        state.forward = forward.map(|forward| Facts::read(forward).map_err(|e| e.to_string()));
        state.files = ringway_doctor::gather_at_once();
        compiler(&mut state.files);
        state
    }

    /// Looks at what takes time or asks others, too: for an administrator who waits for it.
    pub fn gather_all(config: &Config) -> MachineState {
        let mut state = MachineState::gather(config);
        state.thorough = true;
        state.firewall = Some(ringway_host::firewall::rules());
        state.answering = answering(config, &state);
        let status = http::get::<status::Status>(&config.api.socket, "/v1/status").ok();
        let own = status.filter(|status| status.node == *config.node.name.as_str());
        state.health = own.map(|status| status.services);
        state
    }

    /// Reads interfaces and their drivers.
    pub fn of_devices() -> MachineState {
        let mut state = MachineState::of_links();
        (state.offloads, state.drivers) = ethtool(&state.links, &mut state.errors);
        let all = xdp_features::all().ok().flatten().unwrap_or_default();
        let features = |link: &Link| Some((link.name.clone(), *all.get(&link.ifindex)?));
        state.features = state.links.iter().filter_map(features).collect();
        state.channels = channels(&state.links);
        state
    }

    /// Only what tells which interfaces carry the default route.
    pub fn of_links() -> MachineState {
        let mut errors = Vec::new();
        let links = noted(links::all(), &mut errors);
        let routes = noted(routes::all(), &mut errors);
        let default_route_links = routes::default_interfaces(&routes);
        let first_namespace = first_namespace();
        let blind = !errors.is_empty();
        MachineState {
            links,
            default_route_links,
            first_namespace,
            errors,
            blind,
            ..MachineState::default()
        }
    }

    /// The interface of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The MAC address of a path's next hop, if the kernel would send to it now.
    pub fn next_hop(&self, path: &routes::Path) -> Option<Mac> {
        let (ifindex, address) = (path.ifindex, path.next_hop());
        let same = |known: &&Neighbour| known.ifindex == ifindex && known.address == address;
        self.neighbours.iter().find(same).and_then(Neighbour::usable)
    }

    /// Whether any interface of the configuration is in this network namespace.
    pub fn has_ours(&self, config: &Config) -> bool {
        config.node.interfaces.iter().any(|name| self.link(name).is_some())
    }

    /// An interface of the configuration that is down, and its routes with it.
    pub fn ours_down(&self, config: &Config) -> Option<&str> {
        let mut ours = config.node.interfaces.iter().filter_map(|name| self.link(name));
        ours.find(|link| !link.up).map(|link| &*link.name)
    }

    /// The interface of ours that a VLAN device's frames are met on, tagged.
    pub fn tagged_on<'a>(&'a self, config: &Config, vlan: &'a Link) -> Option<&'a Link> {
        let mut at = vlan;
        while let (Some(_), Some(lower), false) = (at.vlan, at.lower, at.lower_elsewhere) {
            at = self.links.iter().find(|link| link.ifindex == lower)?;
        }
        let ours = config.node.interfaces.iter().any(|name| **name == at.name);
        (ours && at.ifindex != vlan.ifindex).then_some(at)
    }

    /// The interface's name, or its number.
    pub fn link_name(&self, ifindex: u32) -> String {
        let link = self.links.iter().find(|link| link.ifindex == ifindex);
        link.map_or_else(|| format!("interface {ifindex}"), |link| link.name.clone())
    }

    /// The far end of a veth pair, when it is in this namespace.
    pub fn peer(&self, link: &Link) -> Option<&Link> {
        let peer = link.lower.filter(|_| !link.lower_elsewhere)?;
        self.links.iter().find(|link| link.ifindex == peer)
    }
}

fn noted<T: Default>(found: ringway_host::Result<T>, errors: &mut Vec<String>) -> T {
    found.unwrap_or_else(|error| {
        errors.push(error.to_string());
        T::default()
    })
}

fn ethtool(
    links: &[Link],
    errors: &mut Vec<String>,
) -> (HashMap<String, Offloads>, HashMap<String, String>) {
    let ethtool = match Ethtool::open() {
        Ok(ethtool) => ethtool,
        Err(error) => {
            errors.push(error.to_string());
            return Default::default();
        }
    };
    let names = || links.iter().map(|link| link.name.clone());
    let drivers =
        names().filter_map(|name| Some((name.clone(), ethtool.driver(&name).ok()??.name)));
    let drivers = drivers.collect();
    let mut offloads = HashMap::new();
    for name in names() {
        match ethtool.offloads(&name) {
            Ok(found) => drop(offloads.insert(name, found)),
            Err(ringway_host::Error::NoInterface { .. }) => {}
            Err(error) => errors.push(error.to_string()),
        }
    }
    (offloads, drivers)
}

/// Whether this is the machine's first network namespace; `None` where /proc/sys is not to be seen.
fn first_namespace() -> Option<bool> {
    if ringway_api::client::requests::guard_is_forced() {
        return Some(true);
    }
    let visible = Path::new("/proc/sys/net/core").exists();
    visible.then(|| Host::live().first_network_namespace())
}

/// Whether programs are compiled is a setting of the first network namespace. Elsewhere one that is
/// loaded tells.
pub fn compiler(files: &mut Sample) {
    let path = "/proc/sys/net/core/bpf_jit_enable";
    if !files.files().contains_key(path)
        && let Some(compiles) = ringway_kernel::compiles_programs()
    {
        files.put(path, if compiles { "1" } else { "0" });
    }
}

fn receiving(links: &[Link]) -> HashMap<String, Receiving> {
    let host = Host::live();
    let set = |key: String| Some(host.sysctl(&key).ok()??.trim() != "0");
    let of = |name: &str| {
        let local = |whose: &str| set(format!("net/ipv4/conf/{whose}/accept_local"));
        Some(Receiving {
            forwards_v4: set(format!("net/ipv4/conf/{name}/forwarding"))?,
            // Absent where the kernel has no IPv6.
            forwards_v6: host.forwards_v6().ok()?,
            accepts_local: local("all")? || local(name)?,
            rp_filter: host.rp_filter(name).ok()?,
        })
    };
    links.iter().filter_map(|link| Some((link.name.clone(), of(&link.name)?))).collect()
}

/// Interfaces that carry this node's own program from before.
pub(crate) fn own_links(node: &str) -> Option<BTreeMap<u32, XdpMode>> {
    let view = match View::open(Path::new(DEFAULT_BPFFS), node) {
        Ok(view) => view,
        Err(ringway_kernel::Error::NotLoaded { .. }) => return Some(BTreeMap::new()),
        Err(_) => return None,
    };
    let states = view.interfaces().ok()?;
    Some(states.iter().filter_map(|state| Some((state.ifindex, state.mode?))).collect())
}

fn xdp_owners(links: &[Link]) -> HashMap<u32, XdpOwner> {
    let programs = links.iter().flat_map(|link| &link.xdp).map(|xdp| xdp.program);
    let found = |id| Some((id, ringway_kernel::xdp_owner(Path::new(DEFAULT_BPFFS), id)?));
    programs.filter_map(found).collect()
}

fn channels(links: &[Link]) -> HashMap<String, Channels> {
    let Ok(ethtool) = Ethtool::open() else { return HashMap::new() };
    let of = |link: &Link| Some((link.name.clone(), ethtool.channels(&link.name).ok()??));
    links.iter().filter_map(of).collect()
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(300);
/// Addresses that are asked for at once.
const AT_ONCE: usize = 32;
/// And altogether: it is to take seconds.
const AT_MOST: usize = 512;

/// Asks for next hops that the kernel does not know; and on the links of backends that are
/// neighbours for the service's address, which they have under dsr.
fn answering(
    config: &Config,
    state: &MachineState,
) -> HashMap<IpAddr, Result<Vec<Answerer>, String>> {
    let mut asked: BTreeSet<(IpAddr, u32)> = BTreeSet::new();
    for service in config.services.iter().filter(|service| service.forward.is_dsr()) {
        let near = |address: IpAddr| match state.paths.get(&address) {
            Some(Ok(path)) if path.gateway.is_none() && path.kind == RouteKind::Unicast => {
                Some((*service.address, path.ifindex))
            }
            _ => None,
        };
        asked.extend(service.backends.iter().filter_map(|backend| near(*backend.address)));
    }
    let backends = config.services.iter().flat_map(|service| &service.backends);
    let paths = backends.filter_map(|backend| state.paths.get(&backend.address)?.as_ref().ok());
    let silent =
        paths.filter(|path| path.kind == RouteKind::Unicast && state.next_hop(path).is_none());
    asked.extend(silent.map(|path| (path.next_hop(), path.ifindex)));
    let asked: Vec<_> = asked.into_iter().take(AT_MOST).collect();
    let mut found: HashMap<IpAddr, Result<Vec<Answerer>, String>> = HashMap::new();
    for some in asked.chunks(AT_ONCE) {
        // Threads are in the network namespace of the one that made them.
        let answers = thread::scope(|scope| {
            let ask = |(address, ifindex)| {
                Builder::new().spawn_scoped(scope, move || ask(state, address, ifindex))
            };
            let threads: Vec<_> = some.iter().copied().map(ask).collect();
            let answered = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().ok().flatten(),
                Err(error) => Some(Err(format!("no thread to ask with: {error}"))),
            });
            answered.collect::<Vec<_>>()
        });
        for ((address, _), answer) in some.iter().zip(answers) {
            let Some(answer) = answer else { continue };
            match (found.entry(*address).or_insert(Ok(Vec::new())), answer) {
                (Ok(all), Ok(more)) => all.extend(more),
                (entry, Err(error)) => *entry = Err(error),
                (Err(_), Ok(_)) => {}
            }
        }
    }
    found
}

/// `None`: the interface is none that can be asked on.
fn ask(
    state: &MachineState,
    address: IpAddr,
    ifindex: u32,
) -> Option<Result<Vec<Answerer>, String>> {
    let link = state.links.iter().find(|link| link.ifindex == ifindex)?;
    let own: Vec<Mac> = state.links.iter().filter_map(|link| link.mac).collect();
    let answers = ringway_host::who_has(ifindex, link.mac?, address, PATIENCE);
    let others = |macs: Vec<Mac>| {
        let others = macs.into_iter().filter(|mac| !own.contains(mac));
        others.map(|mac| Answerer { interface: link.name.clone(), mac }).collect()
    };
    Some(answers.map(others).map_err(|error| error.to_string()))
}
