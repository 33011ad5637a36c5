//! The rules, a file each; in the order of their numbers.

use crate::Check;

macro_rules! rules {
    ($($module:ident),* $(,)?) => {
        $(mod $module;)*
        /// All of them.
        pub const ALL: &[Check] = &[$($module::CHECK),*];
    };
}

rules! {
    softnet_backlog,
    listen_overflows,
    tcp_syncookies,
    udp_buffers,
    far_below_default,
}

/// By name or number.
pub fn find(wanted: &str) -> Option<&'static Check> {
    let number = wanted.parse::<u8>().ok();
    ALL.iter().find(|check| check.name == wanted || Some(check.number) == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::Machine;

    #[test]
    fn names_and_numbers_are_unique_and_in_order() {
        assert!(ALL.is_sorted_by_key(|check| check.number));
        for check in ALL {
            let same = |one: &&Check| one.name == check.name || one.number == check.number;
            assert_eq!(ALL.iter().filter(same).count(), 1, "{}", check.name);
            assert!(check.why.ends_with('.') && !check.source.is_empty(), "{}", check.name);
            assert!(find(check.name).is_some() && find(&check.number.to_string()).is_some());
        }
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_machine() {
        let report = Machine::healthy().report(ALL);
        let symptoms: Vec<_> = report.symptoms().collect();
        assert!(symptoms.is_empty(), "{symptoms:#?}");
    }

    /// The one mistake that a doctor must not make.
    #[test]
    fn of_what_nothing_is_known_nothing_is_well() {
        for finding in Machine::unknown().report(ALL).findings {
            assert_eq!(finding.severity, State::Unknown, "{finding:#?}");
            assert!(!finding.found.is_empty());
        }
    }

    #[test]
    fn whatever_changes_something_can_take_it_back() {
        let broken = Machine::healthy()
            .put("/proc/sys/net/core/somaxconn", "16")
            .put("/proc/sys/net/ipv4/tcp_syncookies", "0");
        for change in broken.report(ALL).findings.iter().flat_map(|finding| &finding.changes) {
            assert!(!change.fix.is_empty() && !change.undo.is_empty() && change.fix != change.undo);
        }
    }
}
