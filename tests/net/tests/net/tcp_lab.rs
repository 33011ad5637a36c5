//! `ringway-lab bench` of TCP and the kernel's path, as small as it can be: what they say, not how
//! fast anything is.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, lab_binary, needs_root, not_tested};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn bench(arguments: &[&str]) -> Result<Ran> {
    Ok(Command::new(lab_binary()?).arg("bench").args(arguments).output()?.into())
}

#[test]
fn memory_of_a_socket() -> Result<()> {
    needs_root!();
    let page = tempfile::NamedTempFile::new()?;
    let path = page.path().to_str().context("no UTF-8")?;
    let states = "established,client-sent-unread,time-wait";
    let few = ["--connections", "1k", "--rounds", "1", "--only", states, "-o", "json"];
    let ran = bench(&[&["tcp-memory", "--html", path], &few[..]].concat())?;
    let report = ran.complains(0, &["round 1/1  established"])?.json()?;
    ensure!(report["schema"] == "ringway.bench.tcp-memory/1", "{report}");
    let bytes = |state: &str, side: &str| -> Result<u64> {
        let rows = report["states"].as_array().context("no states")?;
        let is = |row: &&Value| row["state"] == state && row["side"] == side;
        rows.iter().find(is).and_then(|row| row["bytes_per_socket"].as_u64()).context("no row")
    };
    for side in ["client", "server"] {
        // A socket, its inode, its file and its directory entry: no kernel does it for less than 2
        // KB.
        let idle = bytes("established", side)?;
        ensure!((2000..16_000).contains(&idle), "{side}: {report}");
    }
    let queued = bytes("client-sent-unread", "server")? - bytes("established", "server")?;
    ensure!((200..4000).contains(&queued), "what has not been read is somewhere: {report}");
    ensure!((100..1500).contains(&bytes("time-wait", "client")?), "{report}");
    ensure!(bytes("time-wait", "server")? < 400, "{report}");
    let charged = report["states"][0]["memcg"]["slab_bytes"].as_i64();
    match report["no_memcg"].as_str() {
        Some(why) => ensure!(charged.is_none() && why.contains("cgroup"), "{report}"),
        None => ensure!(charged > Some(1000), "{report}"),
    }
    let html = fs::read_to_string(path)?;
    ensure!(html.contains("<svg") && html.contains("time-wait, client"), "{html}");
    Ok(())
}

/// Whoever may not is told at once, and what to write.
#[test]
fn not_for_everybody() -> Result<()> {
    needs_root!();
    // Where everybody may read it.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
    let lab = directory.path().join("ringway-lab");
    fs::copy(lab_binary()?, &lab)?;
    for what in ["tcp-memory", "million", "tcp-connect", "kernel-path"] {
        let mut command = Command::new(&lab);
        let typed = ["bench", what, "--html", "a page.html"];
        let ran: Ran =
            command.args(typed).uid(65_534).gid(65_534).current_dir("/tmp").output()?.into();
        ensure!(ran.code == 1 && ran.out.is_empty(), "{ran:?}");
        let remedy = format!("write `sudo {} bench {what} --html 'a page.html'`", lab.display());
        ensure!(ran.err.contains("needs root") && ran.err.contains(&remedy), "{ran:?}");
    }
    Ok(())
}

/// A page that cannot be written is refused before anything is measured.
#[test]
fn a_page_nowhere() -> Result<()> {
    needs_root!();
    for what in ["tcp-memory", "million", "tcp-connect", "kernel-path"] {
        let ran = bench(&[what, "--html", "/nonexistent/page.html"])?;
        ensure!(ran.code == 1 && ran.out.is_empty(), "{ran:?}");
        ensure!(ran.err.lines().count() == 1, "no progress: {ran:?}");
        ensure!(
            ran.err.contains("writing /nonexistent/page.html: see that its directory"),
            "{ran:?}"
        );
    }
    Ok(())
}

/// What is possible with few open files, and the remedy, which works.
#[test]
fn few_open_files() -> Result<()> {
    needs_root!();
    let limited = |files: u32, arguments: &str| -> Result<Ran> {
        let line = format!("ulimit -n {files}; exec \"$0\" bench {arguments}");
        Ok(Command::new("bash").args(["-c", &line]).arg(lab_binary()?).output()?.into())
    };
    for files in [8, 20, 64, 128, 1024] {
        for what in ["tcp-memory --connections 10k", "million", "tcp-connect --connections 10k"] {
            let ran = limited(files, what)?;
            ensure!(ran.code == 1 && ran.out.is_empty(), "{files} {what}: {ran:?}");
            ensure!(
                ran.err.starts_with("ringway-lab: not enough open files"),
                "{files} {what}: {ran:?}"
            );
            ensure!(ran.err.contains("`prlimit --nofile="), "{files} {what}: {ran:?}");
            ensure!(!ran.err.contains("--connections 0`"), "{files} {what}: {ran:?}");
        }
    }
    limited(20, "kernel-path")?.complains(1, &["64 needed, 20 allowed"])?;
    let refused = limited(128, "million")?.err;
    let possible =
        refused.split("write `--connections ").nth(1).and_then(|rest| rest.split('`').next());
    let possible = possible.with_context(|| format!("no remedy: {refused}"))?;
    limited(128, &format!("million --connections {possible}"))?.done()?;
    Ok(())
}

/// The command ends when all that it started has ended.
#[test]
fn a_signal_waits_for_helpers() -> Result<()> {
    needs_root!();
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = Command::new(lab_binary()?);
        command.args(["bench", "million", "--connections", "30k", "--rate", "5k"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stderr.take().context("no stderr")?);
        // The second line is told when connections are being made.
        let mut lines = lines.lines();
        let begun = lines.by_ref().take(2).collect::<Result<Vec<_>, _>>()?;
        ensure!(begun.len() == 2 && begun[1].contains(" of 30000 connections"), "{begun:?}");
        let helpers = helpers_of(child.id());
        ensure!(helpers.len() >= 4, "{helpers:?}");
        kill_process(Pid::from_child(&child), signal)?;
        let status = child.wait()?;
        ensure!(status.code() == Some(128 + signal.as_raw()), "{status:?}");
        let left: Vec<_> = helpers.into_iter().filter(|pid| is_helper(*pid)).collect();
        ensure!(left.is_empty(), "{left:?} are left");
        let mine = format!("-{}-", child.id());
        let namespaces = fs::read_dir("/run/netns")?.flatten();
        let namespaces: Vec<_> = namespaces.map(|entry| entry.file_name()).collect();
        ensure!(
            !namespaces.iter().any(|name| name.to_string_lossy().contains(&mine)),
            "{namespaces:?}"
        );
    }
    Ok(())
}

/// Whether a process is a helper of the million's.
fn is_helper(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("million-"))
}

fn helpers_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{parent}"))
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_child(pid) && is_helper(*pid)).collect()
}

#[test]
fn senseless_numbers() -> Result<()> {
    for (what, remedy) in [
        ("tcp-memory --connections 0", "from 100 to 1000000"),
        ("million --connections 1G", "from 1 to 100000000"),
        ("million --connections 1.5", "write a whole number"),
        ("million --scheme few", "many-client-ips"),
        ("million --rate 1k --no-pace", "cannot be used with"),
        ("tcp-connect --connections 0", "from 1 to 20000"),
        ("tcp-connect --time-wait 1M", "from 100 to 40000"),
        ("tcp-connect --only lo", "loopback"),
        ("kernel-path --rate 0", "from 1 to 10000000"),
        ("kernel-path --seconds 1k", "from 1 to 600"),
        ("kernel-path --rounds 0", "not in 1..=100"),
    ] {
        let ran = bench(&what.split(' ').collect::<Vec<_>>())?;
        ensure!(ran.code == 2 && ran.err.contains(remedy), "{what}: {ran:?}");
    }
    Ok(())
}

#[test]
fn many_connections_by_both_schemes() -> Result<()> {
    needs_root!();
    let report = bench(&["million", "--connections", "3000", "--rate", "20000", "-o", "json"])?
        .done()?
        .json()?;
    ensure!(report["schema"] == "ringway.bench.million/1", "{report}");
    let rounds = report["rounds"].as_array().context("no rounds")?;
    let schemes: Vec<_> = rounds.iter().map(|round| round["scheme"].as_str()).collect();
    ensure!(schemes == [Some("many-client-ips"), Some("many-server-ports")], "{report}");
    for round in rounds {
        ensure!(round["accepted"] == 3000 && round["sockets_by_diag"] == 6000, "{round}");
        ensure!(round["echoed"] == 1000 && round["sampled"] == 1000, "{round}");
        ensure!(
            round["counters"]["ListenOverflows"].is_null(),
            "paced, so nothing overflows: {round}"
        );
        // One or the other: others may have been busy.
        match round["bytes_per_connection"].as_u64() {
            Some(bytes) => ensure!((4000..20_000).contains(&bytes), "{round}"),
            None => ensure!(round["disturbed"].is_string(), "{round}"),
        }
    }
    Ok(())
}

/// Overflows are there with the second that they cost and the counter that tells; and not where
/// queues are long.
#[test]
fn connecting_and_what_delays_it() -> Result<()> {
    needs_root!();
    let few = ["--connections", "20", "--time-wait", "500", "-o", "json"];
    let report = bench(&[&["tcp-connect"], &few[..]].concat())?.done()?.json()?;
    ensure!(report["schema"] == "ringway.bench.tcp-connect/1", "{report}");
    let row_of = |report: &Value, experiment: &str, case: &str| -> Result<Value> {
        let is = |row: &&Value| row["experiment"] == experiment && row["case"] == case;
        let row = report["rows"].as_array().and_then(|rows| rows.iter().find(is));
        row.cloned().with_context(|| format!("no {experiment}, {case}: {report}"))
    };
    let row = |experiment: &str, case: &str| row_of(&report, experiment, case);
    let count = |row: &Value, what: &str| row["counters"][what].as_u64().unwrap_or(0);
    for way in ["loopback", "veth"] {
        ensure!(row(way, "one by one")?["connections"] == 20, "{report}");
        ensure!(row(way, "all at once")?["connections"] == 20, "{report}");
    }
    let delays = report["delays"].as_str().context("by what?")?;
    ensure!(delays.contains("netem"), "what it is, or what it lacks: {delays}");
    let far = row("delayed", "40 ms, one by one")?;
    ensure!(far["connect_p50_us"].as_f64() >= Some(40_000.0), "less than its round trip: {far}");
    let mut short = row("accept-queue", "backlog of 16")?;
    if short["a_second_late"].as_u64() <= Some(10) {
        // A client that stood still for half a second has met a server that accepts.
        let again = bench(&["tcp-connect", "--only", "accept-queue", "-o", "json"])?;
        ensure!(again.code == 0, "{again:?}");
        short = row_of(&again.json()?, "accept-queue", "backlog of 16")?;
    }
    ensure!(short["a_second_late"].as_u64() > Some(10), "{short}");
    ensure!(
        count(&short, "ListenOverflows") > 10 && count(&short, "TCPSynRetrans") > 10,
        "{short}"
    );
    let long = row("accept-queue", "backlog of 4096")?;
    ensure!(long["a_second_late"] == 0 && count(&long, "ListenOverflows") == 0, "{long}");
    let syns = row("syn-queue", "backlog of 16, no cookies")?;
    ensure!(syns["a_second_late"].as_u64() > Some(10), "{syns}");
    ensure!(count(&syns, "TCPReqQFullDrop") > 10, "{syns}");
    ensure!(row("syn-queue", "backlog of 16, cookies")?["a_second_late"] == 0, "{report}");
    ensure!(row("ports", "500 TIME_WAIT, 100 free")?["connections"] == 50, "{report}");
    let none = row("ports", "500 TIME_WAIT, none free")?;
    ensure!(none["connections"] == 0 && none["connect_p50_us"].is_null(), "no figure: {none}");
    Ok(())
}

/// Every way of receiving takes packets; what differs is what it does for one.
#[test]
fn ways_through_the_kernel() -> Result<()> {
    needs_root!();
    let page = tempfile::NamedTempFile::new()?;
    let path = page.path().to_str().context("no UTF-8")?;
    let few = ["--rate", "2000", "--seconds", "1", "--rounds", "1", "--html", path, "-o", "json"];
    let report = bench(&[&["kernel-path"], &few[..]].concat())?.done()?.json()?;
    ensure!(report["schema"] == "ringway.bench.kernel-path/1", "{report}");
    let row = |group: &str, case: &str| -> Result<Value> {
        let is = |row: &&Value| row["group"] == group && row["case"] == case;
        let row = report["rows"].as_array().and_then(|rows| rows.iter().find(is));
        row.cloned().with_context(|| format!("no {group}, {case}: {report}"))
    };
    for style in
        ["recvfrom", "epoll", "recvmmsg", "SO_BUSY_POLL", "AF_PACKET", "AF_XDP", "XDP drop"]
    {
        let row = row("receive", style)?;
        ensure!(row["per_second"].as_f64() > Some(100.0), "{row}");
    }
    // One call for a packet, and now and then one in vain.
    let calls = row("receive", "recvfrom")?["system_calls"].as_f64();
    ensure!(calls >= Some(1.0) && calls < Some(1.5), "{report}");
    ensure!(row("receive", "XDP drop")?["system_calls"] == 0.0, "{report}");
    ensure!(row("request", "recvfrom")?["rtt_p50_us"].as_f64() > Some(1.0), "{report}");
    for way in ["send", "MSG_ZEROCOPY", "read+write", "mmap+write", "sendfile", "splice"] {
        ensure!(row("copy", way)?["per_second"].as_f64() > Some(10.0), "{report}");
    }
    match row("request", "io_uring") {
        Ok(row) => ensure!(row["system_calls"].as_f64() < Some(1.5), "{row}"),
        Err(_) => not_tested("io_uring, which this process may not have"),
    }
    let went = &row("request", "recvfrom")?["went"];
    ensure!(went["system"].as_f64() > Some(10.0), "a request is system calls: {went}");
    ensure!(row("rules", "nft 500")?["per_second"].as_f64() > Some(10.0), "{report}");
    ensure!(fs::read_to_string(path)?.contains("Answering a request"), "no plots");
    Ok(())
}
