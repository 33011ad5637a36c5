//! Whether a node should get traffic, and why not: by what its daemon knows.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::documents::status::{Problem, Status};
use crate::node::liveness;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.ready/1";

/// Whether, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// [`SCHEMA`].
    pub schema: String,
    /// `[node] name`; empty when it is not known.
    pub node: String,
    /// Whether it should get traffic.
    pub ready: bool,
    /// Why not; or, where it should all the same, what is wrong with single services.
    pub reasons: Vec<String>,
}

impl Readiness {
    /// By what the daemon has posted. `service`: one of them, instead of any.
    pub fn of(posted: &Status, stalled: Option<Duration>, service: Option<&str>) -> Readiness {
        let mut unready: Vec<String> = posted.unready.iter().map(line).collect();
        if let Some(age) = stalled {
            unready.insert(0, liveness::stalled(age, posted.daemon.pid.unwrap_or_default()).error);
        }
        if let Some(name) = service {
            unready.extend(unserved(posted, name));
        }
        let ready = unready.is_empty();
        let reasons = if ready { posted.problems.iter().map(line).collect() } else { unready };
        Readiness { schema: SCHEMA.to_owned(), node: posted.node.clone(), ready, reasons }
    }

    /// A node that has not told, and why.
    pub fn no(node: &str, reason: String) -> Readiness {
        let (schema, node) = (SCHEMA.to_owned(), node.to_owned());
        Readiness { schema, node, ready: false, reasons: vec![reason] }
    }

    /// A node that is too busy to tell, and serves by its tables.
    pub fn busy(node: &str) -> Readiness {
        let reasons = vec!["the daemon is busy: by the tables".to_owned()];
        Readiness { schema: SCHEMA.to_owned(), node: node.to_owned(), ready: true, reasons }
    }

    /// One line for people and logs.
    pub fn line(&self) -> String {
        let word = if self.ready { "ready" } else { "not ready" };
        let node = if self.node.is_empty() { "" } else { &format!(": node {}", self.node) };
        let but = if self.ready { ", although " } else { ": " };
        match self.reasons.as_slice() {
            [] => format!("{word}{node}"),
            [one] => format!("{word}{node}{but}{one}"),
            [one, rest @ ..] => format!("{word}{node}{but}{one} (and {} more)", rest.len()),
        }
    }
}

/// For people, on one line.
pub fn line(problem: &Problem) -> String {
    let Problem { error, remedy, .. } = problem;
    let text = if remedy.is_empty() { error.clone() } else { format!("{error}; {remedy}") };
    text.replace('\n', " ")
}

fn unserved(posted: &Status, name: &str) -> Option<String> {
    let mut of_name = posted.services.iter().filter(|service| service.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(format!("there is no service {name:?}: `ringway status` lists them"));
    }
    let served = of_name.any(|service| service.serving() > 0);
    (!served).then(|| format!("service {name}: no backend gets traffic; see `ringway status`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::health::Health;
    use crate::documents::status::{Backend, NextHop, Service};

    fn problem(error: &str) -> Problem {
        Problem { error: error.into(), remedy: "mend it".into(), ..Problem::default() }
    }

    fn service(name: &str, health: Health) -> Service {
        let backend = Backend { health, next_hop: Some(NextHop::default()), ..Backend::default() };
        Service { name: name.into(), backends: vec![backend], ..Service::default() }
    }

    #[test]
    fn one_service_of_two_is_no_reason_to_withdraw_the_node() {
        let posted = Status {
            node: "gw1".into(),
            problems: vec![problem("service web: no backend")],
            services: vec![service("web", Health::Down), service("dns", Health::Up)],
            ..Status::default()
        };
        let all = Readiness::of(&posted, None, None);
        assert!(all.ready);
        assert_eq!(all.line(), "ready: node gw1, although service web: no backend; mend it");
        assert!(Readiness::of(&posted, None, Some("dns")).ready);
        let web = Readiness::of(&posted, None, Some("web"));
        assert!(!web.ready && web.line().starts_with("not ready: node gw1: service web:"));
        assert!(!Readiness::of(&posted, None, Some("mail")).ready);
    }

    #[test]
    fn a_node_that_cannot_serve_says_why_in_one_line() {
        let unready = vec![problem("eth1 is\ndown"), problem("starting")];
        let posted = Status { node: "gw1".into(), unready, ..Status::default() };
        let said = Readiness::of(&posted, None, None).line();
        assert_eq!(said, "not ready: node gw1: eth1 is down; mend it (and 1 more)");
        let stalled = Readiness::of(&Status::default(), Some(Duration::from_secs(9)), None);
        assert!(!stalled.ready && stalled.reasons[0].contains("9 s"));
    }
}
