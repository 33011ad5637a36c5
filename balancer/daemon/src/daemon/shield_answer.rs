//! What whoever changed the shield at run time hears beside the change itself: why a prefix that is
//! blocked passes nevertheless, and where a prefix is that was not typed. On a thread that may wait.

use std::sync::Arc;

use ringway_api::documents::shield::ShieldStatus;
use ringway_api::error::Error;
use ringway_api::shield::{RuntimeShield, ShieldChange, ShieldEntry};
use ringway_api::text::listed;
use ringway_config::{Config, ListAction, ShieldList, ShieldMode};
use ringway_plan::prefix_list::{self, Entry, Prefix};

use super::shield_plan::{ReadList, ShieldPlan};

/// Names of one line.
const NAMED: usize = 3;

/// The shield that a change was made to.
pub struct Changed {
    pub config: Arc<Config>,
    pub runtime: Arc<RuntimeShield>,
    pub plan: Option<Arc<ShieldPlan>>,
}

impl Changed {
    /// The outcome with what else is to be told.
    pub fn answer(
        &self,
        change: &ShieldChange,
        outcome: Result<ShieldStatus, Error>,
    ) -> Result<ShieldStatus, Error> {
        match (change, outcome) {
            (ShieldChange::Remove { prefix }, Err(error)) => {
                Err(in_a_list(&self.config, prefix).unwrap_or(error))
            }
            (ShieldChange::Add(entry) | ShieldChange::Force(entry), Ok(status)) => {
                let warnings = match entry.action {
                    ListAction::Block => self.warnings(&entry.prefix, &status),
                    ListAction::Allow => self.freed(&entry.prefix),
                };
                Ok(ShieldStatus { warnings, ..status })
            }
            (ShieldChange::Mode { mode: None }, Ok(status)) => {
                let warnings = lenient(&status).into_iter().collect();
                Ok(ShieldStatus { warnings, ..status })
            }
            (_, outcome) => outcome,
        }
    }

    /// Why a prefix that is blocked passes nevertheless, or some of it.
    fn warnings(&self, prefix: &Prefix, status: &ShieldStatus) -> Vec<String> {
        let lists = self.plan.iter().flat_map(|plan| plan.entries());
        let lists = lists.filter(|(list, _)| list.action == ListAction::Allow);
        let mut all = modes(status);
        all.extend(self.allowed_at_runtime(prefix));
        all.extend(lists.filter_map(|(list, entries)| allowed_by(list, entries, prefix)));
        all
    }

    /// What is blocked within a prefix that is allowed: it passes, too.
    fn freed(&self, allowed: &Prefix) -> Vec<String> {
        let pass = |prefixes: Vec<String>| match prefixes.len() {
            1 => format!("{}, which is blocked, passes too", prefixes[0]),
            _ => format!("these, which are blocked, pass too: {}", listed(&prefixes, NAMED)),
        };
        let typed = self.runtime.entries.within(*allowed);
        let typed = typed.filter(|entry| entry.action == ListAction::Block);
        let typed: Vec<String> = typed.map(|entry| entry.prefix.to_string()).collect();
        let typed = (!typed.is_empty()).then(|| pass(typed));
        let lists = self.plan.iter().flat_map(|plan| plan.entries());
        let lists = lists.filter(|(list, _)| list.action == ListAction::Block);
        let listed = lists.filter_map(|(list, entries)| {
            let within = entries.iter().filter(|entry| allowed.covers(&entry.prefix));
            let within: Vec<String> = within.map(|entry| entry.prefix.to_string()).collect();
            (!within.is_empty()).then(|| format!("{} (list {})", pass(within), list.name))
        });
        typed.into_iter().chain(listed).collect()
    }

    fn allowed_at_runtime(&self, blocked: &Prefix) -> Option<String> {
        let allows = |entry: &&ShieldEntry| entry.action == ListAction::Allow;
        let entries = &self.runtime.entries;
        if let Some(ShieldEntry { prefix, .. }) = entries.around(*blocked).find(allows) {
            return Some(format!(
                "{blocked} passes nevertheless: {prefix} is allowed at run time, which goes first; \
                 `ringway unblock {prefix}` ends that"
            ));
        }
        let within = entries.within(*blocked).filter(allows).map(|it| it.prefix.to_string());
        let within: Vec<String> = within.collect();
        (!within.is_empty()).then(|| {
            let within = listed(&within, NAMED);
            format!("of {blocked} these pass, as they are allowed at run time: {within}")
        })
    }
}

/// That the mode of the configuration, in force again, drops nothing.
fn lenient(status: &ShieldStatus) -> Option<String> {
    let does = match status.mode {
        _ if status.mode_override.is_some() => return None,
        ShieldMode::Enforce => return None,
        ShieldMode::Observe => "observes",
        ShieldMode::Off => "is off",
    };
    let mode = status.mode.name();
    Some(format!(
        "the shield {does}: [shield] has mode = \"{mode}\", and `ringway shield enforce` only ends \
         `off` and `observe`; to drop packets, write mode = \"enforce\" there, then: ringway reload"
    ))
}

/// Where the mode lets pass what is blocked.
fn modes(status: &ShieldStatus) -> Vec<String> {
    let does = |mode| match mode {
        ShieldMode::Off => "is off",
        _ => "observes",
    };
    let of_mode = |mode: ShieldMode| -> Vec<&str> {
        let own = status.services.iter().filter(|own| own.mode == mode);
        own.map(|own| own.service.as_str()).collect()
    };
    match (status.mode_override, status.mode) {
        (_, ShieldMode::Enforce) => {
            let lenient = [ShieldMode::Observe, ShieldMode::Off];
            let lenient = lenient.map(|mode| (mode, of_mode(mode))).into_iter();
            let lenient = lenient.filter(|(_, names)| !names.is_empty());
            let told = lenient.map(|(mode, names)| {
                let (names, mode) = (listed(&names, NAMED), mode.name());
                format!("what it sends to {names} passes nevertheless: shield = \"{mode}\" there")
            });
            told.collect()
        }
        (Some(over), mode) => vec![format!(
            "nothing is dropped: the shield {} until {}; `ringway shield enforce` ends that",
            does(mode),
            over.until
        )],
        (None, mode) => {
            let strict = of_mode(ShieldMode::Enforce);
            let what = match strict.is_empty() {
                true => "nothing is dropped".to_owned(),
                false => format!("only what it sends to {} is dropped", listed(&strict, NAMED)),
            };
            let mode = (does(mode), mode.name());
            vec![format!("{what}: the shield {}, by mode = \"{}\" in [shield]", mode.0, mode.1)]
        }
    }
}

/// A list that allows a prefix, or some of it.
fn allowed_by(list: &ReadList, entries: &[Entry], prefix: &Prefix) -> Option<String> {
    let (name, file) = (&list.name, list.file.display());
    if let Some(Entry { prefix: wider, line }) =
        entries.iter().find(|entry| entry.prefix.covers(prefix))
    {
        return Some(format!(
            "{prefix} passes nevertheless: list {name} allows {wider}, which goes first: line {line} \
             of {file}"
        ));
    }
    let within = entries.iter().filter(|entry| prefix.covers(&entry.prefix));
    let within: Vec<String> = within.map(|entry| entry.prefix.to_string()).collect();
    (!within.is_empty()).then(|| {
        let within = listed(&within, NAMED);
        format!("of {prefix} these pass, as list {name} ({file}) allows them: {within}")
    })
}

/// Where a list's file has the prefix, which cannot be changed at run time.
fn in_a_list(config: &Config, prefix: &Prefix) -> Option<Error> {
    let lists = config.shield.iter().flat_map(|shield| &shield.lists);
    let found = |list: &ShieldList| {
        let text = std::fs::read(list.file.as_path()).ok()?;
        let entries = prefix_list::parse(&text).ok()?.entries;
        let line = entries.iter().find(|entry| entry.prefix == *prefix)?.line;
        let (name, file) = (&list.name, list.file.display());
        let allow = match list.action {
            ListAction::Block => format!("; `ringway allow {prefix}` lets it pass meanwhile"),
            ListAction::Allow => String::new(),
        };
        Some(Error::configuration(
            format!(
                "{prefix} is in list {name}: {file} has it in line {line}; that file alone can change it"
            ),
            format!("take the line out of {file}, which is then read again{allow}"),
        ))
    };
    lists.into_iter().find_map(found)
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use ringway_api::clock::Timestamp;
    use ringway_api::shield::ModeOverride;

    use super::*;
    use crate::daemon::shield_plan::{SecretReading, Unreadable};
    use crate::testing::gateway;

    fn entry(prefix: &str, action: ListAction) -> ShieldEntry {
        crate::testing::entry(prefix.parse().expect("a prefix"), action)
    }

    /// What is told of a block of 192.0.2.0/24, where all this is in force.
    fn told(shield: &str, own: &str, allowed: &[&str], mode: Option<ModeOverride>) -> Vec<String> {
        let change = ShieldChange::Add(entry("192.0.2.0/24", ListAction::Block));
        let allowed = allowed.iter().map(|it| ShieldChange::Add(entry(it, ListAction::Allow)));
        told_of(&change, shield, own, allowed, mode)
    }

    /// `before`: what was typed before the change.
    fn told_of(
        change: &ShieldChange,
        shield: &str,
        own: &str,
        before: impl IntoIterator<Item = ShieldChange>,
        mode: Option<ModeOverride>,
    ) -> Vec<String> {
        let config = Arc::new(gateway(&format!("[shield]\n{shield}"), own));
        let plan = ShieldPlan::read(&config, Unreadable::Refused, SecretReading::default())
            .expect("readable");
        let (now, wall) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let none = RuntimeShield { mode, ..RuntimeShield::default() };
        let runtime = before
            .into_iter()
            .chain([change.clone()])
            .fold(none, |runtime, change| runtime.with(&change, now, wall).expect("room"));
        let status = ShieldStatus::new(&config, &runtime);
        let changed = Changed { config, runtime: runtime.into(), plan };
        changed.answer(change, Ok(status)).expect("done").warnings
    }

    #[test]
    fn a_block_is_told_what_goes_before_it() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("good");
        let shield = format!("list = [{{ name = \"good\", file = {file:?}, action = \"allow\" }}]");
        let with = |text: &str, typed: &[&str]| {
            std::fs::write(&file, text).expect("written");
            told(&shield, "", typed, None)
        };
        assert_eq!(with("198.51.100.0/24\n", &["192.0.4.0/24"]), Vec::<String>::new());
        let covers = &with("# ours\n192.0.0.0/16\n192.0.2.9\n", &[])[0];
        let want =
            "192.0.2.0/24 passes nevertheless: list good allows 192.0.0.0/16, which goes first";
        assert!(covers.starts_with(want) && covers.contains(": line 2 of /"), "{covers}");
        let some = &with("192.0.2.9\n192.0.2.8\n", &[])[0];
        assert!(some.ends_with("allows them: 192.0.2.9/32, 192.0.2.8/32"), "{some}");
        let typed = with("", &["192.0.2.0/23"]);
        assert!(typed[0].contains("192.0.2.0/23 is allowed at run time"), "{typed:?}");
        let typed = with("192.0.2.1\n", &["192.0.2.7"]);
        assert!(typed[0].ends_with("are allowed at run time: 192.0.2.7/32"), "{typed:?}");
        assert!(typed[1].contains("list good") && typed.len() == 2, "{typed:?}");
    }

    #[test]
    fn an_allow_is_told_what_blocked_prefixes_it_frees() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("junk");
        let shield = format!("list = [{{ name = \"junk\", file = {file:?}, action = \"block\" }}]");
        let with = |text: &str, typed: &[&str]| {
            std::fs::write(&file, text).expect("written");
            let change = ShieldChange::Add(entry("192.0.2.0/24", ListAction::Allow));
            let typed = typed.iter().map(|it| ShieldChange::Add(entry(it, ListAction::Block)));
            told_of(&change, &shield, "", typed, None)
        };
        assert_eq!(with("198.51.100.0/24\n", &["192.0.0.0/16"]), Vec::<String>::new());
        assert_eq!(
            with("192.0.2.8/29\n192.0.2.64\n", &["192.0.2.7"]),
            [
                "192.0.2.7/32, which is blocked, passes too",
                "these, which are blocked, pass too: 192.0.2.8/29, 192.0.2.64/32 (list junk)"
            ]
        );
    }

    #[test]
    fn whoever_enforces_is_told_that_the_configuration_drops_nothing() {
        let enforce = |shield| told_of(&ShieldChange::Mode { mode: None }, shield, "", [], None);
        assert_eq!(enforce(""), Vec::<String>::new());
        let told = enforce("mode = \"observe\"");
        let want =
            "the shield observes: [shield] has mode = \"observe\", and `ringway shield enforce`";
        assert!(told.len() == 1 && told[0].starts_with(want), "{told:?}");
    }

    #[test]
    fn a_block_is_told_where_nothing_is_dropped() {
        let mode = |mode| Some(ModeOverride { mode, until: Timestamp::default(), ends: None });
        let want = "nothing is dropped: the shield is off until 1970-01-01T00:00:00Z; `ringway shield \
                    enforce` ends that";
        assert_eq!(told("", "shield = \"off\"", &[], mode(ShieldMode::Off)), [want]);
        let observe = "mode = \"observe\"";
        let ending = "the shield observes, by mode = \"observe\" in [shield]";
        assert_eq!(told(observe, "", &[], None), [format!("nothing is dropped: {ending}")]);
        let want = [format!("only what it sends to web is dropped: {ending}")];
        assert_eq!(told(observe, "shield = \"enforce\"", &[], None), want);
        let want = "what it sends to web passes nevertheless: shield = \"off\" there";
        assert_eq!(told("", "shield = \"off\"", &[], None), [want]);
        assert_eq!(told("", "", &[], None), Vec::<String>::new());
    }
}
