//! What clients are promised where the gateway answers their SYNs.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, SocketAddr};

use ringway_config::{Config, parse};
use ringway_plan::tables::{NextHop, SynOffer};
use ringway_plan::{Health, Observed, Planner};

const FULL: SynOffer = SynOffer { mss: 1460, stamps: true, sack: true, ecn: true };

fn config(syn: &str) -> Config {
    let forward = if syn == "proxy" { "nat" } else { "dsr-l2" };
    let text = format!(
        "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[shield.syn]\nalways = true\n\
         secret = \"/etc/ringway/syn.secret\"\n[[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\nport = 80\nsyn = \"{syn}\"\n\
         forward = \"{forward}\"\ncheck = {{ type = \"tcp\" }}\n\
         backends = [{{ address = \"10.0.0.2\" }}, {{ address = \"10.0.0.3\" }}, \
         {{ address = \"10.0.0.4\", weight = 0 }}]\n"
    );
    parse(&text, "test.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// The backend 10.0.0.n.
fn backend(n: u8) -> SocketAddr {
    (IpAddr::from([10, 0, 0, n]), 80).into()
}

/// All backends up and reachable; the way to the last one, which takes no flows, is narrow.
fn well() -> Observed {
    let mut observed = Observed::default();
    for n in 2..5 {
        let address = backend(n).ip();
        observed.set_health("web", backend(n), Health::Up);
        let mtu = if n == 4 { 1400 } else { 1500 };
        observed.next_hops.insert(address, NextHop { iface: 0, mac: [2, 0, 0, 0, 0, n], mtu });
        observed.sources.insert(address, [10, 0, 0, 1].into());
    }
    observed
}

fn offer(syn: &str, observed: &Observed) -> SynOffer {
    let tables = Planner::default().plan(&config(syn), observed).unwrap();
    tables.services[0].policy.unwrap().syn.offer
}

#[test]
fn no_more_than_every_backend_was_seen_to_offer() {
    let mut observed = well();
    let unseen = SynOffer { mss: 1360, stamps: false, sack: true, ecn: false };
    assert_eq!(offer("proxy", &observed), unseen);
    observed.set_offer("web", backend(2), FULL);
    assert_eq!(offer("proxy", &observed), unseen, "the other one was not asked");
    observed.set_offer("web", backend(3), FULL);
    assert_eq!(offer("proxy", &observed), SynOffer { mss: 1360, ..FULL });
    for lacks in [
        SynOffer { mss: 1220, ..FULL },
        SynOffer { mss: 1360, stamps: false, ..FULL },
        SynOffer { mss: 1360, sack: false, ..FULL },
        SynOffer { mss: 1360, ecn: false, ..FULL },
    ] {
        observed.set_offer("web", backend(3), lacks);
        assert_eq!(offer("proxy", &observed), lacks);
    }
}

#[test]
fn who_takes_no_flows_has_no_say_in_options() {
    let mut observed = well();
    observed.set_offer("web", backend(2), FULL);
    let old = SynOffer { mss: 1000, stamps: false, sack: false, ecn: false };
    observed.set_offer("web", backend(3), old);
    observed.set_offer("web", backend(4), old);
    assert!(!offer("proxy", &observed).stamps);
    observed.set_health("web", backend(3), Health::Down);
    assert_eq!(offer("proxy", &observed), SynOffer { mss: 1000, ..FULL });
    observed.set_health("web", backend(2), Health::Down);
    assert_eq!(offer("proxy", &observed), SynOffer { sack: true, ..SynOffer::default() });
}

/// `ringway accept` does not run where the kernel lacks any of it.
#[test]
fn backends_that_accept_cookies_have_time_stamps_unless_seen_without() {
    let mut observed = well();
    let unseen = SynOffer { mss: 1360, stamps: true, sack: true, ecn: false };
    assert_eq!(offer("backend", &observed), unseen);
    observed.set_offer("web", backend(2), SynOffer { stamps: false, ..FULL });
    assert_eq!(offer("backend", &observed), SynOffer { stamps: false, ..unseen });
}
