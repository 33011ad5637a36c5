//! Names of the numbers in flow records.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ringway_abi::FlowKey;
use ringway_api::error::Error;
use ringway_kernel::View;
use serde::Serialize;

use super::{Flow, Nat};

/// Names of services, backends, addresses and interfaces, read once for a whole look.
#[derive(Clone, Debug, Default)]
pub struct FlowNames {
    /// Keyed by id.
    pub(super) services: HashMap<u16, Service>,
    /// Keyed by reference.
    pub(super) backends: HashMap<u32, Backend>,
    /// Each once, in alphabetical order.
    pub(super) service_names: Vec<String>,
    sources: Vec<IpAddr>,
    interfaces: HashMap<u8, String>,
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) address: IpAddr,
    pub(super) forward: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Backend {
    /// Port 0: the one that the client asked for.
    pub(super) address: SocketAddr,
    pub(super) service: u16,
}

/// A flow for people and programs. Ports are in the endpoints, IPv6 addresses in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row<'a> {
    /// Name of its service; absent: of one that is gone.
    pub service: Option<&'a str>,
    /// How its packets reach the backend.
    pub forward: Option<&'static str>,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Its client; absent for dsr, whose records hold a hash instead.
    pub client: Option<String>,
    /// The address that the client talks to; absent for dsr.
    pub destination: Option<String>,
    /// The client as its backend sees it; absent for dsr.
    pub source: Option<String>,
    /// Its backend; absent: one that is gone.
    pub backend: Option<String>,
    /// Where it is in its life.
    pub state: &'static str,
    /// Seconds since it was last noted to be alive.
    pub idle_s: u32,
    /// A new flow may take its place when there is no other.
    pub on_probation: bool,
    /// Interface of its client's last packet; absent for dsr.
    pub interface: Option<&'a str>,
}

impl FlowNames {
    /// As they are now.
    ///
    /// # Errors
    /// The tables cannot be read.
    pub fn read(view: &View) -> Result<FlowNames, Error> {
        let read = || -> ringway_kernel::Result<FlowNames> {
            let mut names = FlowNames { sources: view.nat_addresses()?, ..FlowNames::default() };
            for service in view.services()? {
                for backend in &service.backends {
                    let known = Backend { address: backend.address, service: service.id };
                    names.backends.insert(backend.reference(), known);
                }
                let known = Service {
                    address: service.key.address,
                    forward: service.forward.name(),
                    name: service.name,
                };
                names.services.insert(service.id, known);
            }
            names.service_names = names.services.values().map(|s| s.name.clone()).collect();
            names.service_names.sort_unstable();
            names.service_names.dedup();
            for interface in view.interfaces()? {
                if let Some(name) = interface.name {
                    names.interfaces.insert(interface.slot as u8, name);
                }
            }
            Ok(names)
        };
        read().map_err(|error| Error::failed(error.to_string(), ""))
    }

    /// Id of a flow's service.
    pub(super) fn service_of(&self, flow: &Flow) -> Option<u16> {
        match &flow.nat {
            Some(nat) => Some(nat.service),
            None => self.backends.get(&flow.backend).map(|backend| backend.service),
        }
    }

    /// A flow's backend, at the port that it is really asked at. `None`: it is gone.
    pub(super) fn backend_of(&self, flow: &Flow) -> Option<SocketAddr> {
        let mut address = self.backends.get(&flow.backend)?.address;
        if let (0, Some(nat)) = (address.port(), &flow.nat) {
            address.set_port(nat.port);
        }
        Some(address)
    }

    fn source_of(&self, nat: &Nat) -> Option<IpAddr> {
        match nat.source {
            FlowKey::CLIENT => Some(nat.client.ip()),
            place => self.sources.get(usize::from(place)).copied(),
        }
    }

    /// A flow for people and programs.
    pub fn row(&self, flow: &Flow) -> Row<'_> {
        let service = self.service_of(flow).and_then(|id| self.services.get(&id));
        let nat = flow.nat.as_ref();
        let end = |address: IpAddr, port| SocketAddr::new(address, port).to_string();
        Row {
            service: service.map(|service| service.name.as_str()),
            forward: service.map(|service| service.forward),
            protocol: if flow.udp() { "udp" } else { "tcp" },
            client: nat.map(|nat| nat.client.to_string()),
            destination: nat.and_then(|nat| Some(end(service?.address, nat.port))),
            source: nat.and_then(|nat| Some(end(self.source_of(nat)?, nat.source_port))),
            backend: self.backend_of(flow).map(ringway_config::endpoint_text),
            state: flow.state.name(),
            idle_s: flow.idle_s,
            on_probation: flow.on_probation,
            interface: nat.and_then(|nat| Some(self.interfaces.get(&nat.iface)?.as_str())),
        }
    }
}
