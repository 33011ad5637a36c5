//! `ringway explain` on a running gateway: it says what then happens, and changes nothing.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, needs_root};
use ringway_testnet::wait_for;
use serde_json::Value;

const PORT: u16 = 7;
const CHECK: &str = "check = { type = \"tcp\", interval = \"200ms\", fall = 5 }\n";

fn explain(gateway: &Gateway, arguments: &[&str]) -> Result<Value> {
    let said = gateway.document(&[&["explain", "-i", "eth0"], arguments].concat())?;
    ensure!(said["schema"] == "ringway.explain/1", "{said}");
    Ok(said)
}

/// What it is told to the given verdict and reason.
fn verdict(said: &Value, verdict: &str, reason: &str) -> Result<()> {
    ensure!(said["verdict"] == verdict && said["reason"] == reason, "{said}");
    ensure!(said["meaning"].as_str().is_some_and(|text| !text.is_empty()), "{said}");
    Ok(())
}

fn refused(gateway: &Gateway, arguments: &[&str], words: &[&str]) -> Result<()> {
    let ran = gateway.ringway(&[&["explain"], arguments].concat())?;
    ensure!(ran.code == 2 && ran.out.is_empty(), "{arguments:?}: {ran:?}");
    for word in words {
        ensure!(ran.err.contains(word), "{arguments:?}: no {word:?} in {}", ran.err);
    }
    Ok(())
}

/// Both families: a new flow, the same flow when it is there, and what becomes of it without its
/// backends.
#[test]
fn says_what_then_happens() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let ends = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, PORT));
    let mut echo =
        ends.map(|end| site.echo(end.ip(), PORT)).into_iter().collect::<Result<Vec<_>>>()?;
    let services = [("v4", ends[0]), ("v6", ends[1])];
    let text = services.map(|(name, end)| site.service(name, end, CHECK)).concat();
    let mut gateway = site.start(&text)?;

    for (name, end) in services {
        let mut line = Line::open(site.client(), end)?;
        let backend = line.ask("who")?;
        let client = line.local()?;
        let words = format!("tcp {client} > {end}");
        // As new it would have gone there, and it is there now.
        let said = explain(&gateway, &["--flags", "ack", &words])?;
        verdict(&said, "redirect", "nat-forward")?;
        ensure!(said["service"]["name"] == name, "{said}");
        ensure!(said["flow"]["client"] == client.to_string(), "{said}");
        ensure!(said["flow"]["state"] == "established", "{said}");
        ensure!(said["ring"].is_null() && said["begins_as"].is_null(), "{said}");
        ensure!(said["next_hop"]["interface"] == "eth1", "{said}");
        let address = said["backend"]["address"].as_str().unwrap_or_default().to_owned();
        let place = site.backends(end.ip(), PORT).iter().position(|at| at.to_string() == address);
        ensure!(
            place.is_some_and(|n| backend.contains(&format!("b{}", n + 1))),
            "{backend}: {said}"
        );

        // Another port: a new flow, by the ring.
        let words = format!("tcp {} > {end}", SocketAddr::new(client.ip(), 999));
        let said = explain(&gateway, &[&words])?;
        verdict(&said, "redirect", "nat-forward")?;
        ensure!(said["flow"].is_null() && said["begins_as"].is_string(), "{said}");
        ensure!(said["ring"]["slot"].is_u64() && said["ring"]["current"].is_string(), "{said}");
        // Asking opened nothing: it still is none, and a segment of it is reset.
        let said = explain(&gateway, &["--flags", "ack", &words])?;
        verdict(&said, "redirect", "reset-no-flow")
            .or_else(|_| verdict(&said, "tx", "reset-no-flow"))?;
        let other = SocketAddr::new(end.ip(), 8);
        let said = explain(&gateway, &[&format!("udp {client} > {other}")])?;
        verdict(&said, "pass", "no-service")?;
        ensure!(said["service"].is_null(), "{said}");
        let there = said["services_there"].to_string();
        ensure!(there.contains(&format!("{name}, {end} tcp")), "{said}");
        ensure!(line.ask("who")? == backend, "the line");
    }

    // For people, and without a daemon.
    gateway.kill()?;
    let words = format!("tcp {}:999 > {}", site.net.client.addresses()[0], ends[0]);
    let ran = gateway.ringway(&["explain", "-i", "eth0", &words])?;
    ensure!(ran.code == 0, "{ran:?}");
    for word in
        ["redirect, nat-forward", "service", "v4, ", "ring slot", "backend", ", up", "eth1 via"]
    {
        ensure!(ran.out.contains(word), "no {word:?} in\n{}", ran.out);
    }
    gateway.start_healthy()?;

    // Nobody left to answer.
    echo.clear();
    wait_for("all backends are down", SOON, || {
        let ran = gateway
            .ringway(&["explain", "-i", "eth0", &words])
            .map_err(|error| error.to_string())?;
        let all = ["reset-no-backend", "to do: ", "nobody", ":7, down, "];
        if all.iter().all(|word| ran.out.contains(word)) { Ok(()) } else { Err(ran.said()) }
    })?;
    Ok(())
}

fn pcapng(packets: &[Vec<u8>]) -> Vec<u8> {
    let le = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let block = |kind: u32, body: &[u8]| {
        let len = body.len() as u32 + 12;
        [&le(&[kind, len])[..], body, &le(&[len])].concat()
    };
    let mut file = block(0x0a0d_0d0a, &le(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    file.extend(block(1, &le(&[1, 0])));
    for packet in packets {
        let len = packet.len() as u32;
        let mut body = le(&[0, 0, 0, len, len]);
        body.extend(packet);
        body.resize(body.len().next_multiple_of(4), 0);
        file.extend(block(6, &body));
    }
    file
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |n: usize| u8::from_str_radix(&hex[n..n + 2], 16).unwrap_or_default();
    (0..hex.len()).step_by(2).map(byte).collect()
}

/// A capture's packet is what it is in words; nonsense is told what to write.
#[test]
fn takes_captures_and_no_nonsense() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let end = SocketAddr::new(SERVICE_V4, PORT);
    let ns = site.net.gateway.clone();
    let gateway = site.start(&site.service("web", end, ""))?;
    let file = ns.directory().join("capture.pcapng");
    let path = file.to_string_lossy();

    // What is passed on leaves as it came: so this is the frame itself.
    let words = "tcp 10.1.0.2:999 > 10.1.0.80:81";
    let passed = explain(&gateway, &[words])?;
    verdict(&passed, "pass", "no-service")?;
    let frame = bytes(passed["frame"].as_str().unwrap_or_default());
    ensure!(frame.len() == 74, "{passed}");
    // The port of the service, and the checksum with it (RFC 1624).
    let mut to_service = frame.clone();
    to_service[37] = PORT as u8;
    let check = u16::from_be_bytes([frame[50], frame[51]]);
    let (check, carry) = check.overflowing_add(81 - PORT);
    to_service[50..52].copy_from_slice(&(check + u16::from(carry)).to_be_bytes());
    std::fs::write(&file, pcapng(&[frame, to_service]))?;
    ensure!(explain(&gateway, &["-r", &path])? == passed);
    let said = explain(&gateway, &["-r", &path, "-n", "2"])?;
    verdict(&said, "redirect", "nat-forward")?;
    ensure!(said["packet"] == "tcp 10.1.0.2:999 > 10.1.0.80:7, syn", "{said}");
    // What a tuple's flags cannot say.
    let said = explain(&gateway, &["--ttl", "1", &words.replace(":81", ":7")])?;
    ensure!(said["reason"] == "sent-time-exceeded", "{said}");
    let said = explain(&gateway, &["icmp 10.1.0.2 > 10.1.0.80"])?;
    ensure!(said["reason"] == "echo-reply", "{said}");

    refused(&gateway, &["-i", "eth7", words], &["no interface \"eth7\"", "eth0, eth1"])?;
    refused(&gateway, &["-i", "eth0", "tcp 10.1.0.2:999"], &["no \">\"", "write 'tcp "])?;
    refused(&gateway, &["-i", "eth0", "--flags", "sin", words], &["\"sin\" is no TCP flag"])?;
    refused(&gateway, &["-i", "eth0", "--bytes", "10", words], &["has no room for its headers"])?;
    refused(&gateway, &["-i", "eth0", "-r", &path, "-n", "3"], &["no packet 3: it has 2"])?;
    refused(&gateway, &["-i", "eth0"], &["required", "PACKET", "--read"])?;
    Ok(())
}

/// What the shield does with a packet, and by whose word: lists, rules, and what was typed.
#[test]
fn names_what_the_shield_goes_by() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let file = |name: &str, text: &str| {
        let path = site.net.gateway.directory().join(name);
        std::fs::write(&path, text).map(|()| path)
    };
    let (junk, friends) =
        (file("junk.txt", "198.51.100.0/24\n")?, file("friends.txt", "198.51.100.7\n")?);
    let shield = format!(
        "[shield]\nlist = [\n{{ name = \"friends\", file = {friends:?}, action = \"allow\" }},\n\
         {{ name = \"junk\", file = {junk:?}, action = \"block\" }},\n]\nrule = [\n\
         {{ match = \"src host 192.0.2.1\", action = \"drop\", name = \"one\" }},\n\
         {{ match = \"src host 192.0.2.2\", action = \"limit\", rate = \"1kpps\" }},\n]\n"
    );
    let text = site.configuration(&site.service("web", WEB, "")) + &shield;
    let mut gateway = Gateway::start(&site.net.gateway, &text)?;
    let told = |gateway: &Gateway, source: &str, words: &[&str]| -> Result<()> {
        let packet = format!("tcp {source}:999 > {WEB}");
        gateway.ringway(&["explain", "-i", "eth0", &packet])?.says(0, words).map(drop)
    };
    gateway.ringway(&["block", "192.0.2.64/26", "--for", "1h", "--reason", "scans"])?.done()?;
    gateway.ringway(&["allow", "192.0.2.128/25"])?.done()?;

    let said = explain(&gateway, &[&format!("tcp 198.51.100.8:999 > {WEB}")])?;
    verdict(&said, "drop", "blocked")?;
    let found = &said["shield"];
    ensure!(found["list"] == "junk" && found["mode"] == "enforce", "{said}");
    ensure!(found["dropped"] == true && found["reason"] == "blocked", "{said}");
    ensure!(said["service"]["name"] == "web", "{said}");
    let said = explain(&gateway, &[&format!("tcp 192.0.2.65:999 > {WEB}")])?;
    let found = &said["shield"];
    ensure!(found["at_run_time"] == true && found["list"].is_null(), "{said}");
    ensure!(found["entry"]["prefix"] == "192.0.2.64/26", "{said}");
    let other = SocketAddr::new(SERVICE_V6, 8);
    let said = explain(&gateway, &[&format!("tcp [2001:db8::1]:999 > {other}")])?;
    ensure!(said["shield"].is_null(), "not to a service: {said}");

    told(&gateway, "198.51.100.8", &["drop, blocked", "by list junk", "allow 198.51.100.8"])?;
    told(&gateway, "198.51.100.7", &["nat-forward", "allowed by list friends"])?;
    let typed = "blocked by `ringway block` (192.0.2.64/26 until ";
    told(&gateway, "192.0.2.65", &[typed, ", scans)", "ringway unblock 192.0.2.64/26"])?;
    told(&gateway, "192.0.2.129", &["allowed by `ringway allow` (192.0.2.128/25)"])?;
    told(&gateway, "192.0.2.1", &["drop, rule", "rule one, drop"])?;
    told(&gateway, "192.0.2.2", &["nat-forward", "rule 2, limit: within its rate"])?;
    told(&gateway, "192.0.2.3", &["nat-forward", "shield     passed"])?;

    gateway.ringway(&["shield", "observe", "--for", "10m"])?.done()?;
    let would = "blocked by list junk; would be dropped: observe mode";
    told(&gateway, "198.51.100.8", &["nat-forward", would])?;
    gateway.ringway(&["shield", "off", "--for", "10m"])?.done()?;
    told(&gateway, "198.51.100.8", &["nat-forward", "shield     off"])?;
    gateway.ringway(&["shield", "enforce"])?.done()?;

    gateway.kill()?;
    told(&gateway, "198.51.100.8", &["drop, blocked", "blocked by list junk"])?;
    told(&gateway, "192.0.2.1", &["rule one, drop"])?;
    told(&gateway, "192.0.2.65", &[typed])
}
