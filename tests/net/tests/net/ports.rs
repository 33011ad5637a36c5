//! The nat pool and the node's own ports.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{Load, SERVICE_V4, Site, WEB, get, needs_root, service};
use serde_json::Value;

#[test]
fn checks_at_full_load_never_meet_a_port_of_the_pool() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    // As narrow as they come, and side by side.
    site.net.gateway.sysctl("net/ipv4/ip_local_port_range", "11024 12047")?;
    let nat = "[nat]\nports = \"10000-11023\"\nflows = 65536\ntimeouts = { closed = \"1s\" }\n\n";
    // Many services over the same nginx, so that checks are many too.
    let check = "type = \"http\", interval = \"5s\", timeout = \"5s\"";
    let more = format!("announce = \"arp\"\ncheck = {{ {check} }}\n");
    let mut body = String::from(nat);
    for port in 80..130 {
        let target = SocketAddr::new(SERVICE_V4, port);
        body += &service(&format!("web{port}"), target, &site.backends(SERVICE_V4, 80), &more);
    }
    let gateway = site.start(&body)?;
    let load = Load::start(site.client(), &format!("http://{SERVICE_V4}/"), 200, 10)?;
    for _ in 0..200 {
        get(site.client(), WEB)?;
    }
    let outcome = load.finish()?;
    ensure!(outcome.errors == 0 && outcome.requests > 1000, "{outcome:?}");
    let checks = |status: &Value, key: &str| -> u64 {
        let services = status["services"].as_array().into_iter().flatten();
        let backends = services.flat_map(|s| s["backends"].as_array().into_iter().flatten());
        backends.filter_map(|backend| backend[key].as_u64()).sum()
    };
    let status =
        gateway.wait_status("many checks", |status| checks(status, "checks_passed") > 200)?;
    let failed = checks(&status, "checks_failed");
    ensure!(failed == 0, "{failed} checks failed: {}", status["services"]);
    Ok(())
}
