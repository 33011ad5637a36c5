//! Automatic mitigation: an attack arms its service, the program hears of it, and a router drops
//! what ExaBGP announces.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{
    ECHO, Gateway, SERVICE_V4, SOON, STARTED, Site, needs_root, packets, udp_to,
};
use ringway_testnet::{Child, Namespace, Signal, wait_for, wait_until};
use serde_json::{Value, json};

use super::privileges::{ID, Machine};
use super::two_nodes::{bird, exabgp_modules, has, has_exabgp};

const GUIDE: &str = include_str!("../../../../docs/flowspec.md");
/// ExaBGP's start, a session that is tried again after some seconds, and its routes.
const CONVERGENCE: Duration = Duration::from_secs(40);
/// No flood of a test lasts longer.
const LONGEST: Duration = Duration::from_secs(300);

/// Datagrams from the client to the service, 10 000 a second where the machine is fast enough. Nobody
/// answers, so limits hold for their flow.
struct Flood {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(client: &Namespace) -> Result<Flood> {
        let socket = udp_to(client, ECHO)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, end) = (stop.clone(), Instant::now() + LONGEST);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) && Instant::now() < end {
                // The answers of a port that nobody has are errors of the next.
                (0..50).for_each(|_| _ = socket.send(b"flood"));
                sleep(Duration::from_millis(5));
            }
        });
        Ok(Flood { stop, thread: Some(thread) })
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn attack(gateway: &Gateway) -> Result<Option<Value>> {
    let status = gateway.document(&["shield", "status"])?;
    let all = status["mitigation"].as_array().context("no mitigation")?;
    Ok(all.iter().find(|it| !it["attack"].is_null()).map(|it| it["attack"].clone()))
}

fn over_limit(gateway: &Gateway) -> Result<u64> {
    Ok(packets(&gateway.status()?, "source-limit"))
}

fn wait_attack(gateway: &Gateway, what: &str, wanted: bool) -> Result<Option<Value>> {
    let look = || match attack(gateway) {
        Ok(found) if found.is_some() == wanted => Ok(found),
        other => Err(format!("{other:?}")),
    };
    wait_for(what, SOON, look).with_context(|| gateway.log())
}

#[test]
fn an_attack_arms_its_service_for_its_time() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let mitigation = |mode: &str| {
        format!(
            "[shield]\nmode = {mode:?}\n[shield.mitigation]\npackets = \"500pps\"\nfor = \"10s\"\n\
             limits = {{ source = \"100pps\" }}\n"
        )
    };
    let services = site.service("echo", ECHO, "protocol = \"udp\"");
    let plain = site.configuration(&services);
    let mut gateway = Gateway::start(&site.net.gateway, &(plain.clone() + &mitigation("enforce")))?;
    ensure!(attack(&gateway)?.is_none() && over_limit(&gateway)? == 0, "at peace");

    let flood = Flood::start(site.client())?;
    let found = wait_attack(&gateway, "an attack", true)?.context("one")?;
    ensure!(found["service"] == "echo" && found["measure"] == "packets", "{found}");
    // Unknown at most, but not none, though the daemon notes its counters every two seconds.
    let arrives = &gateway.document(&["shield", "status"])?["limits"][0];
    ensure!(arrives["arrived_packets_per_second"] != 0.0, "{arrives}");
    let drops = || over_limit(&gateway).is_ok_and(|packets| packets > 100);
    wait_until("its limit", SOON, drops)?;
    let finding = |status: &Value| status["findings"].to_string().contains("is attacked since");
    let status = gateway.wait_status("a finding", finding)?;
    ensure!(status["healthy"] == true, "{}", status["problems"]);
    let names = |status: &Value| status["findings"].to_string().contains("names 1 heavy source");
    gateway.wait_status("its source", names)?;
    let client = site.net.client.v4.context("IPv4")?;
    let packet = format!("udp {client}:9 > {ECHO}");
    let told = |arguments: &[&str], words: &str| {
        wait_for(words, SOON, || {
            let ran = gateway.ringway(arguments).and_then(|ran| ran.says(0, &[words]));
            ran.map_err(|error| error.to_string())
        })
    };
    told(&["shield", "status"], "source  100pps    mitigation until ")?;
    let over = "source-limit: over source 100pps of mitigation until ";
    told(&["explain", "-i", "eth0", &packet], over)?;
    told(&["top", "--once", "--view", "shield"], "attacked: source ")?;

    // A reload keeps it, off ends it, and observe drops nothing.
    gateway.ringway(&["reload"])?.done()?;
    ensure!(attack(&gateway)?.is_some_and(|it| it["since"] == found["since"]), "reloaded");
    gateway.ringway(&["shield", "off", "--for", "15m"])?.done()?;
    wait_attack(&gateway, "off", false)?;
    gateway.ringway(&["shield", "enforce"])?.done()?;
    gateway.reload(&(plain + &mitigation("observe")))?;
    // It has the mode of the sample before the reload until the next.
    let observed = || match attack(&gateway) {
        Ok(Some(found)) if found["mode"] == "observe" => Ok(()),
        other => Err(format!("{other:?}")),
    };
    wait_for("observed", SOON, observed).with_context(|| gateway.log())?;
    let before = over_limit(&gateway)?;
    let counts = || {
        let status = gateway.document(&["shield", "status"]).map_err(|e| format!("{e:#}"))?;
        let packets = status["observed"]["source-limit"].as_u64();
        if packets > Some(100) { Ok(()) } else { Err(status.to_string()) }
    };
    wait_for("counted", SOON, counts)?;
    ensure!(over_limit(&gateway)? == before, "dropped");

    // The packet path has it while no daemon runs, and the next one goes on.
    gateway.kill()?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    wait_attack(&gateway, "after kill -9", true)?;
    drop(flood);
    let ended = |status: &Value| {
        let findings = status["findings"].to_string();
        ["was attacked from", ": now 0 packets a second; ", "if nothing more comes"]
            .iter()
            .all(|words| findings.contains(words))
    };
    gateway.wait_status("nothing more comes", ended)?;
    wait_attack(&gateway, "its time is over", false)?;
    wait_until("a line", SOON, || gateway.log().contains("over: service echo (udp"))?;
    Ok(())
}

/// A machine whose daemon watches an echo service.
struct Watched {
    site: Site,
    machine: Machine,
    file: PathBuf,
}

impl Watched {
    fn new(run: &str) -> Result<Watched> {
        let site = Site::new(1)?;
        let machine = Machine::new(&site.net.gateway)?;
        let program = machine.directory.join("announce");
        let text = site.configuration(&site.service("echo", ECHO, "protocol = \"udp\""));
        let shield = format!(
            "[shield.mitigation]\npackets = \"500pps\"\nfor = \"4s\"\nlimits = {{ source = \"100pps\" }}\n\
             run = [{program:?}, \"an argument; $PATH\"]\nrun_after = \"0s\"\n[shield]\n"
        );
        let file = machine.write(&(text + &shield))?;
        executable(&program, run)?;
        machine.prepare()?;
        Ok(Watched { site, machine, file })
    }

    /// A directory that user ringway writes to, as /run/ringway.
    fn run_directory(&self) -> PathBuf {
        self.machine.directory.join("run")
    }

    /// By root, without the unit.
    fn start_as_root(&self) -> Result<Child> {
        let program = self.machine.directory.join("ringway");
        let file = self.file.to_string_lossy();
        let command = self.machine.command(&[&program.to_string_lossy(), "run", "-c", &file]);
        let mut daemon = self.site.net.gateway.spawn(command)?;
        daemon.wait_for_log("serving: ", STARTED)?;
        Ok(daemon)
    }
}

/// A program in place of one that may just be started.
fn executable(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
    Ok(fs::rename(new, path)?)
}

fn stop(mut daemon: Child) -> Result<String> {
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    Ok(end.log)
}

/// By the unit and by root: it is user ringway without rights, descriptors and environment.
#[test]
fn the_program_runs_as_user_ringway_and_hears_of_both_ends() -> Result<()> {
    needs_root!();
    let watched = Watched::new(
        "#!/bin/sh\nout=$(dirname \"$0\")/run/told\n\
         echo \"$(id -u):$(id -G) $# $1\" >>$out\n\
         ls -l /proc/$$/fd | sed 's/.* -> /fd /' >>$out\n\
         echo $(grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/$$/status) >>$out\n\
         env | grep -v '^PWD=\\|^_=\\|^SHLVL=\\|^OLDPWD=' >>$out\n\
         cat >>$out\necho told it\n",
    )?;
    let told = watched.run_directory().join("told");
    for by_root in [false, true] {
        let _ = fs::remove_file(&told);
        let daemon = match by_root {
            false => watched.machine.start(&watched.file)?,
            true => watched.start_as_root()?,
        };
        let flood = Flood::start(watched.site.client())?;
        let read = || fs::read_to_string(&told).unwrap_or_default();
        let hears = |event: &str| {
            let said = format!("\"event\":\"{event}\"");
            let look = || if read().contains(&said) { Ok(()) } else { Err(read()) };
            wait_for(event, SOON, look).with_context(|| daemon.log())
        };
        hears("begin")?;
        let words = read();
        let first = words.lines().next().unwrap_or_default();
        ensure!(first == format!("{ID}:{ID} 1 an argument; $PATH"), "{words}");
        let given = words.lines().filter(|line| line.starts_with("fd "));
        let foreign = given.filter(|line| line.contains("bpf") || line.contains("socket"));
        ensure!(foreign.count() == 0, "{words}");
        ensure!(words.matches("0000000000000000").count() >= 4, "{words}");
        let environment = words.lines().filter(|line| !line.starts_with('{') && line.contains('='));
        let environment: Vec<&str> = environment.collect();
        ensure!(
            environment.iter().all(|line| line.starts_with("PATH=/usr/local/sbin:")),
            "{words}"
        );
        let line = words.lines().find(|line| line.starts_with('{')).context("no JSON")?;
        let event: Value = serde_json::from_str(line)?;
        ensure!(event["schema"] == "ringway.mitigation/1" && event["port"] == 7, "{event}");
        drop(flood);
        hears("end")?;
        let log = stop(daemon)?;
        ensure!(log.contains("told it"), "{log}");
    }
    Ok(())
}

/// A failure is seen where people look, and goes with the next success.
#[test]
fn a_program_that_fails_is_a_finding_until_it_succeeds() -> Result<()> {
    needs_root!();
    let watched = Watched::new("#!/bin/sh\ncat >/dev/null\necho no route to the router\nexit 3\n")?;
    let daemon = watched.machine.start(&watched.file)?;
    let program = watched.machine.directory.join("announce");
    let file = watched.file.to_string_lossy();
    let said = |words: &[&str]| -> Result<String> {
        let ringway = watched.machine.directory.join("ringway");
        let ringway = ringway.to_string_lossy();
        let words: Vec<&str> = [&[&*ringway], words].concat();
        let output = watched.site.net.gateway.spawn(watched.machine.command(&words))?.wait(SOON)?;
        Ok(output.log)
    };
    let finding = |wanted: bool| {
        let look = || match said(&["status", "-c", &file]) {
            Ok(said)
                if said.contains("was not told of the attack on service echo (udp)") == wanted =>
            {
                Ok(said)
            }
            other => Err(format!("{other:?}")),
        };
        wait_for("a finding", SOON, look).with_context(|| daemon.log())
    };
    let flood = Flood::start(watched.site.client())?;
    let status = finding(true)?;
    ensure!(status.contains("no route to the router"), "{status}");
    // What is run again after half of its time succeeds.
    executable(&program, "#!/bin/sh\ncat >/dev/null\n")?;
    finding(false)?;
    drop(flood);
    fs::remove_file(&program)?;
    let checked = said(&["check", "-c", &file])?;
    ensure!(checked.contains("warning: run of [shield.mitigation]: "), "{checked}");
    Ok(())
}

/// What ExaBGP is told of an attack by these sources, a second each beyond the limit.
fn announced(sources: &[(&str, u64)]) -> Result<Vec<String>> {
    let place = tempfile::tempdir()?;
    let program = place.path().join("ringway-attacks");
    executable(&program, &block("ringway-attacks", place.path())?)?;
    let heavy = |(prefix, rate): &(&str, u64)| json!({ "prefix": prefix, "over_limit_pps": rate });
    let attack = json!({
        "address": "203.0.113.10", "port": 53, "last_port": 53, "protocol": "udp",
        "until": "2100-01-02T03:04:05Z", "packets_per_second": 400_000,
        "heavy_sources": sources.iter().map(heavy).collect::<Vec<_>>(),
    });
    fs::create_dir(place.path().join("attacks"))?;
    fs::write(place.path().join("attacks/dns-udp.json"), attack.to_string())?;
    // It ends when its parent does, which here waits for the end of its input.
    let mut shell = Command::new("sh")
        .args(["-c", &format!("{} flowspec & exec cat", program.display())])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = BufReader::new(shell.stdout.take().context("no output")?).lines();
    let mut lines = Vec::from_iter(said.next().transpose()?);
    drop(shell.stdin.take());
    for line in said {
        lines.push(line?);
    }
    shell.wait()?;
    Ok(lines)
}

/// Blocking a few of many sources helps nobody: what comes for the service is limited, too.
#[test]
fn sources_that_are_few_of_many_do_not_replace_a_rate() -> Result<()> {
    let rate = |said: &[String]| said.iter().any(|line| line.contains("rate-limit"));
    let drops = |said: &[String]| said.iter().filter(|line| line.contains("discard")).count();
    for (sources, dropped, limited) in [
        (&[][..], 0, true),
        (&[("192.0.2.7/32", 900), ("192.0.2.8/32", 900)][..], 2, true),
        (&[("192.0.2.7/32", 150_000), ("192.0.2.8/32", 150_000)][..], 2, false),
    ] {
        let said = announced(sources)?;
        ensure!((drops(&said), rate(&said)) == (dropped, limited), "{sources:?}: {said:?}");
    }
    Ok(())
}

/// A block of the guide by its name, with this directory in place of /run/ringway.
fn block(name: &str, directory: &Path) -> Result<String> {
    let blocks = GUIDE.split("\n```").filter_map(|rest| rest.split_once('\n'));
    let mut found = blocks.filter(|(head, _)| head.split(' ').nth(1) == Some(name));
    let (_, text) = found.next().with_context(|| format!("no block {name}"))?;
    Ok(text.replace("/run/ringway", &directory.to_string_lossy()) + "\n")
}

/// What the program does with what it is told, shorter tests know.
mod long {
    use super::*;

    const ROUTER: &str = "router id 10.0.0.254;\n\
        flow4 table rules;\n\
        protocol device {\n}\n\
        protocol bgp mitigation {\n    local 10.1.0.2 as 65000;\n    neighbor 10.1.0.1 as 65001;\n    \
        ipv4 {\n        import all;\n        export none;\n    };\n    \
        flow4 {\n        table rules;\n        import all;\n        export none;\n        validate off;\n    };\n}\n";

    #[test]
    fn exabgp_tells_a_router_what_to_drop_while_it_lasts() -> Result<()> {
        const TEST: &str = "mitigation::long::exabgp_tells_a_router_what_to_drop_while_it_lasts";
        needs_root!();
        if !has("bird", TEST) || !has_exabgp(TEST) {
            return Ok(());
        }
        let watched = Watched::new("")?;
        let (directory, at) = (watched.run_directory(), &watched.machine.directory);
        executable(&at.join("announce"), &block("ringway-announce", &directory)?)?;
        let attacks = at.join("ringway-attacks");
        executable(&attacks, &block("ringway-attacks", &directory)?)?;
        let client = watched.site.client();
        let router = bird(client, ROUTER)?;
        let text = block("exabgp.conf", &directory)?
            .replace(
                "/etc/exabgp/ringway-attacks flowspec",
                &format!("{} rtbh flowspec", attacks.display()),
            )
            .replace("10.0.0.254", "10.1.0.2")
            .replace("10.0.0.1;", "10.1.0.1;");
        let file = at.join("exabgp.conf");
        fs::write(&file, text)?;
        let mut command: Command = watched.site.net.gateway.tool("python3")?;
        command.args(["-m", "exabgp"]).arg(&file).env("PYTHONPATH", exabgp_modules());
        // Not `nobody`, who may not read what the test makes; and no named pipes for a console.
        command.env("exabgp_daemon_user", "root").env("exabgp_api_cli", "false");
        let exabgp = watched.site.net.gateway.spawn(command)?;
        let daemon = watched.machine.start(&watched.file)?;
        let birdc = client.directory().join("bin/birdc");
        let ask = |words: &[&str]| -> Result<String> {
            let output = client.command(&birdc).args(words).output()?;
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let shows = |what: &str, wanted: bool| {
            let address = format!("{SERVICE_V4}/32");
            let look = || -> Result<()> {
                let routes = ask(&["show", "route", "all", "table", "master4"])?;
                let rules = ask(&["show", "route", "all", "table", "rules"])?;
                let black = routes.contains(&address) && routes.contains("(65535,666)");
                let words = [&format!("dst {address}"), "proto 17", "dport 7", "src 10.1.0.2/32"];
                let rule = words.iter().all(|word| rules.contains(*word));
                if (black, rule) != (wanted, wanted) {
                    bail!("{routes}\n{rules}");
                }
                Ok(())
            };
            let look = || look().map_err(|error| format!("{error:#}"));
            wait_for(what, CONVERGENCE, look).with_context(|| exabgp.log())
        };
        let established = || match ask(&["show", "protocols", "all", "mitigation"]) {
            Ok(said) if said.contains("Established") => Ok(()),
            other => Err(format!("{other:?}\n{}", router.log())),
        };
        wait_for("a session", CONVERGENCE, established).with_context(|| exabgp.log())?;
        shows("nothing at peace", false)?;
        let flood = Flood::start(client)?;
        shows("a black hole and a rule", true)?;
        drop(flood);
        shows("both withdrawn", false)?;
        let empty =
            || fs::read_dir(directory.join("attacks")).is_ok_and(|mut all| all.next().is_none());
        // The route ends by its time, which may be before the daemon removes the file.
        wait_until("no file", SOON, empty)?;

        // A daemon that does not come back: the time alone ends it.
        let flood = Flood::start(client)?;
        shows("the next attack", true)?;
        drop(daemon);
        shows("nobody ends it", false)?;
        drop(flood);
        Ok(())
    }
}
