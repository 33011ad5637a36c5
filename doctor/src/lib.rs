//! Checks a machine's network settings: facts, rules, findings.
//!
//! ```text
//! gather (live)  ─┐
//!                 ├─> Collection: two samples ──> Facts ──> Rule::check ──> Report ──> script, comparison
//! Collection::read┘   of files, by path                     (pure)
//! ```
//! A [`Sample`] is files by path: those of `/proc` and `/sys` as they were, what netlink and
//! ethtool said as JSON under `/netlink` and `/ethtool`, what tools said under `/tools`; and why
//! what is missing could not be read. A live machine is gathered into the same samples as an
//! archive is read into, so that a rule cannot tell them apart. The first sample holds counters
//! only; the second, taken seconds later, everything.
//!
//! # How to write a rule
//! A setting that is a path and a bound is a row of a table in `rules/sysctls.rs`. What has logic
//! is a `Rule` (what it asks, where the threshold comes from, why it matters) and a function from
//! [`Facts`] to [`Looked`] in the file of its part of the machine, such as `rules/tcp.rs`, with a
//! table test; a new rule also gets a line in [`rules::ALL`]. A fault that must be found is a row
//! of `ringway doctor --exam` (ringway/src/command/doctor/exam/corpus.rs).
//! - Read through [`Facts`] alone, and end with `?`: what is missing comes out as [`Unknown`] with
//!   the reason, and so never as well.
//! - One [`Outcome`] for each thing looked at (an interface, a socket), or one for the machine;
//!   [`each`] does that for a list, where one unknown leaves the others alone. Nothing to look at
//!   (no bond here) is an empty list.
//! - What counts is compared between the two samples ([`Facts::counter`], [`Facts::pair`]).
//! - A change is two [`Fix`]es: what to do, and what takes it back, which holds the value that was
//!   read ([`Facts::set`] makes both for a sysctl). What has no way back is `.advice(...)`: words,
//!   or a command.
//! - Tests start from [`testing::healthy`], a captured machine on which every rule is content, and
//!   change one file. `rules::tests` runs every rule on it and on a machine of which nothing is
//!   known: there all are unknown.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod collection;
mod comparison;
mod contents;
#[cfg(test)]
mod damaged;
pub mod engine;
mod facts;
mod gather;
mod outcome;
pub mod path;
mod report;
pub mod rules;
mod sample;
mod script;
#[cfg(test)]
mod testing;

use ringway_host::Fix;

pub use collection::{Collection, Error};
pub use comparison::{Comparison, Earlier};
pub use contents::{CLASSES, Class};
pub use facts::{Facts, FarEnd, Profile, Program};
pub use gather::{Namespace, Origin, complete, gather, gather_at_once, gather_counters};
pub use outcome::{
    Evidence, Looked, MACHINE, Outcome, ReversibleFix, Severity, Unknown, each, each_interface,
};
pub use report::{Finding, Other, Report, judge};
pub use rules::Rule;
pub use sample::Sample;
pub use script::{Scripts, scripts};
