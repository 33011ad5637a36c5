//! Drain, weights and slow start at runtime: what they do to flows, and how long they last.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Frozen, Gateway, HeldFile, Line, Ran, SERVICE_V4, SOON, Site, WEB, get, is_silent,
    needs_root, ringway,
};
use ringway_testnet::wait_for;
use serde_json::{Value, json};

use super::dsr::{Dsr, ECHO as ECHO_DSR, Opener};

/// Connections until each of two backends has one.
fn one_on_each(site: &Site) -> Result<BTreeMap<String, Line>> {
    let mut lines = BTreeMap::new();
    for _ in 0..100 {
        let mut line = Line::open(site.client(), ECHO)?;
        let name = line.ask("hello")?;
        lines.entry(name).or_insert(line);
        if lines.len() == 2 {
            return Ok(lines);
        }
    }
    anyhow::bail!("only {:?} of 100", lines.keys())
}

/// Who gets `count` new connections.
fn new_ones(site: &Site, count: usize) -> Result<BTreeMap<String, usize>> {
    let mut names = BTreeMap::new();
    for _ in 0..count {
        let name = Line::open(site.client(), ECHO)?.ask("who")?;
        *names.entry(name).or_default() += 1;
    }
    Ok(names)
}

fn backend<'s>(status: &'s Value, address: &str) -> Result<&'s Value> {
    let backends = status["services"][0]["backends"].as_array();
    let mut backends = backends.into_iter().flatten();
    backends.find(|backend| backend["address"] == address).context("no such backend")
}

#[test]
fn a_drain_takes_new_flows_alone_and_lasts() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let text = site.configuration(&site.service("echo", ECHO, ""));
    let mut gateway = Gateway::start(&site.net.gateway, &text)?;
    let mut lines = one_on_each(&site)?;
    let mut old = lines.remove("b1").context("one on b1")?;

    let told = gateway.document(&["backend", "drain", "echo", "10.2.0.11"])?;
    ensure!(told["rings"][0]["moved_slots"].as_u64() > Some(30_000), "{told}");
    ensure!(told["flows"]["reset_flows"] == 0, "{told}");
    // Counted after the drain: those who wait for the last flow are not told of a time before the
    // first.
    ensure!(told["backend"]["flows"].as_u64() >= Some(1), "{told}");
    let flows = backend(&gateway.status()?, "10.2.0.11")?["current_flows"].as_u64();
    ensure!(flows >= Some(1), "{flows:?} flows, and one is open");
    ensure!(told["unserved_services"] == json!([]), "{told}");
    let logged = gateway.log();
    ensure!(logged.contains("echo: backend 10.2.0.11 is drained (by user 0)"), "{logged}");
    let only_second = |what: &str| -> Result<()> {
        let names = new_ones(&site, 30)?;
        ensure!(!names.contains_key("b1"), "{what}: {names:?}");
        Ok(())
    };
    only_second("drained")?;
    ensure!(old.ask("still")? == "b1");
    gateway.wait_status("what it is and what the file says", |status| {
        let fits = |b: &Value| b["drained"] == true && b["weight"] == 0 && b["file_weight"] == 1;
        backend(status, "10.2.0.11").is_ok_and(fits) && status["healthy"] == true
    })?;
    let shown = gateway.ringway(&["status"])?.out;
    ensure!(shown.contains("drained, override; file says 1"), "{shown}");

    // A reload, with another weight in the file.
    gateway.reload(
        &text.replace("address = \"10.2.0.11\",", "address = \"10.2.0.11\", weight = 7,"),
    )?;
    only_second("reloaded")?;
    gateway.wait_status("the file's other weight", |status| {
        backend(status, "10.2.0.11").is_ok_and(|b| b["file_weight"] == 7)
    })?;
    gateway.reload(&text)?;
    // Restarts, of both kinds.
    gateway.terminate()?;
    gateway.start_healthy()?;
    only_second("started again")?;
    gateway.kill()?;
    gateway.start_healthy()?;
    only_second("killed")?;
    ensure!(old.ask("after all")? == "b1");

    let listed = gateway.document(&["overrides"])?;
    ensure!(listed["overrides"][0]["drained"] == true && listed["in_force"] == true, "{listed}");
    gateway.document(&["backend", "undrain", "echo", "10.2.0.11:7"])?;
    ensure!(new_ones(&site, 40)?.len() == 2, "undrained");
    gateway.wait_status("no override", |s| s["overrides"] == json!([]))?;
    ensure!(gateway.document(&["overrides"])?["overrides"] == json!([]));
    ensure!(old.ask("to the end")? == "b1");
    Ok(())
}

/// The document of the state directory that drains these backends of `web`.
fn with_drained(addresses: &[&str]) -> String {
    let drained = |address: &&str| {
        json!({
            "service": "web", "address": address, "port": 80,
            "drained": true, "weight": null, "since": "2026-01-02T03:04:05Z",
        })
    };
    let overrides = addresses.iter().map(drained).collect::<Vec<_>>();
    json!({ "schema": "ringway.overrides/1", "overrides": overrides }).to_string()
}

/// The thread of the daemon that writes tables, stopped.
fn stop_writing(gateway: &mut Gateway) -> Result<Frozen> {
    const NAME: &str = "packet-path";
    let tasks = fs::read_dir(format!("/proc/{}/task", gateway.child().pid()))?;
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|text| text.trim_end() == NAME)
    };
    let found = tasks.flatten().map(|task| task.path()).find(is_it);
    let path = found.with_context(|| format!("no thread {NAME}"))?;
    Frozen::thread(path.file_name().and_then(|name| name.to_str()).unwrap_or_default().parse()?)
}

/// Both wait for the tables: whichever is first, neither is lost.
#[test]
fn a_drain_while_a_reload_is_on_its_way() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::start(&site.net.gateway, &text)?;
    gateway.rewrite(&text.replace("\"10.2.0.12\",", "\"10.2.0.12\", weight = 7,"))?;
    let stopped = stop_writing(&mut gateway)?;
    let gateway = &gateway;
    let asked = thread::scope(|scope| -> Result<[Result<Value>; 2]> {
        let ask = |arguments: &'static [&str]| scope.spawn(move || gateway.document(arguments));
        let both = [ask(&["reload"]), ask(&["backend", "drain", "web", "10.2.0.11"])];
        wait_for("both asked", SOON, || {
            let sockets = site.net.gateway.run(|| fs::read_to_string("/proc/thread-self/net/unix"));
            let sockets = sockets.map_err(|error| error.to_string())?.unwrap_or_default();
            // One listens, and one for each that is asked something.
            let lines = sockets.lines().filter(|line| line.ends_with("/api.sock")).count();
            if lines == 3 { Ok(()) } else { Err(sockets) }
        })?;
        drop(stopped);
        Ok(both.map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic))))
    })?;
    for told in asked {
        ensure!(told?["changed"] == true, "one changed nothing");
    }
    gateway.wait_status("both", |status| {
        let of = |address, key: &str| backend(status, address).map(|b| b[key].clone()).ok();
        of("10.2.0.11", "drained") == Some(true.into())
            && of("10.2.0.12", "weight") == Some(7.into())
    })?;
    let kept = fs::read_to_string(site.net.gateway.directory().join("state/overrides.json"))?;
    ensure!(kept.contains("10.2.0.11"), "{kept}");
    Ok(())
}

/// One that hangs while it reads is given up; it goes on after another one has been kept and before
/// that is in force, and takes nothing back.
#[test]
fn a_change_that_comes_too_late_takes_no_other_back() -> Result<()> {
    const GIVEN_UP: Duration = Duration::from_secs(60);
    needs_root!();
    let site = Site::new(2)?;
    let state = site.net.gateway.directory().join("state");
    let [document, late, place] = ["overrides.json", "late", "place"].map(|name| state.join(name));
    fs::create_dir(&state)?;
    // What cannot be read is read again every few seconds.
    fs::write(&document, "{")?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
    gateway.wait_serving()?;
    fs::write(&late, with_drained(&["10.2.0.12"]))?;
    let held = HeldFile::new(&late)?;
    fs::rename(&late, &document)?;
    let hanging = PathBuf::from(format!("/proc/{}", held.opened()?));
    fs::write(&place, with_drained(&[]))?;
    fs::rename(&place, &document)?;

    let stopped = stop_writing(&mut gateway)?;
    let (drain, gateway) = (["backend", "drain", "web", "10.2.0.11"], &mut gateway);
    let told = thread::scope(|scope| -> Result<Result<Value>> {
        let drain = scope.spawn(|| gateway.document(&drain));
        wait_for("another one to be kept", GIVEN_UP, || match fs::read_to_string(&document) {
            Ok(text) if text.contains("10.2.0.11") => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        drop(held);
        wait_for("an end of the late one", SOON, || {
            // It has no more to do, or is gone.
            match fs::read_to_string(hanging.join("wchan")) {
                Ok(at) if !at.starts_with("futex") => Err(at),
                _ => Ok(()),
            }
        })?;
        drop(stopped);
        Ok(drain.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    told?;
    gateway.kill()?;
    gateway.start_again()?;
    gateway.wait_status("b1 drained", |status| {
        backend(status, "10.2.0.11").is_ok_and(|b| b["drained"] == true)
    })?;
    Ok(())
}

#[test]
fn weights_are_set_listed_and_cleared() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::start(&site.net.gateway, &text)?;
    // Of what is not there.
    for (arguments, words) in [
        (&["backend", "drain", "wbe", "10.2.0.11"][..], "there is no service \"wbe\""),
        (&["backend", "drain", "web", "10.2.0.99"], "has no backend 10.2.0.99"),
        (&["backend", "undrain", "web", "10.2.0.11"], "is not drained"),
        (&["backend", "weight", "web", "10.2.0.11:81", "5"], "it has 10.2.0.11:80, 10.2.0.12:80"),
        (&["backend", "weight", "web", "10.2.0.11", "5000"], "0..=1000"),
        (&["overrides", "clear", "web"], "has no override"),
        (&["overrides", "clear"], "there is no override to clear"),
    ] {
        let ran = gateway.ringway(arguments)?;
        ensure!(ran.code == 2 && ran.err.contains(words), "{arguments:?}: {ran:?}");
    }
    ensure!(!site.net.gateway.directory().join("state/overrides.json").exists());

    gateway.document(&["backend", "drain", "web", "10.2.0.11"])?;
    gateway.rewrite(&text.replace("    { address = \"10.2.0.11\", port = 80 },\n", ""))?;
    let told = gateway.document(&["reload"])?;
    ensure!(told["orphaned_overrides"][0] == "web 10.2.0.11:80 (drained)", "{told}");
    let found = |status: &Value, words: &str| status["findings"].to_string().contains(words);
    gateway.wait_status("a finding", |s| found(s, "ringway overrides clear web 10.2.0.11:80"))?;
    gateway.document(&["overrides", "clear", "web", "10.2.0.11"])?;
    gateway.wait_status("no finding", |s| !found(s, "override of"))?;
    gateway.reload(&text)?;

    let told = gateway.document(&["backend", "weight", "web", "10.2.0.12", "3"])?;
    // From a half to three quarters.
    let moved = told["rings"][0]["moved_slots"].as_u64().unwrap_or_default();
    ensure!((16_300..17_500).contains(&moved), "{told}");
    gateway.document(&["backend", "weight", "web", "10.2.0.11", "0"])?;
    for _ in 0..20 {
        ensure!(get(site.client(), WEB)? == "b2");
    }
    // All drained: no new flow, and everybody says so, and what undoes it.
    let told = gateway.document(&["backend", "drain", "web", "10.2.0.12"])?;
    ensure!(told["unserved_services"] == json!(["web"]), "{told}");
    ensure!(is_silent(site.client(), WEB)?);
    gateway.wait_status("no backend", |status| status["healthy"] == false)?;
    let said = gateway.ringway(&["status"])?;
    ensure!(said.code == 3 && said.out.contains("no backend gets traffic"), "{said:?}");
    let undo = "ringway backend weight web 10.2.0.11:80 1";
    ensure!(said.out.contains(undo) && said.out.contains("10.2.0.12:80 is drained by"), "{said:?}");
    let asked = ["explain", "-i", "eth0", "tcp 10.1.0.2:4711 > 10.1.0.80:80"];
    let said = gateway.ringway(&asked)?.out;
    ensure!(said.contains("10.2.0.12:80, up, but is drained by an operator"), "{said}");
    let both = format!("to do: {undo}; or ringway backend undrain web 10.2.0.12:80");
    ensure!(said.contains(&both), "{said}");
    let shown = gateway.ringway(&["overrides"])?.out;
    for line in ["10.2.0.11:80  weight 0", "10.2.0.12:80  drained, then weight 3"] {
        ensure!(shown.contains(line), "{line:?} not in {shown}");
    }
    // A weight does not end a drain.
    let said = gateway.ringway(&["backend", "weight", "web", "10.2.0.12", "4"])?.out;
    ensure!(said.starts_with("web: 10.2.0.12:80 is drained: no new flows; "), "{said}");
    ensure!(said.contains("; weight 4 once it is undrained\n"), "{said}");
    ensure!(is_silent(site.client(), WEB)?, "it is drained");
    let said = gateway.ringway(&["overrides", "clear", "web", "10.2.0.12"])?.out;
    ensure!(said.contains("1 override is cleared"), "{said}");
    ensure!(said.contains("web: 10.2.0.12:80 gets new flows by weight 1; "), "{said}");
    ensure!(get(site.client(), WEB)? == "b2");
    gateway.document(&["backend", "drain", "web", "10.2.0.12"])?;
    // Without a daemon they are listed too, and nothing can be changed.
    gateway.kill()?;
    let listed = gateway.document(&["overrides"])?;
    ensure!(listed["in_force"] == false && listed["overrides"][1]["drained"] == true, "{listed}");
    gateway.ringway(&["overrides", "clear"])?.complains(3, &["does not run"])?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    gateway.document(&["overrides", "clear"])?;
    gateway.wait_healthy()?;
    Ok(())
}

/// The API socket of a test's gateway is not the default one.
#[test]
fn the_name_of_a_node_is_enough() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let mut gateway = site.start(&site.service("web", WEB, ""))?;
    let node = gateway.node().to_owned();
    let by_name =
        |arguments: &[&str]| ringway(&site.net.gateway, &[arguments, &["--node", &node]].concat());
    let all = [
        &["status"][..],
        &["status", "--service", "web"],
        &["status", "--ready"],
        &["reload"],
        &["overrides"],
        &["confirm"],
        &["backend", "drain", "web", "10.2.0.11"],
        &["overrides", "clear"],
        &["explain", "-i", "eth0", "tcp 192.0.2.7:4711 > 203.0.113.10:80"],
    ];
    for arguments in all {
        let ran = by_name(arguments)?;
        ensure!(ran.code == 0, "{arguments:?}: {ran:?}");
    }
    for arguments in [&["status"][..], &["status", "--memory"], &["flows"], &["reload"]] {
        let ran = ringway(&site.net.gateway, &[arguments, &["--node", "nobody"]].concat())?;
        ensure!(ran.err.contains("no node \"nobody\" on this machine"), "{arguments:?}: {ran:?}");
        ensure!(ran.code == 3 && ran.err.contains(&node), "{arguments:?}: {ran:?}");
    }
    // Without the note, a daemon that runs is not said to be dead.
    let note = gateway.pins().join("socket");
    fs::remove_file(&note)?;
    by_name(&["reload"])?.complains(1, &["with another API socket"])?;
    gateway.terminate()?;
    by_name(&["reload"])?.complains(3, &["does not run"])?;
    gateway.start_healthy()?;
    ensure!(by_name(&["reload"])?.code == 0);
    gateway.terminate()?;
    ensure!(!note.exists(), "it leaves none behind");
    Ok(())
}

/// Flows of dsr services have no record: the ring's memory keeps them. And a reload opens the
/// tunnel that their checks take.
#[test]
fn dsr_flows_outlive_a_drain_and_checks_can_come_later() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Nobody)?;
    let gateway = dsr.start("dsr-l2", SERVICE_V4, false)?;
    let target = SocketAddr::new(SERVICE_V4, ECHO_DSR);
    let mut lines: BTreeMap<String, Line> = BTreeMap::new();
    for _ in 0..40 {
        let mut line = Line::open(dsr.client(), target)?;
        lines.entry(line.ask("hello")?).or_insert(line);
    }
    ensure!(lines.len() == 2, "{:?}", lines.keys());
    let text = dsr.configuration("dsr-l2", SERVICE_V4, false);
    let check =
        "check = { type = \"tcp\", port = 80, interval = \"200ms\", fall = 5 }\nbackends = [";
    gateway.rewrite(&text.replace("backends = [", check))?;
    let told = gateway.document(&["reload"])?;
    ensure!(told["flows"]["moved_tracked_flows"] == 0, "{told}");
    let checked = |status: &Value| {
        let backends = status["services"][1]["backends"].as_array().cloned().unwrap_or_default();
        backends.iter().all(|b| b["checks_passed"].as_u64() > Some(1) && b["health"] == "up")
    };
    gateway.wait_status("checks of dsr backends", checked)?;
    gateway.document(&["backend", "drain", "echo", "10.2.0.11"])?;
    for _ in 0..20 {
        let name = Line::open(dsr.client(), target)?.ask("who")?;
        ensure!(name == "b2", "a new flow at a drained backend");
    }
    for (name, line) in &mut lines {
        ensure!(line.ask("still")? == *name, "{name}");
    }
    gateway.document(&["overrides", "clear", "echo"])?;
    // Without checks again: their tunnel closes.
    gateway.reload(&text)?;
    for (name, line) in &mut lines {
        ensure!(line.ask("to the end")? == *name, "{name}");
    }
    Ok(())
}

/// A small file system of its own, taken away at the end.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Result<Small> {
        fs::create_dir_all(&path)?;
        let small = Small(path);
        small.run("mount", &["-t", "tmpfs", "-o", "size=64k,mode=750", "ringway-test"])?;
        Ok(small)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let output = Command::new(program).args(arguments).arg(&self.0).output()?;
        ensure!(output.status.success(), "{program}: {output:?}");
        Ok(())
    }

    fn fill(&self) -> Result<()> {
        let full = fs::write(self.0.join("ballast"), vec![0; 1 << 20]);
        ensure!(full.is_err(), "it is not small");
        Ok(())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(error) = self.run("umount", &["-l"]) {
            eprintln!("{error:#}");
        }
    }
}

#[test]
fn a_state_directory_that_is_full_or_read_only() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let small = Small::mount(site.net.gateway.directory().join("state"))?;
    small.run("mount", &["-o", "remount,ro"])?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
    gateway.wait_serving()?;
    get(site.client(), WEB)?;
    let read_only = |s: &Value| s["problems"].to_string().contains("read-only");
    gateway.wait_status("the problem", read_only)?;
    // What was said before is in force as soon as it can be read.
    small.run("mount", &["-o", "remount,rw"])?;
    fs::write(small.0.join("overrides.json"), with_drained(&["10.2.0.11"]))?;
    let drained = |s: &Value| backend(s, "10.2.0.11").is_ok_and(|b| b["drained"] == true);
    gateway.wait_status("what was kept", |s| drained(s) && s["healthy"] == true)?;
    // A directory that can only be read is read.
    small.run("mount", &["-o", "remount,ro"])?;
    gateway.kill()?;
    gateway.start_again()?;
    gateway.wait_status("what was kept, and the problem", |s| drained(s) && read_only(s))?;

    small.run("mount", &["-o", "remount,rw"])?;
    gateway.wait_healthy()?;
    gateway.document(&["overrides", "clear"])?;
    let refused = |words: &str| -> Result<()> {
        let ran: Ran = gateway.ringway(&["backend", "drain", "web", "10.2.0.11"])?;
        ensure!(ran.code == 1 && ran.err.contains(words), "{words:?}: {ran:?}");
        let told = |status: &Value| status["problems"].to_string().contains(words);
        let status = gateway.wait_status(words, told)?;
        ensure!(backend(&status, "10.2.0.11")?["weight"] == 1, "half applied: {status}");
        get(site.client(), WEB)?;
        Ok(())
    };
    let mode = |mode| fs::set_permissions(&small.0, fs::Permissions::from_mode(mode));
    mode(0o777)?;
    let open = gateway.ringway(&["backend", "drain", "web", "10.2.0.11"])?;
    ensure!(open.code == 1 && open.err.starts_with("ringway: state directory"), "{open:?}");
    ensure!(!open.err.contains("API socket"), "{open:?}");
    mode(0o750)?;
    small.fill()?;
    refused("no room is left")?;
    // The daemon may be trying to write just then.
    let read_only = || small.run("mount", &["-o", "remount,ro"]).map_err(|e| format!("{e:#}"));
    wait_for("a file system that is read-only", SOON, read_only)?;
    refused("read-only")?;

    small.run("mount", &["-o", "remount,rw"])?;
    fs::remove_file(small.0.join("ballast"))?;
    // By itself.
    gateway.wait_status("no problem any more", |status| status["healthy"] == true)?;
    gateway.document(&["backend", "drain", "web", "10.2.0.11"])?;
    gateway.wait_status("no problem any more", |status| status["healthy"] == true)?;
    let names: Vec<_> = fs::read_dir(&small.0)?.flatten().map(|entry| entry.file_name()).collect();
    ensure!(names.iter().all(|name| !name.to_string_lossy().contains(".new")), "{names:?}");
    Ok(())
}

#[test]
fn who_comes_up_starts_slowly() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let more = "check = { type = \"tcp\", interval = \"200ms\", fall = 5 }\nslow_start = \"60s\"\n";
    let text = site.configuration(&site.service("web", WEB, more));
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let percent =
        |status: &Value| backend(status, "10.2.0.12").map(|b| b["slow_start_percent"].clone());
    ensure!(percent(&gateway.status()?)?.is_null(), "not at the daemon's start");
    site.nginx.remove(1);
    gateway
        .wait_status("b2 down", |s| backend(s, "10.2.0.12").is_ok_and(|b| b["health"] == "down"))?;
    let nginx = ringway_testnet::Nginx::start(
        &site.net.backends[1].ns,
        &site.net.backends[1].sockets(80),
        "b2",
    )?;
    let up = |s: &Value| backend(s, "10.2.0.12").is_ok_and(|b| b["health"] == "up");
    let status = gateway.wait_status("b2 up", up)?;
    ensure!(percent(&status)?.as_u64().is_some_and(|percent| percent <= 50), "{status}");
    let count = |n: usize| -> Result<usize> {
        let answers: Result<Vec<String>> = (0..n).map(|_| get(site.client(), WEB)).collect();
        Ok(answers?.iter().filter(|name| *name == "b2").count())
    };
    let early = count(60)?;
    let begins_again = || -> Result<()> {
        gateway.document(&["backend", "drain", "web", "10.2.0.12"])?;
        gateway.document(&["backend", "undrain", "web", "10.2.0.12"])?;
        Ok(())
    };
    begins_again()?;
    gateway.wait_status("a slow start once it is undrained", |status| {
        percent(status).is_ok_and(|percent| percent.as_u64().is_some_and(|percent| percent <= 50))
    })?;
    // One that has begun keeps its length.
    gateway.reload(&text.replace("\"60s\"", "\"1s\""))?;
    begins_again()?;
    let whole = || {
        let status = gateway.status().map_err(|error| format!("{error:#}"))?;
        match percent(&status) {
            Ok(Value::Null) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    wait_for("its whole weight", SOON, whole)?;
    // The last step is in the tables soon after.
    wait_for("its share of new flows", SOON, || match count(60) {
        Ok(late) if early < late && late > 15 => Ok(()),
        late => Err(format!("{early} of 60 at first, {late:?} at last")),
    })?;
    drop(nginx);
    Ok(())
}
