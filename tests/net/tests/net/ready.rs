//! `ringway status --ready`: the check that keepalived, BIRD and ExaBGP run.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Gateway, Ran, RtnlHeld, SERVICE_V4, SOON, STARTED, Site, WEB, http, needs_root, not_tested,
};
use ringway_testnet::{Namespace, Signal, wait_for};

const CHECK: &str = "check = { type = \"http\", interval = \"500ms\", fall = 3 }\n";

/// What `ringway status --ready` says where the daemon does not, and where nothing was in time: so a
/// machine that is busy itself may let it answer once.
const BUSY: &str = "the daemon is busy: by the tables";
const LATE: &str = "no answer within";

/// Asks ten times; each answer is this one, and the daemon's own.
fn ask(gateway: &Gateway, more: &[&str], code: i32, words: &str) -> Result<()> {
    for _ in 0..10 {
        let ran = wait_for("the daemon's own answer", SOON, || own_answer(gateway, more))?;
        ensure!(ran.out.lines().count() == 1 && ran.err.is_empty(), "{ran:?}");
        ensure!(ran.code == code && ran.out.contains(words), "{code}, {words:?}: {ran:?}");
    }
    Ok(())
}

fn own_answer(gateway: &Gateway, more: &[&str]) -> Result<Ran, String> {
    let arguments = [&["status", "--ready"], more].concat();
    let ran = gateway.ringway(&arguments).map_err(|error| error.to_string())?;
    let own = ![BUSY, LATE].iter().any(|words| ran.out.contains(words));
    if own { Ok(ran) } else { Err(format!("{ran:?}")) }
}

fn answers(gateway: &Gateway, code: i32, words: &str) -> Result<(), String> {
    let ran = gateway.ringway(&["status", "--ready"]).map_err(|error| error.to_string())?;
    if ran.code == code && ran.out.contains(words) { Ok(()) } else { Err(format!("{ran:?}")) }
}

fn stopped(gateway: &mut Gateway, stop: bool) -> Result<(), String> {
    let signal = if stop { Signal::STOP } else { Signal::CONT };
    gateway.child().signal(signal).map_err(|error| error.to_string())
}

fn becomes(gateway: &Gateway, code: i32, words: &str) -> Result<()> {
    wait_for(format!("{code}, {words:?}"), SOON, || answers(gateway, code, words))?;
    ask(gateway, &[], code, words)
}

#[test]
fn is_right_and_quick_whatever_the_daemon_does() -> Result<()> {
    needs_root!();
    let mut site = Site::new(1)?;
    let ns = site.net.gateway.clone();
    let text = site.configuration(&site.service("web", WEB, CHECK));
    let mut gateway = Gateway::start(&ns, &text)?;
    becomes(&gateway, 0, "ready: node ")?;
    // A file that is being edited says nothing about the running node.
    gateway.rewrite(&text.replace("[[service]]\n", "[[service\n"))?;
    becomes(&gateway, 0, "ready: node ")?;
    gateway.rewrite(&text)?;

    let metrics = |path: &str, fits: &dyn Fn(&str) -> bool| {
        wait_for(format!("{path} of metrics"), SOON, || {
            let answer = http(&ns, SocketAddr::from(([127, 0, 0, 1], 9810)), path);
            let answer = answer.map_err(|error| format!("{error:#}"))?;
            if fits(&answer) { Ok(()) } else { Err(answer) }
        })
    };
    metrics("/readyz", &|answer| answer.ends_with("ready\n"))?;
    site.nginx[0].kill()?;
    becomes(&gateway, 3, "not ready: node ")?;
    metrics("/readyz", &|answer| {
        answer.starts_with("HTTP/1.1 503") && answer.contains("service web")
    })?;
    // The daemon itself is well.
    metrics("/healthz", &|answer| answer.ends_with("ok\n"))?;
    let json = gateway.ringway(&["status", "--ready", "-o", "json"])?;
    let said = json.json()?;
    ensure!(json.code == 3 && said["ready"] == false, "{said}");
    ensure!(said["schema"] == "ringway.ready/1" && said["reasons"][0].is_string(), "{said}");
    site.restart_nginx(0)?;
    becomes(&gateway, 0, "ready: node ")?;

    // As long as it has just beaten, it may only be busy.
    wait_for("by the tables", SOON, || {
        stopped(&mut gateway, true)?;
        let told = answers(&gateway, 0, BUSY);
        stopped(&mut gateway, false)?;
        told
    })?;
    // Its last beat grows old.
    gateway.child().signal(Signal::STOP)?;
    wait_for("its beat is old", SOON, || (0..10).try_for_each(|_| answers(&gateway, 3, LATE)))?;
    gateway.child().signal(Signal::CONT)?;
    becomes(&gateway, 0, "ready: node ")?;

    ns.ip("link set dev eth1 down\n")?;
    becomes(&gateway, 3, "eth1 is down")?;
    ns.ip("link set dev eth1 up\n")?;
    becomes(&gateway, 0, "ready: node ")?;

    gateway.kill()?;
    becomes(&gateway, 3, "daemon not running")
}

#[test]
fn one_service_of_two_withdraws_no_node() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let body = site.service("web", WEB, CHECK)
        + &site.service("mail", (SERVICE_V4, 25).into(), "check = { type = \"tcp\" }\n");
    let gateway = Gateway::launch(&site.net.gateway, &site.configuration(&body))?;
    becomes(&gateway, 0, "although service mail")?;
    ask(&gateway, &["--service", "web"], 0, "ready: ")?;
    ask(&gateway, &["--service", "mail"], 3, "service mail: no backend")?;
    ask(&gateway, &["--service", "none"], 3, "there is no service \"none\"")
}

/// Waits for a start that has this problem. `false`: it serves already.
fn is_starting(gateway: &Gateway, words: &str) -> Result<bool> {
    Ok(wait_for(words, STARTED, || {
        let served = gateway.log().contains("serving: ");
        let status = gateway.status().map_err(|error| format!("{error:#}"))?;
        let is = status["problems"].to_string().contains(words);
        if is || served { Ok(is) } else { Err(status["problems"].to_string()) }
    })?)
}

/// Somebody configures a device that takes its time: nobody can attach meanwhile.
#[test]
fn a_start_that_cannot_attach_yet_answers() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    // The first result of its check takes its time, too.
    site.set_link(0, false)?;
    let slow = "check = { type = \"http\", interval = \"3s\", timeout = \"3s\" }\n";
    let text = site.configuration(&site.service("web", WEB, slow));
    let elsewhere = Namespace::new("rtnl")?;
    // The moment between lasts three seconds at most: one that is missed is tried again.
    let begin = || -> Result<Option<(Gateway, Option<RtnlHeld>)>> {
        let gateway = Gateway::launch(&site.net.gateway, &text)?;
        is_starting(&gateway, "starting: not attached yet")?;
        let held = RtnlHeld::by(&elsewhere)?;
        let attaches =
            held.is_none() || is_starting(&gateway, "starting: attaching to the interfaces")?;
        Ok(attaches.then_some((gateway, held)))
    };
    let begun = wait_for("a start that cannot attach", STARTED, || match begin() {
        Ok(None) => Err("it has attached"),
        Ok(Some(begun)) => Ok(Ok(begun)),
        Err(error) => Ok(Err(error)),
    })?;
    let (mut gateway, Some(held)) = begun? else {
        not_tested("RTNL held: the kernel has no userfaultfd(2)");
        return Ok(());
    };
    gateway.wait_turn(Instant::now() + Duration::from_secs(3))?;
    ask(&gateway, &[], 3, "starting: attaching to the interfaces")?;
    drop(held);
    gateway.wait_serving()?;
    site.set_link(0, true)?;
    becomes(&gateway, 0, "ready: node ")
}
