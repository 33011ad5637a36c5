//! MAC addresses of backends that the kernel forgets.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    ECHO, SERVICE_V4, SERVICE_V6, Site, WEB, ask_udp, get, needs_root, udp_to,
};
use serde_json::Value;

const WEB_V6: SocketAddr = SocketAddr::new(SERVICE_V6, 80);

/// The address serves until the kernel's question for it has failed.
#[test]
fn flushed_neighbours_cost_no_client_anything() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    // Without checks: the neighbours alone say who can be reached.
    let services = site.service("web", WEB, "")
        + &site.service("web6", WEB_V6, "")
        + &site.service("echo", ECHO, "protocol = \"udp\"\n");
    let gateway = site.start(&services)?;
    for flush in 1..=5 {
        site.net.gateway.ip("neigh flush dev eth1\n")?;
        for n in 0..15 {
            let which = || format!("request {n} after flush {flush}");
            get(site.client(), WEB).with_context(which)?;
            get(site.client(), WEB_V6).with_context(which)?;
            let socket = udp_to(site.client(), ECHO)?;
            ask_udp(&socket, "hello").with_context(which)?;
        }
    }
    ensure!(!gateway.log().contains("no way to it"), "{}", gateway.log());

    // One that does not answer is noticed all the same.
    site.set_link(0, false)?;
    site.net.gateway.ip("neigh flush dev eth1\n")?;
    let lost = |status: &Value| status["services"][0]["backends"][0]["next_hop"].is_null();
    gateway.wait_status("b1 without a way", lost)?;
    for _ in 0..10 {
        ensure!(get(site.client(), WEB)? == "b2");
    }
    site.set_link(0, true)?;
    gateway.wait_status("b1 with a way", |status| !lost(status))?;
    Ok(())
}
