//! The shield before real services: what it drops, what it lets pass, and what goes on meanwhile.

mod limits;
mod lists;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Echo, Gateway, KernelObjects, Line, Load, Numbered, SERVICE_V4, SERVICE_V6, SOON, Site,
    Transfer, WEB, binary, get, needs_root, not_tested, previous,
};
use ringway_testnet::{wait_for, wait_until};
use serde_json::Value;

use super::capture;

const CHECK: &str = "check = { type = \"tcp\", port = 80, interval = \"200ms\", fall = 5 }\n";
const REASONS: [&str; 6] =
    ["blocked", "rule", "rule-limit", "service-limit", "new-flow-limit", "source-limit"];
const STREAM: SocketAddr = SocketAddr::new(SERVICE_V4, 5000);

/// A site whose client has more addresses: 10.1.0.2 to 10.1.0.4, fd01::2 to fd01::4.
struct World {
    gateway: Gateway,
    site: Site,
    _echo: Vec<Echo>,
    /// The configuration without `[shield]`.
    plain: String,
}

impl World {
    /// The program under test, and this `[shield]`.
    fn new(shield: &str) -> Result<World> {
        World::of(binary()?, shield)
    }

    fn of(version: PathBuf, shield: &str) -> Result<World> {
        let site = Site::new(1)?;
        let more = ["10.1.0.3/24", "10.1.0.4/24", "fd01::3/64 nodad", "fd01::4/64 nodad"];
        let lines: String =
            more.iter().map(|address| format!("addr add {address} dev eth0\n")).collect();
        site.client().ip(&lines)?;
        let echoes = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 7));
        let mut services = site.service("web", WEB, CHECK);
        let udp = format!("protocol = \"udp\"\n{CHECK}");
        services += &site.service("echo", echoes[0], &udp);
        services += &site.service("echo6", echoes[1], &udp);
        let both = format!("protocol = [\"tcp\", \"udp\"]\n{CHECK}");
        services += &site.service("steady", STREAM, &both);
        let mut echo = site.echo(SERVICE_V4, 7)?;
        echo.extend(site.echo(SERVICE_V6, 7)?);
        let plain = site.configuration(&services);
        let text = plain.clone() + shield;
        let mut gateway = Gateway::launch_binary(version, &site.net.gateway, &text, |_| ())?;
        gateway.wait_healthy()?;
        Ok(World { gateway, site, _echo: echo, plain })
    }

    /// Puts another `[shield]` in force.
    fn reload(&self, shield: &str) -> Result<()> {
        self.gateway.rewrite(&format!("{}{shield}", self.plain))?;
        self.gateway.ringway(&["reload"])?.done().map(drop)
    }

    fn restart(&mut self) -> Result<()> {
        self.gateway.start_healthy()
    }

    /// A datagram from this address to the echo service is on its way.
    fn asks(&self, from: SocketAddr) -> Result<UdpSocket> {
        let service = if from.is_ipv4() { SERVICE_V4 } else { SERVICE_V6 };
        // A process that just begins may still hold the last one of this port.
        let bind = || self.site.client().run(|| UdpSocket::bind(from)).map_err(io::Error::other)?;
        let socket = wait_for(format!("a socket of {from}"), SOON, bind)?;
        socket.connect(SocketAddr::new(service, 7))?;
        // Between two looks at what was dropped.
        socket.set_read_timeout(Some(Duration::from_millis(10)))?;
        socket.send(b"?")?;
        Ok(socket)
    }

    /// A datagram from each address is "answered", or dropped for this reason.
    fn is(&self, what: &str, fates: &[(&str, &str)]) -> Result<()> {
        let before = dropped(&self.gateway)?;
        let asked = fates.iter().map(|(from, _)| self.asks(endpoint(from)?));
        let sockets = asked.collect::<Result<Vec<_>>>()?;
        let mut answered = vec![false; fates.len()];
        let reasons = wait_for(format!("{what}: answers and drops"), SOON, || {
            for (socket, answered) in sockets.iter().zip(&mut answered) {
                *answered = *answered || socket.recv(&mut [0; 64]).is_ok();
            }
            let more = dropped_since(&self.gateway, &before).map_err(|e| format!("{e:#}"))?;
            let answers = answered.iter().filter(|answered| **answered).count();
            let ends = answers as u64 + more.values().sum::<u64>();
            if ends >= fates.len() as u64 {
                Ok(more)
            } else {
                Err(format!("{answered:?} {more:?}"))
            }
        })?;
        for ((from, expected), answered) in fates.iter().zip(answered) {
            let alike = fates.iter().filter(|(_, fate)| fate == expected).count() as u64;
            let fits = match *expected {
                "answered" => answered,
                reason => !answered && reasons[reason] == alike,
            };
            ensure!(fits, "{what}: {from} is not {expected}, answered {answered}: {reasons:?}");
        }
        Ok(())
    }

    /// It is so soon.
    fn becomes(&self, what: &str, fates: &[(&str, &str)]) -> Result<()> {
        let look = || self.is(what, fates).map_err(|error| format!("{error:#}"));
        wait_for(what, SOON, look).with_context(|| self.gateway.log())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.site.net.gateway.directory().join(name)
    }

    fn numbered(&self) -> Result<Numbered> {
        let backend = self.site.backends(SERVICE_V4, 5000)[0];
        Numbered::start(self.site.client(), STREAM, (&self.site.net.backends[0].ns, backend))
    }

    fn transfer(&self) -> Result<Transfer> {
        let backend = self.site.backends(SERVICE_V4, 5000)[0];
        Transfer::start(self.site.client(), STREAM, (&self.site.net.backends[0].ns, backend))
    }

    /// Whether a request of curl's from this address is answered. If not, it waits for a second: a
    /// SYN that is dropped is sent again after that.
    fn curl(&self, from: &str, target: SocketAddr, answered: bool) -> Result<bool> {
        let mut curl = self.site.client().command("curl");
        let within = if answered { "30" } else { "1" };
        curl.args(["-s", "-o", "/dev/null", "--interface", from, "--max-time", within]);
        let code = curl.arg(format!("http://{target}/")).output()?.status.code();
        Ok(code == Some(if answered { 0 } else { 28 }))
    }
}

/// With a port, or of any.
fn endpoint(from: &str) -> Result<SocketAddr> {
    let address = from.parse::<IpAddr>().map(|address| SocketAddr::new(address, 0));
    Ok(address.or_else(|_| from.parse())?)
}

/// Packets that the shield has dropped, by reason.
fn dropped(gateway: &Gateway) -> Result<BTreeMap<String, u64>> {
    let status = gateway.status()?;
    let counters = status["counters"].as_array().context("no counters")?;
    let one = |reason: &str| {
        let own = counters.iter().filter(|counter| counter["reason"] == reason);
        let packets = own.filter_map(|counter| counter["packets"].as_u64()).sum();
        (reason.to_owned(), packets)
    };
    Ok(REASONS.into_iter().map(one).collect())
}

/// How many more they are than `before`.
fn dropped_since(
    gateway: &Gateway,
    before: &BTreeMap<String, u64>,
) -> Result<BTreeMap<String, u64>> {
    let mut more = dropped(gateway)?;
    more.iter_mut().for_each(|(reason, packets)| *packets -= before[reason]);
    Ok(more)
}

fn shield(gateway: &Gateway) -> Result<Value> {
    gateway.document(&["shield", "status"])
}

/// Packets of the element of this name.
fn packets(status: &Value, kind: &str, name: &str) -> Result<u64> {
    let all = status[kind].as_array().context("no such elements")?;
    let one = all.iter().find(|one| one["name"] == name).context("no such name")?;
    one["packets"].as_u64().context("no packets")
}

fn tells(status: &Value, kind: &str, words: &[&str]) -> bool {
    let both = [&status["problems"], &status["findings"]];
    let mut all = both.into_iter().filter_map(Value::as_array).flatten();
    all.any(|one| one["kind"] == kind && words.iter().all(|w| one.to_string().contains(w)))
}

#[test]
fn what_is_typed_meets_packets_for_its_time() -> Result<()> {
    needs_root!();
    let mut world = World::new("[shield]\n")?;
    let run = |world: &World, words: &str| -> Result<()> {
        world.gateway.ringway(&words.split(' ').collect::<Vec<_>>())?.done().map(drop)
    };
    run(&world, "block 10.1.0.0/29 --reason scans")?;
    run(&world, "allow 10.1.0.2")?;
    run(&world, "block fd01::3")?;
    let typed = [
        ("10.1.0.2", "answered"),
        ("10.1.0.3", "blocked"),
        ("fd01::3", "blocked"),
        ("fd01::2", "answered"),
    ];
    world.is("typed", &typed)?;
    let status = shield(&world.gateway)?;
    for of in ["blocked", "allowed"] {
        ensure!(status[of]["packets"].as_u64() > Some(0), "{of} packets are not counted: {status}");
    }
    for word in ["off", "observe"] {
        run(&world, &format!("shield {word} --for 15m"))?;
        world.is(word, &[("10.1.0.3", "answered")])?;
    }
    let status = shield(&world.gateway)?;
    ensure!(status["observed"]["blocked"] == 1, "{status}");
    run(&world, "shield enforce")?;
    world.is("enforced", &typed)?;
    run(&world, "shield off --for 2s")?;
    world.becomes("its time is over", &typed)?;
    run(&world, "block 10.1.0.4 --for 1h")?;
    run(&world, "unblock 10.1.0.0/29")?;
    run(&world, "block 10.1.0.3 --for 2s")?;
    world.becomes("its time is over", &[("10.1.0.3", "answered"), ("10.1.0.4", "blocked")])?;
    // Nobody has to end it.
    run(&world, "block 10.1.0.3 --for 2s")?;
    world.gateway.kill()?;
    let lasts = [("10.1.0.4", "blocked"), ("fd01::3", "blocked"), ("10.1.0.2", "answered")];
    world.is("killed", &lasts)?;
    world.becomes("nobody ends it", &[("10.1.0.3", "answered")])?;
    world.restart()?;
    world.is("after kill -9", &lasts)?;
    world.gateway.terminate()?;
    world.restart()?;
    world.is("started again", &lasts)?;
    world.reload("")?;
    world.is("without [shield]", &[("10.1.0.4", "answered"), ("fd01::3", "answered")])?;
    world.reload("[shield]\n")?;
    world.becomes("with it again", &lasts)
}

const RULES: &str = "[shield]\nrule = [\n\
    { match = \"udp\", action = \"count\", name = \"all\" },\n\
    { match = \"udp src port 4001\", action = \"pass\" },\n\
    { match = \"udp src portrange 4001-4002\", action = \"drop\", name = \"two\" },\n\
    { match = \"udp src port 4003\", action = \"limit\", rate = \"1pps\", burst = 3, name = \"few\" },\n\
    { match = \"ip6 and udp src port 4004\", action = \"drop\" },\n\
    { match = \"tcp and src host 10.1.0.4\", action = \"drop\" },\n]\n";

#[test]
fn the_first_rule_that_matches_decides() -> Result<()> {
    needs_root!();
    let world = World::new(RULES)?;
    let first = [
        ("10.1.0.2:4000", "answered"),
        ("10.1.0.2:4001", "answered"),
        ("10.1.0.2:4002", "rule"),
        ("10.1.0.2:4004", "answered"),
        ("[fd01::2]:4004", "rule"),
    ];
    world.is("rules", &first)?;
    let counted = shield(&world.gateway)?;
    ensure!(packets(&counted, "rules", "all")? == 5, "{counted}");
    ensure!(packets(&counted, "rules", "two")? == 1, "{counted}");
    ensure!(world.curl("10.1.0.2", WEB, true)? && world.curl("10.1.0.4", WEB, false)?, "curl");
    // Some of many, not all: how many exactly, the packet path's own tests know.
    let socket = world.site.client().run(|| UdpSocket::bind("10.1.0.2:4003"))??;
    for _ in 0..100 {
        socket.send_to(b"?", ECHO)?;
    }
    let limited = || capture::counted(&world.gateway, &["rule-limit"]).unwrap_or_default();
    wait_until("those over the limit", SOON, || {
        shield(&world.gateway).is_ok_and(|it| packets(&it, "rules", "few").is_ok_and(|n| n == 100))
    })?;
    ensure!((1..=97).contains(&limited()), "{} of 100 over the limit", limited());

    // Others come into force while packets flow.
    let (numbered, transfer) = (world.numbered()?, world.transfer()?);
    let other = RULES.replace("4001-4002", "4005-4006");
    for turn in 0..10 {
        let (now, dropped, passed) = match turn % 2 {
            0 => (&*other, "10.1.0.2:4005", "10.1.0.2:4002"),
            _ => (RULES, "10.1.0.2:4002", "10.1.0.2:4005"),
        };
        world.reload(now)?;
        world.is("swapped", &[(dropped, "rule"), (passed, "answered")])?;
    }
    let mistake = RULES.replace("src port 4003", "src prot 4003");
    world.gateway.rewrite(&format!("{}{mistake}", world.plain))?;
    let before = world.plain.lines().count();
    let place = format!("ringway.toml:{}:", before + 6);
    world.gateway.ringway(&["reload"])?.complains(2, &[&place, "src prot 4003", "^"])?;
    world.is("refused", &first)?;
    world.gateway.wait_status("only a finding", |status| {
        status["healthy"] == true && status["findings"].to_string().contains("was refused at")
    })?;
    ensure!(numbered.finish()? > 500 && transfer.finish()? > 1 << 20, "too little traffic");
    // What is counted under a name is counted on.
    let counted = shield(&world.gateway)?;
    ensure!(packets(&counted, "rules", "few")? == 100, "{counted}");
    ensure!(packets(&counted, "rules", "two")? == 12, "{counted}");
    Ok(())
}

/// Its records of what the shield has dropped: the sources.
fn blocked_sources(log: &str) -> Vec<String> {
    let records = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let blocked = records.filter(|record| record["reason"] == "blocked");
    let words = |record: Value| record["before"]["packet"].as_str().unwrap_or_default().to_owned();
    blocked.map(words).collect()
}

#[test]
fn captures_see_what_is_dropped_over_reloads() -> Result<()> {
    needs_root!();
    let world = World::new("[shield]\n")?;
    let file = world.file("drop");
    let list =
        format!("[shield]\nlist = [{{ name = \"d\", file = {file:?}, action = \"block\" }}]\n");
    fs::write(&file, "10.1.0.3\n")?;
    world.reload(&list)?;
    let ns = &world.site.net.gateway;
    let running = capture::begin(ns, &["-o", "json", "-i", "eth0", "udp port 7"])?;
    world.is("captured", &[("10.1.0.3", "blocked"), ("10.1.0.4", "answered")])?;
    fs::write(&file, "10.1.0.4\n")?;
    world.reload(&list)?;
    world.is("reloaded", &[("10.1.0.4", "blocked"), ("10.1.0.3", "answered")])?;
    let rule = "rule = [{ match = \"udp src port 4002\", action = \"drop\" }]\n";
    world.reload(&format!("{list}{rule}"))?;
    world.is("a rule", &[("10.1.0.4", "blocked"), ("10.1.0.2:4002", "rule")])?;
    fs::write(&file, "10.1.0.3\n")?;
    let back = [("10.1.0.3", "blocked"), ("10.1.0.4", "answered"), ("10.1.0.2:4002", "rule")];
    world.becomes("the file", &back)?;
    let (code, log) = capture::end(running)?;
    world.is("not captured", &back)?;
    let [captured, lost, matched] = capture::totals(&log)?;
    ensure!(code == 0 && lost == 0 && captured == matched, "{log}");
    let sources = blocked_sources(&log);
    let from = |source: &str| sources.iter().filter(|words| words.contains(source)).count();
    ensure!(from("10.1.0.3:") >= 2 && from("10.1.0.4:") >= 2, "{log}");
    ensure!(log.contains("\"rule\""), "{log}");
    Ok(())
}

#[test]
fn a_blocked_source_keeps_its_connection_to_the_host() -> Result<()> {
    needs_root!();
    let world = World::new("[shield]\nprotect = \"host\"\n")?;
    let (client, host) = (world.site.client(), &world.site.net.gateway);
    let own = ["10.1.0.1:22", "[fd01::1]:22"].map(|own| own.parse::<SocketAddr>());
    for own in own {
        let own = own?;
        let _ssh = Echo::start(host, own, "ssh")?;
        let mut line = Line::open(client, own)?;
        line.ask("before")?;
        let source = line.local()?.ip().to_string();
        world.gateway.ringway(&["block", &source])?.done()?;
        line.ask("blocked")?;
        // Who has no neighbour asks for one, and is told. One after the other: who asks tells, too.
        for (asks, namespace) in [("the host", host), ("the client", client)] {
            namespace.ip("neigh flush dev eth0\n")?;
            line.ask("still there?").with_context(|| format!("{own}: {asks} asks"))?;
        }
        let before = dropped(&world.gateway)?["blocked"];
        ensure!(world.curl(&source, own, false)?, "{own}: a new connection from {source}");
        ensure!(dropped(&world.gateway)?["blocked"] > before, "{own}: not by the shield");
        line.ask("at the end")?;
    }
    Ok(())
}

#[test]
fn detach_leaves_nothing_of_the_shield() -> Result<()> {
    needs_root!();
    let mut world = World::new(RULES)?;
    let file = world.file("drop");
    fs::write(&file, "10.1.0.3\nfd01::3\n")?;
    let plain = KernelObjects::of(&world.gateway)?;
    let list = format!("list = [{{ name = \"d\", file = {file:?}, action = \"block\" }}]\n");
    world.reload(&format!("{RULES}{list}"))?;
    let capture = capture::begin(&world.site.net.gateway, &["-w", "/dev/null"])?;
    world.is("in force", &[("10.1.0.3", "blocked"), ("10.1.0.2:4002", "rule")])?;
    let all = KernelObjects::of(&world.gateway)?;
    ensure!(all.programs.len() > plain.programs.len() && all.links == plain.links, "{all:?}");
    // The generation before is gone.
    let before = KernelObjects { programs: &plain.programs - &all.programs, ..Default::default() };
    ensure!(!before.programs.is_empty(), "no program was replaced");
    let gone = || before.left() == KernelObjects::default();
    wait_until("the end of the former generation", SOON, gone)?;

    world.gateway.terminate()?;
    ensure!(all.left() == all, "something went with the daemon: {:?}", all.left());
    let detached = world.gateway.ringway(&["detach", "--verify"])?;
    ensure!(detached.code == 0 && detached.out.contains("verified"), "{detached:?}");
    ensure!(capture::ended(capture)?.1.contains("was detached"), "the capture");
    let nothing = || match all.left() {
        left if left == KernelObjects::default() => Ok(()),
        left => Err(format!("{left:?}")),
    };
    Ok(wait_for("nothing left", SOON, nothing)?)
}

const BY_THE_SHIELD: &str = "by the shield";

/// The release before knows nothing of it; whatever is loaded goes on.
#[test]
fn the_release_before_the_shield_and_back() -> Result<()> {
    needs_root!();
    let Some(old) = previous()? else {
        not_tested("upgrade to the shield: there is no release yet");
        return Ok(());
    };
    let new = binary()?;
    let mut world = World::of(old.clone(), "")?;
    let (numbered, transfer) = (world.numbered()?, world.transfer()?);
    let load = Load::start(world.site.client(), &format!("http://{WEB}/"), 2, 60)?;
    // What the shield drops has no names there: it is among what is aborted.
    let counted = |gateway: &Gateway| -> Result<BTreeMap<String, u64>> {
        let status = gateway.status()?;
        let mut counts = BTreeMap::new();
        for counter in status["counters"].as_array().context("no counters")? {
            let own = REASONS.iter().any(|reason| counter["reason"] == *reason);
            let name = match own || counter["verdict"] == "aborted" {
                true => BY_THE_SHIELD.to_owned(),
                false => format!("{} {}", counter["interface"], counter["reason"]),
            };
            *counts.entry(name).or_default() += counter["packets"].as_u64().unwrap_or_default();
        }
        Ok(counts)
    };
    let only_grow = |gateway: &Gateway, before: &BTreeMap<String, u64>| -> Result<()> {
        let after = counted(gateway)?;
        for (name, packets) in before {
            ensure!(after.get(name) >= Some(packets), "{name}: {packets}, then {after:?}");
        }
        // A packet on its way is in one of the sums.
        gateway.wait_status("a ledger that balances", |status| {
            status["ledger"]["difference_packets"] == 0
        })?;
        Ok(())
    };
    let change_to = |world: &mut World, version: &PathBuf, shield: &str| -> Result<()> {
        let before = counted(&world.gateway)?;
        world.gateway.rewrite(&format!("{}{shield}", world.plain))?;
        world.gateway.terminate()?;
        world.gateway.change_binary(version);
        world.restart()?;
        let log = world.gateway.log();
        ensure!(log.contains("took over the running packet path"), "{log}");
        only_grow(&world.gateway, &before)
    };
    wait_until("traffic", SOON, || {
        capture::counted(&world.gateway, &capture::NAT).is_ok_and(|packets| packets > 1000)
    })?;

    let file = world.file("drop");
    fs::write(&file, "10.1.0.3\n")?;
    let list = format!("list = [{{ name = \"d\", file = {file:?}, action = \"block\" }}]\n");
    let shield = format!("{RULES}{list}");
    change_to(&mut world, &new, &shield)?;
    world.gateway.ringway(&["block", "10.1.0.4"])?.done()?;
    let shielded = [("10.1.0.3", "blocked"), ("10.1.0.4", "blocked"), ("10.1.0.2:4002", "rule")];
    world.is("shielded", &shielded)?;
    get(world.site.client(), WEB)?;
    change_to(&mut world, &old, "")?;
    get(world.site.client(), WEB)?;
    // It leaves in force what it knows nothing of, and can neither change nor name.
    let refused = |world: &World| -> Result<u64> {
        Ok(counted(&world.gateway)?.get(BY_THE_SHIELD).copied().unwrap_or_default())
    };
    let before = refused(&world)?;
    let socket = world.site.client().run(|| UdpSocket::bind("10.1.0.3:0"))??;
    socket.send_to(b"?", ECHO)?;
    wait_until("its drop", SOON, || refused(&world).is_ok_and(|packets| packets > before))?;
    change_to(&mut world, &new, &shield)?;
    world.is("shielded again", &shielded)?;
    change_to(&mut world, &old, "")?;
    get(world.site.client(), WEB)?;
    ensure!(numbered.finish()? > 500 && transfer.finish()? > 1 << 20, "too little traffic");
    let outcome = load.stop()?;
    ensure!(outcome.errors == 0 && outcome.requests > 1000, "{outcome:?}");
    let all = KernelObjects::of(&world.gateway)?;
    world.gateway.terminate()?;
    let detached = world.gateway.ringway(&["detach", "--verify"])?;
    ensure!(detached.code == 0 && !world.gateway.pins().exists(), "{detached:?}");
    let nothing = || match all.left() {
        left if left == KernelObjects::default() => Ok(()),
        left => Err(format!("{left:?}")),
    };
    Ok(wait_for("nothing left", SOON, nothing)?)
}
