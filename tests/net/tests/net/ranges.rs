//! Services of many ports, by TCP and UDP.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Line, SERVICE_V4, SERVICE_V6, Site, ask_udp, needs_root, udp_to};

const PORTS: [u16; 4] = [8000, 8033, 8064, 8100];

/// Backends without a port of their own: each is asked at the port the client asked for.
fn ranged(site: &Site, name: &str, address: IpAddr, port: &str) -> String {
    let backends = site.backends(address, 1).into_iter();
    let backends: Vec<String> =
        backends.map(|b| format!("{{ address = \"{}\" }}", b.ip())).collect();
    format!(
        "[[service]]\nname = {name:?}\naddress = \"{address}\"\nport = {port:?}\n\
         protocol = [\"tcp\", \"udp\"]\nannounce = \"arp\"\n\
         check = {{ type = \"tcp\", port = 80, interval = \"200ms\", fall = 5 }}\nbackends = [{}]\n\n",
        backends.join(", ")
    )
}

fn asked(site: &Site, target: SocketAddr) -> Result<()> {
    let mut line = Line::open(site.client(), target).with_context(|| format!("TCP {target}"))?;
    line.ask("hello")?;
    let socket = udp_to(site.client(), target)?;
    ask_udp(&socket, "hello").with_context(|| format!("UDP {target}"))?;
    Ok(())
}

#[test]
fn a_range_and_all_ports() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let mut echo = Vec::new();
    for address in [SERVICE_V4, SERVICE_V6] {
        for port in PORTS {
            echo.push(site.echo(address, port)?);
        }
    }
    let services =
        ranged(&site, "range", SERVICE_V4, "8000-8100") + &ranged(&site, "all", SERVICE_V6, "*");
    let gateway = site.start(&services)?;
    for address in [SERVICE_V4, SERVICE_V6] {
        for port in PORTS {
            asked(&site, SocketAddr::new(address, port))?;
        }
    }
    let status = gateway.status()?;
    let shown = status["services"].to_string();
    ensure!(shown.contains("8100") && shown.contains("65535"), "{shown}");
    // Of a backend that has every port, there is the address alone.
    let first = status["services"][0]["backends"][0]["address"].as_str().context("an address")?;
    let ran = gateway.ringway(&["backend", "drain", "range", first])?;
    ensure!(ran.code == 0 && ran.out.contains(first) && !ran.out.contains(":0 "), "{ran:?}");
    let ran = gateway.ringway(&["status"])?;
    ensure!(ran.out.contains(first) && !ran.out.contains(&format!("{first}:0")), "{ran:?}");
    Ok(())
}
