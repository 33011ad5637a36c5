//! Another configuration comes into force without a failed request, or not at all.

use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Gateway, Line, SERVICE_V4, SOON, Site, WEB, get, needs_root, ringway, service,
};
use ringway_testnet::Signal;
use serde_json::Value;

use super::restart::under_load;

const CHECK: &str = "check = { type = \"tcp\", port = 80, interval = \"1s\" }\n";

/// `count` services on ports of their own from `first` on, over both backends.
fn many(backends: &[IpAddr], first: u16, count: u16, more: &str) -> String {
    let mut text = String::new();
    for port in first..first + count {
        let backends: Vec<SocketAddr> = backends.iter().map(|ip| (*ip, 80).into()).collect();
        let more = format!("announce = \"arp\"\n{more}");
        let _ = write!(
            text,
            "{}",
            service(&format!("many-{port}"), (SERVICE_V4, port).into(), &backends, &more)
        );
    }
    text
}

fn reloads(gateway: &Gateway) -> Result<Value> {
    let ran = gateway.ringway(&["reload", "-o", "json"])?;
    ensure!(ran.code == 0, "{ran:?}");
    ran.json()
}

/// It fails with code 2 and these words, and nothing changes.
fn refuses(gateway: &Gateway, words: &[&str]) -> Result<()> {
    for arguments in [&["reload"][..], &["reload", "--dry-run"]] {
        let ran = gateway.ringway(arguments)?;
        ensure!(ran.code == 2, "{ran:?}");
        for word in words {
            ensure!(ran.err.contains(word), "{word:?} not in {}", ran.err);
        }
    }
    gateway.wait_status("a finding, and no problem", |status| {
        finds(status, "was refused at") && status["healthy"] == true
    })?;
    Ok(())
}

fn finds(status: &Value, words: &str) -> bool {
    status["findings"].to_string().contains(words)
}

fn names(status: &Value) -> Vec<&str> {
    let services = status["services"].as_array().into_iter().flatten();
    services.filter_map(|service| service["name"].as_str()).collect()
}

#[test]
fn a_thousand_services_come_change_and_go_under_load() -> Result<()> {
    needs_root!();
    under_load(|gateway, _| {
        let main = fs::read_to_string(gateway.configuration())?;
        let directory = gateway.configuration().with_file_name("services.d");
        fs::create_dir_all(&directory)?;
        gateway.rewrite(&format!("include = [\"services.d/*.toml\"]\n{main}"))?;
        let backends: Vec<IpAddr> = vec!["10.2.0.11".parse()?, "10.2.0.12".parse()?];
        fs::write(directory.join("a.toml"), many(&backends, 1000, 500, CHECK))?;
        fs::write(directory.join("b.toml"), many(&backends, 1500, 500, ""))?;
        let before = reloads(gateway)?;
        ensure!(
            before["services"].as_array().map(Vec::len) == Some(1000),
            "{}",
            before["services"]
        );
        gateway.wait_status("all of them served", |status| {
            names(status).len() == 1002 && status["healthy"] == true
        })?;

        // Half of them lose a backend, the rest other settings; those under load get weights.
        fs::write(directory.join("a.toml"), many(&backends[..1], 1000, 500, CHECK))?;
        fs::write(directory.join("b.toml"), many(&backends, 1500, 500, "affinity = \"source\"\n"))?;
        let weighty =
            main.replace("address = \"10.2.0.11\",", "address = \"10.2.0.11\", weight = 3,");
        ensure!(weighty != main);
        gateway.rewrite(&format!("include = [\"services.d/*.toml\"]\n{weighty}"))?;
        let changed = reloads(gateway)?;
        ensure!(
            changed["backends"].as_array().map(Vec::len) == Some(501),
            "{}",
            changed["backends"]
        );
        ensure!(changed["flows"]["reset_flows"] == 0, "{}", changed["flows"]);

        gateway.rewrite(&main)?;
        let gone = reloads(gateway)?;
        ensure!(gone["services"].as_array().map(Vec::len) == Some(1000), "{}", gone["services"]);
        // Beside the backends that serve comes one that nobody is, and goes.
        let first = "    { address = \"10.2.0.11\", port = 80 },\n";
        let dead = format!("{first}{}", first.replace(".11", ".99"));
        for text in [main.replace(first, &dead), main] {
            gateway.rewrite(&text)?;
            let told = reloads(gateway)?;
            ensure!(told["backends"][0]["address"] == "10.2.0.99", "{told}");
        }
        gateway
            .wait_status("the services from before", |status| names(status) == ["web", "web6"])?;
        Ok(())
    })
}

#[test]
fn a_bad_file_changes_nothing_and_says_why() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let ns = &site.net.gateway;
    let good = site.configuration(&site.service("web", WEB, CHECK));
    let mut gateway = Gateway::start(ns, &good)?;
    let half = &good[..good.len() - 25];
    for (text, words) in [
        (half, &["ringway.toml:", ": not TOML: "][..]),
        (
            &good.replace("[\"eth0\", \"eth1\"]", "[\"eth1\", \"eth0\"]"),
            &["ringway.toml:3:1: interfaces of [node]", "restart the daemon"],
        ),
        // A restart would refuse this, too: no word of one.
        (
            &good.replace("[\"eth0\", \"eth1\"]", "[\"eth0\", \"eth1\", \"eth9\"]"),
            &["ringway.toml:3:", "no interface \"eth9\"", "name one of: eth0, eth1"],
        ),
        (
            &good.replace("flows = 16384", "flows = 131072"),
            &["flows of [nat] cannot be changed", "ringway detach"],
        ),
        (
            &good.replace("announce = \"arp\"\n", ""),
            &["ringway.toml:", "nobody answers", "announce"],
        ),
    ] {
        gateway.rewrite(text)?;
        refuses(&gateway, words).with_context(|| format!("{words:?}"))?;
        get(site.client(), WEB)?;
    }
    gateway.child().signal(Signal::HUP)?;
    gateway.child().wait_for_log("not reloaded: the configuration in force stays", SOON)?;
    // Under another name the file is not this daemon's, whose own program is in nobody's way.
    gateway.rewrite(&good.replacen("name = \"", "name = \"not-", 1))?;
    gateway.ringway(&["reload"])?.complains(2, &["renamed in the file"])?;
    gateway.child().signal(Signal::HUP)?;
    gateway.child().wait_for_log("name of [node] cannot be changed by a reload", SOON)?;
    // A file that does not tell its node's name any more is found refused in the status, too; one
    // of somebody else is not.
    gateway.rewrite(&good)?;
    reloads(&gateway)?;
    gateway.wait_status("no finding", |status| !finds(status, "reload-failed"))?;
    let stranger = ns.directory().join("stranger.toml");
    fs::write(&stranger, &good)?;
    let stranger = stranger.display().to_string();
    for file in ["[node]\nname = 7\n", "[node\n"] {
        fs::write(&stranger, file)?;
        ringway(ns, &["reload", "-c", &stranger])?.complains(2, &[])?;
        let status = gateway.status()?;
        ensure!(!finds(&status, "reload-failed"), "{}", status["findings"]);
    }
    for nameless in
        [good.replacen("name = \"", "name = 7 # \"", 1), good.replacen("[node]", "[node", 1)]
    {
        gateway.rewrite(&nameless)?;
        gateway.ringway(&["reload"])?.complains(2, &["ringway.toml:"])?;
        gateway.rewrite(&good)?;
        gateway.wait_status("the refused reload", |status| finds(status, "reload-failed"))?;
        reloads(&gateway)?;
    }

    gateway.rewrite(&good)?;
    let same = reloads(&gateway)?;
    ensure!(same["changed"] == false, "{same}");
    gateway.wait_status("no finding of a reload", |status| !finds(status, "reload"))?;
    Ok(())
}

#[test]
fn a_dry_run_tells_and_changes_nothing() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let both = site.configuration(&site.service("echo", ECHO, ""));
    let gateway = Gateway::start(&site.net.gateway, &both)?;
    let (mut lines, mut on_first) = (Vec::new(), 0);
    for _ in 0..10 {
        let mut line = Line::open(site.client(), ECHO)?;
        on_first += usize::from(line.ask("hello")? == "b1");
        lines.push(line);
    }
    let one = both.replace("    { address = \"10.2.0.11\", port = 7 },\n", "");
    let more = site.service("web", WEB, "");
    gateway.rewrite(&(one + &more))?;
    let ran = gateway.ringway(&["reload", "--dry-run", "-o", "json"])?;
    let told = ran.json()?;
    ensure!(told["schema"] == "ringway.reload/1" && told["dry_run"] == true, "{told}");
    ensure!(told["services"][0]["service"] == "web", "{told}");
    ensure!(told["services"][0]["change"] == "added", "{told}");
    ensure!(told["backends"][0]["address"] == "10.2.0.11", "{told}");
    ensure!(told["backends"][0]["change"] == "removed", "{told}");
    ensure!(told["flows"]["reset_flows"] == on_first, "{on_first} {told}");
    let moved = told["rings"][0]["moved_slots"].as_u64().unwrap_or_default();
    ensure!((32_000..33_500).contains(&moved), "{told}");
    let said = gateway.ringway(&["reload", "--dry-run"])?;
    ensure!(said.out.contains("nothing has changed\n  + service web\n"), "{}", said.out);
    ensure!(!said.out.contains("once its new backends"), "{}", said.out);
    // Another port: its clients are not forgotten.
    let other = both.replace("port = 7\n", "port = 8\n");
    ensure!(other != both, "{both}");
    gateway.rewrite(&other)?;
    let said = gateway.ringway(&["reload", "--dry-run"])?;
    ensure!(said.out.contains(&format!("clients of echo {ECHO} tcp")), "{}", said.out);
    ensure!(
        said.out.contains("all flows of echo end: 10 TCP flows of nat with a reset\n"),
        "{}",
        said.out
    );
    gateway.rewrite(&(both.replace("    { address = \"10.2.0.11\", port = 7 },\n", "") + &more))?;
    // Another file than the daemon's is refused.
    let file = site.net.gateway.directory().join("other.toml");
    std::fs::write(&file, &both)?;
    let named = ["reload", "-c", &file.to_string_lossy()];
    ringway(&site.net.gateway, &named)?.complains(2, &["the daemon was started with"])?;
    // Nothing has.
    for line in &mut lines {
        line.ask("again")?;
    }
    ensure!(names(&gateway.status()?) == ["echo"], "it was a dry run");

    reloads(&gateway)?;
    let ended = lines.iter_mut().filter_map(|line| line.ask("at last").err()).count();
    ensure!(ended == on_first, "{ended} ended of {on_first}");
    get(site.client(), WEB)?;

    // A backend that nothing leads to, and one that nobody is.
    let lost =
        "    { address = \"10.99.0.1\", port = 7 },\n    { address = \"10.2.0.99\", port = 7 },\n";
    let first = "    { address = \"10.2.0.12\", port = 7 },\n";
    gateway.rewrite(&both.replace(first, &format!("{first}{lost}")))?;
    let said = gateway.ringway(&["reload", "--dry-run"])?;
    for words in ["once its new backends are up", "warning: ", "ip route add 10.99.0.1/32"] {
        ensure!(said.out.contains(words), "{words:?} not in {}", said.out);
    }
    let said = gateway.ringway(&["reload"])?;
    for words in [
        "traffic yet: echo 10.99.0.1:7 ",
        "traffic yet: echo 10.2.0.99:7 next hop 10.2.0.99 on eth1",
    ] {
        ensure!(said.code == 0 && said.out.contains(words), "{words:?} not in {said:?}");
    }
    Ok(())
}

#[test]
fn sighup_reads_the_file_again_and_health_stays() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    site.nginx.remove(1);
    let check = "check = { type = \"http\", interval = \"1s\", timeout = \"1s\", fall = 5 }\n";
    let text = site.configuration(&site.service("web", WEB, check));
    let mut gateway = Gateway::start_degraded(&site.net.gateway, &text)?;
    let refused = |status: &Value, service: usize| {
        status["services"][service]["backends"][1]["reason"].to_string().contains("refused")
    };
    let before = gateway.wait_status("b2 down", |status| {
        status["services"][0]["backends"][1]["health"] == "down" && refused(status, 0)
    })?;
    // Another order, another service; the same backends and checks.
    let other =
        site.service("other", (SERVICE_V4, 81).into(), check).replace("port = 81 }", "port = 80 }");
    let head = text.split("[[service]]").next().unwrap_or_default();
    gateway.rewrite(&format!("{head}{other}{}", site.service("web", WEB, check)))?;
    gateway.child().signal(Signal::HUP)?;
    let after = gateway.wait_status("both services", |status| {
        names(status) == ["other", "web"] && refused(status, 1)
    })?;
    let of = |status: &Value, service: usize, field: &str| -> Vec<Value> {
        let backends = status["services"][service]["backends"].as_array().cloned();
        backends.unwrap_or_default().iter().map(|backend| backend[field].clone()).collect()
    };
    for field in ["health", "since", "reason"] {
        ensure!(of(&before, 0, field) == of(&after, 1, field), "{field}: {before} {after}");
    }
    let passed = |status: &Value, service| of(status, service, "checks_passed")[0].as_u64();
    ensure!(passed(&before, 0) <= passed(&after, 1), "checks are counted on");
    get(site.client(), (SERVICE_V4, 81).into())?;
    Ok(())
}

/// New backends have been checked when those before them go: nobody meets a service without any.
#[test]
fn all_backends_are_replaced_at_once() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let check = "check = { type = \"http\", interval = \"2s\", timeout = \"2s\" }\n";
    let both = site.configuration(&site.service("web", WEB, check));
    let (first, second) = (
        "    { address = \"10.2.0.11\", port = 80 },\n",
        "    { address = \"10.2.0.12\", port = 80 },\n",
    );
    let gateway = Gateway::start(&site.net.gateway, &both.replace(second, ""))?;
    for n in 0..6 {
        let (gone, name) = if n % 2 == 0 { (first, "b2") } else { (second, "b1") };
        gateway.rewrite(&both.replace(gone, ""))?;
        reloads(&gateway)?;
        let answer = get(site.client(), WEB)?;
        ensure!(answer == name, "{n}: {answer}");
    }
    Ok(())
}
