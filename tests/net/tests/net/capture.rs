//! `ringway capture`: what it shows is what happened, and traffic does not notice it.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    CHECK, Gateway, Load, SERVICE_V4, SOON, STARTED, Site, WEB, binary, get, http, needs_root,
    not_tested, packets, ringway, service,
};
use ringway_testnet::{Child, Namespace, Signal, tools, wait_for, wait_until};

/// Reasons of nat's packets.
pub(crate) const NAT: [&str; 2] = ["nat-forward", "nat-reply"];
const BEGUN: &str = "capturing from";

fn web(backends: usize) -> Result<(Site, Gateway)> {
    let site = Site::new(backends)?;
    let gateway = site.start(&site.service("web", WEB, CHECK))?;
    Ok((site, gateway))
}

/// A capture in the background, once it has begun.
pub(crate) fn begin(ns: &Namespace, arguments: &[&str]) -> Result<Child> {
    let mut command = ns.command(binary()?);
    command.args(["capture", "--node", ns.name()]).args(arguments);
    let mut child = ns.spawn(command)?;
    child.wait_for_log(BEGUN, STARTED)?;
    Ok(child)
}

/// Asks it to end; its exit code and its words.
pub(crate) fn end(mut capture: Child) -> Result<(i32, String)> {
    capture.signal(Signal::INT)?;
    ended(capture)
}

pub(crate) fn ended(mut capture: Child) -> Result<(i32, String)> {
    let end = capture.wait(SOON)?;
    Ok((end.status.code().unwrap_or(-1), end.log))
}

/// Captured, lost and matching packets of the line that a capture ends with.
pub(crate) fn totals(log: &str) -> Result<[u64; 3]> {
    let line = log.lines().find(|line| line.contains(" lost (ring full), "));
    let line = line.with_context(|| format!("no totals in {log}"))?;
    // What follows explains them.
    let words = line.split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).take(3).collect();
    numbers.try_into().map_err(|_| anyhow::anyhow!("{line}"))
}

/// A shell in the gateway's namespace, where `ringway capture` of this node is `$CAPTURE`.
fn shell(ns: &Namespace, script: &str) -> Result<Command> {
    let mut command = ns.command("bash");
    let capture = format!("{} capture --node {}", binary()?.display(), ns.name());
    command.arg("-c").arg(script).env("CAPTURE", capture).current_dir(ns.directory());
    Ok(command)
}

fn contains(file: &Path, words: &str) -> bool {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.windows(words.len()).any(|window| window == words.as_bytes())
}

/// Lines of what tshark says of a capture's packets; it must find nothing wrong with the file.
pub(crate) fn tshark(ns: &Namespace, file: &Path, fields: &[&str]) -> Result<Vec<String>> {
    let mut command = ns.tool("tshark")?;
    command.env("WIRESHARK_DATA_DIR", tools::peers().join("usr/share/wireshark"));
    command.args(["-n", "-T", "fields", "-r"]).arg(file);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output()?;
    let complaints = String::from_utf8_lossy(&output.stderr).replace("Running as user", "");
    ensure!(output.status.success() && !complaints.contains("cut short"), "tshark: {complaints}");
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Packets that ended with these reasons.
pub(crate) fn counted(gateway: &Gateway, reasons: &[&str]) -> Result<u64> {
    let status = gateway.status()?;
    Ok(reasons.iter().map(|reason| packets(&status, reason)).sum())
}

/// Packets of nat once there are more than `before`, and no more come: the last may be under way.
pub(crate) fn settled(gateway: &Gateway, before: u64) -> Result<u64> {
    Ok(wait_for("an end of packets", SOON, || {
        let read = || counted(gateway, &NAT).map_err(|error| format!("{error:#}"));
        let (one, two) = (read()?, read()?);
        if one > before && one == two { Ok(two) } else { Err(format!("{one}, {two}")) }
    })?)
}

fn directory(gateway: &Gateway) -> std::path::PathBuf {
    gateway.pins().join("capture")
}

pub(crate) fn wait_until_nothing_is_left(gateway: &Gateway) -> Result<()> {
    let left = directory(gateway);
    Ok(wait_until("the end of all captures", SOON, || !left.exists())?)
}

/// Every packet of some requests, twice: as it came and as it left, with what was decided.
#[test]
fn a_file_tells_the_whole_truth() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(2)?;
    let file = site.net.gateway.directory().join("web.pcapng");
    let path = file.to_string_lossy().into_owned();
    let before = counted(&gateway, &NAT)?;
    let capture = begin(&site.net.gateway, &["-w", &path, "--service", "web", "tcp port 80"])?;
    for _ in 0..5 {
        get(site.client(), WEB)?;
    }
    let packets = settled(&gateway, before)? - before;
    let (code, log) = end(capture)?;
    ensure!(code == 0 && totals(&log)? == [packets, 0, packets], "{packets} packets: {log}");

    let fields = [
        "frame.packet_id",
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.verdict.ebpf_xdp",
        "frame.comment",
        "ip.src",
        "ip.dst",
        "tcp.flags.syn",
        "tcp.flags.ack",
    ];
    let rows = tshark(&site.net.gateway, &file, &fields)?;
    ensure!(rows.len() as u64 == 2 * packets, "{} blocks of {packets} packets", rows.len());
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.split('\t').collect()).collect();
    let mut opened = 0;
    for pair in rows.chunks(2) {
        let (came, left) = (&pair[0], &pair[1]);
        ensure!(came[0] == left[0] && came[4] == left[4], "no pair: {pair:?}");
        ensure!((came[2], left[2]) == ("0x00000001", "0x00000002"), "{pair:?}");
        ensure!(came[3] == "4" && left[3] == "4", "XDP_REDIRECT is 4: {pair:?}");
        ensure!(came[4].contains(", service web, backend 10.2.0.1"), "{pair:?}");
        let (there, back) = match came[4] {
            comment if comment.starts_with("redirect nat-forward, ") => ("eth0", "eth1"),
            _ => ("eth1", "eth0"),
        };
        ensure!((came[1], left[1]) == (there, back), "{pair:?}");
        let (client, vip) = ("10.1.0.2", "10.1.0.80");
        match there {
            "eth0" => ensure!((came[5], came[6], left[5]) == (client, vip, "10.2.0.1"), "{pair:?}"),
            _ => ensure!((came[6], left[5], left[6]) == ("10.2.0.1", vip, client), "{pair:?}"),
        }
        opened += u32::from((there, came[7], came[8]) == ("eth0", "1", "0"));
    }
    ensure!(opened == 5, "{opened} connections");
    wait_until_nothing_is_left(&gateway)
}

#[test]
fn a_flow_is_followed_and_a_pipe_is_read() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(1)?;
    let capture = begin(&site.net.gateway, &["--follow", "-c", "6", "tcp and host 10.1.0.2"])?;
    get(site.client(), WEB)?;
    let (code, log) = ended(capture)?;
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(" flow ")).collect();
    ensure!(code == 0 && lines.len() == 6, "{log}");
    ensure!(lines.iter().all(|line| line.contains(" flow 1 ")), "one flow both ways: {log}");
    let syn = ["eth0 tcp 10.1.0.2:", " > 10.1.0.80:80 syn seq ", " len 0  redirect nat-forward, "];
    ensure!(syn.iter().all(|words| lines[0].contains(words)), "{log}");
    ensure!(lines[0].contains("service web, backend 10.2.0.11:80; leaves eth1 as tcp 10.2.0.1:"));
    ensure!(!lines[0].contains('+') && lines[1].contains("s  eth1 tcp 10.2.0.11:80 > "), "{log}");
    ensure!(lines[1].contains(" syn,ack seq ") && lines[1].contains(" +"), "{log}");
    ensure!(lines[1].contains("redirect nat-reply, "), "{log}");
    wait_until_nothing_is_left(&gateway)?;
    read_by_tcpdump(&site, &gateway)
}

/// Other people's programs read it as it is written.
fn read_by_tcpdump(site: &Site, gateway: &Gateway) -> Result<()> {
    let ns = &site.net.gateway;
    let tcpdump = tools::find("tcpdump");
    let (reader, environment) = match &tcpdump {
        Ok(tool) => (format!("{} -Z root -nr -", tool.path.display()), tool),
        Err(why) => {
            not_tested(format_args!("pcapng by tcpdump: {why}"));
            return Ok(());
        }
    };
    let mut command = shell(ns, &format!("$CAPTURE -c 6 -w - --service web | {reader}"))?;
    environment.set_environment(&mut command);
    let mut child = ns.spawn(command)?;
    child.wait_for_log(BEGUN, STARTED)?;
    get(site.client(), WEB)?;
    let (code, log) = ended(child)?;
    ensure!(code == 0 && log.contains("6 packets captured, 0 lost"), "{log}");
    let came = log.lines().filter(|line| line.contains(" > 10.1.0.80.80: Flags [")).count();
    let left = log.lines().filter(|line| line.contains(" > 10.2.0.11.80: Flags [")).count();
    ensure!(came > 0 && came == left, "{log}");
    wait_until_nothing_is_left(gateway)
}

/// What was dropped, and why; nothing else.
#[test]
fn drops_with_their_reason() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let dead = SocketAddr::new(SERVICE_V4, 9);
    let none = service(
        "dead",
        dead,
        &site.backends(SERVICE_V4, 9),
        "announce = \"arp\"\nprotocol = \"udp\"\nwhen_none_healthy = \"drop\"\n",
    );
    let none = none.replace("port = 9 }", "port = 9, weight = 0 }");
    let text = site.configuration(&(site.service("web", WEB, CHECK) + &none));
    let mut gateway = Gateway::launch(&site.net.gateway, &text)?;
    gateway.wait_serving()?;
    gateway.wait_status("web served", |_| get(site.client(), WEB).is_ok())?;
    let capture =
        begin(&site.net.gateway, &["--verdict", "drop", "-c", "3", "-o", "json", "-i", "eth0"])?;
    let socket = site.client().run(|| UdpSocket::bind("0.0.0.0:0"))??;
    for _ in 0..3 {
        get(site.client(), WEB)?;
        socket.send_to(b"hello", dead)?;
    }
    let (code, log) = ended(capture)?;
    let documents = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    let documents: Vec<serde_json::Value> = documents.collect();
    ensure!(code == 0 && documents.len() == 4, "{log}");
    for packet in &documents[..3] {
        ensure!(packet["schema"] == "ringway.packet/1" && packet["verdict"] == "drop", "{packet}");
        ensure!(packet["reason"] == "no-backend" && packet["service"] == "dead", "{packet}");
        let words = packet["before"]["packet"].as_str().unwrap_or_default();
        ensure!(words.ends_with(" > 10.1.0.80:9 len 5") && packet["after"].is_null(), "{packet}");
    }
    let summary = &documents[3];
    ensure!(summary["schema"] == "ringway.capture/1" && summary["ended"] == "count", "{summary}");
    ensure!(summary["captured_packets"] == 3 && summary["lost_packets"] == 0, "{summary}");
    Ok(())
}

/// However a capture ends, no request fails, and nothing of it stays.
#[test]
fn it_ends_alone() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(2)?;
    let ns = &site.net.gateway;
    let load = Load::start(site.client(), &format!("http://{WEB}/"), 10, 300)?;

    // One that is killed, after which the daemon cleans up.
    let file = ns.directory().join("killed.pcapng");
    let mut capture = begin(ns, &["-w", &file.to_string_lossy()])?;
    wait_until("packets in the file", SOON, || file.metadata().is_ok_and(|it| it.len() > 1 << 16))?;
    ensure!(directory(&gateway).exists(), "where are its pins?");
    capture.kill()?;
    wait_until_nothing_is_left(&gateway)?;

    // On a full disk, of its own, which nobody else sees; what it had until then is whole.
    let script = "mkdir small && mount -t tmpfs -o size=256k tmpfs small && \
        { $CAPTURE -w small/full.pcapng; code=$?; cp small/full.pcapng full.pcapng; exit $code; }";
    let mut command = ns.command("unshare");
    let plain = shell(ns, script)?;
    command.arg("--mount").arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command.current_dir(ns.directory());
    let (code, log) = ended(ns.spawn(command)?)?;
    ensure!(code == 1 && log.contains("No space left on device"), "{log}");
    let [captured, ..] = totals(&log)?;
    ensure!(log.contains(&format!("it holds the first {captured} packets, whole")), "{log}");
    ensure!(log.contains("to do: free some"), "{log}");
    let mut ids = tshark(ns, &ns.directory().join("full.pcapng"), &["frame.packet_id"])?;
    ids.dedup();
    ensure!(captured > 100 && ids.len() as u64 == captured, "{} of {captured}", ids.len());

    // `| head`, a reader that goes while nothing comes, and one that wants no words.
    let idle = "$CAPTURE -w - 'host 192.0.2.99' | head -c 28 > /dev/null";
    let deaf = "$CAPTURE -c 30 2>&1 >/dev/null | head -n 1";
    for pipe in ["$CAPTURE | head -n 3", idle, deaf] {
        let script = format!("{pipe}; echo \"codes ${{PIPESTATUS[*]}}\"");
        let log = ns.spawn(shell(ns, &script)?)?.wait(STARTED)?.log;
        ensure!(log.ends_with("codes 0 0\n"), "{pipe}: {log}");
        ensure!(pipe == deaf || totals(&log).is_ok(), "{pipe}: {log}");
        ensure!(!log.contains("roken"), "{pipe}: {log}");
        let shown = log.lines().filter(|line| line.contains(" tcp 10.")).count();
        ensure!(shown == if pipe.starts_with("$CAPTURE |") { 3 } else { 0 }, "{log}");
    }
    let outcome = load.stop()?;
    ensure!(outcome.errors == 0, "{outcome:?}");
    wait_until_nothing_is_left(&gateway)
}

/// A node that is taken away while somebody just begins to capture: nothing of either stays.
#[test]
fn detaching_while_one_begins_leaves_nothing() -> Result<()> {
    needs_root!();
    let (site, mut gateway) = web(1)?;
    gateway.terminate()?;
    for round in 0..3 {
        let ns = &site.net.gateway;
        let mut command = ns.command(binary()?);
        command.args(["capture", "--node", ns.name(), "-w", "/dev/null"]);
        let mut capture = ns.spawn(command)?;
        // Its place is there from the begin of its loading on.
        if round > 0 {
            let begun = || directory(&gateway).exists() || !capture.running();
            wait_until("a capture that begins", SOON, begun)?;
        }
        gateway.ringway(&["detach", "--verify"])?.says(0, &["verified"])?;
        ensure!(!gateway.pins().exists(), "{} is left", gateway.pins().display());
        let end = capture.wait(SOON)?;
        ensure!(end.status.code() != Some(0), "{}", end.log);
        gateway.start_healthy()?;
        gateway.terminate()?;
    }
    Ok(())
}

/// Each with a filter of its own; one more is told who is there.
#[test]
fn eleven_at_once_and_no_more() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(1)?;
    let own = site.client().run(|| UdpSocket::bind("0.0.0.0:0"))??.local_addr()?.port();
    let mut captures = Vec::new();
    for n in 0..11 {
        // Every other one wants what comes, the others want nothing of it.
        let filter = if n % 2 == 0 { "tcp port 80".into() } else { format!("udp port {own}") };
        captures.push(begin(&site.net.gateway, &["--service", "web", &filter])?);
    }
    let refused = ringway(&site.net.gateway, &["capture", "--node", gateway.node()])?;
    let pid = captures[10].pid();
    ensure!(refused.code == 1 && refused.err.contains("11 captures"), "{refused:?}");
    ensure!(refused.err.contains(&pid.to_string()), "{pid} is not among {refused:?}");
    ensure!(get(site.client(), WEB)?.starts_with('b'));
    let packets = counted(&gateway, &NAT)?;
    ensure!(packets > 0, "no packets");
    for status in [gateway.status()?, gateway.document(&["status"])?] {
        let listed = status["captures"].as_array().context("captures")?;
        let matched = |n: usize| listed[n]["matched_packets"].as_u64();
        ensure!(listed.len() == 11 && listed[10]["pid"] == pid, "{listed:?}");
        ensure!(matched(0) > Some(0) && matched(1) == Some(0), "{listed:?}");
        ensure!(
            listed[0]["command"].to_string().ends_with("--service web tcp port 80\""),
            "{listed:?}"
        );
    }
    let memory = gateway.document(&["status", "--memory"])?;
    let maps = memory["maps"].as_array().context("maps")?;
    let nameless = maps.iter().find(|map| {
        map["purpose"] == ""
            || map["name"].to_string().contains('_') && map["name"].to_string().contains(".rodata")
    });
    ensure!(nameless.is_none(), "{nameless:?}");
    // Eleven of 16 MiB.
    let rings = maps.iter().find(|map| map["name"] == "capture_rings").context("their rings")?;
    ensure!(rings["bytes"].as_u64() > Some(11 << 24), "{rings}");
    for (n, capture) in captures.into_iter().enumerate() {
        let (code, log) = end(capture)?;
        let [captured, lost, _] = totals(&log)?;
        ensure!(code == 0 && lost == 0 && (captured > 0) == (n % 2 == 0), "capture {n}: {log}");
    }
    wait_until_nothing_is_left(&gateway)
}

#[test]
fn nonsense_is_told_what_to_write() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(1)?;
    let ns = &site.net.gateway;
    let node = gateway.node();
    let kept = ns.directory().join("kept.pcapng");
    std::fs::write(&kept, "evidence")?;
    let own = kept.to_string_lossy();
    for (arguments, code, words) in [
        (&["-w", &*own][..], 1, &["kept.pcapng", "there already", "--overwrite"][..]),
        (&["-c", &*own], 2, &["the configuration file is --config"]),
        (&["tcp port foo"], 2, &["foo", "tcp port foo\n", "^^^"]),
        (&["-i", "eth7"], 2, &["no interface \"eth7\"", "eth0, eth1"]),
        (&["-w", "/nonexistent/x"], 1, &["/nonexistent/x", "make its directory first"]),
        (&["-w", "-", "--follow"], 2, &["standard output is the pcapng file"]),
        (&["-s", "0"], 2, &["1..=16384"]),
        (&["--size", "10"], 2, &["and its unit: 500kB"]),
    ] {
        let ran = ringway(ns, &[&["capture", "--node", node], arguments].concat())?;
        ensure!(ran.code == code, "{arguments:?}: {ran:?}");
        ensure!(words.iter().all(|word| ran.err.contains(word)), "{arguments:?}: {ran:?}");
    }
    ensure!(std::fs::read_to_string(&kept)? == "evidence", "it was written to");
    ringway(ns, &["capture", "--node", "nobody"])?.complains(3, &[node])?;
    // Without root, the pins are not for looking at.
    let mut command = ns.command("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "--inh-caps=-all"]).arg(binary()?);
    let output = command.args(["capture", "--node", node]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.contains("run as root"), "{said}");
    wait_until_nothing_is_left(&gateway)
}

/// A reader that is too slow loses packets, says how many, and keeps nobody.
#[test]
fn losses_are_told() -> Result<()> {
    needs_root!();
    let (site, gateway) = web(2)?;
    let load = Load::start(site.client(), &format!("http://{WEB}/"), 50, 300)?;
    // Until it is told to read, the pipe and the ring are all the room there is.
    let script = "mkfifo go; { echo $BASHPID > pid; exec $CAPTURE --buffer 64KiB -w -; } | \
        { read -r _ < go; exec cat > lost.pcapng; }; exit ${PIPESTATUS[0]}";
    let ns = &site.net.gateway;
    let mut child = ns.spawn(shell(ns, script)?)?;
    child.wait_for_log(BEGUN, STARTED)?;
    let requests = || counted(&gateway, &["nat-forward"]).unwrap_or(0);
    let begun = requests();
    wait_until("many requests", SOON, || requests() > begun + 5000)?;
    let outcome = load.stop()?;
    std::fs::write(ns.directory().join("go"), "\n")?;
    child.wait_for_log("packets are lost: ", SOON)?;
    // Losses are told by a packet of a later look, so the second is one that has room for certain.
    let lost_file = ns.directory().join("lost.pcapng");
    for path in ["/room", "/told"] {
        wait_until("a request in the file", SOON, || {
            http(site.client(), WEB, path).is_ok() && contains(&lost_file, path)
        })?;
    }
    let pid = std::fs::read_to_string(ns.directory().join("pid"))?;
    ensure!(Command::new("kill").args(["-INT", pid.trim()]).status()?.success(), "no {pid}");
    let (code, log) = ended(child)?;
    let [captured, lost, matched] = totals(&log)?;
    ensure!(code == 0 && captured > 0 && lost > 0 && captured + lost == matched, "{log}");
    // The file tells of each, by the packet that comes next.
    let rows = tshark(&site.net.gateway, &lost_file, &["frame.drop_count"])?;
    let told: u64 = rows.iter().filter_map(|row| row.parse::<u64>().ok()).sum();
    ensure!(told == lost, "{told} of {lost}");
    ensure!(outcome.errors == 0, "{outcome:?}");
    wait_until_nothing_is_left(&gateway)
}

/// The interface, or all of the node.
#[test]
fn what_goes_away_ends_it() -> Result<()> {
    needs_root!();
    let (site, mut gateway) = web(1)?;
    let file = site.net.gateway.directory().join("gone.pcapng");
    let capture = begin(&site.net.gateway, &["-w", &file.to_string_lossy(), "-i", "eth0"])?;
    get(site.client(), WEB)?;
    let whole = begin(&site.net.gateway, &["--service", "web"])?;
    site.net.gateway.ip("link del dev eth0\n")?;
    let (code, log) = ended(capture)?;
    ensure!(code == 1 && log.contains("eth0: the interface is gone"), "{log}");
    let [captured, ..] = totals(&log)?;
    let rows = tshark(&site.net.gateway, &file, &["frame.packet_id"])?;
    ensure!(captured > 0 && rows.len() as u64 >= captured, "{rows:?}: {log}");

    gateway.terminate()?;
    let detached = gateway.ringway(&["detach", "--verify"])?;
    ensure!(detached.code == 0, "{detached:?}");
    let (code, log) = ended(whole)?;
    ensure!(code == 1 && log.contains("was detached"), "{log}");
    Ok(())
}
