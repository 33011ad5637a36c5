//! docs/two-nodes.md, with the configurations that stand there: what becomes of connections when a
//! gateway is lost.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Echo, Flows, Gateway, Lan, Line, binary, needs_root, tool, write_secret};
use ringway_testnet::{Child, Namespace, skip, tools, wait_for};

/// keepalived's start, and an advertisement that is missed three times.
const ELECTION: Duration = Duration::from_secs(45);
/// BIRD's or ExaBGP's start, a session that is tried again after some seconds, and its routes.
const CONVERGENCE: Duration = Duration::from_secs(40);

const GUIDE: &str = include_str!("../../../../docs/two-nodes.md");
/// The address that keepalived moves.
const MOVING: &str = "10.0.0.9";
const NAT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10)), 80);
const DSR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(203, 0, 113, 11)), 80);
const CONNECTIONS: usize = 60;

/// A block of the guide by its name: "```toml ringway.toml".
fn block(name: &str) -> Result<String> {
    let blocks = GUIDE.split("\n```").filter_map(|rest| rest.split_once('\n'));
    let found =
        blocks.filter(|(head, _)| head.split(' ').nth(1) == Some(name)).map(|(_, text)| text);
    let text = found.last().with_context(|| format!("no block {name} in the guide"))?;
    Ok(text.to_owned() + "\n")
}

pub(super) fn has(tool: &str, test: &str) -> bool {
    let found = tools::find(tool);
    if let Err(error) = &found {
        skip(test, error);
    }
    found.is_ok()
}

/// The guide's gateways and backends, serving.
struct Nodes {
    lan: Lan,
    gateways: Vec<Gateway>,
    _echo: Vec<Echo>,
}

impl Nodes {
    fn new(count: usize) -> Result<Nodes> {
        let lan = Lan::new(count, 2)?;
        let mut echo = Vec::new();
        for (n, backend) in lan.backends.iter().enumerate() {
            backend.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
            backend.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
            backend.ip(&format!("address add {}/32 dev lo\n", DSR.ip()))?;
            let own = SocketAddr::from(([10, 0, 0, 11 + n as u8], 80));
            for address in [own, DSR] {
                echo.push(Echo::start(backend, address, &format!("b{}", n + 1))?);
            }
        }
        let mut gateways = Vec::new();
        for namespace in &lan.gateways {
            gateways.push(Gateway::start(namespace, &configuration(namespace)?)?);
        }
        Ok(Nodes { lan, gateways, _echo: echo })
    }

    fn open(&self) -> Result<(Flows, Flows)> {
        let open = |target| Flows::open(&self.lan.client, target, CONNECTIONS);
        let (nat, dsr) = (open(NAT)?, open(DSR)?);
        nat.settle()?;
        dsr.settle()?;
        Ok((nat, dsr))
    }

    /// nat flows that began at this gateway.
    fn began_at(&self, n: usize) -> Result<u64> {
        let status = self.gateways[n].status()?;
        let backends = status["services"][0]["backends"].as_array().cloned().unwrap_or_default();
        Ok(backends.iter().filter_map(|backend| backend["flows"].as_u64()).sum())
    }

    /// Everything new is served.
    fn serves_anew(&self) -> Result<()> {
        self.serves(&[NAT, DSR])
    }

    fn serves(&self, targets: &[SocketAddr]) -> Result<()> {
        for target in targets.iter().copied() {
            for _ in 0..20 {
                let mut line = Line::open(&self.lan.client, target)
                    .with_context(|| format!("a new connection to {target}"))?;
                line.ask("new")?;
            }
        }
        Ok(())
    }
}

/// The guide's, with what must differ between namespaces of one machine.
fn configuration(namespace: &Namespace) -> Result<String> {
    let directory = namespace.directory();
    let own = format!("name = {:?}\nstate = {:?}\n", namespace.name(), directory.join("state"));
    let text = block("ringway.toml")?.replace("name = \"gw1\"\n", &own);
    let socket = directory.join("api.sock");
    Ok(format!("{text}\n[api]\nsocket = {socket:?}\n\n[nat]\nflows = 65536\n"))
}

/// A program of this name in a directory of its own; returns its path.
fn wrapper(namespace: &Namespace, name: &str, script: &str) -> Result<PathBuf> {
    let directory = namespace.directory().join("bin");
    fs::create_dir_all(&directory)?;
    let path = directory.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// `ringway` for this gateway: the guide's commands need no -c on a machine of their own. On a busy
/// one a daemon may miss the 60 ms that it has to answer; then it is asked again.
fn ringway_of(gateway: &Gateway, namespace: &Namespace) -> Result<PathBuf> {
    let (binary, file) = (binary()?, gateway.configuration());
    let script = format!(
        "for attempt in 1 2 3 4 5; do\n\
         said=$({binary:?} \"$@\" -c {file:?}); code=$?\n\
         case $said in *'no answer within'*) ;; *) break ;; esac\n\
         done\n\
         printf '%s\\n' \"$said\"; exit $code"
    );
    wrapper(namespace, "ringway", &script)
}

fn has_address(namespace: &Namespace, address: &str) -> Result<bool> {
    let shown = tool(namespace, "ip", &["-4", "address", "show", "dev", "eth0"])?.out;
    Ok(shown.contains(&format!(" {address}/")))
}

fn keepalived(nodes: &Nodes, n: usize, moving: &str) -> Result<Child> {
    let namespace = &nodes.lan.gateways[n];
    let ringway = ringway_of(&nodes.gateways[n], namespace)?;
    let text = block("keepalived.conf")?
        .replace(&format!("{MOVING}/24"), &format!("{moving}/24"))
        .replace("/usr/bin/ringway", &ringway.to_string_lossy())
        // A busy machine alone must not cause an election.
        .replace("timeout 1\n", "timeout 10\n")
        .replace("advert_int 0.5", "advert_int 2")
        .replace("priority 100", if n == 0 { "priority 100" } else { "priority 90" });
    let file = |name: &str| namespace.directory().join(name);
    fs::write(file("keepalived.conf"), text)?;
    let mut command = namespace.tool("keepalived")?;
    command.args(["--dont-fork", "--log-console", "--vrrp"]);
    command.arg("--use-file").arg(file("keepalived.conf"));
    command.arg("--pid").arg(file("keepalived.pid"));
    command.arg("--vrrp_pid").arg(file("vrrp.pid"));
    Ok(namespace.spawn(command)?)
}

fn wait_address(
    (namespace, address): (&Namespace, &str),
    what: &str,
    log: impl Fn() -> String,
) -> Result<()> {
    wait_for(what, ELECTION, || match has_address(namespace, address) {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}\n{}", log())),
    })?;
    Ok(())
}

#[test]
fn the_active_one_of_two_is_lost() -> Result<()> {
    needs_root!();
    if !has("keepalived", "two_nodes::the_active_one_of_two_is_lost") {
        return Ok(());
    }
    let mut nodes = Nodes::new(2)?;
    nodes.lan.router.ip(&format!("route add 203.0.113.0/24 via {MOVING}\n"))?;
    let mut first = keepalived(&nodes, 0, MOVING)?;
    wait_address(
        (&nodes.lan.gateways[0], MOVING),
        "the first gateway being the active one",
        || first.log(),
    )?;
    let second = keepalived(&nodes, 1, MOVING)?;
    let (nat, dsr) = nodes.open()?;
    ensure!(nat.broken().is_empty() && dsr.broken().is_empty(), "broken before anything happened");
    ensure!(nodes.began_at(0)? == CONNECTIONS as u64 && nodes.began_at(1)? == 0);

    // Power cut.
    nodes.lan.unplug("gw1")?;
    first.kill()?;
    nodes.gateways[0].kill()?;
    wait_address((&nodes.lan.gateways[1], MOVING), "the second taking over", || second.log())?;
    nat.settle()?;
    dsr.settle()?;

    let (nat_broken, dsr_broken) = (nat.broken(), dsr.broken());
    ensure!(dsr_broken.is_empty(), "dsr: {dsr_broken:?}");
    ensure!(nat_broken.len() == nat.count(), "nat: {} went on", nat.count() - nat_broken.len());
    let reset = |error: &&String| error.contains("reset");
    let resets = nat_broken.iter().filter(reset).count();
    ensure!(resets == nat_broken.len(), "told at once: {nat_broken:?}");
    nodes.serves_anew()
}

/// BIRD with a configuration of the guide's.
pub(super) fn bird(namespace: &Namespace, text: &str) -> Result<Child> {
    let file = |name: &str| namespace.directory().join(name);
    fs::write(file("bird.conf"), text)?;
    let mut command = namespace.tool("bird")?;
    command.arg("-f").arg("-c").arg(file("bird.conf")).arg("-s").arg(file("bird.ctl"));
    let child = namespace.spawn(command)?;
    let birdc = tools::find("birdc")?;
    let libraries = std::env::join_paths(&birdc.libraries)?;
    let (libraries, program) = (libraries.to_string_lossy(), birdc.path.display());
    let control = file("bird.ctl");
    wrapper(
        namespace,
        "birdc",
        &format!("LD_LIBRARY_PATH={libraries} exec {program} -s {control:?} \"$@\""),
    )?;
    Ok(child)
}

/// A loop of the guide's that announces, by its block's name. Returns its path.
fn announcer(gateway: &Gateway, namespace: &Namespace, name: &str) -> Result<PathBuf> {
    ringway_of(gateway, namespace)?;
    wrapper(namespace, name, block(name)?.trim_start_matches("#!/bin/sh\n"))
}

/// Lets a command find this gateway's `ringway`, and `birdc`, before all others.
fn with_wrappers(command: &mut Command, path: &Path) {
    let directory = path.parent().unwrap_or(Path::new("/")).display();
    let others = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{directory}:{others}"));
}

/// ExaBGP with the guide's configuration for this gateway.
fn exabgp(nodes: &Nodes, n: usize) -> Result<Child> {
    let namespace = &nodes.lan.gateways[n];
    let announce = announcer(&nodes.gateways[n], namespace, "exabgp-announce")?;
    let own = format!("10.0.0.{}", n + 1);
    let text = block("exabgp.conf")?
        .replace("router-id 10.0.0.1;", &format!("router-id {own};"))
        .replace("local-address 10.0.0.1;", &format!("local-address {own};"))
        .replace("/etc/exabgp/ringway", &announce.to_string_lossy());
    let file = namespace.directory().join("exabgp.conf");
    fs::write(&file, text)?;
    let mut command = namespace.tool("python3")?;
    command.args(["-m", "exabgp"]).arg(&file);
    command.env("PYTHONPATH", exabgp_modules());
    // It would drop to `nobody`, who may not ask a daemon of root's; and it needs no named pipes
    // for a console.
    command.env("exabgp_daemon_drop", "false").env("exabgp_api_cli", "false");
    with_wrappers(&mut command, &announce);
    Ok(namespace.spawn(command)?)
}

/// Where its package's modules are if it is unpacked, not installed.
pub(super) fn exabgp_modules() -> PathBuf {
    tools::peers().join("usr/lib/python3/dist-packages")
}

pub(super) fn has_exabgp(test: &str) -> bool {
    let has = exabgp_modules().join("exabgp").is_dir() || tools::find("exabgp").is_ok();
    if !has {
        skip(test, "no ExaBGP here: packaging/bootstrap --tests fetches it");
    }
    has
}

/// Waits until the router has these next hops.
fn wait_routes(nodes: &Nodes, wanted: &[usize]) -> Result<()> {
    let read = || -> Result<Vec<usize>> {
        let address = NAT.ip().to_string();
        let text = tool(&nodes.lan.router, "ip", &["route", "show", &address])?.out;
        let has =
            |n: &usize| text.split_whitespace().any(|word| word == format!("10.0.0.{}", n + 1));
        Ok((0..nodes.gateways.len()).filter(has).collect())
    };
    wait_for(format!("routes by {wanted:?}"), CONVERGENCE, || match read() {
        Ok(found) if found == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    Ok(())
}

/// The guide's two commands, on nodes whose secrets differ, and then are one.
#[test]
fn nodes_that_answer_syns_with_different_secrets_are_told() -> Result<()> {
    needs_root!();
    let lan = Lan::new(2, 1)?;
    let secret = |n: usize| lan.gateways[n].directory().join("secret");
    let write =
        |n: usize, digit: &str| -> Result<()> { write_secret(&secret(n), &digit.repeat(32)) };
    let mut gateways = Vec::new();
    for (n, namespace) in lan.gateways.iter().enumerate() {
        write(n, ["5", "6"][n])?;
        let shield = format!("\n[shield]\nsyn = {{ always = true, secret = {:?} }}\n", secret(n));
        let text =
            configuration(namespace)?.replace("name = \"web\"", "name = \"web\"\nsyn = \"proxy\"");
        let mut gateway = Gateway::launch(namespace, &(text + &shield))?;
        gateway.wait_serving()?;
        gateways.push(gateway);
    }
    let file = lan.gateways[0].directory().join("other.json");
    let other = file.to_string_lossy();
    let check = || gateways[0].ringway(&["check", "--other-node", &other]);
    let save = |n: usize| -> Result<()> {
        let said = gateways[n].ringway(&["shield", "status", "-o", "json"])?;
        ensure!(said.code == 0, "{said:?}");
        Ok(fs::write(&file, said.out)?)
    };
    save(1)?;
    check()?.says(3, &["the secrets differ"])?;
    write(1, "5")?;
    ensure!(gateways[1].ringway(&["reload"])?.code == 0, "{}", gateways[1].log());
    save(1)?;
    check()?.says(0, &["both have the secret"])?;
    save(0)?;
    check()?.complains(2, &["it is of this node"])?;
    Ok(())
}

/// What `ringway status --ready` says, and how long flows stay, shorter tests know.
mod long {
    use super::*;

    /// The gateway's address, and the service's own, to clients on the gateways' link.
    #[test]
    fn a_gateway_that_is_not_ready_gives_the_address_up() -> Result<()> {
        needs_root!();
        if !has("keepalived", "two_nodes::long::a_gateway_that_is_not_ready_gives_the_address_up") {
            return Ok(());
        }
        let own = NAT.ip().to_string();
        for (moving, route, serves) in [
            (MOVING, format!("203.0.113.0/24 via {MOVING}"), &[NAT, DSR][..]),
            (&own, "203.0.113.10/32 dev eth0".to_owned(), &[NAT]),
        ] {
            let mut nodes = Nodes::new(2)?;
            nodes.lan.router.ip(&format!("route add {route}\n"))?;
            let first = keepalived(&nodes, 0, moving)?;
            wait_address((&nodes.lan.gateways[0], moving), "the first one", || first.log())?;
            nodes.serves(serves)?;
            let second = keepalived(&nodes, 1, moving)?;
            // The daemon alone; its programs go on.
            nodes.gateways[0].kill()?;
            wait_address((&nodes.lan.gateways[1], moving), "the second one", || second.log())?;
            wait_for("the first one giving it up", ELECTION, || {
                match has_address(&nodes.lan.gateways[0], moving) {
                    Ok(false) => Ok(()),
                    other => Err(format!("{other:?}\n{}", first.log())),
                }
            })?;
            nodes.serves(serves)?;
        }
        Ok(())
    }

    #[test]
    fn one_of_three_is_withdrawn() -> Result<()> {
        needs_root!();
        if !has("bird", "two_nodes::long::one_of_three_is_withdrawn") {
            return Ok(());
        }
        let mut nodes = Nodes::new(3)?;
        let router = &nodes.lan.router;
        router.sysctl("net/ipv4/fib_multipath_hash_policy", "1")?;
        let mut children = vec![bird(router, &block("router.conf")?)?];
        for (n, namespace) in nodes.lan.gateways.iter().enumerate() {
            let own = format!("10.0.0.{}", n + 1);
            let text = block("bird.conf")?
                .replace("router id 10.0.0.1;", &format!("router id {own};"))
                .replace("local 10.0.0.1 as", &format!("local {own} as"));
            children.push(bird(namespace, &text)?);
            let announce = announcer(&nodes.gateways[n], namespace, "announce")?;
            let mut command = namespace.command(&announce);
            with_wrappers(&mut command, &announce);
            children.push(namespace.spawn(command)?);
        }
        wait_routes(&nodes, &[0, 1, 2])?;
        let (nat, dsr) = nodes.open()?;
        let began: Vec<u64> = (0..3).map(|n| nodes.began_at(n)).collect::<Result<_>>()?;
        ensure!(
            began.iter().sum::<u64>() == CONNECTIONS as u64 && began.iter().all(|n| *n > 0),
            "{began:?}"
        );

        // The daemon of the middle one; its programs would go on, but nobody checks its backends.
        nodes.gateways[1].kill()?;
        wait_routes(&nodes, &[0, 2])?;
        nat.settle()?;
        dsr.settle()?;

        let (nat_broken, dsr_broken) = (nat.broken(), dsr.broken());
        ensure!(dsr_broken.is_empty(), "dsr: {dsr_broken:?}");
        ensure!(nat_broken.len() as u64 == began[1], "nat: {nat_broken:?}");
        nodes.serves_anew()
    }

    #[test]
    fn exabgp_announces_and_withdraws() -> Result<()> {
        const TEST: &str = "two_nodes::long::exabgp_announces_and_withdraws";
        needs_root!();
        if !has("bird", TEST) || !has_exabgp(TEST) {
            return Ok(());
        }
        let mut nodes = Nodes::new(2)?;
        nodes.lan.router.sysctl("net/ipv4/fib_multipath_hash_policy", "1")?;
        let _router = bird(&nodes.lan.router, &block("router.conf")?)?;
        let speakers = [exabgp(&nodes, 0)?, exabgp(&nodes, 1)?];
        let logs = || speakers.each_ref().map(Child::log).join("\n");
        wait_routes(&nodes, &[0, 1]).with_context(logs)?;
        let (_, dsr) = nodes.open()?;

        nodes.gateways[1].kill()?;
        wait_routes(&nodes, &[0]).with_context(logs)?;
        dsr.settle()?;
        let broken = dsr.broken();
        ensure!(broken.is_empty(), "dsr: {broken:?}");
        nodes.serves_anew()?;

        nodes.gateways[1].start_again()?;
        wait_routes(&nodes, &[0, 1]).with_context(logs)
    }
}
