//! Whether a node should get traffic, and why not: by what its daemon knows.

use serde::{Deserialize, Serialize};

use crate::documents::status::Problem;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.ready/1";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    pub schema: String,
    /// `[node] name`; empty when it is not known.
    pub node: String,
    /// Whether it should get traffic.
    pub ready: bool,
    /// Why not; or, where it should all the same, what is wrong with single services.
    pub reasons: Vec<String>,
}

impl Readiness {
    /// Of a node that tells why it should get no traffic, if it should not, and what else is wrong.
    pub fn new(node: &str, unready: Vec<String>, problems: &[Problem]) -> Readiness {
        let ready = unready.is_empty();
        let reasons = if ready { problems.iter().map(line).collect() } else { unready };
        Readiness { schema: SCHEMA.to_owned(), node: node.to_owned(), ready, reasons }
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
