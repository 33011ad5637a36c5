//! Problems that come and go by themselves, for the log: status shows them while they last, the log
//! also afterwards.

use std::collections::BTreeSet;

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;

/// Those that nobody else writes into the log.
const SILENT: [ProblemKind; 10] = [
    ProblemKind::ChecksNotMade,
    ProblemKind::MaxUnhealthy,
    ProblemKind::InterfaceDown,
    ProblemKind::NoCarrier,
    ProblemKind::InterfaceRenamed,
    ProblemKind::NoBackend,
    ProblemKind::UnfinishedChecksum,
    ProblemKind::ShieldList,
    ProblemKind::ShieldListLines,
    ProblemKind::Mitigation,
];

/// Problems that may occur once for each service.
const MANY: [ProblemKind; 3] =
    [ProblemKind::MaxUnhealthy, ProblemKind::NoBackend, ProblemKind::Mitigation];

/// Whether problems of this kind come in crowds, of which the log has a few in full.
pub(super) fn may_be_many(kind: ProblemKind) -> bool {
    MANY.contains(&kind)
}

/// Those of `these` that `others` has not, by kind and subject: figures in a text may change.
pub(super) fn beside<'p>(these: &'p [Problem], others: &[Problem]) -> Vec<&'p Problem> {
    let others: BTreeSet<_> = others.iter().map(Problem::identity).collect();
    these.iter().filter(|one| !others.contains(&one.identity())).collect()
}

/// Problems that the log has.
#[derive(Debug, Default)]
pub(super) struct LogTransitions {
    known: Vec<Problem>,
}

impl LogTransitions {
    /// Takes what is wrong now. Returns what was not before, and what is over.
    pub(super) fn note(&mut self, mut now: Vec<Problem>) -> (Vec<Problem>, Vec<Problem>) {
        now.retain(|one| SILENT.contains(&one.kind));
        let before = std::mem::replace(&mut self.known, now);
        let owned = |problems: Vec<&Problem>| problems.into_iter().cloned().collect();
        (owned(beside(&self.known, &before)), owned(beside(&before, &self.known)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(told: &mut LogTransitions, now: &[Problem]) -> (Vec<String>, Vec<String>) {
        let (begun, over) = told.note(now.to_vec());
        let errors = |problems: Vec<Problem>| problems.into_iter().map(|one| one.error).collect();
        (errors(begun), errors(over))
    }

    #[test]
    fn what_begins_and_what_ends_is_told_once() {
        let down = |name: &str| {
            let error = format!("interface {name} is down: no packet");
            ProblemKind::InterfaceDown.of_interface(name, error, "")
        };
        // However it is worded: kind and subject are what it is known by.
        let none = |error: &str| ProblemKind::NoBackend.of_service("web", error, "");
        // The watch of programs writes this one.
        let elsewhere =
            ProblemKind::ProgramDetached.of_interface("wan", "wan: our program is not on it", "");
        let mut told = LogTransitions::default();
        let first = [down("wan"), none("web: nobody (1)"), elsewhere];
        let (begun, over) = lines(&mut told, &first);
        assert_eq!((begun.len(), over.len()), (2, 0), "{begun:?}");
        assert_eq!(lines(&mut told, &[down("wan"), none("nobody serves web")]), (vec![], vec![]));
        let (begun, over) = lines(&mut told, &[none("web: nobody (3)"), down("lan")]);
        assert_eq!(begun, ["interface lan is down: no packet"]);
        assert_eq!(over, ["interface wan is down: no packet"]);
    }
}
