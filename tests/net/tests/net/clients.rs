//! Clients in odd places, and whose address the backends see.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, Line, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, ask_udp, get, needs_root, packets,
    service, udp_to,
};

const ECHO6: SocketAddr = SocketAddr::new(SERVICE_V6, 7);
const CLIENT: &str = "source = \"client\"\nprotocol = [\"tcp\", \"udp\"]\n";

/// XDP sees what comes in by an interface; the node's own connections do not. They fail at once.
#[test]
fn the_node_itself_is_no_client_and_learns_it_at_once() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    site.net.gateway.ip("addr add 10.1.0.80/32 dev eth0\n")?;
    let _gateway = site.start(&service("web", WEB, &site.backends(SERVICE_V4, 80), ""))?;
    let connect = || TcpStream::connect_timeout(&WEB, SOON);
    let error = site.net.gateway.run(connect)?.err().context("the node reached its own service")?;
    ensure!(error.kind() == ErrorKind::ConnectionRefused, "{error}");
    get(site.client(), WEB)?;
    Ok(())
}

#[test]
fn a_backend_may_be_a_client_and_even_get_itself() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let target6 = SocketAddr::new(SERVICE_V6, 80);
    let services = site.service("web", WEB, "") + &site.service("web6", target6, "");
    let _gateway = site.start(&services)?;
    for target in [WEB, target6] {
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..40 {
            names.insert(get(&site.net.backends[0].ns, target)?);
        }
        ensure!(names.len() == 2, "b1 got only {names:?}");
    }
    Ok(())
}

#[test]
fn source_client_shows_the_backends_who_asked_and_refuses_them_as_clients() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let echo = [site.echo(SERVICE_V4, 7)?, site.echo(SERVICE_V6, 7)?];
    let services = site.service("echo", ECHO, CLIENT) + &site.service("echo6", ECHO6, CLIENT);
    let gateway = site.start(&services)?;
    for target in [ECHO, ECHO6] {
        for _ in 0..20 {
            Line::open(site.client(), target)?.ask("hello")?;
            let socket = udp_to(site.client(), target)?;
            ask_udp(&socket, "hello")?;
        }
    }
    let clients: Vec<IpAddr> = site.net.client.addresses();
    for (family, client) in echo.iter().zip(clients) {
        for server in family {
            ensure!(server.seen.addresses() == [client], "seen: {:?}", server.seen.addresses());
        }
    }
    ensure!(gateway.status()?["services"][0]["source"] == "client");
    // A backend is refused as a client: its replies would go to itself.
    let connect = || TcpStream::connect_timeout(&ECHO, Duration::from_millis(500));
    let error = site.net.backends[0].ns.run(connect)?.err().context("it is served")?;
    ensure!(error.kind() == ErrorKind::TimedOut, "{error}");
    let status = gateway.status()?;
    ensure!(packets(&status, "hairpin") > 0, "not counted: {}", status["counters"]);
    Ok(())
}
