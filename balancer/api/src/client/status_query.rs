//! Finds out how a node is: from its daemon, or from its pins when none runs.

use std::path::Path;
use std::time::Duration;

use ringway_config::SourceMode;
use ringway_host::Mac;
use ringway_host::netlink::links;
use ringway_kernel::{DEFAULT_BPFFS, InterfaceState, ServiceState, View};

use crate::client::http;
use crate::client::node_selector::{NodeSelector, NodeTarget, anothers, lives, stranger, view};
use crate::clock::Timestamp;
use crate::documents::forward::ForwardStatus;
use crate::documents::health::Health;
use crate::documents::status::{
    Backend, Daemon, FlowTable, Interface, NextHop, Problem, SCHEMA, Service, Status,
};
use crate::error::Error;
use crate::node::{liveness, netns_hint, service_manager, tables};
use crate::problem_kind::ProblemKind;

/// How long a daemon may take to say how it is. One that is silent for longer and whose heart does
/// not beat hangs.
const PATIENCE: Duration = liveness::FRESH;

/// The node's status.
///
/// # Errors
/// Nothing is known about it, or the daemon's answer is no use.
pub fn status(selector: &NodeSelector<'_>) -> Result<Status, Error> {
    let target = selector.find()?;
    let mut status = status_of(selector, &target)?;
    // Under systemd the daemon does not see other users' processes (ProtectProc=invisible); who
    // asks may.
    for capture in status.captures.iter_mut().filter(|capture| capture.command.is_empty()) {
        capture.command = tables::command(capture.pid);
    }
    if let Some(enter) = &target.enter_netns {
        status.findings.insert(0, stranger(&target.node, enter));
    }
    Ok(status)
}

fn status_of(selector: &NodeSelector<'_>, target: &NodeTarget) -> Result<Status, Error> {
    let mut stranger = None;
    for socket in &target.sockets {
        match ask(socket, &target.node) {
            Ok(status) if status.node == target.node => return Ok(status),
            Ok(status) => stranger = stranger.or(Some((socket, status.node))),
            Err(http::Failure::NotRunning) => {}
            Err(http::Failure::Late(error)) => return from_pins(&target.node, Some(&error)),
            Err(http::Failure::Failed(error)) => return Err(error),
        }
    }
    match stranger {
        Some((socket, other)) if selector.config.is_some() => {
            Err(anothers(socket, &other, &target.node))
        }
        _ => from_pins(&target.node, None),
    }
}

fn ask(socket: &Path, node: &str) -> Result<Status, http::Failure> {
    let beats = || {
        let view = View::open(Path::new(DEFAULT_BPFFS), node).ok();
        let last = view.and_then(|view| view.daemon().ok().flatten());
        last.is_some_and(|last| last.running && liveness::is_fresh(last.alive))
    };
    match http::get_at_once(socket, "/v1/status", PATIENCE) {
        // It is busy, or the machine is: what it says is worth waiting for.
        Err(http::Failure::Late(_)) if beats() => http::get(socket, "/v1/status"),
        answer => answer,
    }
}

/// A node's interfaces. For a VLAN device nothing is pinned, and what is pinned for one whose
/// program was taken off no longer says which it is: these have the name that the system has for
/// them here.
pub fn interfaces(view: &View) -> ringway_kernel::Result<Vec<InterfaceState>> {
    let named = |mut state: InterfaceState| {
        state.name = state.name.or_else(|| system_name(state.ifindex, state.mac));
        state
    };
    Ok(view.interfaces()?.into_iter().map(named).collect())
}

/// Another network namespace may have the number for another device.
fn system_name(ifindex: u32, mac: [u8; 6]) -> Option<String> {
    let link = links::by_index(ifindex).ok()?;
    // Without an Ethernet header there is none, and the packet path has zeroes.
    (link.mac.unwrap_or(Mac([0; 6])) == Mac(mac)).then_some(link.name)
}

/// The status by the pins, without a daemon. `late`: one listens, and did not answer in time.
fn from_pins(node: &str, late: Option<&Error>) -> Result<Status, Error> {
    let view = view(node)?;
    let read = || -> ringway_kernel::Result<Status> {
        let (daemon, doing) = last_daemon(&view, node)?;
        let mut status = Status {
            schema: SCHEMA.to_owned(),
            node: node.to_owned(),
            // Nobody checks whether it is not.
            degraded: true,
            from_pins: true,
            daemon,
            ..Status::default()
        };
        let states = interfaces(&view)?;
        status.interfaces = states.iter().map(interface).collect();
        for (place, state) in states.iter().enumerate() {
            tables::count(&mut status, place, &state.ledger);
        }
        let table = tables::flow_table(&view)?;
        let shown = |state: &ServiceState| service(state, &states, &table);
        status.services = view.services()?.iter().map(shown).collect();
        status.flow_table = Some(table);
        status.tracked = Some(tables::tracked(&view)?);
        status.shield_observed = tables::shield_observed(&view)?;
        status.captures = tables::captures(&view);
        // Who may not look at the program is told of the rest.
        status.forward = view.forward_state().ok().flatten().map(ForwardStatus::of_pins);
        if !view.counts_losses()? {
            let names: Vec<&str> = status.interfaces.iter().map(|i| i.name.as_str()).collect();
            status.findings.push(tables::losses_uncounted(None, &names));
        }
        status.findings.extend(tables::bpffs_covered());
        let beat = view.daemon()?.and_then(|daemon| daemon.alive.elapsed().ok());
        let late = late.map(|error| Late { error, beat });
        status.problems =
            problems(&status, late.as_ref(), &doing, netns_hint::locate(&view).enter().as_deref());
        status.unready.clone_from(&status.problems);
        Ok(status)
    };
    read().map_err(|error| Error::failed(error.to_string(), ""))
}

/// And what one that starts says of itself.
fn last_daemon(view: &View, node: &str) -> ringway_kernel::Result<(Daemon, String)> {
    let last = view.daemon()?;
    let starts = match &last {
        Some(last) if last.running => (!lives(last.pid)).then(String::new),
        _ => service_manager::starting(node),
    };
    if let Some(doing) = starts {
        return Ok((Daemon { running: true, ..Daemon::default() }, doing));
    }
    let known = last.map(|last| Daemon {
        running: last.running,
        pid: Some(last.pid),
        since: Some(Timestamp(if last.running { last.started } else { last.alive })),
        ..Daemon::default()
    });
    Ok((known.unwrap_or_default(), String::new()))
}

/// A daemon that listens, and did not answer in time.
struct Late<'e> {
    error: &'e Error,
    /// How old its heartbeat is.
    beat: Option<Duration>,
}

impl Late<'_> {
    fn problem(&self, pid: u64, status: &Status) -> Problem {
        let busy = self.beat.filter(|age| *age < liveness::HANGS);
        let restart = service_manager::restart(pid, true);
        let (means, remedy) = match busy {
            _ if service_manager::is_stopped(pid) => (
                "a signal or a debugger has stopped it".to_owned(),
                format!("kill -CONT {pid} lets it go on; or {restart}; no packet is lost"),
            ),
            Some(age) => (
                format!(
                    "its last heartbeat is {} s old: it, or this machine, is busy",
                    age.as_secs()
                ),
                format!(
                    "ask again in a moment, and look at `uptime`; if that is {} s old then, it hangs: {restart}",
                    liveness::HANGS.as_secs()
                ),
            ),
            None => ("it hangs".to_owned(), format!("{restart}; no packet is lost")),
        };
        let what = &self.error.what;
        ProblemKind::DaemonSilent.problem(
            format!(
                "the daemon (process {pid}) does not answer ({what}), {means}; {}; this output comes from the \
                 pinned tables",
                not_done(status)
            ),
            remedy,
        )
    }
}

/// `doing`: what a daemon that starts says of itself, or empty. `enter`: how to get where the node
/// is, if that is elsewhere.
fn problems(
    status: &Status,
    late: Option<&Late<'_>>,
    doing: &str,
    enter: Option<&str>,
) -> Vec<Problem> {
    let doing = if doing.is_empty() { String::new() } else { format!(" ({doing})") };
    let since = status.daemon.since_text();
    let pid = status.daemon.pid.unwrap_or_default();
    let mut problems = vec![match (status.daemon.running, late) {
        (true, _) if status.daemon.pid.is_none() => ProblemKind::Starting.problem(
            format!("a daemon is starting{doing} and does not answer yet; this output comes from the pinned tables"),
            "ask again in a moment",
        ),
        (true, Some(late)) => late.problem(pid, status),
        (false, _) => ProblemKind::DaemonNotRunning.problem(
            format!("daemon not running since {since}: {}", not_done(status)),
            format!("{}; it takes over without losing a packet", start_again(status)),
        ),
        (true, None) => ProblemKind::DaemonSilent.problem(
            format!(
                "the daemon (process {pid}) was not asked: its API socket is not known, or does \
                 not answer; this output comes from the pinned tables"
            ),
            format!(
                "name its configuration with -c FILE, as it was started; if it hangs: {}",
                service_manager::restart(pid, true)
            ),
        ),
    }];
    let there = match enter {
        Some(enter) if status.daemon.running => {
            format!("it is elsewhere: `{enter} ringway status --node {}`", status.node)
        }
        Some(enter) => format!(
            "start the daemon: it attaches again by itself; if the node is elsewhere: `{enter} ringway status --node {}`",
            status.node
        ),
        None => "start the daemon: it attaches again by itself".to_owned(),
    };
    for interface in status.interfaces.iter().filter(|interface| !interface.attached) {
        problems.push(ProblemKind::NotAttached.of_interface(
            &interface.name,
            format!(
                "{}: our program is not attached, or not visible from this network namespace",
                interface.name
            ),
            there.as_str(),
        ));
    }
    problems
}

/// What nobody does while the daemon does not answer.
fn not_done(status: &Status) -> String {
    let forward =
        status.forward.as_ref().map(|forward| match (forward.suspended, status.daemon.running) {
            (true, _) => forward.kernel_does().to_owned(),
            (false, true) => "its tables for forwarding are kept up nevertheless".to_owned(),
            (false, false) => format!("{}, in five seconds at most", forward.kernel_does()),
        });
    match forward {
        None => "backends are not checked".to_owned(),
        Some(forward) if status.only_forwards() => forward,
        Some(forward) => format!("backends are not checked, and {forward}"),
    }
}

fn start_again(status: &Status) -> String {
    let forward = status.forward.as_ref().filter(|_| status.only_forwards());
    match forward.filter(|_| !service_manager::is_units(&status.node)) {
        Some(forward) => {
            let names: Vec<&str> = status.interfaces.iter().map(|it| it.name.as_str()).collect();
            let route = if forward.mode == "route" { " --route" } else { "" };
            format!(
                "start it again, with the options or the file that it had: ringway forward -i {}{route} \
                 --name {}",
                names.join(","),
                status.node
            )
        }
        None => {
            "start it again (`systemctl start ringway`, or `ringway run` as it was started)".into()
        }
    }
}

fn interface(state: &InterfaceState) -> Interface {
    Interface {
        name: state.name.clone().unwrap_or_else(|| format!("ifindex {}", state.ifindex)),
        ifindex: state.ifindex,
        slot: state.slot,
        attached: state.mode.is_some(),
        mode: state.mode,
        ..Interface::default()
    }
}

fn service(state: &ServiceState, interfaces: &[InterfaceState], table: &FlowTable) -> Service {
    let name = |slot: u32| {
        let found = interfaces.iter().find(|interface| interface.slot == slot);
        found.and_then(|interface| interface.name.clone()).unwrap_or_default()
    };
    let backends = state.backends.iter().map(|backend| {
        let mut shown = Backend {
            last_health: Some(if backend.up { Health::Up } else { Health::Down }),
            kept: backend.kept,
            next_hop: backend.next_hop.map(|hop| NextHop {
                interface: name(hop.iface),
                mac: Mac(hop.mac),
                mtu_bytes: hop.mtu,
            }),
            ..Backend::new(backend.address)
        };
        if backend.up && backend.next_hop.is_none() {
            shown.reason = Some("no way to it was known".into());
        }
        tables::add_traffic(&mut shown, &backend.traffic);
        shown.current_flows = tables::flows_now(state, backend, Some(&table.by_backend));
        shown
    });
    let backends: Vec<Backend> = backends.collect();
    let is_clients = state.source_client || state.forward.is_dsr();
    Service {
        source: if is_clients { SourceMode::Client } else { SourceMode::Node },
        current_flows: backends.iter().map(|backend| backend.current_flows).sum(),
        backends,
        ..Service::new(&state.name, state.key, state.forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_daemon_the_node_is_not_ready_and_says_which_process_hangs() {
        let status = |running| Status {
            daemon: Daemon { running, pid: Some(u64::MAX), ..Daemon::default() },
            ..Status::default()
        };
        let error = Error::failed("no answer within 2 s", "");
        let late = |seconds| Late { error: &error, beat: Some(Duration::from_secs(seconds)) };
        let kind = |running, late: Option<Late<'_>>| {
            problems(&status(running), late.as_ref(), "", None).remove(0)
        };
        assert_eq!(kind(false, None).kind, ProblemKind::DaemonNotRunning);
        let busy = kind(true, Some(late(3)));
        assert!(busy.error.contains("3 s old: it, or this machine, is busy"), "{busy:?}");
        assert!(busy.remedy.to_string().starts_with("ask again in a moment"), "{busy:?}");
        let hangs = kind(true, Some(late(30)));
        assert_eq!(hangs.kind, ProblemKind::DaemonSilent);
        assert!(hangs.error.contains(&format!("process {}", u64::MAX)), "{hangs:?}");
        assert!(hangs.error.contains("no answer within 2 s"));
        assert!(hangs.remedy.to_string().contains("kill -KILL"));
    }

    #[test]
    fn a_program_that_is_not_seen_here_may_be_elsewhere() {
        let status = Status {
            node: "gw1".into(),
            interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
            ..Status::default()
        };
        let told = |enter| problems(&status, None, "", enter).remove(1).remedy.to_string();
        assert!(
            told(Some("nsenter -t 7 -n")).contains("`nsenter -t 7 -n ringway status --node gw1`")
        );
        assert!(told(None).starts_with("start the daemon"));
    }

    #[test]
    fn a_start_that_waits_says_for_what() {
        let daemon = Daemon { running: true, ..Daemon::default() };
        let status = Status { daemon, ..Status::default() };
        let problem = problems(&status, None, "waiting for eth1", None).remove(0);
        assert_eq!(problem.kind, ProblemKind::Starting);
        assert!(problem.error.contains("is starting (waiting for eth1) and"), "{problem:?}");
    }
}
