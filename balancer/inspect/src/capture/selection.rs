//! Which packets are asked for: words of the command line, checked against what there is.

use std::net::{IpAddr, SocketAddr};

use ringway_abi::{Reason, Verdict};
use ringway_api::error::Error;
use ringway_config::nearest;
use ringway_kernel::{BackendState, ServiceState};
use ringway_plan::tables::Protocol;

use super::names::Interface;

/// Words that select packets. A packet has to fit all of them; left out, everything fits.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Interface that it came in by.
    pub interface: Option<String>,
    /// Verdicts, any of them.
    pub verdicts: Vec<String>,
    /// Reasons, any of them.
    pub reasons: Vec<String>,
    pub service: Option<String>,
    /// Address of its backend, with its port where several have the address.
    pub backend: Option<String>,
}

/// The same in the packet path's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    pub slot: Option<u32>,
    /// Verdicts; none for any.
    pub verdicts: Vec<Verdict>,
    /// Reasons; none for any.
    pub reasons: Vec<Reason>,
    pub service: Option<u16>,
    pub backend: Option<u32>,
}

impl Selection {
    /// Looks everything up.
    ///
    /// # Errors
    /// Something is not there, or could be several things.
    pub fn select(
        &self,
        interfaces: &[Interface],
        services: &[ServiceState],
    ) -> Result<Selected, Error> {
        let verdicts = self.verdicts.iter().map(|name| verdict(name));
        let reasons = self.reasons.iter().map(|name| reason(name));
        let selected = Selected {
            slot: self.interface.as_deref().map(|name| slot(name, interfaces)).transpose()?,
            verdicts: verdicts.collect::<Result<_, _>>()?,
            reasons: reasons.collect::<Result<_, _>>()?,
            service: self.service.as_deref().map(|name| service(name, services)).transpose()?,
            backend: None,
        };
        possible(&selected)?;
        if self.service.is_some() || self.backend.is_some() {
            of_a_service(&selected.reasons)?;
        }
        let Some(text) = &self.backend else { return Ok(selected) };
        let backend = Some(backend(text, selected.service, services)?);
        Ok(Selected { backend, ..selected })
    }
}

fn verdict(name: &str) -> Result<Verdict, Error> {
    Verdict::all().find(|verdict| verdict.name() == name).ok_or_else(|| {
        let known: Vec<&str> = Verdict::all().map(Verdict::name).collect();
        Error::configuration(
            format!("there is no verdict {name:?}"),
            format!("write one of {}", known.join(", ")),
        )
    })
}

fn reason(name: &str) -> Result<Reason, Error> {
    let wrong = |what, remedy: &str| Error::configuration(what, remedy);
    if let Some(loss) = ringway_abi::Loss::all().find(|loss| loss.name() == name) {
        return Err(wrong(
            format!("{} happens after the verdict, where no capture sees it", loss.name()),
            "capture --verdict redirect or tx; `ringway status --ledger` counts what is lost afterwards",
        ));
    }
    let known: Vec<&str> = Reason::all().skip(1).map(Reason::name).collect();
    Reason::by_name(name).filter(|reason| *reason != Reason::None).ok_or_else(|| {
        let near = nearest(name, &known).map(|near| format!("did you mean {near:?}? "));
        let remedy = format!("{}`ringway reasons` lists them all", near.unwrap_or_default());
        wrong(format!("there is no reason {name:?}"), &remedy)
    })
}

/// A reason comes with certain verdicts only: asking for another one would wait for ever.
fn possible(selected: &Selected) -> Result<(), Error> {
    let Selected { verdicts, reasons, .. } = selected;
    let fits = |reason: &Reason| reason.verdicts().iter().any(|verdict| verdicts.contains(verdict));
    if verdicts.is_empty() || reasons.is_empty() || reasons.iter().any(fits) {
        return Ok(());
    }
    let own: Vec<String> = reasons
        .iter()
        .map(|reason| {
            let names: Vec<&str> = reason.verdicts().iter().map(|verdict| verdict.name()).collect();
            format!("{reason} comes with {}", names.join(" or "))
        })
        .collect();
    Err(Error::configuration(
        "no packet has one of these reasons and one of these verdicts",
        format!("leave out --verdict: {}", own.join("; ")),
    ))
}

/// Reasons of packets that are for no service, or end before theirs is looked up.
const OF_NO_SERVICE: [Reason; 7] = [
    Reason::NotIp,
    Reason::Vlan,
    Reason::NoService,
    Reason::OtherProtocol,
    Reason::OtherHost,
    Reason::ArpReply,
    Reason::NdReply,
];

/// A packet of a service, or of its backend, never has one of the others.
fn of_a_service(reasons: &[Reason]) -> Result<(), Error> {
    if reasons.is_empty() || reasons.iter().any(|reason| !OF_NO_SERVICE.contains(reason)) {
        return Ok(());
    }
    let names: Vec<&str> = reasons.iter().map(|reason| reason.name()).collect();
    Err(Error::configuration(
        format!("no packet of a service has the reason {}", names.join(" or ")),
        "leave out --service and --backend, and name the address in a filter: 'host 203.0.113.10'",
    ))
}

fn slot(name: &str, interfaces: &[Interface]) -> Result<u32, Error> {
    interfaces.iter().find(|one| one.name == name).map(|one| one.slot).ok_or_else(|| {
        let names: Vec<&str> = interfaces.iter().map(|one| one.name.as_str()).collect();
        Error::configuration(
            format!("this node has no interface {name:?}"),
            format!("give one of these with -i: {}", names.join(", ")),
        )
    })
}

/// A service of two protocols is two to the packet path: `web/tcp` and `web/udp`.
fn service(text: &str, services: &[ServiceState]) -> Result<u16, Error> {
    let (name, protocol) = match text.split_once('/') {
        Some((name, protocol)) => (name, Some(protocol)),
        None => (text, None),
    };
    let fits = |one: &&ServiceState| {
        one.name == name && protocol.is_none_or(|protocol| protocol == protocol_of(one))
    };
    match services.iter().filter(fits).collect::<Vec<_>>().as_slice() {
        [one] => Ok(one.id),
        [] => {
            let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
            let remedy = match nearest(name, &names) {
                Some(near) if near != name => format!("did you mean {near:?}?"),
                _ if names.is_empty() => "this node has none".to_owned(),
                _ => format!("there are {}", names.join(", ")),
            };
            Err(Error::configuration(format!("there is no service {text:?}"), remedy))
        }
        several => {
            let each = several.iter().map(|one| format!("--service {name}/{}", protocol_of(one)));
            Err(Error::configuration(
                format!("service {name} has several protocols"),
                format!("say which: {}", each.collect::<Vec<_>>().join(", or ")),
            ))
        }
    }
}

fn protocol_of(service: &ServiceState) -> &'static str {
    match service.key.protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
    }
}

fn backend(text: &str, service: Option<u16>, services: &[ServiceState]) -> Result<u32, Error> {
    let bare = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    let whole = text.parse::<SocketAddr>().ok();
    if bare.is_none() && whole.is_none() {
        return Err(Error::configuration(
            format!("{text:?} is not a backend's address"),
            "write 10.0.0.2, 10.0.0.2:80, 2001:db8::2 or [2001:db8::2]:80",
        ));
    }
    let written = |one: &&BackendState| match bare {
        Some(address) => one.address.ip() == address,
        None => whole == Some(one.address),
    };
    let all = services.iter().filter(|one| service.is_none_or(|id| one.id == id));
    let found = all.flat_map(|of| of.backends.iter().filter(written).map(move |one| (of, one)));
    match found.collect::<Vec<_>>().as_slice() {
        [(_, one)] => Ok(one.index),
        [] => Err(Error::configuration(
            format!("there is no backend {text}"),
            "`ringway status` lists them, with the services that they belong to",
        )),
        several => {
            let each: Vec<String> = several
                .iter()
                .map(|(of, one)| {
                    format!("--service {}/{} --backend {}", of.name, protocol_of(of), one.address)
                })
                .collect();
            Err(Error::configuration(
                format!("{} backends have the address {text}", several.len()),
                format!("say which: {}", each.join(", or ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use ringway_abi::raw::rw_traffic;
    use ringway_plan::tables::{Forward, ServiceKey};

    use super::*;

    fn interfaces() -> Vec<Interface> {
        let one = |slot, name: &str| Interface {
            slot,
            name: name.into(),
            attached: true,
            mac: [0; 6],
            layer3: false,
            tags: Vec::new(),
            seen: 0,
        };
        vec![one(0, "eth0"), one(5, "eth1")]
    }

    fn services() -> Vec<ServiceState> {
        let backend = |index, address: &str| BackendState {
            index,
            generation: 1,
            address: address.parse().expect("an address"),
            up: true,
            kept: false,
            next_hop: None,
            traffic: rw_traffic::default(),
        };
        let service = |id, name: &str, backends| ServiceState {
            id,
            key: ServiceKey {
                address: "203.0.113.10".parse().expect("an address"),
                port: id,
                last_port: id,
                protocol: Protocol::Tcp,
            },
            name: name.into(),
            forward: Forward::Nat,
            source_client: false,
            reset_when_none: false,
            backends,
        };
        vec![
            service(80, "web", vec![backend(3, "10.0.0.2:80"), backend(4, "[fd00::2]:80")]),
            service(443, "tls", vec![backend(7, "10.0.0.2:443")]),
        ]
    }

    fn select(selection: &Selection) -> Result<Selected, String> {
        selection.select(&interfaces(), &services()).map_err(|error| error.to_string())
    }

    #[test]
    fn names_become_numbers() {
        let selected = select(&Selection {
            interface: Some("eth1".into()),
            verdicts: vec!["redirect".into()],
            reasons: vec!["nat-forward".into()],
            service: Some("web".into()),
            backend: Some("10.0.0.2".into()),
        });
        let want = Selected {
            slot: Some(5),
            verdicts: vec![Verdict::Redirect],
            reasons: vec![Reason::NatForward],
            service: Some(80),
            backend: Some(3),
        };
        assert_eq!(selected, Ok(want));
        assert_eq!(select(&Selection::default()), Ok(Selected::default()));
        let tcp = Selection { service: Some("tls/tcp".into()), ..Selection::default() };
        assert_eq!(select(&tcp).expect("tls").service, Some(443));
        for (text, index) in [("10.0.0.2:443", 7), ("fd00::2", 4), ("[fd00::2]:80", 4)] {
            let selection = Selection { backend: Some(text.into()), ..Selection::default() };
            assert_eq!(select(&selection).expect(text).backend, Some(index));
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let some = |text: &str| Some(text.to_owned());
        let none = Selection::default;
        for (selection, words) in [
            (Selection { interface: some("eth7"), ..none() }, "with -i: eth0, eth1"),
            (Selection { verdicts: vec!["dropp".into()], ..none() }, "aborted, drop, pass"),
            (Selection { reasons: vec!["no-backand".into()], ..none() }, "mean \"no-backend\"?"),
            (Selection { reasons: vec!["lost-too-big".into()], ..none() }, "after the verdict"),
            (Selection { service: some("wep"), ..none() }, "did you mean \"web\"?"),
            (Selection { service: some("web/udp"), ..none() }, "there are web, tls"),
            (Selection { service: some("mail"), ..none() }, "there are web, tls"),
            (Selection { backend: some("b1"), ..none() }, "write 10.0.0.2,"),
            (Selection { backend: some("10.0.0.3"), ..none() }, "no backend 10.0.0.3"),
            (
                Selection { backend: some("10.0.0.2"), ..none() },
                "--service web/tcp --backend 10.0.0.2:80, or --service tls/tcp --backend 10.0.0.2:443",
            ),
            (
                Selection {
                    verdicts: vec!["drop".into()],
                    reasons: vec!["nat-forward".into()],
                    ..none()
                },
                "nat-forward comes with",
            ),
            (
                Selection { reasons: vec!["no-service".into()], service: some("web"), ..none() },
                "no packet of a service has the reason no-service",
            ),
            (
                Selection {
                    reasons: vec!["no-service".into(), "vlan".into()],
                    backend: some("fd00::2"),
                    ..none()
                },
                "leave out --service",
            ),
        ] {
            let error = select(&selection).expect_err(words);
            assert!(error.contains(words) && error.contains("to do: "), "{error}");
        }
    }
}
