//! Configurations and parts of states for this crate's tests.

use std::time::SystemTime;

use ringway_abi::{Faces, Forward};
use ringway_api::clock::Timestamp;
use ringway_api::shield::ShieldEntry;
use ringway_config::{Config, ListAction};
use ringway_host::Mac;
use ringway_kernel::{Interface, ServiceState};
use ringway_plan::prefix_list::Prefix;
use ringway_plan::tables::{Protocol, ServiceKey};

use crate::health::{CheckEvent, Health};
use crate::network::next_hop::Hop;

pub(crate) fn parsed(text: &str) -> Config {
    ringway_config::parse(text, "gw.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// Node gw on eth0 with a service web at 203.0.113.9, port 80. `sections` may begin with keys of
/// `[node]`. The service's backend is 10.0.0.2, unless `service` has others.
pub(crate) fn gateway(sections: &str, service: &str) -> Config {
    let backends = match service.contains("backends = ") {
        true => "",
        false => "backends = [{ address = \"10.0.0.2\" }]",
    };
    parsed(&format!(
        "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n{sections}\n[[service]]\nname = \"web\"\n\
         address = \"203.0.113.9\"\nport = 80\n{service}\n{backends}\n"
    ))
}

/// By eth0.
pub(crate) fn hop() -> Hop {
    Hop {
        slot: 0,
        interface: "eth0".into(),
        mac: Mac([2, 0, 0, 0, 0, 9]),
        mtu: 1500,
        source: "10.0.0.1".parse().ok(),
        router: None,
    }
}

/// An Ethernet device.
pub(crate) fn interface(slot: u32, ifindex: u32, name: &str) -> Interface {
    Interface {
        slot,
        name: name.into(),
        ifindex,
        mac: [2; 6],
        alt_mac: None,
        mtu: 1500,
        redirect: false,
        layer3: false,
        local: false,
        raw: false,
        vlan: None,
        faces: Faces::Both,
    }
}

pub(crate) fn event(id: usize, health: Health) -> CheckEvent {
    CheckEvent { id, health, at: SystemTime::UNIX_EPOCH, reason: None, offer: None }
}

/// A service without backends at 203.0.113.9.
pub(crate) fn service_state(id: u16, name: &str, port: u16) -> ServiceState {
    ServiceState {
        id,
        key: ServiceKey::new([203, 0, 113, 9].into(), port, Protocol::Tcp),
        name: name.into(),
        forward: Forward::Nat,
        source_client: false,
        reset_when_none: true,
        backends: Vec::new(),
    }
}

/// Without an end.
pub(crate) fn entry(prefix: Prefix, action: ListAction) -> ShieldEntry {
    let (until, reason, since, ends) = (None, String::new(), Timestamp::default(), None);
    ShieldEntry { prefix, action, until, reason, since, ends }
}
