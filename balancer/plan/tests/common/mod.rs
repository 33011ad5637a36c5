//! Configurations, a world in which all is well, and the tables that they give.

use std::net::{IpAddr, Ipv4Addr};

use ringway_config::{Config, parse};
use ringway_plan::tables::{BackendRow, NextHop, Tables};
use ringway_plan::{Health, Observed, Planner};

pub const HOP: NextHop = NextHop { iface: 0, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
pub const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn config(services: &str) -> Config {
    let text = format!("[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n{services}");
    parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Every backend up and reachable, the source of each [`NODE`] (or ::1 of a v6 network).
pub fn well(config: &Config) -> Observed {
    let mut observed = Observed::default();
    for service in &config.services {
        for backend in &service.backends {
            observed.set_health(&service.name, backend.endpoint(), Health::Up);
            let source = if backend.address.is_ipv4() { NODE } else { ip("2001:db8::1") };
            observed.next_hops.insert(*backend.address, HOP);
            observed.sources.insert(*backend.address, source);
        }
    }
    observed
}

pub fn plan(config: &Config, observed: &Observed) -> Tables {
    Planner::default().plan(config, observed).unwrap()
}

pub fn row<'t>(tables: &'t Tables, endpoint: &str) -> &'t BackendRow {
    let endpoint = endpoint.parse().unwrap();
    tables.backends.iter().find(|row| row.endpoint() == endpoint).unwrap()
}
