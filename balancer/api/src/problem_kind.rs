//! Kinds of problems, by name. `ringway status`, the metrics and the headings of docs/runbook.md
//! use the same names; a name once given stays.

use std::fmt;

use ringway_host::Fix;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::documents::health::Lack;
use crate::error::Error;
use crate::text;

macro_rules! troubles {
    ($($(#[doc = $about:literal])+ $variant:ident => $name:literal,)+) => {
        /// Kind of a problem or finding.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ProblemKind {
            $($(#[doc = $about])+ $variant,)+
            /// One of another version.
            #[default]
            Unknown,
        }

        impl ProblemKind {
            /// Every sort that has a name.
            pub const ALL: &'static [ProblemKind] = &[$(ProblemKind::$variant,)+];

            /// Its name: lower case, words joined by hyphens.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ProblemKind::$variant => $name,)+
                    ProblemKind::Unknown => "",
                }
            }
        }
    };
}

troubles! {
    /// No daemon looks after the node.
    DaemonNotRunning => "daemon-not-running",
    /// A daemon holds the node and does not answer.
    DaemonSilent => "daemon-silent",
    /// The daemon's loop has not turned lately.
    LoopStalled => "loop-stalled",
    /// Not attached yet.
    Starting => "starting",
    /// Every backend of a service is without traffic.
    NoBackend => "no-backend",
    /// A service's requests go out, and nothing comes back.
    NoReplies => "no-replies",
    /// An interface is administratively down.
    InterfaceDown => "interface-down",
    /// An interface is up and has no carrier.
    NoCarrier => "no-carrier",
    /// An interface is not in this network namespace any more.
    InterfaceGone => "interface-gone",
    /// An interface has another name than the configuration's.
    InterfaceRenamed => "interface-renamed",
    /// Our program is not on its interface, and nobody else's is.
    ProgramDetached => "program-detached",
    /// Somebody else's program is where ours was.
    ProgramReplaced => "program-replaced",
    /// By the pins: not attached, or in another network namespace.
    NotAttached => "not-attached",
    /// A first attachment beside the default route was not confirmed.
    Unconfirmed => "unconfirmed",
    /// A first attachment beside the default route waits for its confirmation.
    Confirm => "confirm",
    /// Nothing is forwarded past the kernel, though `[forward]` says so.
    ForwardSuspended => "forward-suspended",
    /// An interface of `[forward]` is left to the kernel.
    ForwardInterface => "forward-interface",
    /// A bridge has more stations than the packet path has room for.
    ForwardTableFull => "forward-table-full",
    /// The thread that writes the tables does not answer.
    PathSilent => "path-silent",
    /// The pinned tables could not be read or written, or the tables do not fit.
    TablesNotWritten => "tables-not-written",
    /// Checks of dsr backends have no way.
    ProbeTunnel => "check-road",
    /// A list of the shield is not as its file is.
    ShieldList => "shield-list",
    /// Lines of a list of the shield were skipped.
    ShieldListLines => "shield-list-lines",
    /// A list of the shield blocks or allows most clients, or blocks our own addresses.
    ShieldListWide => "shield-list-wide",
    /// The shield is off, or observes, for a time.
    ShieldMode => "shield-mode",
    /// A service is attacked.
    Mitigation => "mitigation",
    /// The program of mitigation was not told of an attack that lasts.
    MitigationProgram => "mitigation-program",
    /// Not every backend opens connections of the gateway's cookies.
    CookiesRefused => "cookies-refused",
    /// The file with the secret of answers to SYNs cannot be used.
    SynSecretUnusable => "syn-secret-unusable",
    /// Replies to answered SYNs fit no answer.
    SynAnswersFail => "syn-answers-fail",
    /// The state directory cannot be used.
    State => "state",
    /// Nobody answers for an address that packets are sent to.
    AddressUnanswered => "address-unanswered",
    /// The pool of nat overlaps the kernel's own ports.
    NatPorts => "nat-ports",
    /// The kernel must forward, and does not.
    Forwarding => "forwarding",
    /// An interface that carried packets steadily carries none.
    TrafficStopped => "traffic-stopped",
    /// The kernel drops packets that we have sent.
    PacketsLost => "packets-lost",
    /// A device drops packets that never came to us, or that it should have sent.
    DeviceDrops => "device-drops",
    /// A table or the pool of ports is full, or nearly.
    TableFull => "table-full",
    /// Losses after our verdict cannot be counted.
    LossesUncounted => "losses-uncounted",
    /// Another bpffs was mounted over the one that holds the pins.
    BpffsCovered => "bpffs-covered",
    /// Clients leave checksums to a card that is none.
    UnfinishedChecksum => "unfinished-checksum",
    /// The file on the disk could not be put in force.
    ReloadFailed => "reload-failed",
    /// This machine cannot make health checks.
    ChecksNotMade => "checks-not-made",
    /// More of a service's backends fail their checks than `max_unhealthy` allows.
    MaxUnhealthy => "max-unhealthy",
    /// The kernel's announcements of changed routes, neighbours and links are not heard.
    ChangesUnheard => "changes-unheard",
    /// The authorities of a check cannot be read any more.
    AuthoritiesLost => "authorities-lost",
    /// Nobody named the node, and it is of another network namespace.
    OtherNamespace => "other-namespace",
    /// Something was said at runtime of a backend that the file does not have.
    OverrideOrphaned => "override-orphaned",
    /// A line of `ringway check --host` that warns.
    CheckHost => "check-host",
    /// A line of `ringway check --host` that could not be found out.
    CheckHostUnknown => "check-host-unknown",
}

/// Something that is wrong, or may be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Kind: the name of a section of docs/runbook.md.
    #[serde(default)]
    pub kind: ProblemKind,
    /// Its subject, for the process that found it.
    #[serde(skip)]
    pub subject: Subject,
    /// The error and its cause.
    pub error: String,
    /// The remedy.
    pub remedy: Fix,
    /// Its subjects, for people: where `error` begins with a list of names, the same names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subjects: Vec<String>,
}

impl Problem {
    /// The part that distinguishes it from others.
    pub fn identity(&self) -> (ProblemKind, &Subject) {
        (self.kind, &self.subject)
    }

    /// The error with a few of its names, and how many more there are.
    pub fn short(&self) -> String {
        const NAMED: usize = 3;
        let rest = self.error.strip_prefix(&self.subjects.join(", "));
        match rest.filter(|_| self.subjects.len() > NAMED) {
            Some(rest) => format!("{}{rest}", text::listed(&self.subjects, NAMED)),
            None => self.error.clone(),
        }
    }
}

impl ProblemKind {
    /// A problem or finding of this sort: what is wrong and why, and what to do about it.
    pub fn problem(self, error: impl Into<String>, remedy: impl Into<Fix>) -> Problem {
        let (error, remedy) = (error.into(), remedy.into());
        Problem { kind: self, error, remedy, ..Problem::default() }
    }

    /// One that is about something of the node.
    pub fn about(
        self,
        subject: Subject,
        error: impl Into<String>,
        remedy: impl Into<Fix>,
    ) -> Problem {
        let subjects = vec![subject.to_string()];
        Problem { subject, subjects, ..self.problem(error, remedy) }
    }

    /// One that is about an interface.
    pub fn of_interface(
        self,
        name: &str,
        error: impl Into<String>,
        remedy: impl Into<Fix>,
    ) -> Problem {
        self.about(Subject::Interface(name.into()), error, remedy)
    }

    /// One that is about a service.
    pub fn of_service(
        self,
        name: &str,
        error: impl Into<String>,
        remedy: impl Into<Fix>,
    ) -> Problem {
        self.about(Subject::Service(name.into()), error, remedy)
    }

    /// An error that makes one.
    pub fn because(self, error: Error) -> Problem {
        self.problem(error.what, *error.remedy)
    }
}

impl Serialize for ProblemKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for ProblemKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = ProblemKind::ALL.iter().find(|kind| kind.name() == name);
        Ok(known.copied().unwrap_or_default())
    }
}

/// Subject of a problem. Kind and subject are its identity, whatever figures its text has.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The node as a whole.
    #[default]
    Node,
    /// An interface, by its name.
    Interface(String),
    /// A service, by its name.
    Service(String),
    /// A list of the shield, by its name.
    List(String),
    /// Checks that this machine cannot make.
    Checks(Lack),
    /// The flow table of nat.
    FlowTable,
    /// The records of dsr flows.
    TrackedFlows,
    /// A check of the machine, and the first that it is about.
    Check(&'static str, String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Node => f.write_str("node"),
            Subject::Interface(name) => f.write_str(name),
            Subject::Service(name) => write!(f, "service {name}"),
            Subject::List(name) => write!(f, "list {name}"),
            Subject::Checks(lack) => f.write_str(lack.name()),
            Subject::FlowTable => f.write_str("flow table"),
            Subject::Check(_, about) => f.write_str(about),
            Subject::TrackedFlows => f.write_str("table of dsr flows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNBOOK: &str = include_str!("../../../docs/runbook.md");

    /// Of any two lines of the runbook, one heading is one anchor: that of its words.
    #[test]
    fn each_has_its_section_in_the_runbook() {
        for trouble in ProblemKind::ALL {
            let heading = format!("### {}", trouble.name());
            let found = RUNBOOK.lines().filter(|line| *line == heading).count();
            assert_eq!(found, 1, "docs/runbook.md has {found} lines {heading:?}");
            let section = RUNBOOK.split_once(&format!("{heading}\n")).expect("found").1;
            let section = section.split("\n#").next().unwrap_or_default();
            for part in ["- **Means:** ", "- **First:** ", "- **Fix:** "] {
                assert_eq!(section.matches(part).count(), 1, "{heading}: {part}");
            }
        }
    }

    #[test]
    fn the_runbook_has_no_section_of_nothing() {
        let sections = RUNBOOK.split_once("\n## Lines of").expect("its first half").0;
        let headings = sections.lines().filter_map(|line| line.strip_prefix("### "));
        for heading in headings {
            assert!(ProblemKind::ALL.iter().any(|trouble| trouble.name() == heading), "{heading}");
        }
    }
}
