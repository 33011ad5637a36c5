//! The tunnel that health checks of dsr backends take: to the service address, which is not this
//! node's, by the tunnel or frame that the traffic takes. Each backend has a mark of its own; a
//! routing rule leads marked packets into a device of this process's, and a program there sends
//! them on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ringway_api::error::Error;
use ringway_api::node::leftovers::{DEVICE, TABLES, remove_stale};
use ringway_config::{Backend, Check, Config, Forward, Service};
use ringway_host::Tap;
use ringway_host::netlink::addresses::{self, Address};
use ringway_host::netlink::rules::{self, MarkRule};
use ringway_kernel::{Interface, ProbeCounts, ProbeProgram, ProbeTarget};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::health::{ProbeRoute, Source};
use crate::network::next_hop::{Hop, NoWay};

/// The MTU of every IPv6 path, so that a tunnel's headers fit in front.
const MTU: u32 = 1280;
/// Early: after the local addresses, before rules of the administrator's that look at the source.
const PRIORITY: u32 = 50;

/// The open tunnel. Dropping it closes it.
pub struct ProbeTunnel {
    device: Arc<Tap>,
    program: ProbeProgram,
    rules: Vec<MarkRule>,
    routes: Vec<Checked>,
    /// Rules are being put back, or were.
    restoring: Option<JoinHandle<()>>,
    /// Why the last time came to nothing.
    unrestored: Arc<Mutex<Option<Error>>>,
}

/// Facts about this machine that the tunnel depends on.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    rules: Vec<MarkRule>,
    addresses: Vec<Address>,
}

impl Surroundings {
    /// Asks the kernel, which may take a while.
    ///
    /// # Errors
    /// It does not tell.
    pub fn now() -> ringway_host::Result<Surroundings> {
        Ok(Surroundings { rules: rules::ours()?, addresses: addresses::all()? })
    }

    /// Where health checks come from, and where nothing to a service does.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        let reachable = |own: &&Address| !own.local_scope && !own.address.is_loopback();
        self.addresses.iter().filter(reachable).map(|own| own.address).collect()
    }
}

/// One backend whose checks take the tunnel.
struct Checked {
    /// Number of the health check.
    id: usize,
    mark: u32,
    service: IpAddr,
    backend: IpAddr,
    forward: Forward,
    gue_port: u16,
    /// Configured outer source.
    outer: Option<IpAddr>,
    source: watch::Sender<Source>,
}

impl ProbeTunnel {
    /// Opens it, if any service needs it, and removes what a killed daemon has left. `ids`: numbers
    /// of the backends' checks, in the order of the configuration. `loaded`: the program, which is
    /// taken.
    ///
    /// # Errors
    /// The kernel refuses, or somebody else uses the marks.
    pub fn open(
        config: &Config,
        ids: &[usize],
        loaded: &mut Option<ProbeProgram>,
    ) -> Result<Option<ProbeTunnel>, Error> {
        if let Err(error) = remove_stale() {
            tracing::warn!(%error, "routing rules of an earlier daemon not removed");
        }
        let routes = routes(config, ids, &[])?;
        if routes.is_empty() {
            return Ok(None);
        }
        let device = Arc::new(Tap::create(DEVICE, MTU).map_err(failed)?);
        let program = loaded.take().map_or_else(ProbeProgram::load, Ok);
        let program = program
            .and_then(|program| program.attach(device.ifindex()))
            .map_err(|error| Error::failed(error.to_string(), ""))?;
        let rules = lead_all(&device, config, families(config))?;
        let name = device.name();
        tracing::debug!(
            device = name,
            "health checks of dsr backends go to their service addresses"
        );
        let (restoring, unrestored) = (None, Arc::default());
        Ok(Some(ProbeTunnel { device, program, rules, routes, restoring, unrestored }))
    }

    /// Whether checks of this configuration take it.
    pub fn is_needed(config: &Config) -> bool {
        families(config).next().is_some()
    }

    /// What it takes before lanes for this configuration are added, for a thread that may wait;
    /// `None`: nothing.
    pub fn leading(
        &self,
        config: &Arc<Config>,
    ) -> Option<impl FnOnce() -> Result<Vec<MarkRule>, Error> + Send + use<>> {
        let led: Vec<bool> = self.rules.iter().map(|rule| rule.v6).collect();
        let missing: Vec<bool> = families(config).filter(|v6| !led.contains(v6)).collect();
        let (device, config) = (self.device.clone(), config.clone());
        (!missing.is_empty()).then_some(move || lead_all(&device, &config, missing))
    }

    /// Adds lanes for backends of another configuration whose numbers have none; those there are
    /// stay. `led`: what [`ProbeTunnel::leading`] made.
    ///
    /// # Errors
    /// There are not marks enough; then there is no other lane.
    pub fn add(
        &mut self,
        config: &Config,
        ids: &[usize],
        mut led: Vec<MarkRule>,
    ) -> Result<(), Error> {
        self.rules.append(&mut led);
        self.routes.append(&mut routes(config, ids, &self.routes)?);
        Ok(())
    }

    /// Closes the lanes of other numbers.
    pub fn keep(&mut self, has: impl Fn(usize) -> bool) {
        self.routes.retain(|probe_route| has(probe_route.id));
    }

    /// Puts back what others have removed, as network managers do with rules they do not know, on a
    /// thread that may wait. What does not help is tried again at the next look.
    fn restore(&mut self, there: &[MarkRule]) {
        let under_way = self.restoring.as_ref().is_some_and(|restoring| !restoring.is_finished());
        let missing = self.rules.iter().filter(|rule| !there.contains(rule));
        let missing: Vec<MarkRule> = missing.copied().collect();
        if missing.is_empty() {
            *self.unrestored.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        if missing.is_empty() || under_way {
            return;
        }
        let (device, outcome) = (self.device.clone(), self.unrestored.clone());
        self.restoring = Some(tokio::task::spawn_blocking(move || {
            let put_back = |rule: &MarkRule| {
                let family = if rule.v6 { "IPv6" } else { "IPv4" };
                tracing::warn!(
                    family,
                    "somebody removed the routing rule of health checks: put back"
                );
                stand(&device, rule)
            };
            let error = missing.iter().find_map(|rule| put_back(rule).err());
            *outcome.lock().unwrap_or_else(PoisonError::into_inner) = error;
        }));
    }

    /// The lanes, by the number of the health check.
    pub fn routes(&self) -> BTreeMap<usize, ProbeRoute> {
        let probe_route = |probe_route: &Checked| ProbeRoute {
            mark: probe_route.mark,
            source: probe_route.source.subscribe(),
        };
        self.routes.iter().map(|checked| (checked.id, probe_route(checked))).collect()
    }

    /// Sends the checks by the ways as they are now, by the numbers of the checks. Called whenever
    /// routes or rules change. Asks the kernel nothing that could wait.
    ///
    /// # Errors
    /// The program's table cannot be written, or a rule could not be put back.
    pub fn update(
        &mut self,
        all: &HashMap<usize, &Result<Hop, NoWay>>,
        interfaces: &[Interface],
        around: &Surroundings,
    ) -> Result<(), Error> {
        self.restore(&around.rules);
        let mut ways = BTreeMap::new();
        let mut sources = Vec::new();
        for probe_route in &self.routes {
            let found = match all.get(&probe_route.id) {
                Some(Ok(hop)) => probe_route.by(hop, interfaces, &around.addresses),
                Some(Err(no_way)) => Err(no_way.to_string()),
                None => Err("is not known".into()),
            };
            sources.push(found.map(|(way, source)| {
                ways.insert(probe_route.mark, way);
                source
            }));
        }
        // The way first: with its source, a check begins.
        self.program.set(&ways).map_err(|error| Error::failed(error.to_string(), ""))?;
        for (probe_route, source) in self.routes.iter().zip(sources) {
            probe_route.source.send_if_modified(|now| {
                let changed = *now != source;
                *now = source;
                changed
            });
        }
        let unrestored = self.unrestored.lock().unwrap_or_else(PoisonError::into_inner);
        unrestored.clone().map_or(Ok(()), Err)
    }

    /// The fate of the checks' packets.
    pub fn counts(&self) -> Option<ProbeCounts> {
        self.program.counts().ok()
    }
}

/// The families, true: IPv6, of services whose checks take the tunnel.
fn families(config: &Config) -> impl Iterator<Item = bool> + '_ {
    let taken = |v6: &bool| {
        let same = config.services.iter().filter(|service| service.address.is_ipv6() == *v6);
        same.into_iter().any(|s| s.backends.iter().any(|backend| is_taken(s, backend)))
    };
    [false, true].into_iter().filter(taken)
}

/// Leads marked packets of these families into the device.
fn lead_all(
    device: &Tap,
    config: &Config,
    families: impl IntoIterator<Item = bool>,
) -> Result<Vec<MarkRule>, Error> {
    let mut made = Vec::new();
    for v6 in families {
        match lead(device, config, v6) {
            Ok(rule) => made.push(rule),
            Err(error) => {
                remove(&made);
                return Err(error);
            }
        }
    }
    Ok(made)
}

fn lead(device: &Tap, config: &Config, v6: bool) -> Result<MarkRule, Error> {
    let marks = *config.tunnel.marks;
    let table = TABLES | device.ifindex() & 0xffff;
    let rule = MarkRule { v6, priority: PRIORITY, mark: marks.value, mask: marks.mask, table };
    if rules::ours().map_err(failed)?.iter().any(|other| rule.overlaps(other)) {
        let what = format!("marks {marks} are in use by another Ringway node on this machine");
        return Err(Error::configuration(
            config.error_at(&config.tunnel.marks, what).brief(),
            "give each node its own [tunnel] marks",
        ));
    }
    stand(device, &rule)?;
    Ok(rule)
}

/// Puts a rule where it belongs, and what it leads to.
fn stand(device: &Tap, rule: &MarkRule) -> Result<(), Error> {
    device.default_route(rule.table, rule.v6).map_err(failed)?;
    rules::add(rule).map_err(failed)
}

fn remove(rules: &[MarkRule]) {
    for rule in rules {
        if let Err(error) = rules::remove(rule) {
            tracing::warn!(%error, "not removed");
        }
    }
}

impl Drop for ProbeTunnel {
    fn drop(&mut self) {
        remove(&self.rules);
    }
}

impl Checked {
    /// The way to the backend, and where its replies go.
    fn by(
        &self,
        hop: &Hop,
        interfaces: &[Interface],
        known: &[Address],
    ) -> Result<(ProbeTarget, IpAddr), String> {
        let interface = interfaces.iter().find(|interface| interface.slot == hop.slot);
        let interface = interface.ok_or("leaves by an interface that is gone")?;
        let like = |address: &IpAddr| address.is_ipv4() == self.service.is_ipv4();
        let own = hop.source.filter(like).or_else(|| pick(known, interface.ifindex, self.service));
        let own = own.ok_or_else(|| {
            let family = if self.service.is_ipv4() { "IPv4" } else { "IPv6" };
            format!("this node has no {family} address that the backend could answer to")
        })?;
        let outer = self.outer.or(hop.source);
        let outer = match self.forward {
            Forward::DsrL2 => self.backend,
            _ => outer.ok_or("this node has no source address towards the backend")?,
        };
        let way = ProbeTarget {
            forward: self.forward,
            ifindex: interface.ifindex,
            mac: interface.mac,
            next_hop: hop.mac.0,
            outer: (outer, self.backend),
            gue_port: self.gue_port,
        };
        Ok((way, own))
    }
}

/// An address of the service's family, if possible one of the interface.
fn pick(known: &[Address], ifindex: u32, service: IpAddr) -> Option<IpAddr> {
    let fits = |address: &&Address| {
        let own = address.address;
        own.is_ipv4() == service.is_ipv4()
            && !(address.local_scope || address.unusable || own.is_loopback())
    };
    let best = known.iter().filter(fits);
    best.min_by_key(|a| (a.deprecated, a.ifindex != ifindex)).map(|address| address.address)
}

/// Whether the checks of a backend take the tunnel: those with an address of their own go straight
/// there.
pub fn is_taken(service: &Service, backend: &Backend) -> bool {
    let straight = |check: &Check| check.address.is_some();
    service.forward.is_dsr() && service.check_of(backend).is_some_and(|check| !straight(&check))
}

/// Lanes for those that `known` has none for.
fn routes(config: &Config, ids: &[usize], known: &[Checked]) -> Result<Vec<Checked>, Error> {
    let marks = &config.tunnel.marks;
    let taken: BTreeSet<u32> = known.iter().map(|probe_route| probe_route.mark).collect();
    let has_one: BTreeSet<usize> = known.iter().map(|probe_route| probe_route.id).collect();
    let mut free = (0..marks.count()).filter_map(|n| marks.nth(n)).filter(|m| !taken.contains(m));
    let backends = config
        .services
        .iter()
        .flat_map(|service| service.backends.iter().map(move |backend| (service, backend)));
    let checked = ids
        .iter()
        .copied()
        .zip(backends)
        .filter(|(_, (service, backend))| is_taken(service, backend));
    checked
        .filter(|(id, _)| !has_one.contains(id))
        .map(|(id, (service, backend))| {
            let mark = free.next().ok_or_else(|| {
                let what =
                    format!("there are more dsr backends with checks than marks {}", **marks);
                Error::configuration(
                    config.error_at(marks, what).brief(),
                    "write a mask that leaves more bits, such as \"0x72770000/0xffff0000\"",
                )
            })?;
            let address = *backend.address;
            Ok(Checked {
                id,
                mark,
                service: *service.address,
                backend: address,
                forward: service.forward,
                gue_port: service.gue_port,
                outer: config.tunnel.source_towards(address),
                source: watch::Sender::new(Err(NoWay::NotYet.to_string())),
            })
        })
        .collect()
}

fn failed(error: ringway_host::Error) -> Error {
    let remedy = "health checks of dsr backends need a TAP device and routing rules; \
                  or write no `check` for them";
    Error::failed(error.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{hop, interface};

    const CONFIG: &str = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
        [[service]]\nname = \"nat\"\naddress = \"203.0.113.1\"\nport = 80\nannounce = \"arp\"\n\
        check = { type = \"tcp\" }\nbackends = [{ address = \"10.0.0.2\" }]\n\
        [[service]]\nname = \"gue\"\naddress = \"203.0.113.2\"\nport = 80\nannounce = \"arp\"\n\
        forward = \"dsr-gue\"\ncheck = { type = \"tcp\" }\n\
        backends = [{ address = \"10.0.0.2\" }, { address = \"fd00::2\" }]\n\
        [[service]]\nname = \"bare\"\naddress = \"203.0.113.3\"\nport = 80\nannounce = \"arp\"\n\
        forward = \"dsr-ipip\"\nbackends = [{ address = \"10.0.0.2\" }]\n";

    fn lanes_of(text: &str) -> Result<Vec<Checked>, Error> {
        let config = ringway_config::parse(text, "ringway.toml").expect("valid");
        routes(&config, &(0..9).collect::<Vec<_>>(), &[])
    }

    #[test]
    fn lanes_stay_where_they_are_when_others_come() {
        let config = ringway_config::parse(CONFIG, "ringway.toml").expect("valid");
        let mut known = checked();
        known.remove(0);
        // The second backend of the service is known, the first is another one now.
        let new = routes(&config, &[0, 7, 2, 3], &known).expect("marks enough");
        let found: Vec<_> =
            new.iter().map(|probe_route| (probe_route.id, probe_route.mark)).collect();
        assert_eq!(found, [(7, 0x7277_0000)]);
    }

    fn checked() -> Vec<Checked> {
        lanes_of(CONFIG).expect("marks enough")
    }

    #[test]
    fn a_check_with_an_address_of_its_own_goes_straight() {
        let marks = |text: &str| lanes_of(text).expect("marks enough").len();
        let (plain, own) = ("{ address = \"fd00::2\" }", "{ address = \"fd00::2\", check = {");
        assert_eq!(marks(&CONFIG.replace(plain, &format!("{own} port = 81 }} }}"))), 2);
        assert_eq!(marks(&CONFIG.replace(plain, &format!("{own} address = \"fd00::9\" }} }}"))), 1);
    }

    #[test]
    fn backends_of_dsr_services_with_checks_have_marks() {
        let found: Vec<_> =
            checked().iter().map(|probe_route| (probe_route.id, probe_route.mark)).collect();
        assert_eq!(found, [(1, 0x7277_0000), (2, 0x7277_0001)]);
        let few = format!("[tunnel]\nmarks = \"2/0xfffffffe\"\n{CONFIG}");
        assert!(lanes_of(&few).is_ok());
        let many = few.replace(
            ", { address = \"fd00::2\" }",
            ", { address = \"fd00::2\" }, { address = \"fd00::3\" }",
        );
        let error = lanes_of(&many).err().expect("too many");
        assert!(!error.what.contains('\n'), "a log line and a finding have it: {error}");
        assert!(error.to_string().contains("0xfffffffe"), "{error}");
    }

    #[test]
    fn replies_come_to_an_address_of_the_services_family() {
        let address = |ifindex, text: &str, local_scope| Address {
            ifindex,
            address: text.parse().expect("an address"),
            prefix: 64,
            local_scope,
            unusable: false,
            deprecated: false,
        };
        let known = [
            address(1, "127.0.0.1", true),
            address(2, "192.0.2.1", false),
            address(3, "10.9.0.1", false),
            address(3, "fe80::1", true),
        ];
        let interface = interface(0, 3, "eth1");
        let hop = |source: &str| Hop { source: source.parse().ok(), ..hop() };
        let routes = checked();
        let (way, source) = routes[0]
            .by(&hop("10.9.0.7"), std::slice::from_ref(&interface), &known)
            .expect("a way");
        assert_eq!(source.to_string(), "10.9.0.7");
        assert_eq!((way.ifindex, way.outer.0.to_string()), (3, "10.9.0.7".into()));
        // To an IPv6 backend of an IPv4 service.
        let (way, source) =
            routes[1].by(&hop("fd00::1"), std::slice::from_ref(&interface), &known).expect("a way");
        assert_eq!(source.to_string(), "10.9.0.1");
        assert_eq!(way.outer.0.to_string(), "fd00::1");
        let none = routes[1].by(&hop("fd00::1"), &[interface], &known[3..]).expect_err("no source");
        assert!(none.contains("no IPv4 address"), "{none}");
    }
}
