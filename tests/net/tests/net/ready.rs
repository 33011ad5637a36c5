//! `ringway status --ready`: the check that keepalived, BIRD and ExaBGP run.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, Ran, SERVICE_V4, SOON, Site, WEB, needs_root};
use ringway_testnet::{Signal, wait_for};

const CHECK: &str = "check = { type = \"http\", interval = \"500ms\" }\n";
const AT_MOST: Duration = Duration::from_millis(100);

/// Asks ten times. The quickest answer is in time, and counts: what else this machine does at the moment is
/// not ours, and may also make a running daemon late. All that are not late agree.
fn ask(gateway: &Gateway, more: &[&str]) -> Result<Ran> {
    let arguments = [&["status", "--ready"], more].concat();
    let mut answers = Vec::new();
    for _ in 0..10 {
        let began = Instant::now();
        let ran = gateway.ringway(&arguments)?;
        ensure!(ran.out.lines().count() == 1 && ran.err.is_empty(), "{ran:?}");
        let took = began.elapsed();
        answers.push((late(&ran), took, ran));
    }
    answers.sort_by_key(|(late, took, _)| (*late, *took));
    let codes: Vec<i32> =
        answers.iter().filter(|(late, ..)| !late).map(|(.., ran)| ran.code).collect();
    ensure!(codes.windows(2).all(|two| two[0] == two[1]), "{answers:?}");
    let quickest = answers.iter().map(|(_, took, _)| *took).min().unwrap_or_default();
    ensure!(quickest < AT_MOST, "the quickest answer took {quickest:?}");
    Ok(answers.swap_remove(0).2)
}

fn late(ran: &Ran) -> bool {
    ["no answer within", "the daemon is busy"].iter().any(|words| ran.out.contains(words))
}

fn becomes(gateway: &Gateway, code: i32, words: &str) -> Result<()> {
    wait_for(format!("{code}, {words:?}"), SOON, || {
        let ran = gateway.ringway(&["status", "--ready"]).map_err(|error| error.to_string())?;
        let fits = ran.code == code && ran.out.contains(words);
        if fits { Ok(()) } else { Err(format!("{ran:?}")) }
    })?;
    let ran = ask(gateway, &[])?;
    ensure!(ran.code == code && ran.out.contains(words), "{ran:?}");
    Ok(())
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

    site.nginx[0].kill()?;
    becomes(&gateway, 3, "not ready: node ")?;
    let json = gateway.ringway(&["status", "--ready", "-o", "json"])?;
    let said = json.json()?;
    ensure!(json.code == 3 && said["ready"] == false, "{said}");
    ensure!(said["schema"] == "ringway.ready/1" && said["reasons"][0].is_string(), "{said}");
    site.restart_nginx(0)?;
    becomes(&gateway, 0, "ready: node ")?;

    // As long as it has just beaten, it may only be busy.
    gateway.child().signal(Signal::STOP)?;
    let busy = gateway.ringway(&["status", "--ready"])?;
    ensure!(busy.code == 0 && busy.out.contains("the daemon is busy: by the tables"), "{busy:?}");
    // Its last beat grows old.
    becomes(&gateway, 3, "no answer within")?;
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
    ensure!(ask(&gateway, &["--service", "web"])?.code == 0);
    let mail = ask(&gateway, &["--service", "mail"])?;
    ensure!(mail.code == 3 && mail.out.contains("service mail: no backend"), "{mail:?}");
    let none = ask(&gateway, &["--service", "none"])?;
    ensure!(none.code == 3 && none.out.contains("there is no service \"none\""), "{none:?}");
    Ok(())
}
