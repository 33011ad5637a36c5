//! Connections that the gateway has made (`syn = "proxy"`): what becomes of them later, and on ways
//! that change the order of packets.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Cable, ECHO, Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, Site, Through, configuration,
    needs_root, service, tool,
};
use ringway_testnet::{End, Namespace, VethOptions, veth, wait_until};
use rustix::net::sockopt;

use super::capture::counted;
use super::challenge::ALWAYS;
use super::proxy::{MIB, PROXY, connect, done, exchange, serve, start};

/// Probes of an idle connection are answered, each way: without an answer it would end after two.
#[test]
fn idle_connections_are_kept_alive() -> Result<()> {
    needs_root!();
    let probing = |stream: &TcpStream| -> Result<()> {
        let second = Duration::from_secs(1);
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, second)?;
        sockopt::set_tcp_keepintvl(stream, second)?;
        Ok(sockopt::set_tcp_keepcnt(stream, 2)?)
    };
    let site = Site::new(1)?;
    let target = SocketAddr::new(SERVICE_V4, 9000);
    let at = site.backends(SERVICE_V4, 9000)[0];
    let (probed, is_probed) = channel();
    let server = serve(&site.net.backends[0].ns, at, move |stream| {
        probing(&stream)?;
        is_probed.recv()?;
        exchange(&stream, (2, 1), 100_000)
    })?;
    let gateway = start(&site, &[("data", target)])?;
    let stream = connect(&site, target)?;
    probing(&stream)?;
    // The handshake has at most three packets.
    let probes = || counted(&gateway, &["nat-forward"]).is_ok_and(|packets| packets >= 3 + 8);
    wait_until("probes and answers", SOON, probes)?;
    probed.send(())?;
    exchange(&stream, (1, 2), 100_000).context("client")?;
    done(server)
}

/// A frame in five arrives twice; one in seven behind the one after it, or a copy of it.
fn shuffle() -> Through {
    let (mut count, mut held) = (0u64, None);
    Box::new(move |frame| {
        count += 1;
        if count % 7 == 0 && held.is_none() {
            held = Some(frame.to_vec());
            return Vec::new();
        }
        let mut arrives = vec![frame.to_vec()];
        if count % 5 == 0 {
            arrives.push(frame.to_vec());
        }
        arrives.extend(held.take());
        arrives
    })
}

#[test]
fn no_byte_is_lost_out_of_order_and_twice() -> Result<()> {
    needs_root!();
    for (service_address, ours, theirs, own, backend) in [
        (SERVICE_V4, "10.1.0.1/24", "10.1.0.2/24", "10.2.0.1/24", "10.2.0.2"),
        (SERVICE_V6, "fd01::1/64", "fd01::2/64", "fd02::1/64", "fd02::2"),
    ] {
        let [gateway, client, server] =
            [Namespace::new("gw")?, Namespace::new("client")?, Namespace::new("b1")?];
        let _cable = Cable::through(
            "front",
            [(&gateway, &[ours][..]), (&client, &[theirs][..])],
            [shuffle(), shuffle()],
        )?;
        let prefix = if service_address.is_ipv4() { 24 } else { 64 };
        let far = End::new(&server, "eth0").address(format!("{backend}/{prefix}"));
        veth(&far, &End::new(&gateway, "back").address(own), &VethOptions::default())?;
        let at = SocketAddr::new(backend.parse()?, 9000);
        let serves = serve(&server, at, |stream| exchange(&stream, (2, 1), 4 * MIB))?;
        let target = SocketAddr::new(service_address, 9000);
        let more = format!("announce = \"arp\"\n{PROXY}");
        let body = ALWAYS.to_owned() + &service("data", target, &[at], &more);
        let text = configuration(&gateway, &["front", "back"], &body);
        let _gateway = Gateway::start(&gateway, &text)?;
        let stream = client.run(|| TcpStream::connect_timeout(&target, SOON))??;
        exchange(&stream, (1, 2), 4 * MIB).with_context(|| format!("{target}"))?;
        done(serves)?;
    }
    Ok(())
}

/// The gateway repeats nothing by itself: the client's probe of the empty window does.
#[test]
fn a_lost_syn_to_the_backend_is_repeated_by_the_client() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let gateway = start(&site, &[("echo", ECHO)])?;
    let rules = "add table inet loss; \
         add chain inet loss i { type filter hook input priority 0; }; \
         add rule inet loss i tcp dport 7 tcp flags & (syn|ack) == syn numgen inc mod 2 == 0 \
         counter drop";
    let nft = |arguments: &[&str]| tool(&site.net.backends[0].ns, "nft", arguments)?.done();
    nft(&[rules])?;
    for n in 0..4 {
        let mut line = Line::open(site.client(), ECHO)?;
        line.ask(&format!("{n}"))?;
    }
    let list = nft(&["list", "ruleset"])?.out;
    ensure!(!list.contains("packets 0 "), "no SYN was lost: {list}");
    ensure!(counted(&gateway, &["syn-answered"])? == 4, "the gateway did not answer");
    Ok(())
}

/// Shifts belong to the packet path, not to the daemon or its configuration.
#[test]
fn connections_outlive_the_daemon_and_the_configuration() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let _echo: Vec<Echo> = site.echo(SERVICE_V4, 7)?;
    let mut gateway = start(&site, &[("echo", ECHO)])?;
    let mut lines = vec![Line::open(site.client(), ECHO)?];
    let mut go_on = |what: &str, also: Option<Line>| -> Result<()> {
        lines.extend(also);
        for line in &mut lines {
            // More than a segment, so that acknowledgements matter on both sides.
            line.ask(&what.repeat(1000)).with_context(|| what.to_owned())?;
        }
        Ok(())
    };
    go_on("at first", None)?;
    gateway.kill()?;
    go_on("without a daemon", None)?;
    gateway.start_healthy()?;
    go_on("with another daemon", Some(Line::open(site.client(), ECHO)?))?;
    ensure!(counted(&gateway, &["syn-answered"])? == 2, "the gateway did not answer");

    gateway.reload(&site.configuration(&site.service("echo", ECHO, "")))?;
    go_on("without syn", Some(Line::open(site.client(), ECHO)?))?;
    ensure!(counted(&gateway, &["syn-answered"])? == 2, "it still answers");
    gateway.kill()?;
    gateway.start_healthy()?;
    go_on("with a daemon that knows no syn", None)?;

    let body = ALWAYS.to_owned() + &site.service("echo", ECHO, PROXY);
    gateway.reload(&site.configuration(&body))?;
    go_on("with syn again", Some(Line::open(site.client(), ECHO)?))?;
    ensure!(counted(&gateway, &["syn-answered"])? == 3, "the gateway did not answer");
    Ok(())
}
