//! Problems and findings for people: each cause once, with how often and of whom.

use std::fmt::Write as _;

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::listed;

use super::Extent;
use crate::table::{Tone, paint};

/// Causes of one kind that are shown.
const CAUSES: usize = 3;
/// Subjects that a line names.
const NAMED: usize = 3;

/// All of one sort ("problem" or "finding"), in their order. In short those of one kind with one
/// remedy are one, and of each kind the first few are shown.
pub fn render(word: &str, tone: Tone, all: &[&Problem], extent: Extent, colour: bool) -> String {
    let mark = paint(word, tone, colour);
    let mut text = String::new();
    let mut kinds: Vec<(ProblemKind, Vec<Vec<&Problem>>)> = Vec::new();
    for problem in all {
        let same = |cause: &&mut Vec<&Problem>| {
            extent == Extent::Short
                && !problem.remedy.is_empty()
                && cause[0].remedy == problem.remedy
        };
        match kinds.iter_mut().find(|(kind, _)| *kind == problem.kind) {
            None => kinds.push((problem.kind, vec![vec![problem]])),
            Some((_, causes)) => match causes.iter_mut().find(same) {
                Some(cause) => cause.push(problem),
                None => causes.push(vec![problem]),
            },
        }
    }
    for (kind, causes) in kinds {
        let shown = if extent == Extent::Short { CAUSES } else { causes.len() };
        for cause in causes.iter().take(shown) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{mark}: {}", sentence(cause, extent));
            if !cause[0].remedy.is_empty() {
                let _ = writeln!(text, "  to do: {}", cause[0].remedy);
            }
        }
        let more: usize = causes.iter().skip(shown).map(Vec::len).sum();
        if more > 0 {
            let _ = writeln!(
                text,
                "{mark}: … and {more} more of this kind ({}): `ringway status --all`",
                kind.name()
            );
        }
    }
    text
}

/// The first of a cause, and whom else it is about.
fn sentence(cause: &[&Problem], extent: Extent) -> String {
    let first = cause[0];
    let own = if extent == Extent::Short { first.short() } else { first.error.clone() };
    let others: Vec<String> = cause[1..].iter().flat_map(|problem| subjects(problem)).collect();
    if others.is_empty() { own } else { format!("{own}; also {}", listed(&others, NAMED)) }
}

/// The subject: "service web"; else all of it.
fn subjects(problem: &Problem) -> Vec<String> {
    if problem.subjects.is_empty() {
        return vec![problem.error.clone()];
    }
    problem.subjects.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[Problem], extent: Extent) -> Vec<String> {
        let all: Vec<&Problem> = all.iter().collect();
        let text = render("problem", Tone::Bad, &all, extent, false);
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn one_remedy_is_one_line_however_many_have_it() {
        let silent = |n: u32| {
            let error =
                format!("service s{n}: requests are forwarded, but no backend replies: {n} flows");
            ProblemKind::NoReplies.of_service(&format!("s{n}"), error, "ringway check --host")
        };
        let all: Vec<Problem> = (0..12).map(silent).collect();
        let want = [
            "problem: service s0: requests are forwarded, but no backend replies: 0 flows; \
             also service s1, service s2, service s3 and 8 more",
            "  to do: ringway check --host",
        ];
        assert_eq!(lines(&all, Extent::Short), want);
        assert_eq!(lines(&all, Extent::Whole).len(), 24);
    }

    #[test]
    fn a_kind_with_many_remedies_ends_with_a_count() {
        let none = |n: u32| {
            let error = format!("service s{n}: no backend gets traffic");
            ProblemKind::NoBackend.problem(error, format!("curl 10.0.0.{n}"))
        };
        let mut all: Vec<Problem> = (0..1000).map(none).collect();
        all.push(
            ProblemKind::InterfaceDown.problem("interface wan is down", "ip link set dev wan up"),
        );
        let short = lines(&all, Extent::Short);
        assert_eq!(short.len(), 9, "{short:?}");
        let wanted = "problem: … and 997 more of this kind (no-backend): `ringway status --all`";
        assert_eq!(short[6], wanted);
        assert_eq!(short[7], "problem: interface wan is down");
    }

    #[test]
    fn a_long_list_of_names_is_counted() {
        let subjects: Vec<String> = (2..38).map(|n| format!("web 10.0.0.{n}:80")).collect();
        let error = format!("{}: room for 1480 bytes", subjects.join(", "));
        let mtu = ProblemKind::CheckHost.problem(error.clone(), "mtu 1552");
        let all = [Problem { subjects, ..mtu }];
        let want = "problem: web 10.0.0.2:80, web 10.0.0.3:80, web 10.0.0.4:80 and 33 more: \
                    room for 1480 bytes";
        assert_eq!(lines(&all, Extent::Short)[0], want);
        assert_eq!(lines(&all, Extent::Whole)[0], format!("problem: {error}"));
    }
}
