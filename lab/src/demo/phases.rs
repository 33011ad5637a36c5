//! The phases of the demo.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ringway_testnet::wait_until;

use super::judge::{Kill, judge};
use super::load::{Load, Plan, nanoseconds};
use super::report::{Phase, per_second};
use super::site::{
    BACKENDS, ECHO, FAILOVER_LIMIT, HTTP, SERVICE_V4, SERVICE_V6, Site, backend_name,
    wait_for_answer,
};
use super::{Say, echo};
use crate::harness::median::rounded;
use crate::harness::wrk;
use crate::{Error, Result};

#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// As `--only` takes it.
    pub name: &'static str,
    pub what: &'static str,
    run: for<'a> fn(&mut Site, Say<'a>) -> Result<Phase>,
}

/// All of them, in the order they run.
pub const PHASES: [Info; 8] = [
    Info {
        name: "curl",
        what: "single requests until all three backends have answered",
        run: curl,
    },
    Info { name: "ipv6", what: "load on an IPv6 service address", run: ipv6 },
    Info { name: "udp", what: "datagrams there and back, 300 flows", run: udp },
    Info { name: "wrk", what: "wrk, one thread, 100 connections, 3 s", run: wrk },
    Info { name: "kill-backend", what: "kill -9 a backend's nginx under load", run: kill_backend },
    Info { name: "lose-backend", what: "take a backend's link down under load", run: lose_backend },
    Info {
        name: "kill-9",
        what: "kill -9 the daemon under load, a second without it, then a new one",
        run: kill_daemon,
    },
    Info {
        name: "restart",
        what: "end the daemon by SIGTERM under load, then a new one",
        run: restart_daemon,
    },
];

/// The backend that dies, counted from 0.
const VICTIM: usize = 1;
/// Load before something is done to it, and after it has been mended.
const QUIET: Duration = Duration::from_secs(1);

/// Those named, in the order they run; all when none is named.
pub(super) fn choose(only: &[String]) -> Result<Vec<Info>> {
    if let Some(name) = only.iter().find(|name| PHASES.iter().all(|p| p.name != **name)) {
        return Err(Error::NoSuchPhase(name.clone(), PHASES.map(|p| p.name).join(", ")));
    }
    let chosen = |phase: &Info| only.is_empty() || only.iter().any(|name| name == phase.name);
    Ok(PHASES.into_iter().filter(chosen).collect())
}

/// A phase that breaks off is one that did not hold, and the next one gets its chance.
pub(super) fn run(phase: &Info, site: &mut Site, say: Say) -> Phase {
    (phase.run)(site, say).unwrap_or_else(|e| Phase::failed(phase.name, e.to_string()))
}

/// One line about how it went.
pub(super) fn outcome(phase: &Phase) -> String {
    let mut line = format!(
        "  {}: {} requests, {} errors",
        if phase.ok { "held" } else { "DID NOT HOLD" },
        phase.requests,
        phase.errors
    );
    if phase.lost_to_killed > 0 {
        line += &format!(", {} lost to the killed backend", phase.lost_to_killed);
    }
    if let Some(ms) = phase.failover_ms {
        line += &format!(", failover in {ms} ms");
    }
    for problem in &phase.problems {
        line += &format!("\n  {problem}");
    }
    line
}

fn http(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, HTTP)
}

/// curl itself, since that is what everybody would try first.
fn curl(site: &mut Site, say: Say) -> Result<Phase> {
    /// One of three equal backends stays unseen by all of these once in 180 000 times.
    const MOST: u32 = 30;
    let url = format!("http://{}/", http(SERVICE_V4));
    let mut phase = Phase::empty("curl");
    let (mut seen, mut latency) = (BTreeSet::new(), nanoseconds());
    let begin = Instant::now();
    while phase.requests < u64::from(MOST) && seen.len() < BACKENDS {
        let mut command = site.client().tool("curl")?;
        command.args(["-sS", "--fail", "--noproxy", "*", "--max-time", "2"]);
        command.args(["-w", "%{time_total}", &url]);
        let output =
            command.output().map_err(|source| Error::Run { program: "curl".into(), source })?;
        phase.requests += 1;
        let said = String::from_utf8_lossy(&output.stdout);
        match said.split_once('\n') {
            Some((backend, seconds)) if output.status.success() => {
                say(&format!("  curl {url} -> {backend}"));
                seen.insert(backend.to_owned());
                let seconds: f64 = seconds.trim().parse().unwrap_or_default();
                latency.saturating_record((seconds * 1e9) as u64);
            }
            _ => {
                phase.errors += 1;
                phase.blame(String::from_utf8_lossy(&output.stderr).trim());
            }
        }
    }
    phase.requests_per_s = per_second(phase.requests - phase.errors, begin.elapsed());
    phase.latency_p99_ns = latency.value_at_quantile(0.99);
    if seen.len() < BACKENDS {
        phase.blame(format!("only {seen:?} of {BACKENDS} backends answered"));
    }
    Ok(phase)
}

fn ipv6(site: &mut Site, _: Say) -> Result<Phase> {
    wait_for_answer(site.client(), http(SERVICE_V6))?;
    let load = Load::start(site.client(), Plan::new(http(SERVICE_V6)))?;
    sleep(Duration::from_secs(2));
    let tally = load.stop()?;
    let mut phase = Phase::of_load("ipv6", &tally, judge(&tally, None));
    if tally.answered.len() != BACKENDS {
        phase.blame(format!("only {:?} answered", tally.answered.keys()));
    }
    Ok(phase)
}

fn udp(site: &mut Site, _: Say) -> Result<Phase> {
    let target = SocketAddr::new(SERVICE_V4, ECHO);
    let ask = || echo::ask(target, 300, 5, Duration::from_secs(1));
    let echoed = site
        .client()
        .run(ask)?
        .map_err(|source| Error::Run { program: "a UDP client".into(), source })?;
    let answered: u64 = echoed.answered.values().sum();
    let mut phase = Phase {
        requests: answered + echoed.lost + echoed.wrong,
        errors: echoed.lost + echoed.wrong,
        requests_per_s: per_second(answered, echoed.elapsed),
        latency_p99_ns: echoed.latency.value_at_quantile(0.99),
        ..Phase::empty("udp")
    };
    if phase.errors > 0 {
        phase.blame(format!(
            "{} datagrams without an answer, {} with a wrong one",
            echoed.lost, echoed.wrong
        ));
    }
    if echoed.answered.len() != BACKENDS {
        phase.blame(format!("only {:?} answered", echoed.answered.keys()));
    }
    Ok(phase)
}

fn wrk(site: &mut Site, _: Say) -> Result<Phase> {
    let url = format!("http://{}/", http(SERVICE_V4));
    let figures = wrk::run(site.client(), &url, 100, Duration::from_secs(3))?;
    let mut phase = Phase {
        requests: figures.requests + figures.errors,
        errors: figures.errors,
        requests_per_s: rounded(figures.requests_per_s, 1),
        latency_p99_ns: figures.latency_p99_ns,
        ..Phase::empty("wrk")
    };
    if figures.errors > 0 {
        phase.blame(format!("wrk counted {} errors", figures.errors));
    }
    Ok(phase)
}

fn kill_backend(site: &mut Site, say: Say) -> Result<Phase> {
    let phase = with_a_death("kill-backend", site, say, false, |site| site.kill_backend(VICTIM))?;
    site.restart_backend(VICTIM)?;
    back_again(site, phase, say)
}

fn lose_backend(site: &mut Site, say: Say) -> Result<Phase> {
    let phase = with_a_death("lose-backend", site, say, true, |site| site.set_link(VICTIM, false));
    // The next phase needs the link, even if this one failed.
    site.set_link(VICTIM, true)?;
    back_again(site, phase?, say)
}

/// Load, a death in its midst, and load until some time after the failover must be complete.
fn with_a_death(
    name: &str,
    site: &mut Site,
    say: Say,
    silent: bool,
    strike: impl FnOnce(&mut Site) -> Result<()>,
) -> Result<Phase> {
    let backend = backend_name(VICTIM);
    let load = Load::start(site.client(), Plan::new(http(SERVICE_V4)))?;
    warm_up(&load)?;
    let at = Instant::now();
    strike(site)?;
    say(&format!("  {backend} is gone"));
    let share = 1.0 / BACKENDS as f64;
    let kill = Kill { at, backend, share, limit: FAILOVER_LIMIT, silent };
    let address = site.net.backends[VICTIM].v4.map(|a| a.to_string()).unwrap_or_default();
    let noticed = site.daemon.wait_until_down(&address);
    if noticed.is_ok() {
        say(&format!("  the daemon has it down after {} ms", at.elapsed().as_millis()));
    }
    sleep((FAILOVER_LIMIT + QUIET).saturating_sub(at.elapsed()));
    let tally = load.stop()?;
    let mut phase = Phase::of_load(name, &tally, judge(&tally, Some(&kill)));
    if let Err(e) = noticed {
        phase.blame(e.to_string());
    }
    if phase.failover_ms.is_none() {
        phase.blame("not one request was lost: the backend was not in use, or did not die");
    }
    Ok(phase)
}

/// The dead backend, mended, gets its share again.
fn back_again(site: &mut Site, mut phase: Phase, say: Say) -> Result<Phase> {
    site.daemon.wait_until_up()?;
    let backend = backend_name(VICTIM);
    let load = Load::start(site.client(), Plan::new(http(SERVICE_V4)))?;
    sleep(Duration::from_millis(300));
    let tally = load.stop()?;
    let verdict = judge(&tally, None);
    phase.requests += tally.requests();
    phase.errors += verdict.errors;
    for problem in verdict.problems {
        phase.blame(format!("after the backend was back: {problem}"));
    }
    if tally.answered.contains_key(&backend) {
        say(&format!("  {backend} is back and answers"));
    } else {
        phase.blame(format!("{backend} is up again and gets no requests"));
    }
    Ok(phase)
}

fn kill_daemon(site: &mut Site, say: Say) -> Result<Phase> {
    without_a_daemon("kill-9", site, say, |site| site.daemon.kill())
}

fn restart_daemon(site: &mut Site, say: Say) -> Result<Phase> {
    without_a_daemon("restart", site, say, |site| site.daemon.terminate())
}

/// Load through the daemon's end, a second without one, and a new one's start. Not one request may
/// fail.
fn without_a_daemon(
    name: &str,
    site: &mut Site,
    say: Say,
    end: impl FnOnce(&mut Site) -> Result<()>,
) -> Result<Phase> {
    let load = Load::start(site.client(), Plan::new(http(SERVICE_V4)))?;
    warm_up(&load)?;
    end(site)?;
    let before = load.answers();
    sleep(QUIET);
    let meanwhile = load.answers() - before;
    say(&format!(
        "  {meanwhile} answers in a second; ringway status: {}",
        site.daemon.status_heading()?
    ));
    site.daemon.start_again()?;
    let up = site.daemon.wait_until_up();
    sleep(QUIET);
    let tally = load.stop()?;
    let mut phase = Phase::of_load(name, &tally, judge(&tally, None));
    if meanwhile == 0 {
        phase.blame("no traffic flowed without the daemon");
    }
    match up {
        Ok(()) => say("  a new daemon has taken over"),
        Err(e) => phase.blame(e.to_string()),
    }
    Ok(phase)
}

/// Waits for the first answers, and then for the load to settle.
fn warm_up(load: &Load) -> Result<()> {
    wait_until("answers to the load", Duration::from_secs(5), || load.answers() > 100)?;
    sleep(QUIET);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_chosen_by_name() {
        let choose = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            choose(&names).map(|phases| phases.iter().map(|p| p.name).collect::<Vec<_>>())
        };
        assert_eq!(choose(&[]).unwrap().len(), PHASES.len());
        assert_eq!(choose(&["wrk", "curl"]).unwrap(), ["curl", "wrk"]);
        let error = choose(&["curl", "walk"]).unwrap_err().to_string();
        assert!(error.contains("\"walk\"") && error.contains("kill-backend"), "{error}");
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = PHASES.iter().map(|p| p.name).collect();
        assert_eq!(names.len(), PHASES.len());
    }
}
