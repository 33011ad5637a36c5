//! Another configuration: read and judged before anything changes. On threads that may wait.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ringway_api::clock::Timestamp;
use ringway_api::documents::changes::{Changes, SecretChange};
use ringway_api::documents::status::Problem;
use ringway_api::error::Error;
use ringway_api::overrides::{self, OverrideChange, Overrides};
use ringway_api::problem_kind::ProblemKind;
use ringway_api::state_dir::StateDir;
use ringway_api::syn_secret;
use ringway_config::{Config, Errors, InterfaceForward, Syn};
use ringway_doctor::{Finding, Severity};
use ringway_kernel::View;
use ringway_kernel::shield::ChallengeKey;

use crate::backends::BackendSet;
use crate::daemon::machine_problems;
use crate::daemon::shield_plan::{PlannedShield, ReadList, SecretReading, ShieldPlan, Unreadable};
use crate::daemon::shield_warnings;
use crate::preflight;
use crate::privileges;
use crate::reload_diff::ConfigDiff;

/// The state in force, as far as it is needed to judge a change.
pub struct Now {
    /// With overrides.
    pub config: Arc<Config>,
    /// Backends and their health.
    pub backend_set: BackendSet,
    pub shield: Option<Arc<ShieldPlan>>,
    pub view: View,
}

/// A configuration that may take effect.
#[derive(Debug)]
pub struct Loaded {
    /// As it is written.
    pub file: Arc<Config>,
    /// With these overrides.
    pub config: Arc<Config>,
    /// Overrides at runtime.
    pub overrides: Overrides,
    /// Overrides that the state directory has.
    pub kept: Overrides,
    pub changes: Changes,
    pub shield: PlannedShield,
}

/// Why a configuration cannot take effect.
#[derive(Debug)]
pub enum Refusal {
    /// The request names another file than this daemon's, of which it knows nothing, or the daemon
    /// has none.
    Foreign(Error),
    /// The configuration is wrong.
    Wrong(Refused),
}

impl<T: Into<Refused>> From<T> for Refusal {
    fn from(refused: T) -> Refusal {
        Refusal::Wrong(refused.into())
    }
}

/// An error that refuses a configuration.
#[derive(Debug)]
pub struct Refused {
    pub error: Error,
    /// The error in one line, for logs and lists: without the lines of the file.
    pub brief: String,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        let lines: Vec<&str> = error.what.lines().map(str::trim).collect();
        Refused { brief: lines.join("; ").replace(":; ", ": "), error }
    }
}

impl From<Errors> for Refused {
    fn from(errors: Errors) -> Refused {
        let error = Error::configuration(errors.to_string(), "");
        Refused { error, brief: errors.brief() }
    }
}

/// Reads the file again.
///
/// # Errors
/// It is not the one that is meant, is wrong, does not fit this machine, or changes what cannot be
/// changed without a restart.
pub fn file(now: &Now, meant: Option<&Path>, overrides: Overrides) -> Result<Loaded, Refusal> {
    let own = now.config.file().ok_or_else(|| Refusal::Foreign(no_file()))?;
    if let Some(meant) = meant {
        same_file(meant, own).map_err(Refusal::Foreign)?;
    }
    let file = ringway_config::load(own).map_err(Refused::from)?;
    let config = overrides.apply(&file);
    // First what a restart would refuse, too.
    let warnings = preflight(&now.config, &as_named(&config, &now.config))?;
    fixed(&now.config, &file)?;
    room(&config, &now.view)?;
    shield_needs(&now.config, &config)?;
    let secret = SecretReading { key: syn_secret::of(&config)?, error: None };
    let other_secret = other_secret(now, &config, secret.key)?;
    let shield = ShieldPlan::read(&config, Unreadable::kept(now.shield.as_deref()), secret)?;
    let kept = overrides.clone();
    let mut loaded = judge(now, file, config, overrides, kept)?;
    let lists = shield.iter().flat_map(|shield| &shield.lists);
    loaded.changes.warnings = warnings;
    loaded.changes.changed |= other_secret.is_some();
    loaded.changes.syn_secret = other_secret;
    loaded.changes.warnings.extend(lists.filter_map(ReadList::problem));
    let new = shield_news(&now.config, &loaded.config, shield.as_deref()).into_iter();
    loaded.changes.warnings.extend(new.map(|it| ProblemKind::CheckHost.problem(it, "")));
    loaded.shield = PlannedShield::Other(shield);
    Ok(loaded)
}

/// How the secret of answers to SYNs changes, where SYNs were answered and go on to be.
fn other_secret(
    now: &Now,
    new: &Config,
    key: Option<ChallengeKey>,
) -> Result<Option<SecretChange>, Error> {
    let answers = |config: &Config| {
        config.shield.is_some() && config.services.iter().any(|service| *service.syn != Syn::Off)
    };
    if !answers(&now.config) || !answers(new) {
        return Ok(None);
    }
    let in_force = now.view.syn_secrets();
    let in_force = in_force.map_err(|error| Error::failed(error.to_string(), ""))?;
    Ok(in_force.and_then(|in_force| SecretChange::between(&in_force, key)))
}

/// Warnings of the shield that the configuration before has not. Lists change with their files: what
/// the daemon has read meanwhile is news as well.
fn shield_news(old: &Config, new: &Config, plan: Option<&ShieldPlan>) -> Vec<String> {
    let before = shield_warnings::warnings(old, None);
    let mut all = shield_warnings::warnings(new, plan);
    all.retain(|warning| !before.contains(warning));
    if old.shield.is_some() && new.shield.is_none() {
        let what = "[shield] is removed: nothing of it is in force any more, nor is what `ringway \
                    block` and `allow` have added";
        all.push(what.to_owned());
    }
    all
}

/// With the name of the node that runs: under another one it would be in its own way.
fn as_named(config: &Config, now: &Config) -> Config {
    let mut config = config.clone();
    config.node.name = now.node.name.clone();
    config
}

/// What a daemon says that was started by options alone.
fn no_file() -> Error {
    Error::configuration(
        "the daemon was started by options, without a file: there is nothing to read again",
        "stop it, and start it with other options (no packet is lost), or with a file: ringway run \
         -c FILE",
    )
}

fn same_file(meant: &Path, own: &Path) -> Result<(), Error> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if real(meant) == real(own) {
        return Ok(());
    }
    let (meant, own) = (meant.display(), std::path::absolute(own).unwrap_or_else(|_| own.into()));
    let own = own.display();
    Err(Error::configuration(
        format!("the daemon was started with {own}, not {meant}: nothing was read"),
        format!("change {own}, then reload; or restart the daemon with -c {meant}"),
    ))
}

/// The same file with other overrides, which have to be kept before they are in force. `known`:
/// what is kept, if that has been read.
///
/// # Errors
/// There is no such backend, or what is kept cannot be read.
pub fn overridden(
    now: &Now,
    file: &Config,
    known: Option<Overrides>,
    change: &OverrideChange,
    state: &StateDir,
) -> Result<Loaded, Error> {
    // What could not be read at start must not be overwritten.
    let known = known.map_or_else(|| Overrides::load(state), Ok)?;
    let overrides = known.with(change, file, Timestamp(SystemTime::now()))?;
    let config = overrides.apply(file);
    let before = known.overrides.len();
    let mut loaded = judge(now, file.clone(), config, overrides, known)?;
    loaded.changes.backend = loaded.overrides.backend_after(change, file);
    if let OverrideChange::Clear { .. } = change {
        loaded.changes.cleared_overrides = Some((before - loaded.overrides.overrides.len()) as u64);
    }
    Ok(loaded)
}

/// The same file with the overrides that are kept, once they can be used again.
///
/// # Errors
/// They cannot.
pub fn recalled(now: &Now, file: &Config, state: &StateDir) -> Result<Loaded, Error> {
    let kept = Overrides::load(state)?;
    state.probe(overrides::DOCUMENT)?;
    let config = kept.apply(file);
    judge(now, file.clone(), config, kept.clone(), kept)
}

fn judge(
    now: &Now,
    file: Config,
    config: Config,
    overrides: Overrides,
    kept: Overrides,
) -> Result<Loaded, Error> {
    let step = ConfigDiff { old: &now.config, new: &config };
    let mut changes = step.changes(&now.backend_set)?;
    changes
        .note(now.backend_set.reconfigure(&config, Instant::now()).idle_beside(&now.backend_set));
    let flows = step.flows(&now.view);
    changes.flows = flows.map_err(|error| Error::failed(error.to_string(), ""))?;
    let orphans = overrides.orphans(&file);
    changes.orphaned_overrides =
        orphans.map(|o| format!("{} {} ({})", o.service, o.shown(), o.in_words())).collect();
    let (file, config, shield) = (Arc::new(file), Arc::new(config), PlannedShield::Same);
    Ok(Loaded { file, config, overrides, kept, changes, shield })
}

/// Refuses the first shield of a daemon that has given up the right to load programs.
fn shield_needs(old: &Config, new: &Config) -> Result<(), Error> {
    if new.shield.is_none() || old.shield.is_some() || privileges::may_load() {
        return Ok(());
    }
    Err(Error::configuration(
        format!(
            "{}: [shield] is new, and the daemon was started without one: it has given up the \
             right to load programs",
            new.filename()
        ),
        format!("restart the daemon once (no packet is lost): {}", privileges::restart()),
    ))
}

/// Refuses to change what only a start decides.
fn fixed(old: &Config, new: &Config) -> Result<(), Refused> {
    const RESTART: &str = "restart the daemon to change it (no packet is lost)";
    const DETACH: &str =
        "it takes effect after `ringway detach`, which ends all connections, and a new start";
    let allowed = |config: &Config| config.node.allow_default_route;
    let interfaces = |config: &Config| (config.node.interfaces.clone(), config.node.faces.clone());
    let forward = |differ: fn(&InterfaceForward, &InterfaceForward) -> bool| {
        old.forward.as_ref().zip(new.forward.as_ref()).is_some_and(|(old, new)| differ(old, new))
    };
    let bypasses = forward(|old, new| old.bypass_firewall != new.bypass_firewall);
    let keys = [
        ("node", "name", old.node.name != new.node.name, DETACH),
        ("node", "interfaces", interfaces(old) != interfaces(new), RESTART),
        ("node", "xdp_mode", old.node.xdp_mode != new.node.xdp_mode, RESTART),
        ("node", "on_pass", old.node.on_pass != new.node.on_pass, RESTART),
        ("node", "state", old.node.state != new.node.state, RESTART),
        ("node", "allow_default_route", allowed(old) != allowed(new), RESTART),
        ("nat", "flows", old.nat.flows != new.nat.flows, DETACH),
        ("flows", "tracked", old.flows.tracked != new.flows.tracked, DETACH),
        ("tunnel", "marks", old.tunnel.marks != new.tunnel.marks, RESTART),
        ("forward", "mode", forward(|old, new| old.mode != new.mode), RESTART),
        ("forward", "interfaces", forward(|old, new| old.interfaces != new.interfaces), RESTART),
        ("forward", "bypass_firewall", bypasses, RESTART),
        ("metrics", "listen", old.metrics.listen != new.metrics.listen, RESTART),
        ("metrics", "backends", old.metrics.backends != new.metrics.backends, RESTART),
        ("api", "socket", old.api != new.api, RESTART),
        ("log", "level", old.log.level != new.log.level, RESTART),
        ("log", "format", old.log.format != new.log.format, RESTART),
    ];
    let changed = || keys.iter().filter(|(_, _, changed, _)| *changed);
    let errors = changed().map(|(section, key, _, remedy)| {
        let what = format!("{key} of [{section}] cannot be changed by a reload: {remedy}");
        let error = new.error_at_key(section, key, what);
        (error.to_string(), error.brief())
    });
    let (mut errors, mut briefs): (Vec<String>, Vec<String>) = errors.unzip();
    let mut refuse = |what: &str| {
        let error = format!("{}: {what} by a reload: {RESTART}", new.filename());
        errors.push(error.clone());
        briefs.push(error);
    };
    // Whatever else there is in it.
    if old.node != new.node && !changed().any(|(section, ..)| *section == "node") {
        refuse("[node] cannot be changed");
    }
    match (&old.forward, &new.forward) {
        (None, Some(_)) => refuse("[forward] cannot be added"),
        (Some(_), None) => refuse("[forward] cannot be removed"),
        _ => {}
    }
    match errors.is_empty() {
        true => Ok(()),
        false => Err(Refused {
            error: Error::configuration(errors.join("\n"), ""),
            brief: briefs.join("; "),
        }),
    }
}

/// The tables were made at the first start.
fn room(config: &Config, view: &View) -> Result<(), Error> {
    let entries = config.services.iter().map(|s| s.backends.len() * s.protocols.len());
    let (wanted, room) = (entries.sum::<usize>(), view.backend_capacity());
    if wanted as u64 <= room.into() {
        return Ok(());
    }
    Err(Error::configuration(
        format!(
            "{}: {wanted} backends (each service and protocol counts), and the tables that were \
             made at the first start have room for {room}",
            config.filename()
        ),
        "`ringway detach`, then a new start, makes tables that fit the configuration",
    ))
}

/// Refuses what does not fit this machine, and tells what may not work on it. What is in force
/// already and no better is neither a reason nor news.
fn preflight(old: &Config, new: &Config) -> Result<Vec<Problem>, Error> {
    let mut report = preflight::run(new);
    report.findings.retain(|finding| finding.outcome.severity >= Severity::Warn);
    if report.findings.is_empty() {
        return Ok(Vec::new());
    }
    let what = |Finding { check, outcome, .. }: &Finding| {
        (*check, outcome.subject.clone(), outcome.found.clone())
    };
    let before: HashSet<_> = preflight::run(old).findings.iter().map(what).collect();
    report.findings.retain(|finding| !before.contains(&what(finding)));
    match preflight::refusal(&report) {
        Some(refused) => Err(refused),
        None => {
            let causes = preflight::causes(&report, |_| true);
            Ok(causes.iter().map(machine_problems::problem).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gateway, parsed};

    #[test]
    fn what_needs_a_restart_is_named_once() {
        let parsed = |line: &str| gateway(line, "");
        let old = parsed("");
        assert!(fixed(&old, &old).is_ok());
        for (line, key) in [
            ("on_pass = \"/sys/fs/bpf/mine\"", "on_pass"),
            ("state = \"/var/lib/other\"", "state"),
            ("xdp_mode = \"generic\"", "xdp_mode"),
        ] {
            let Refused { error, brief } = fixed(&old, &parsed(line)).expect_err(key);
            assert!(!brief.contains(['\n', '^']) && error.what.starts_with(&brief), "{brief}");
            let refused = error.to_string();
            let said = refused.matches("cannot be changed by a reload").count();
            assert!(said == 1 && refused.contains(&format!("{key} of [node]")), "{refused}");
        }
    }

    #[test]
    fn forwarding_between_interfaces_needs_a_restart() {
        let node = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\", \"eth1\", \"eth2\"]\n";
        let service = "[[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\n\
                       backends = [{ address = \"10.0.0.2\" }]\n";
        let with = |forward: &str| parsed(&format!("{node}{forward}\n{service}"));
        let bridge = "[forward]\nmode = \"bridge\"";
        assert!(fixed(&with(bridge), &with(bridge)).is_ok());
        for (old, new, said) in [
            ("", bridge, "[forward] cannot be added by a reload"),
            (bridge, "", "[forward] cannot be removed by a reload"),
            (bridge, "[forward]\nmode = \"route\"", ":5:1: mode of [forward] cannot"),
            (
                bridge,
                "[forward]\nmode = \"bridge\"\nbypass_firewall = true",
                ":6:1: bypass_firewall of [forward] cannot",
            ),
            (
                bridge,
                "[forward]\nmode = \"bridge\"\ninterfaces = [\"eth0\", \"eth1\"]",
                ":6:1: interfaces of [forward] cannot",
            ),
        ] {
            let Refused { error, brief } = fixed(&with(old), &with(new)).expect_err(said);
            assert!(brief.contains(said) && error.what.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_reload_tells_of_lists_whenever_they_are_wide() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("list");
        std::fs::write(&file, "0.0.0.0/1\n").expect("written");
        let parsed = |limit: u32| {
            let limits = format!("limits = {{ source = \"{limit}pps\" }}");
            let list = format!("list = [{{ name = \"l\", file = {file:?}, action = \"block\" }}]");
            gateway(&format!("[shield]\n{limits}\n{list}"), "")
        };
        let plan = ShieldPlan::read(&parsed(1), Unreadable::Refused, SecretReading::default())
            .expect("readable");
        let news = |old, new| shield_news(&parsed(old), &parsed(new), plan.as_deref());
        let wide = "list l: line 1: 0.0.0.0/1 blocks a large part of IPv4";
        assert_eq!(news(1, 1), [wide]);
        let mut none = parsed(1);
        none.shield = None;
        let removed = shield_news(&parsed(1), &none, None);
        assert!(removed.len() == 1 && removed[0].starts_with("[shield] is removed"), "{removed:?}");
        assert_eq!(shield_news(&none, &none, None), Vec::<String>::new());
        assert!(matches!(&news(100, 1)[..], [low, list] if low.contains("1pps") && list == wide));
    }

    #[test]
    fn another_file_is_not_read_in_silence() {
        let place = tempfile::tempdir().expect("a directory");
        let (a, b, link) = (place.path().join("a"), place.path().join("b"), place.path().join("l"));
        std::fs::write(&a, "").expect("written");
        std::fs::write(&b, "").expect("written");
        std::os::unix::fs::symlink(&a, &link).expect("linked");
        assert!(same_file(&a, &a).is_ok() && same_file(&link, &a).is_ok());
        let refused = same_file(&b, &a).expect_err("another");
        let want = format!("started with {}, not {}", a.display(), b.display());
        assert!(refused.what.contains(&want), "{refused}");
    }
}
