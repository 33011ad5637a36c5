//! Overrides: weights that were set at runtime and win over the configuration file until they are
//! cleared. Kept in the state directory.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ringway_config::{Backend, Config, Service, endpoint_text, nearest};
use serde::{Deserialize, Serialize};

use crate::problem::Error;
use crate::state::State;
use crate::status;

/// Name of the document in the state directory.
pub const DOCUMENT: &str = "overrides";
/// Name and version of its schema, and of what the API answers.
pub const SCHEMA: &str = "ringway.overrides/1";

/// All overrides of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrides {
    /// [`SCHEMA`].
    pub schema: String,
    /// Oldest first.
    pub overrides: Vec<Override>,
}

impl Default for Overrides {
    fn default() -> Overrides {
        Overrides { schema: SCHEMA.into(), overrides: Vec::new() }
    }
}

/// What was said about one backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// Name of its service.
    pub service: String,
    /// Its own address.
    pub address: IpAddr,
    /// Its own port; 0: the one that the client asked for.
    pub port: u16,
    /// It gets no new flows.
    pub drained: bool,
    /// Its weight while it is not drained; absent: the file's.
    pub weight: Option<u16>,
    /// When it was said last, RFC 3339.
    pub since: String,
}

impl Override {
    /// Address and port together.
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Name of its service.
    pub service: String,
    /// Its own address.
    pub address: String,
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

/// What to change. Backends are written as ADDRESS or ADDRESS:PORT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "action")]
pub enum Change {
    /// No new flows.
    Drain {
        /// Name of the service.
        service: String,
        /// Which backend.
        backend: String,
    },
    /// New flows again.
    Undrain {
        /// Name of the service.
        service: String,
        /// Which backend.
        backend: String,
    },
    /// Another weight; one that is drained stays so, and has it afterwards.
    Weight {
        /// Name of the service.
        service: String,
        /// Which backend.
        backend: String,
        /// 0 to 1000.
        weight: u16,
    },
    /// What the file says.
    Clear {
        /// Of this service alone.
        service: Option<String>,
        /// Of this backend of it alone.
        backend: Option<String>,
    },
}

impl fmt::Display for Change {
    /// For the log: on what, and what.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Drain { service, backend } => {
                write!(f, "{service}: backend {backend} is drained")
            }
            Change::Undrain { service, backend } => {
                write!(f, "{service}: backend {backend} is undrained")
            }
            Change::Weight { service, backend, weight } => {
                write!(f, "{service}: backend {backend} has weight {weight}")
            }
            Change::Clear { service: None, .. } => f.write_str("all overrides are cleared"),
            Change::Clear { service: Some(service), backend: None } => {
                write!(f, "{service}: overrides are cleared")
            }
            Change::Clear { service: Some(service), backend: Some(backend) } => {
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
    pub fn load(state: &State) -> Result<Overrides, Error> {
        let kept: Option<Overrides> = state.read(DOCUMENT)?;
        let kept = kept.unwrap_or_default();
        match kept.schema == SCHEMA {
            true => Ok(kept),
            false => Err(Error::failed(
                format!(
                    "{}/{DOCUMENT}.json is {:?}, not {SCHEMA:?}",
                    state.directory().display(),
                    kept.schema
                ),
                "run the version of ringway that wrote it, or remove it",
            )),
        }
    }

    /// What is said about a backend.
    pub fn of(&self, service: &str, backend: SocketAddr) -> Option<&Override> {
        self.overrides.iter().find(|o| o.service == service && o.endpoint() == backend)
    }

    /// Whom of a service they keep from new flows, and the commands that undo it: to be put behind a sentence.
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
    pub fn told(&self, change: &Change, file: &Config) -> Option<Told> {
        let (service, backend) = match change {
            Change::Drain { service, backend }
            | Change::Undrain { service, backend }
            | Change::Weight { service, backend, .. } => (service, backend),
            Change::Clear { service, backend } => (service.as_ref()?, backend.as_ref()?),
        };
        let (service, backend) = find(file, service, backend).ok()?;
        let said = self.of(&service.name, backend.endpoint());
        Some(Told {
            service: service.name.to_string(),
            address: backend.endpoint().ip().to_string(),
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
            address: o.address.to_string(),
            port: o.port,
            drained: o.drained,
            weight: o.weight,
            file_weight: in_file(o),
            since: o.since.clone(),
        };
        self.overrides.iter().map(shown).collect()
    }

    /// They with one change; `now`: RFC 3339.
    ///
    /// # Errors
    /// There is no such service or backend, or nothing to undo.
    pub fn with(&self, change: &Change, file: &Config, now: String) -> Result<Overrides, Error> {
        let mut new = self.clone();
        let (service, backend) = match change {
            Change::Clear { service, backend } => {
                new.clear(service.as_deref(), backend.as_deref(), file)?;
                return Ok(new);
            }
            Change::Drain { service, backend }
            | Change::Undrain { service, backend }
            | Change::Weight { service, backend, .. } => (service, backend),
        };
        let (service, backend) = find(file, service, backend)?;
        let place = new.place(service, backend);
        let found = &mut new.overrides[place];
        match change {
            Change::Weight { weight, .. } if *weight > 1000 => {
                return Err(Error::configuration(
                    format!("weight {weight} is out of range"),
                    "write a whole number from 0 to 1000",
                ));
            }
            // A drain goes on: it is for whoever maintains the backend to end.
            Change::Weight { weight, .. } => found.weight = Some(*weight),
            Change::Drain { .. } => found.drained = true,
            Change::Undrain { .. } if !found.drained => {
                return Err(not_drained(service, backend, found));
            }
            Change::Undrain { .. } | Change::Clear { .. } => found.drained = false,
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
                since: String::new(),
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
        // Of a backend that is no more, they can be cleared too.
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
mod tests {
    use super::*;

    fn config() -> Config {
        let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
            [[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\nbackends = [\n\
            { address = \"10.0.0.2\" }, { address = \"10.0.0.3\", weight = 0 },\n\
            { address = \"10.0.0.4\", port = 1 }, { address = \"10.0.0.4\", port = 2 }]\n\
            [[service]]\nname = \"six\"\naddress = \"2001:db8::9\"\nport = 80\n\
            backends = [{ address = \"fd00::2\" }]\n";
        ringway_config::parse(text, "ringway.toml").expect("valid")
    }

    fn weights(config: &Config) -> Vec<u16> {
        config.services.iter().flat_map(|s| &s.backends).map(|b| b.weight).collect()
    }

    fn drain(backend: &str) -> Change {
        Change::Drain { service: "web".into(), backend: backend.into() }
    }

    fn undrain(backend: &str) -> Change {
        Change::Undrain { service: "web".into(), backend: backend.into() }
    }

    fn weight(service: &str, backend: &str, weight: u16) -> Change {
        Change::Weight { service: service.into(), backend: backend.into(), weight }
    }

    /// One change after another; the weights at the end, or the first error.
    fn after(changes: &[Change]) -> Result<Vec<u16>, String> {
        let config = config();
        let mut overrides = Overrides::default();
        for change in changes {
            overrides = overrides
                .with(change, &config, "now".into())
                .map_err(|error| format!("{}: {}", error.what, error.remedy))?;
        }
        Ok(weights(&overrides.apply(&config)))
    }

    #[test]
    fn a_backend_of_every_port_is_its_address() {
        let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
            [[service]]\nname = \"all\"\naddress = \"203.0.113.9\"\nport = \"*\"\n\
            backends = [{ address = \"10.2.1.2\" }, { address = \"10.2.1.3\" }]\n";
        let config = ringway_config::parse(text, "ringway.toml").expect("valid");
        let with = |change| Overrides::default().with(&change, &config, "now".into());
        let change =
            |backend: &str| Change::Drain { service: "all".into(), backend: backend.into() };
        let drained = with(change("10.2.1.2")).expect("known");
        assert_eq!(weights(&drained.apply(&config)), [0, 1]);
        assert_eq!(drained.overrides[0].shown(), "10.2.1.2");
        let why = ": 10.2.1.2 is drained (`ringway backend undrain all 10.2.1.2`), by an operator";
        assert_eq!((drained.withheld("all").as_str(), drained.withheld("web").as_str()), (why, ""));
        let error = with(change("10.2.1.9")).expect_err("unknown");
        assert_eq!(error.remedy, "it has 10.2.1.2, 10.2.1.3");
        let backend = "10.2.1.3".into();
        let error =
            with(Change::Undrain { service: "all".into(), backend }).expect_err("not drained");
        assert_eq!(error.what, "backend 10.2.1.3 of service all is not drained");
    }

    #[test]
    fn they_win_over_the_file_until_they_are_cleared() {
        assert_eq!(after(&[]).expect("none"), [1, 0, 1, 1, 1]);
        assert_eq!(after(&[drain("10.0.0.2")]).expect("known"), [0, 0, 1, 1, 1]);
        assert_eq!(after(&[drain("10.0.0.2:80"), undrain("10.0.0.2")]).expect("known")[0], 1);
        // A weight does not end a drain; it counts afterwards.
        let while_drained = [drain("10.0.0.2"), weight("web", "10.0.0.2", 5)];
        assert_eq!(after(&while_drained).expect("known")[0], 0);
        let undrained = [&while_drained[..], &[undrain("10.0.0.2")]].concat();
        assert_eq!(after(&undrained).expect("known")[0], 5);
        let five = weight("web", "10.0.0.4:2", 5);
        assert_eq!(after(&[five]).expect("known"), [1, 0, 1, 5, 1]);
        for text in ["fd00::2", "[fd00::2]", "[fd00::2]:80", "fd00:0::2"] {
            assert_eq!(after(&[weight("six", text, 7)]).expect(text)[4], 7, "{text}");
        }
        // A weight that was set before it was drained is there again.
        let changes = [weight("web", "10.0.0.2", 5), drain("10.0.0.2"), undrain("10.0.0.2")];
        assert_eq!(after(&changes).expect("known")[0], 5);
        let clear = |service: Option<&str>, backend: Option<&str>| Change::Clear {
            service: service.map(str::to_owned),
            backend: backend.map(str::to_owned),
        };
        let both = [drain("10.0.0.2"), weight("six", "fd00::2", 3)];
        for (service, backend, want) in [
            (None, None, (1, 1)),
            (Some("web"), None, (1, 3)),
            (Some("six"), Some("fd00::2"), (0, 1)),
        ] {
            let changes = [both.to_vec(), vec![clear(service, backend)]].concat();
            let weights = after(&changes).expect("known");
            assert_eq!((weights[0], weights[4]), want, "{service:?} {backend:?}");
        }
        for (service, backend, words) in [
            (None, None, "there is no override to clear"),
            (Some("web"), None, "service web has no override"),
            (Some("web"), Some("10.0.0.2"), "service web backend 10.0.0.2 has no override"),
        ] {
            let error = after(&[clear(service, backend)]).expect_err("nothing to clear");
            assert!(error.starts_with(words), "{error}");
        }
        // One backend's is answered as any other word about it.
        let (file, one) = (config(), clear(Some("web"), Some("10.0.0.2")));
        let told = Overrides::default().told(&one, &file).expect("a backend");
        assert_eq!((told.drained, told.weight, told.port), (false, 1, 80));
        assert_eq!(Overrides::default().told(&clear(Some("web"), None), &file), None);
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        for (change, want) in [
            (
                drain("10.0.0.9"),
                "service web has no backend 10.0.0.9: it has 10.0.0.2:80, 10.0.0.3:80",
            ),
            (drain("10.0.0.2:81"), "service web has no backend 10.0.0.2:81: it has"),
            (drain("nonsense"), "service web has no backend nonsense: it has"),
            (drain("10.0.0.4"), "several backends 10.0.0.4: say which: 10.0.0.4:1, 10.0.0.4:2"),
            (weight("wbe", "10.0.0.2", 1), "there is no service \"wbe\": did you mean \"web\"?"),
            (weight("mail", "10.0.0.2", 1), "there is no service \"mail\": there are web, six"),
            (weight("web", "10.0.0.2", 1001), "weight 1001 is out of range"),
            (
                undrain("10.0.0.2"),
                "backend 10.0.0.2:80 of service web is not drained: `ringway status`",
            ),
            (undrain("10.0.0.3"), "is not drained: its weight is 0: `ringway backend weight web"),
        ] {
            let error = after(std::slice::from_ref(&change)).expect_err("wrong");
            assert!(error.contains(want), "{change:?}: {error}");
        }
    }

    #[test]
    fn those_of_what_is_gone_are_known() {
        let mut config = config();
        let overrides = Overrides::default().with(&drain("10.0.0.2"), &config, "now".into());
        let overrides = overrides.expect("known");
        assert_eq!(overrides.orphans(&config).count(), 0);
        config.services[0].backends.remove(0);
        assert_eq!(overrides.orphans(&config).count(), 1);
        let clear = Change::Clear { service: Some("web".into()), backend: Some("10.0.0.2".into()) };
        assert_eq!(overrides.with(&clear, &config, String::new()).expect("there").overrides, []);
    }

    #[test]
    fn they_are_kept() {
        let place = tempfile::tempdir().expect("a directory");
        let state = State::new(place.path());
        assert_eq!(Overrides::load(&state), Ok(Overrides::default()));
        let one = Overrides::default().with(&drain("10.0.0.2"), &config(), "now".into());
        let one = one.expect("known");
        state.write(DOCUMENT, &one).expect("written");
        assert_eq!(Overrides::load(&state), Ok(one));
        state
            .write(DOCUMENT, &Overrides { schema: "other/9".into(), ..Overrides::default() })
            .expect("written");
        assert!(Overrides::load(&state).expect_err("another version").what.contains("other/9"));
    }
}
