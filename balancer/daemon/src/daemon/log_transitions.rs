//! Problems that come and go by themselves, for the log: status shows them while they last, the log also afterwards.

use std::collections::BTreeMap;

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;

/// Those that nobody else writes into the log.
const SILENT: [ProblemKind; 7] = [
    ProblemKind::ChecksNotMade,
    ProblemKind::MaxUnhealthy,
    ProblemKind::InterfaceDown,
    ProblemKind::NoCarrier,
    ProblemKind::InterfaceRenamed,
    ProblemKind::NoBackend,
    ProblemKind::UnfinishedChecksum,
];

/// Of these there may be one for each service.
const MANY: [ProblemKind; 2] = [ProblemKind::MaxUnhealthy, ProblemKind::NoBackend];

/// Whether problems of this kind come in crowds, of which the log has a few in full.
pub(super) fn may_be_many(kind: &str) -> bool {
    MANY.iter().any(|many| many.name() == kind)
}

/// What the log was told last: sort and subject, and the whole line.
#[derive(Debug, Default)]
pub(super) struct LogTransitions {
    known: BTreeMap<(String, String), String>,
}

impl LogTransitions {
    /// Takes what is wrong now. Returns what was not before, and the kinds and lines of what is over.
    pub(super) fn note<'p>(
        &mut self,
        now: impl Iterator<Item = &'p Problem>,
    ) -> (Vec<&'p Problem>, Vec<(String, String)>) {
        let silent = |problem: &&Problem| SILENT.iter().any(|kind| kind.name() == problem.kind);
        let now: BTreeMap<_, _> = now.filter(silent).map(|one| (about(one), one)).collect();
        let begun = now.iter().filter(|(about, _)| !self.known.contains_key(*about));
        let begun = begun.map(|(_, problem)| *problem).collect();
        let over = self.known.iter().filter(|(about, _)| !now.contains_key(*about));
        let over = over.map(|((kind, _), line)| (kind.clone(), line.clone())).collect();
        self.known = now.into_iter().map(|(about, one)| (about, one.error.clone())).collect();
        (begun, over)
    }
}

/// Figures in the rest of a line may change: it stays the same problem.
fn about(problem: &Problem) -> (String, String) {
    let subject = problem.error.split(':').next().unwrap_or_default();
    (problem.kind.clone(), subject.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(told: &mut LogTransitions, now: &[Problem]) -> (Vec<String>, Vec<String>) {
        let (begun, over) = told.note(now.iter());
        let over = over.into_iter().map(|(_, line)| line).collect();
        (begun.into_iter().map(|one| one.error.clone()).collect(), over)
    }

    #[test]
    fn what_begins_and_what_ends_is_told_once() {
        let down = |name: &str| {
            ProblemKind::InterfaceDown.problem(format!("interface {name} is down: no packet"), "")
        };
        let none = |figure: u32| {
            ProblemKind::NoBackend
                .problem(format!("service web: no backend gets traffic ({figure})"), "")
        };
        // The watch of programs writes this one.
        let elsewhere = ProblemKind::ProgramDetached.problem("wan: our program is not on it", "");
        let mut told = LogTransitions::default();
        let first = [down("wan"), none(1), elsewhere];
        let (begun, over) = lines(&mut told, &first);
        assert_eq!((begun.len(), over.len()), (2, 0), "{begun:?}");
        assert_eq!(lines(&mut told, &[down("wan"), none(2)]), (vec![], vec![]));
        let (begun, over) = lines(&mut told, &[none(3), down("lan")]);
        assert_eq!(begun, ["interface lan is down: no packet"]);
        assert_eq!(over, ["interface wan is down: no packet"]);
    }
}
