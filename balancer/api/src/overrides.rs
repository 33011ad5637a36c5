//! Overrides: weights that were set at runtime and win over the configuration file until they are
//! cleared. Kept in the state directory.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ringway_config::{Backend, Config, Service, endpoint_text, nearest};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::status;
use crate::error::Error;
use crate::state_dir::StateDir;

/// Name of the document in the state directory.
pub const DOCUMENT: &str = "overrides";
/// Name and version of its schema, and of what the API answers.
pub const SCHEMA: &str = "ringway.overrides/1";

/// All overrides of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    pub schema: String,
    /// Oldest first.
    pub overrides: Vec<Override>,
}

impl Default for Overrides {
    fn default() -> Overrides {
        Overrides { schema: SCHEMA.into(), overrides: Vec::new() }
    }
}

/// The override of one backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    pub service: String,
    pub address: IpAddr,
    /// Its own port; 0: the one that the client asked for.
    pub port: u16,
    /// It gets no new flows.
    pub drained: bool,
    /// Its weight while it is not drained; absent: the file's.
    pub weight: Option<u16>,
    /// When it was said last.
    pub since: Timestamp,
}

impl Override {
    pub fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// The same for people: the address alone where the port is 0.
    pub fn shown(&self) -> String {
        endpoint_text(self.endpoint())
    }

    /// The weight it gives a backend that has this one in the file.
    pub fn over(&self, weight: u16) -> u16 {
        if self.drained { 0 } else { self.weight.unwrap_or(weight) }
    }

    /// "drained", "weight 5"
    pub fn in_words(&self) -> String {
        match (self.drained, self.weight) {
            (true, Some(weight)) => format!("drained, then weight {weight}"),
            (true, None) => "drained".into(),
            (false, Some(weight)) => format!("weight {weight}"),
            (false, None) => "nothing".into(),
        }
    }
}

/// A backend after something was said about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverriddenBackend {
    pub service: String,
    pub address: IpAddr,
    /// Its own port; 0: the one that the client asked for.
    pub port: u16,
    /// It gets no new flows.
    pub drained: bool,
    /// Its weight while it is not drained.
    pub weight: u16,
    /// Flows that it has.
    pub flows: u64,
    /// Its flows of dsr services that have no record are not among them.
    pub some_are_not_counted: bool,
}

/// A change of overrides. Backends are written as ADDRESS or ADDRESS:PORT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "action")]
pub enum OverrideChange {
    /// No new flows.
    Drain { service: String, backend: String },
    /// New flows again.
    Undrain { service: String, backend: String },
    /// Another weight; one that is drained stays so, and has it afterwards.
    Weight {
        service: String,
        backend: String,
        /// 0 to 1000.
        weight: u16,
    },
    /// The file's weight again.
    Clear {
        /// Only this service.
        service: Option<String>,
        /// Only this backend of it.
        backend: Option<String>,
    },
}

impl fmt::Display for OverrideChange {
    /// For the log: on what, and what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OverrideChange::Drain { service, backend } => {
                write!(f, "{service}: backend {backend} is drained")
            }
            OverrideChange::Undrain { service, backend } => {
                write!(f, "{service}: backend {backend} is undrained")
            }
            OverrideChange::Weight { service, backend, weight } => {
                write!(f, "{service}: backend {backend} has weight {weight}")
            }
            OverrideChange::Clear { service: None, .. } => f.write_str("all overrides are cleared"),
            OverrideChange::Clear { service: Some(service), backend: None } => {
                write!(f, "{service}: overrides are cleared")
            }
            OverrideChange::Clear { service: Some(service), backend: Some(backend) } => {
                write!(f, "{service}: override of backend {backend} is cleared")
            }
        }
    }
}

impl Overrides {
    /// As they are kept; none when nothing is.
    ///
    /// # Errors
    /// The state directory cannot be used, or what is there is of another version.
    pub fn load(state: &StateDir) -> Result<Overrides, Error> {
        Ok(state.read(DOCUMENT, SCHEMA)?.unwrap_or_default())
    }

    /// The override of a backend.
    pub fn of(&self, service: &str, backend: SocketAddr) -> Option<&Override> {
        self.overrides.iter().find(|o| o.service == service && o.endpoint() == backend)
    }

    /// Whom of a service they keep from new flows, and the commands that undo it: to be put behind
    /// a sentence.
    pub fn withheld(&self, service: &str) -> String {
        let kept_back = |o: &&Override| o.service == service && o.over(1) == 0;
        let told = |o: &Override| match o.drained {
            true => format!("{0} is drained (`ringway backend undrain {service} {0}`)", o.shown()),
            false => {
                format!("{0} has weight 0 (`ringway backend weight {service} {0} 1`)", o.shown())
            }
        };
        let all: Vec<_> = self.overrides.iter().filter(kept_back).map(told).collect();
        match all.is_empty() {
            true => String::new(),
            false => format!(": {}, by an operator", all.join(", ")),
        }
    }

    /// The configuration as it is with them.
    pub fn apply(&self, file: &Config) -> Config {
        let mut config = file.clone();
        for service in &mut config.services {
            for backend in &mut service.backends {
                if let Some(found) = self.of(&service.name, backend.endpoint()) {
                    backend.weight = found.over(backend.weight);
                }
            }
        }
        config
    }

    /// The backend that a change was about, as it is with them; `None`: a change about several.
    pub fn backend_after(
        &self,
        change: &OverrideChange,
        file: &Config,
    ) -> Option<OverriddenBackend> {
        let (service, backend) = match change {
            OverrideChange::Drain { service, backend }
            | OverrideChange::Undrain { service, backend }
            | OverrideChange::Weight { service, backend, .. } => (service, backend),
            OverrideChange::Clear { service, backend } => (service.as_ref()?, backend.as_ref()?),
        };
        let (service, backend) = find(file, service, backend).ok()?;
        let said = self.of(&service.name, backend.endpoint());
        Some(OverriddenBackend {
            service: service.name.to_string(),
            address: backend.endpoint().ip(),
            port: backend.endpoint().port(),
            drained: said.is_some_and(|said| said.drained),
            weight: said.and_then(|said| said.weight).unwrap_or(backend.weight),
            flows: 0,
            some_are_not_counted: service.forward.is_dsr(),
        })
    }

    /// Those about backends that the configuration has not.
    pub fn orphans<'o>(&'o self, config: &'o Config) -> impl Iterator<Item = &'o Override> {
        self.overrides.iter().filter(|o| {
            let service = config.services.iter().find(|service| *service.name == o.service);
            !service.is_some_and(|s| s.backends.iter().any(|b| b.endpoint() == o.endpoint()))
        })
    }

    /// For status, against what the file says.
    pub fn shown(&self, file: &Config) -> Vec<status::Override> {
        let in_file = |o: &Override| {
            let service = file.services.iter().find(|service| *service.name == o.service)?;
            let backend = service.backends.iter().find(|b| b.endpoint() == o.endpoint())?;
            Some(backend.weight)
        };
        let shown = |o: &Override| status::Override {
            service: o.service.clone(),
            address: o.address,
            port: o.port,
            drained: o.drained,
            weight: o.weight,
            file_weight: in_file(o),
            since: o.since,
        };
        self.overrides.iter().map(shown).collect()
    }

    /// They with one change.
    ///
    /// # Errors
    /// There is no such service or backend, or nothing to undo.
    pub fn with(
        &self,
        change: &OverrideChange,
        file: &Config,
        now: Timestamp,
    ) -> Result<Overrides, Error> {
        let mut new = self.clone();
        let (service, backend) = match change {
            OverrideChange::Clear { service, backend } => {
                new.clear(service.as_deref(), backend.as_deref(), file)?;
                return Ok(new);
            }
            OverrideChange::Drain { service, backend }
            | OverrideChange::Undrain { service, backend }
            | OverrideChange::Weight { service, backend, .. } => (service, backend),
        };
        let (service, backend) = find(file, service, backend)?;
        let place = new.place(service, backend);
        let found = &mut new.overrides[place];
        match change {
            OverrideChange::Weight { weight, .. } if *weight > 1000 => {
                return Err(Error::configuration(
                    format!("weight {weight} is out of range"),
                    "write a whole number from 0 to 1000",
                ));
            }
            // A drain goes on: it is for whoever maintains the backend to end.
            OverrideChange::Weight { weight, .. } => found.weight = Some(*weight),
            OverrideChange::Drain { .. } => found.drained = true,
            OverrideChange::Undrain { .. } if !found.drained => {
                return Err(not_drained(service, backend, found));
            }
            OverrideChange::Undrain { .. } | OverrideChange::Clear { .. } => found.drained = false,
        }
        found.since = now;
        if !found.drained && found.weight.is_none() {
            new.overrides.remove(place);
        }
        Ok(new)
    }

    /// Where the override of a backend is, which says nothing yet if it is new.
    fn place(&mut self, service: &Service, backend: &Backend) -> usize {
        let (name, endpoint) = (service.name.as_str(), backend.endpoint());
        let place =
            self.overrides.iter().position(|o| o.service == name && o.endpoint() == endpoint);
        place.unwrap_or_else(|| {
            self.overrides.push(Override {
                service: name.to_owned(),
                address: endpoint.ip(),
                port: endpoint.port(),
                drained: false,
                weight: None,
                since: Timestamp::default(),
            });
            self.overrides.len() - 1
        })
    }

    fn clear(
        &mut self,
        service: Option<&str>,
        backend: Option<&str>,
        file: &Config,
    ) -> Result<(), Error> {
        let Some(service) = service else {
            return match std::mem::take(&mut self.overrides).is_empty() {
                false => Ok(()),
                true => Err(Error::configuration(
                    "there is no override to clear",
                    "nothing: the weights of the file are in force",
                )),
            };
        };
        // Overrides of a backend that no longer exists can be cleared too.
        let mine = |o: &Override| {
            o.service == service && backend.is_none_or(|backend| is_written(backend, o.endpoint()))
        };
        if !self.overrides.iter().any(mine) {
            match backend {
                Some(backend) => drop(find(file, service, backend)?),
                None => drop(find_service(file, service)?),
            }
            let of = backend.map_or_else(String::new, |backend| format!(" backend {backend}"));
            return Err(Error::configuration(
                format!("service {service}{of} has no override"),
                "`ringway overrides` lists those there are",
            ));
        }
        self.overrides.retain(|o| !mine(o));
        Ok(())
    }
}

fn not_drained(service: &Service, backend: &Backend, found: &Override) -> Error {
    let (name, endpoint) = (service.name.as_str(), backend.shown());
    let weight = found.over(backend.weight);
    let remedy = match weight {
        0 => format!("its weight is 0: `ringway backend weight {name} {endpoint} 1` gives it one"),
        _ => "`ringway status` shows which backends are".into(),
    };
    Error::configuration(format!("backend {endpoint} of service {name} is not drained"), remedy)
}

fn find_service<'c>(config: &'c Config, name: &str) -> Result<&'c Service, Error> {
    let found = config.services.iter().find(|service| service.name.as_str() == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = config.services.iter().map(|s| s.name.as_str()).collect();
        let remedy = match nearest(name, &names) {
            Some(known) => format!("did you mean {known:?}?"),
            None if names.is_empty() => "the node has none, it forwards between interfaces".into(),
            None => format!("there are {}", list(&names)),
        };
        Error::configuration(format!("there is no service {name:?}"), remedy)
    })
}

fn find<'c>(
    config: &'c Config,
    service: &str,
    backend: &str,
) -> Result<(&'c Service, &'c Backend), Error> {
    let service = find_service(config, service)?;
    let fits = |one: &&Backend| is_written(backend, one.endpoint());
    let found: Vec<&Backend> = service.backends.iter().filter(fits).collect();
    let name = service.name.as_str();
    let shown = |backends: &[&Backend]| {
        let endpoints: Vec<String> = backends.iter().map(|b| b.shown()).collect();
        list(&endpoints)
    };
    match found.as_slice() {
        [one] => Ok((service, one)),
        [] => Err(Error::configuration(
            format!("service {name} has no backend {backend}"),
            format!("it has {}", shown(&service.backends.iter().collect::<Vec<_>>())),
        )),
        several => Err(Error::configuration(
            format!("service {name} has several backends {backend}"),
            format!("say which: {}", shown(several)),
        )),
    }
}

/// Is the backend what ADDRESS or ADDRESS:PORT says?
fn is_written(text: &str, backend: SocketAddr) -> bool {
    let address = text.trim_start_matches('[').trim_end_matches(']');
    address.parse() == Ok(backend.ip()) || text.parse() == Ok(backend)
}

/// The first of them, and how many more.
fn list(names: &[impl AsRef<str>]) -> String {
    const SHOWN: usize = 10;
    let first: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("{}{more}", first.join(", "))
}

#[cfg(test)]
mod tests;
