//! What changes between two plans, as people read it.

#![allow(clippy::unwrap_used)]

use ringway_config::{Config, parse};
use ringway_plan::tables::{NextHop, Tables};
use ringway_plan::{Health, Observed, Planner};

fn config(services: &str) -> Config {
    let text = format!("[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n{services}");
    parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn service(name: &str, port: u16, backends: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\naddress = \"203.0.113.10\"\nport = {port}\n\
         check = {{ type = \"tcp\" }}\nbackends = [{backends}]\n{more}\n"
    )
}

fn well(config: &Config) -> Observed {
    let mut observed = Observed::default();
    for service in &config.services {
        for backend in &service.backends {
            observed.set_health(&service.name, backend.endpoint(), Health::Up);
            let hop = NextHop { iface: 0, mac: [2, 0, 0, 0, 0, 1], mtu: 1500 };
            observed.next_hops.insert(*backend.address, hop);
            observed.sources.insert(*backend.address, "10.0.0.1".parse().unwrap());
        }
    }
    observed
}

fn sentences(new: &Tables, old: &Tables) -> Vec<String> {
    new.diff(old).iter().map(|change| change.to_string()).collect()
}

const TWO: &str = "{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }";

#[test]
fn no_change() {
    let config = config(&service("web", 80, TWO, ""));
    let mut planner = Planner::default();
    let old = planner.plan(&config, &well(&config)).unwrap();
    assert!(planner.plan(&config, &well(&config)).unwrap().diff(&old).is_empty());
}

#[test]
fn death_and_lost_neighbour() {
    let config = config(&service("web", 80, TWO, ""));
    let mut planner = Planner::default();
    let mut observed = well(&config);
    let old = planner.plan(&config, &observed).unwrap();
    observed.set_health("web", "10.0.0.2:80".parse().unwrap(), Health::Down);
    observed.next_hops.remove(&"10.0.0.3".parse().unwrap());
    let new = planner.plan(&config, &observed).unwrap();
    let changes = sentences(&new, &old);
    assert_eq!(
        changes[..2],
        [
            "service \"web\" (203.0.113.10:80 tcp): backend 10.0.0.2:80 down",
            "service \"web\" (203.0.113.10:80 tcp): backend 10.0.0.3:80 cannot be reached: no next hop",
        ]
    );
    assert!(changes[2].ends_with("of 65537 ring slots moved (100.0 %)"), "{changes:?}");
    assert_eq!(sentences(&old, &new)[0], changes[0].replace("down", "up"));
}

#[test]
fn services_and_backends_come_and_go() {
    let before = config(&(service("web", 80, TWO, "") + &service("old", 81, TWO, "")));
    let weighted = "{ address = \"10.0.0.3\", weight = 5 }, { address = \"10.0.0.4\" }";
    let web = service("web", 80, weighted, "when_none_healthy = \"drop\"");
    let after = config(&(web + &service("new", 82, TWO, "") + "[nat]\nports = \"20000-29999\"\n"));
    let mut planner = Planner::default();
    let old = planner.plan(&before, &well(&before)).unwrap();
    let new = planner.plan(&after, &well(&after)).unwrap();
    let mut changes = sentences(&new, &old);
    let moved = changes.remove(4);
    assert!(moved.contains("ring slots moved"), "{moved}");
    assert_eq!(
        changes,
        [
            "service \"web\" (203.0.113.10:80 tcp) changed",
            "service \"web\" (203.0.113.10:80 tcp): backend 10.0.0.2:80 removed",
            "service \"web\" (203.0.113.10:80 tcp): backend 10.0.0.3:80 has weight 5",
            "service \"web\" (203.0.113.10:80 tcp): backend 10.0.0.4:80 added",
            "service \"old\" (203.0.113.10:81 tcp) removed",
            "service \"new\" (203.0.113.10:82 tcp) added",
            "nat: source addresses, ports or timeouts changed",
        ]
    );
}
