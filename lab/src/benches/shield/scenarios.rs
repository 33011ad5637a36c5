//! Attacks beside good traffic: a client, a gateway and a backend, each in a network namespace; the
//! attack comes in by the client's interface.

use std::fmt::{self, Write as _};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::{
    End, Families, Link, Namespace, Nginx, TwoArmed, VethOptions, enable_napi, two_armed, veth,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::begin::{Begin, await_calm};
use super::flood::{self, Attack, Target};
use super::peers::{Peers, Storage};
use super::{Defence, firewall, good};
use crate::demo::daemon::Daemon;
use crate::harness::cpu::{Cpus, pin};
use crate::harness::{Case, Harness};
use crate::{Error, Result, programs};

/// Of the rate of a bare drop.
const ATTACK_PERCENT: u64 = 80;
/// One good packet for so many of the attack: 4 of 100 packets are good.
const PER_GOOD: u64 = 24;
/// Datagrams a second, at most: the other processor has no time for more.
const MOST_GOOD: u64 = 20_000;
/// Of the web service: what its connections need, many times over.
const WEB_LIMIT: &str = "50kpps";
/// More to a service is an attack.
const THRESHOLD: &str = "100kpps";
/// As fast as it can.
const UNPACED: Duration = Duration::from_secs(1);
/// The attack is under way when good traffic begins.
const BEFORE: Duration = Duration::from_millis(200);
/// Of a bare drop: its own spread.
const BARE_RUNS: u32 = 5;

pub(super) const TARGET: Target =
    Target { address: Ipv4Addr::new(10, 1, 0, 80), tcp: 80, udp: 7000 };

/// One attack upon one defence.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub attack: Attack,
    pub defence: Defence,
    /// Packets a second that came in; it was to be [`Row::attack_wanted_pps`].
    pub attack_pps: u64,
    pub attack_wanted_pps: u64,
    /// Datagrams and requests of HTTP.
    pub good_sent: u64,
    pub good_lost: u64,
    /// Of datagrams, one way; none arrived: none.
    pub good_p99_ns: Option<u64>,
    /// Of an attack as fast as it can be, without good traffic: nanoseconds of a packet, on the one
    /// processor that sends and drops it, more than with a bare XDP drop.
    pub cost_ns_over_bare_drop: Option<i64>,
    /// From the attack's first packet until a service was armed; none was: none.
    pub armed_after_ms: Option<u64>,
    pub http_requests: u64,
    pub http_failed: u64,
    pub http_p99_ns: Option<u64>,
}

/// A defence with all attacks.
struct Defended(Defence);

impl Case for Defended {
    fn key(&self) -> Value {
        json!({ "defence": self.0 })
    }
}

impl fmt::Display for Defended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attacks upon {}", self.0)
    }
}

/// Measures all attacks upon these defences, so long each.
pub(super) fn measure(
    ringway: &Path,
    defences: &[Defence],
    time: Duration,
    harness: &mut Harness<'_>,
) -> Result<Vec<Row>> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The first processor is the attack's.
            pin(Cpus::here()?.measured)?;
            let mut measured =
                Measured { ringway, time, bare: None, rates: Vec::new(), rows: Vec::new() };
            let mut cases: Vec<Defended> = defences.iter().copied().map(Defended).collect();
            harness.each(&mut cases, |harness, case| measured.defence(case.0, harness));
            measured.bare.map_or(Ok(()), |mut bare| bare.take_down())?;
            Ok(measured.rows)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

struct Measured<'r> {
    ringway: &'r Path,
    time: Duration,
    /// Stays, so that each cost has a bare drop of the same time beside it.
    bare: Option<Scene>,
    /// Packets a second that a bare XDP program drops of each attack.
    rates: Vec<(Attack, f64)>,
    rows: Vec<Row>,
}

impl Measured<'_> {
    fn defence(&mut self, defence: Defence, harness: &mut Harness<'_>) -> Result<()> {
        let mut scene = Scene::new(defence, self.ringway)?;
        for attack in Attack::SCENARIOS {
            if defence == Defence::BareDrop && attack != Attack::Quiet {
                self.rates.push((attack, scene.unpaced(attack)?));
            }
            // All attacks are the same to it.
            let runs = match (defence, attack) {
                (Defence::BareDrop, Attack::OneSource) => BARE_RUNS,
                (Defence::BareDrop, _) => 0,
                _ => 1,
            };
            for _ in 0..runs {
                let row = self.run(&scene, defence, attack)?;
                harness.say(in_words(&row));
                self.rows.push(row);
            }
        }
        if defence == Defence::BareDrop {
            self.bare = Some(scene);
            return Ok(());
        }
        scene.take_down()
    }

    fn run(&self, scene: &Scene, defence: Defence, attack: Attack) -> Result<Row> {
        let rate = self.rates.iter().find(|(one, _)| *one == attack).map(|(_, rate)| *rate);
        let wanted = rate.unwrap_or(0.0) as u64 * ATTACK_PERCENT / 100;
        // In peace as many as beside the fastest attack.
        let good = if wanted == 0 { MOST_GOOD } else { (wanted / PER_GOOD).min(MOST_GOOD) };
        let all = BEFORE + self.time;
        if defence == Defence::Ringway {
            await_calm(scene.node())?;
        }
        let begin = Begin::default();
        let (attack_pps, good, armed) = thread::scope(|scope| {
            let flood = || {
                scene.flood(attack, Some(wanted), |elapsed| {
                    begin.goes_on(elapsed);
                    elapsed >= all
                })
            };
            let flood = (wanted > 0).then(|| scope.spawn(flood));
            let arms = wanted > 0 && defence == Defence::Ringway;
            let armed = arms.then(|| scope.spawn(|| begin.armed_after(scene.node(), all)));
            thread::sleep(BEFORE);
            let backend = &scene.net.backends[0].ns;
            let good = good::run(&scene.net.client.ns, backend, &TARGET, good, self.time);
            let flood = flood.map_or(Ok(0.0), |flood| {
                flood.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let armed = armed.map_or(Ok(None), |armed| {
                armed.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            Ok::<_, Error>((flood?, good?, armed?))
        })?;
        let cost = match &self.bare {
            Some(bare) if wanted > 0 => {
                let ns = |scene: &Scene| Ok::<_, Error>(1e9 / scene.unpaced(attack)?.max(1.0));
                let by_bare = ns(bare)?;
                Some((ns(scene)? - by_bare).round() as i64)
            }
            _ => None,
        };
        Ok(Row {
            attack,
            defence,
            attack_pps: attack_pps as u64,
            attack_wanted_pps: wanted,
            good_sent: good.sent,
            good_lost: good.lost,
            good_p99_ns: good.p99_ns,
            cost_ns_over_bare_drop: cost,
            armed_after_ms: armed.map(|time| time.as_millis() as u64),
            http_requests: good.http_requests,
            http_failed: good.http_failed,
            http_p99_ns: good.http_p99_ns,
        })
    }
}

fn in_words(row: &Row) -> String {
    let Row { attack, defence, attack_pps, good_sent, good_lost, .. } = row;
    let p99 = row.good_p99_ns.map_or("-".to_owned(), |ns| (ns / 1000).to_string());
    format!(
        "{attack} upon {defence}: {attack_pps} packets/s, {good_lost} of {good_sent} good lost, p99 {p99} us"
    )
}

/// A defence with a client before and a backend behind it. Dropping it takes it down.
pub(super) struct Scene {
    daemon: Option<Daemon>,
    _nginx: Nginx,
    /// Where the attack leaves, and the other end.
    way: (Link, Link),
    _bare: Option<XdpLink>,
    net: TwoArmed,
}

impl Scene {
    fn new(defence: Defence, ringway: &Path) -> Result<Self> {
        Self::with(defence, ringway, "")
    }

    /// One whose shield is this, where it is not empty.
    pub(super) fn with(defence: Defence, ringway: &Path, shield: &str) -> Result<Self> {
        let net = two_armed(1, Families::V4)?;
        let nginx = Nginx::start(&net.backends[0].ns, &net.backends[0].sockets(TARGET.tcp), "b1")?;
        let mut scene = Self {
            daemon: None,
            _nginx: nginx,
            way: (net.client.eth0.clone(), net.outer.clone()),
            _bare: None,
            net,
        };
        match defence {
            Defence::None | Defence::Ringway => scene.start(ringway, defence, shield)?,
            Defence::BareDrop => {
                scene.start(ringway, defence, shield)?;
                scene.drop_elsewhere()?;
            }
            _ => scene.forward_by_kernel(defence)?,
        }
        Ok(scene)
    }

    fn start(&mut self, ringway: &Path, defence: Defence, shield: &str) -> Result<()> {
        let gateway = &self.net.gateway;
        let list = gateway.directory().join("attackers.txt");
        if defence == Defence::Ringway {
            let mut text = String::new();
            for address in Attack::SpoofedSources.addresses() {
                let _ = writeln!(text, "{address}");
            }
            fs::write(&list, text).map_err(|source| Error::Write { path: list.clone(), source })?;
        }
        let configuration = gateway.directory().join("ringway.toml");
        let text = match (defence, shield) {
            (Defence::Ringway, "") => {
                let limit = format!("shield = {{ packets = \"{WEB_LIMIT}\" }}\n");
                configuration_of(&self.net, &whole_shield(&list), &limit)
            }
            (_, shield) => configuration_of(&self.net, shield, ""),
        };
        fs::write(&configuration, text)
            .map_err(|source| Error::Write { path: configuration.clone(), source })?;
        self.daemon = Some(Daemon::start(ringway, gateway, &configuration)?);
        Ok(())
    }

    /// The attack goes to an interface of its own, where a program drops whatever comes.
    fn drop_elsewhere(&mut self) -> Result<()> {
        let net = &self.net;
        self.way = veth(
            &End::new(&net.client.ns, "attack"),
            &End::new(&net.gateway, "bare"),
            &VethOptions::default(),
        )?;
        let (mut storage, ifindex) = (Storage::uninit(), self.way.1.ifindex);
        let peers = Peers::load(&mut storage, &[])?;
        let bare = peers.bare();
        let attached = net.gateway.run(|| XdpLink::attach(bare, ifindex, XdpMode::Native))?;
        self._bare = Some(attached.map_err(|error| Error::Load(error.into()))?);
        Ok(())
    }

    /// The kernel's NAT, with a firewall in front.
    fn forward_by_kernel(&self, defence: Defence) -> Result<()> {
        let gateway = &self.net.gateway;
        gateway.ip(&format!("link set lo up\naddr add {}/32 dev lo\n", TARGET.address))?;
        gateway.sysctl("net.ipv4.ip_forward", "1")?;
        gateway.sysctl("net.ipv4.conf.all.send_redirects", "0")?;
        // The client's neighbour for the service is this machine.
        enable_napi(gateway, &self.net.outer.name)?;
        let Target { address, tcp, udp } = TARGET;
        let to = self.net.backends[0].v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
        let nat = format!(
            "table ip nat {{\n chain in {{ type nat hook prerouting priority dstnat;\n\
             ip daddr {address} tcp dport {tcp} dnat to {to};\n\
             ip daddr {address} udp dport {udp} dnat to {to}; }}\n\
             chain out {{ type nat hook postrouting priority srcnat; oifname \"eth1\" masquerade; }}\n}}\n"
        );
        let mut command = gateway.tool("nft").map_err(|e| Error::Unavailable(e.to_string()))?;
        command.args(["-f", "-"]);
        programs::feed(command, "nft", &nat)?;
        firewall::fill(defence, gateway, &self.net.outer.name, &firewall::of_attack())
    }

    /// Packets a second that came in: `rate` of them were to be sent until `over`.
    pub(super) fn flood(
        &self,
        attack: Attack,
        rate: Option<u64>,
        over: impl Fn(Duration) -> bool + Send,
    ) -> Result<f64> {
        let (by, to) = &self.way;
        flood::send(attack, &TARGET, (by, to), rate, over)
    }

    /// Packets a second, as many as there can be.
    fn unpaced(&self, attack: Attack) -> Result<f64> {
        self.flood(attack, None, |elapsed| elapsed >= UNPACED)
    }

    pub(super) fn node(&self) -> &str {
        self.net.gateway.name()
    }

    pub(super) fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    pub(super) fn take_down(&mut self) -> Result<()> {
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.detach())
    }
}

/// A list for attacks from many sources, a rule for amplification, a limit for what is left.
fn whole_shield(list: &Path) -> String {
    format!(
        "[shield]\nlist = [{{ name = \"attackers\", file = {list:?}, action = \"block\" }}]\n\
         rule = [{{ preset = \"dns-amplification\", action = \"drop\" }}]\n\
         [shield.mitigation]\npackets = \"{THRESHOLD}\"\nfor = \"1s\"\n\n"
    )
}

fn configuration_of(net: &TwoArmed, shield: &str, limit: &str) -> String {
    let directory = net.gateway.directory();
    let Target { address, tcp, udp } = TARGET;
    let backend = net.backends[0].v4.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let service = |name: &str, port: u16, more: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\naddress = \"{address}\"\nport = {port}\nforward = \"nat\"\n\
             announce = \"arp\"\n{more}check = {{ type = \"tcp\", port = {tcp} }}\n\
             backends = [{{ address = \"{backend}\" }}]\n\n"
        )
    };
    format!(
        "[node]\nname = \"{}\"\ninterfaces = [\"eth0\", \"eth1\"]\nstate = {:?}\n\n{shield}{}{}[api]\nsocket = {:?}\n",
        net.gateway.name(),
        directory.join("state"),
        service("web", tcp, limit),
        service("stream", udp, "protocol = \"udp\"\n"),
        directory.join("api.sock"),
    )
}
