//! The daemon as the packaged unit runs it: user ringway, and after loading three capabilities
//! alone.

mod machine;
mod second_bpffs;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    SERVICE_V4, SOON, STARTED, Site, WEB, configuration, detach_link, get, needs_root, service,
    write_secret,
};
use ringway_testnet::{
    Child, End, Nginx, Node, Signal, VethOptions, XdpReceive, veth, wait_for, wait_until,
};
use serde_json::Value;

use super::dsr::{Opener, backends_with_the_addresses};
pub(super) use machine::{ID, Machine};
use machine::{PERFMON, THREE};

/// One of the sets in /proc/PID/task/*/status, which must be the same in every thread.
fn capabilities(pid: u32, set: &str) -> Result<u64> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the list and its file.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else { continue };
        let line = status.lines().find_map(|line| line.strip_prefix(set)).context("no such set")?;
        found.push(u64::from_str_radix(line.trim_start_matches(':').trim(), 16)?);
    }
    ensure!(found.windows(2).all(|two| two[0] == two[1]), "{set} of the threads: {found:x?}");
    found.first().copied().context("no threads")
}

fn configure(site: &Site, machine: &Machine) -> Result<PathBuf> {
    // A dsr service with checks makes a device, a routing rule and a program of its own.
    let services = site.service(
        "web",
        WEB,
        "check = { type = \"http\", path = \"/\", interval = \"200ms\", fall = 15 }",
    ) + &site.service(
        "direct",
        "10.1.0.81:80".parse()?,
        "forward = \"dsr-l2\"\ncheck = { type = \"tcp\", interval = \"200ms\", fall = 5 }",
    );
    machine.write(&site.configuration(&services))
}

fn status(machine: &Machine, file: &Path) -> Result<Value> {
    machine.ringway(&["status", "-o", "json", "-c", &file.to_string_lossy()])?.json()
}

/// Both backends of a service.
fn wait_up(machine: &Machine, file: &Path, service: usize) -> Result<Value> {
    let up = || {
        let status = status(machine, file).map_err(|error| format!("{error:#}"))?;
        let backends =
            status["services"][service]["backends"].as_array().cloned().unwrap_or_default();
        match backends.len() == 2 && backends.iter().all(|backend| backend["health"] == "up") {
            true => Ok(status),
            false => Err(format!("{}", status["services"])),
        }
    };
    Ok(wait_for("both backends up", SOON, up)?)
}

#[test]
fn three_capabilities_are_enough() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    // What an earlier version has pinned as root becomes the user's.
    machine.run(&["mkdir", "-p", "/sys/fs/bpf/ringway/earlier/maps"])?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;

    for set in ["CapPrm", "CapEff"] {
        let has = capabilities(daemon.pid(), set)?;
        ensure!(has == THREE, "{set} is {has:#x}, not {THREE:#x}");
    }
    for set in ["CapInh", "CapAmb"] {
        let has = capabilities(daemon.pid(), set)?;
        ensure!(has == 0, "{set} is {has:#x}: what the daemon starts would inherit it");
    }
    let owner = fs::metadata(format!("/proc/{}", daemon.pid()))?;
    ensure!(owner.uid() == ID || owner.uid() == 0, "user {}", owner.uid());

    let socket = fs::metadata(machine.directory.join("run/api.sock"))?;
    ensure!(socket.mode() & 0o7777 == 0o660, "socket mode {:o}", socket.mode());
    ensure!(
        (socket.uid(), socket.gid()) == (ID, ID),
        "socket of {}:{}",
        socket.uid(),
        socket.gid()
    );

    let status = wait_up(&machine, &file, 0)?;
    let lost = format!("{}", status["findings"]);
    ensure!(!lost.contains("not counted"), "what the kernel drops is not counted: {lost}");
    get(site.client(), WEB)?;

    captures_are_swept_away(&site, &machine)?;

    // Who is in the group may use the API, and nobody else.
    let member = |group: &str, words: &[&str]| {
        let who = ["setpriv", "--reuid=62115", &format!("--regid={group}"), "--clear-groups"];
        let binary = machine.directory.join("ringway");
        let (binary, file) = (binary.to_string_lossy(), file.to_string_lossy());
        machine.run(&[&who, &[&*binary][..], words, &["-c", &file]].concat())
    };
    let asked = member("ringway", &["status"])?;
    // Nobody answers for "direct".
    ensure!(asked.code == 3 && asked.out.contains("flows now"), "{}", asked.said());
    let packet = "tcp 10.1.0.2:4711 > 10.1.0.80:80";
    let refused = member("ringway", &["explain", "-i", "eth0", packet])?;
    ensure!(
        refused.code == 1 && refused.err.contains("run as root") && refused.err.contains("CAP_BPF"),
        "{}",
        refused.said()
    );
    member("ringway", &["reload"])?.done()?;
    member("ringway", &["backend", "drain", "web", "10.2.0.11"])?.done()?;
    member("ringway", &["overrides", "clear"])?.done()?;
    member("62116", &["reload"])?.complains(1, &["ermission"])?;
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after reloading");

    // The next daemon takes over what this one has pinned.
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    get(site.client(), WEB)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    ensure!(daemon.log().contains("took over the running packet path"), "{}", daemon.log());
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after taking over");
    wait_up(&machine, &file, 0)?;
    get(site.client(), WEB)?;

    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?.done()?;
    Ok(())
}

/// Those that root began and that were killed; one that lives stays.
fn captures_are_swept_away(site: &Site, machine: &Machine) -> Result<()> {
    let node = machine.namespace.name();
    let place = machine.seen(&format!("/sys/fs/bpf/ringway/{node}/capture"));
    let begin = || -> Result<Child> {
        let binary = machine.directory.join("ringway");
        let words = [&*binary.to_string_lossy(), "capture", "--node", node, "tcp port 80"];
        let mut capture = machine.namespace.spawn(machine.command(&words))?;
        capture.wait_for_log("capturing from", STARTED)?;
        Ok(capture)
    };
    let (mut killed, mut living) = (begin()?, begin()?);
    ensure!(place.join("0").exists() && place.join("1").exists(), "two have no two places");
    killed.kill()?;
    wait_until("the killed one's place to be empty", SOON, || !place.join("0").exists())?;
    get(site.client(), WEB)?;
    living.wait_for_log("service web", SOON)?;
    ensure!(place.join("1").exists(), "the other one's was taken");
    living.kill()?;
    wait_until("nothing left of captures", SOON, || !place.exists())?;
    get(site.client(), WEB)?;
    Ok(())
}

/// The daemon's user owns the directory of the node's pins. What it plants there makes root neither
/// give away what is not its own nor wait for ever.
#[test]
fn planted_links_are_refused() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    let node = site.net.gateway.name();
    let place = format!("/sys/fs/bpf/ringway/{node}/capture");
    let victim = machine.directory.join("victim");
    fs::create_dir(&victim)?;
    fs::write(victim.join("shadow"), "root's")?;
    fs::set_permissions(victim.join("shadow"), fs::Permissions::from_mode(0o600))?;
    // Whoever has the daemon's user can stop it, so that it sweeps nothing away.
    let as_user = |script: &str| -> Result<()> {
        let who = ["setpriv", "--reuid=ringway", "--regid=ringway", "--clear-groups"];
        let victim = victim.to_string_lossy();
        let bare = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"];
        let ran = machine
            .run(&[&who[..], &bare, &["sh", "-euc", script, "sh", &place, &victim]].concat())?;
        ensure!(ran.code == 0, "{script}: {}", ran.said());
        Ok(())
    };
    let untouched = || -> Result<()> {
        for path in [victim.clone(), victim.join("shadow")] {
            let about = fs::metadata(&path)?;
            ensure!(
                (about.uid(), about.gid()) == (0, 0),
                "{} is {}'s",
                path.display(),
                about.uid()
            );
        }
        Ok(())
    };
    as_user(&format!("kill -STOP {}", daemon.pid()))?;
    let capture = ["capture", "--node", node, "--seconds", "1"];
    for (planted, named) in [
        ("mkdir $1; ln -s $2 $1/x", format!("{place}/x")),
        ("rm -r $1; mkdir $1 $1/3; ln -s $2 $1/3/filter", format!("{place}/3/filter")),
        ("rm -r $1; mkdir $1; ln -s $2 $1/3", format!("{place}/3")),
        ("rm -r $1; ln -s $2 $1", place.clone()),
    ] {
        as_user(planted)?;
        let ran = machine.ringway(&capture)?;
        let said = format!("not Ringway's: {named}; a process with the daemon's rights");
        ensure!(ran.code == 1 && ran.err.contains(&said), "{planted}: {}", ran.said());
        untouched().context(planted)?;
    }
    // What it says helps.
    machine.run(&["rm", "-r", &place])?;
    machine.ringway(&capture)?.done()?;
    as_user("ln -s $2 $1")?;
    daemon.signal(Signal::CONT)?;
    wait_up(&machine, &file, 0)?;
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    // Neither does removing the package stop there, nor what the link leads to go.
    machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?.done()?;
    untouched()
}

/// What loads programs at a start may come by a reload: the probe tunnel, with a device and
/// rules of its own.
#[test]
fn a_reload_opens_the_road_of_checks() -> Result<()> {
    needs_root!();
    let (net, _decaps) = backends_with_the_addresses(Opener::Ringway)?;
    let vip = SocketAddr::new(SERVICE_V4, 80);
    let serve = |node: &Node| Nginx::start(&node.ns, &[vip, node.sockets(80)[0]], "any");
    let _nginx = net.backends.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let backends: Vec<SocketAddr> = net.backends.iter().map(|node| node.sockets(80)[0]).collect();
    let check =
        "announce = \"arp\"\ncheck = { type = \"http\", interval = \"200ms\", fall = 15 }\n";
    let text = |services: &str| configuration(&net.gateway, &["eth0", "eth1"], services);
    let nat = service("web", "10.1.0.81:80".parse()?, &backends, check);
    let more = format!("forward = \"dsr-ipip\"\n{check}");
    let both = nat.clone() + &service("direct", vip, &backends, &more);

    let machine = Machine::new(&net.gateway)?;
    let file = machine.write(&text(&nat))?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    machine.write(&text(&both))?;
    let reloaded = machine.ringway(&["reload", "-c", &file.to_string_lossy()])?;
    ensure!(reloaded.code == 0, "{}\n{}", reloaded.said(), daemon.log());
    wait_up(&machine, &file, 1)?;
    get(&net.client.ns, vip)?;
    ensure!(capabilities(daemon.pid(), "CapEff")? == THREE, "after the reload");
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    machine.ringway(&["detach", "-c", &file.to_string_lossy()])?.done()?;
    Ok(())
}

/// Their connections begin in the middle (TCP_REPAIR), which needs CAP_NET_ADMIN; the secret belongs
/// to the daemon's user.
#[test]
fn cookies_are_checked_without_root() -> Result<()> {
    needs_root!();
    let (net, _decaps) = backends_with_the_addresses(Opener::Nobody)?;
    let vip = SocketAddr::new(SERVICE_V4, 80);
    let serve = |node: &Node| Nginx::start(&node.ns, &[vip, node.sockets(80)[0]], "any");
    let _nginx = net.backends.iter().map(serve).collect::<Result<Vec<_>, _>>()?;
    let backends: Vec<SocketAddr> = net.backends.iter().map(|node| node.sockets(80)[0]).collect();
    let machine = Machine::new(&net.gateway)?;
    let secret = machine.directory.join("secret");
    write_secret(&secret, &"5".repeat(32))?;
    let more = "forward = \"dsr-l2\"\nannounce = \"arp\"\nsyn = \"backend\"\n\
                check = { type = \"http\", interval = \"200ms\", fall = 15 }\n";
    let shield = format!("[shield]\nsyn = {{ always = true, secret = {secret:?} }}\n");
    let web = service("web", vip, &backends, more);
    let file = machine.write(&(configuration(&net.gateway, &["eth0", "eth1"], &web) + &shield))?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    let remedy = format!("chown {ID} {}", secret.display());
    ensure!(daemon.log().contains(&remedy), "{}", daemon.log());
    // What it says helps, and is well for root, too, who checks the file by hand.
    ensure!(machine.run(&remedy.split(' ').collect::<Vec<_>>())?.code == 0, "{remedy}");
    let named = file.to_string_lossy();
    let checked = machine.ringway(&["check", "-c", &named])?;
    ensure!(checked.code == 0 && !checked.said().contains("secret"), "{}", checked.said());
    let reloaded = machine.ringway(&["reload", "-c", &named])?;
    ensure!(reloaded.code == 0, "{}\n{}", reloaded.said(), daemon.log());
    // So says who has come as far as a backend without `ringway accept`.
    let asked = || {
        let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
        let backends = &status["services"][0]["backends"];
        let why = |n: usize| backends[n]["cookies_refused"].as_str().unwrap_or_default();
        match (0..2).all(|n| why(n).contains("it resets connections")) {
            true => Ok(()),
            false => Err(format!("{backends}")),
        }
    };
    wait_for("both backends asked", SOON, asked)?;
    daemon.signal(Signal::TERM)?;
    ensure!(daemon.wait(SOON)?.status.success());
    machine.ringway(&["detach", "-c", &named])?.done()?;
    Ok(())
}

/// Loading a program needs CAP_PERFMON, which is gone: what was loaded is kept for this.
#[test]
fn a_program_is_attached_again_without_more() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    let node = site.net.gateway.name();
    detach_link(&machine.seen(&format!("/sys/fs/bpf/ringway/{node}/ifaces/eth0/link")))?;
    wait_for("attached again", SOON, || {
        let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
        let eth0 = &status["interfaces"][0];
        match eth0["attached"] == true && eth0["attached_again"] == 1 {
            true => Ok(()),
            false => Err(format!("{} {}", status["interfaces"], status["problems"])),
        }
    })?;
    get(site.client(), WEB)?;
    // A device of that name made anew, with another index.
    site.net.gateway.ip("link del eth0\n")?;
    let outer = End::new(&site.net.gateway, "eth0").address("10.1.0.1/24");
    let far = End::new(site.client(), "eth0").address("10.1.0.2/24").xdp_receive(XdpReceive::Pass);
    veth(&far, &outer, &VethOptions::default())?;
    site.client().ip("route add default via 10.1.0.1\n")?;
    let answered = || get(site.client(), WEB).map_err(|error| format!("{error:#}"));
    wait_for("traffic on the new device", SOON, answered)?;
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success() && !end.log.contains("ermission"), "{}", end.log);
    machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?.done()?;
    Ok(())
}

/// The right to load programs is kept where there is a shield, and nowhere else.
#[test]
fn a_shield_changes_without_root() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    site.client().ip("addr add 10.1.0.3/24 dev eth0\naddr add 10.1.0.4/24 dev eth0\n")?;
    let machine = Machine::new(&site.net.gateway)?;
    let web =
        site.service("web", WEB, "check = { type = \"tcp\", interval = \"200ms\", fall = 5 }");
    let list = machine.directory.join("drop.txt");
    let with = |list: &Path, rules: &str| {
        let lists = format!("list = [{{ name = \"drop\", file = {list:?}, action = \"block\" }}]");
        site.configuration(&format!("{web}[shield]\n{lists}\nrule = [{rules}]\n"))
    };
    let curl = |from: &str, within: &str| -> Result<Option<i32>> {
        let mut curl = site.client().command("curl");
        curl.args(["-s", "-o", "/dev/null", "--interface", from, "--max-time", within]);
        Ok(curl.arg(format!("http://{WEB}/")).output()?.status.code())
    };
    let passes = |what: &str, fates: [(&str, bool); 2]| -> Result<()> {
        for (from, passes) in fates {
            let (within, expected) = if passes { ("30", 0) } else { ("1", 28) };
            let code = curl(from, within)?;
            ensure!(code == Some(expected), "{what}: {from}: {code:?}");
        }
        Ok(())
    };
    let file = machine.write(&site.configuration(&web))?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    fs::write(&list, "10.1.0.3\n")?;
    machine.write(&with(&list, ""))?;
    let reload = || machine.ringway(&["reload", "-c", &file.to_string_lossy()]);
    let refused = reload()?;
    let restart = format!("kill {}, then again: ", daemon.pid());
    let said = ["started without one", &restart];
    ensure!(refused.code == 2 && said.iter().all(|w| refused.err.contains(w)), "{refused:?}");
    passes("refused", [("10.1.0.2", true), ("10.1.0.3", true)])?;
    // What it says helps.
    daemon.signal(Signal::TERM)?;
    daemon.wait(SOON)?;
    machine.prepare()?;
    let mut daemon = machine.start(&file)?;
    wait_up(&machine, &file, 0)?;
    let keeps = |when: &str| -> Result<()> {
        for set in ["CapPrm", "CapEff"] {
            let has = capabilities(daemon.pid(), set)?;
            ensure!(has == THREE | PERFMON, "{when}: {set} is {has:#x}");
        }
        ensure!(capabilities(daemon.pid(), "CapAmb")? == 0, "{when}: CapAmb");
        Ok(())
    };
    keeps("started with [shield]")?;
    passes("a list", [("10.1.0.2", true), ("10.1.0.3", false)])?;

    fs::write(&list, "10.1.0.4/32\n")?;
    let follows =
        || passes("followed", [("10.1.0.3", true), ("10.1.0.4", false)]).map_err(|e| e.to_string());
    wait_for("another list", SOON, follows)?;
    let other = machine.directory.join("other.txt");
    fs::write(&other, "10.1.0.3\n")?;
    machine.write(&with(&other, "{ match = \"src host 10.1.0.2\", action = \"drop\" }"))?;
    let reloaded = reload()?;
    ensure!(reloaded.code == 0, "{}\n{}", reloaded.said(), daemon.log());
    passes("others", [("10.1.0.2", false), ("10.1.0.4", true)])?;
    keeps("after a reload")?;

    // Files that are root's alone.
    let secret =
        |path: &Path, mode: u32| fs::set_permissions(path, PermissionsExt::from_mode(mode));
    secret(&list, 0o600)?;
    machine.write(&with(&list, ""))?;
    let refused = reload()?;
    let said = ["drop.txt", "Permission denied", "what was in force stays"];
    ensure!(refused.code == 2 && said.iter().all(|w| refused.err.contains(w)), "{refused:?}");
    secret(&other, 0o600)?;
    let problem = |wanted: bool| {
        wait_for("what status says of the list", SOON, || {
            let status = status(&machine, &file).map_err(|error| format!("{error:#}"))?;
            let problems = status["problems"].to_string();
            let told = problems.contains("shield-list") && problems.contains("Permission denied");
            if told == wanted { Ok(()) } else { Err(problems) }
        })
    };
    problem(true)?;
    passes("unreadable", [("10.1.0.2", false), ("10.1.0.3", false)])?;
    // Its bytes are the same.
    secret(&other, 0o644)?;
    problem(false)?;
    passes("readable again", [("10.1.0.3", false), ("10.1.0.4", true)])?;
    daemon.signal(Signal::TERM)?;
    let end = daemon.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    machine.ringway(&["detach", "--verify", "-c", &file.to_string_lossy()])?.done()?;
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let machine = Machine::new(&site.net.gateway)?;
    let file = configure(&site, &machine)?;
    machine.prepare()?;
    machine
        .run(&[
            "setpriv",
            "--reuid=ringway",
            "--regid=ringway",
            "--clear-groups",
            "--bounding-set=-all,+bpf,+net_admin,+net_raw",
            "--inh-caps=-all,+bpf,+net_admin,+net_raw",
            "--ambient-caps=-all,+bpf,+net_admin,+net_raw",
            &machine.directory.join("ringway").to_string_lossy(),
            "run",
            "-c",
            &file.to_string_lossy(),
        ])?
        .complains(1, &["CAP_PERFMON"])?;
    Ok(())
}
