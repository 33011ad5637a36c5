//! `ringway check --other-node`: do two nodes answer the SYNs of their services alike?

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use ringway_api::client::node_selector::NodeSelector;
use ringway_api::client::shield as client;
use ringway_api::documents::shield::{SCHEMA, ShieldStatus};
use ringway_api::error::Error;
use ringway_config::{Protocol, Syn};
use ringway_doctor::{Outcome, Report};
use serde::Deserialize;

const SECRET: &str = "syn-secret";
const ANSWERS: &str = "syn-answers";
const SAVE: &str =
    "save it on the other node: `ringway shield status -o json > FILE`, and copy it here";

#[derive(Deserialize)]
struct Head {
    schema: Option<String>,
}

/// Asks this node's daemon, and compares with what another node has said.
///
/// # Errors
/// The file is no other node's answer, or this node's daemon does not answer.
pub fn compare(selector: &NodeSelector<'_>, file: &Path) -> Result<Report, Error> {
    let other = read(file)?;
    let here = client::status(selector)?;
    if (&here.node, here.counted_since) == (&other.node, other.counted_since) {
        let what = format!("{}: it is of this node, {}", file.display(), here.node);
        return Err(Error::configuration(what, SAVE));
    }
    let mut report = Report::default();
    report.push(SECRET, secret(&here, &other));
    answers(&here, &other).into_iter().for_each(|outcome| report.push(ANSWERS, outcome));
    Ok(report)
}

fn read(file: &Path) -> Result<ShieldStatus, Error> {
    let wrong = |why: String| Error::configuration(format!("{}: {why}", file.display()), SAVE);
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    let Head { schema } = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("it is no JSON of Ringway: {error}")))?;
    if schema.as_deref() != Some(SCHEMA) {
        let schema = schema.map_or("it has no schema".into(), |it| format!("its schema is {it:?}"));
        return Err(wrong(format!("{schema}, and must be {SCHEMA:?}")));
    }
    let status: ShieldStatus =
        serde_json::from_str(&text).map_err(|error| wrong(format!("it is damaged: {error}")))?;
    let secret = status.syn_secret.iter();
    let secret = secret.flat_map(|it| [Some(&it.fingerprint), it.former_fingerprint.as_ref()]);
    let names = status
        .limits
        .iter()
        .flat_map(|it| [Some(&it.service), it.syn_in_force.as_ref(), Some(&it.syn)]);
    let shown = names.chain(secret).flatten().chain([&status.node]);
    let hidden = shown.flat_map(|text| text.chars()).any(char::is_control);
    if hidden {
        return Err(wrong("it is damaged: a name has control characters".into()));
    }
    Ok(status)
}

/// Whether each knows the other's answers.
fn secret(here: &ShieldStatus, other: &ShieldStatus) -> Outcome {
    let there = other.node.as_str();
    let (Some(own), Some(its)) = (&here.syn_secret, &other.syn_secret) else {
        return Outcome::ok(there, "no service of at least one of the nodes answers SYNs");
    };
    if let Some(alone) =
        [(own, "this node"), (its, there)].into_iter().find(|it| it.0.file.is_none())
    {
        let found = format!(
            "{} has made a key of its own, as [shield.syn] names no `secret`: the nodes do not know each other's answers",
            alone.1
        );
        let remedy = "name a file as `secret` in [shield.syn] of all nodes, and copy it to all of them: docs/two-nodes.md";
        return Outcome::warn(there, found).advice(remedy);
    }
    let (ours, theirs) = (&own.fingerprint, &its.fingerprint);
    let (before, before_there) = (&own.former_fingerprint, &its.former_fingerprint);
    if ours == theirs {
        // Answers of those are no good two minutes after the change, and nothing can be done.
        let different = before.as_ref().zip(before_there.as_ref()).filter(|(a, b)| a != b);
        let different = different.map_or_else(String::new, |(here, there)| {
            format!("; different ones before: {here} here, {there} there")
        });
        let found = format!("both have the secret with fingerprint {ours}{different}");
        return Outcome::ok(there, found);
    }
    let (what, to) = if before.as_ref() == Some(theirs) {
        (format!(", which this node had before: {there} does not know its new answers"), there)
    } else if before_there.as_ref() == Some(ours) {
        (
            format!(", which is newer: this node does not know the new answers of {there}"),
            "this node",
        )
    } else {
        (": the nodes do not know each other's answers".into(), "the node with the wrong one")
    };
    let found = format!("the secrets differ: fingerprint {ours} here, {theirs} there{what}");
    Outcome::warn(there, found).advice(format!(
        "copy the file of `secret` in [shield.syn] to {to}, mode 0600, and run `ringway reload` there"
    ))
}

/// Who answers SYNs of a service, by the configuration and now.
type Answers<'a> = BTreeMap<(&'a str, Protocol), (&'a str, Option<&'a str>)>;

fn answers_of(status: &ShieldStatus) -> Answers<'_> {
    let answered = status.limits.iter().filter(|it| it.syn != Syn::Off.name());
    answered
        .map(|it| ((&*it.service, it.protocol), (&*it.syn, it.syn_in_force.as_deref())))
        .collect()
}

/// Services whose SYNs they answer differently; one outcome that is well where there are none.
fn answers(here: &ShieldStatus, other: &ShieldStatus) -> Vec<Outcome> {
    let (ours, theirs, there) = (answers_of(here), answers_of(other), &other.node);
    let all: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let off = (Syn::Off.name(), None);
    let differ = all.iter().filter_map(|key| {
        let (own, its) = (ours.get(*key).copied().unwrap_or(off), theirs.get(*key).copied().unwrap_or(off));
        let subject = format!("service {}", key.0);
        if own.0 != its.0 {
            let found = format!(
                "syn is {:?} here and {:?} at {there}: a client that changes the node does not get in while SYNs are answered",
                own.0, its.0
            );
            let remedy = format!("write the same `syn` for {} on both nodes, and run `ringway reload`", key.0);
            return Some(Outcome::warn(subject, found).advice(remedy));
        }
        let (now, then) = own.1.zip(its.1).filter(|(now, then)| now != then)?;
        let behind = if now == own.0 { there } else { &here.node };
        let found = format!(
            "syn is {:?} on both nodes; in force is {now:?} here and {then:?} at {there}: not every backend takes cookies of {behind}",
            own.0
        );
        let remedy = format!("`ringway status` on {behind}: its finding cookies-refused names the backends and the reasons");
        Some(Outcome::warn(subject, found).advice(remedy))
    });
    let differ: Vec<Outcome> = differ.collect();
    match differ.is_empty() {
        true => vec![Outcome::ok(there, "both answer SYNs of the same services alike")],
        false => differ,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ringway_api::shield::RuntimeShield;
    use ringway_doctor::Severity;
    use ringway_kernel::shield::SynSecrets;

    use super::*;

    fn status(node: &str, syn: &str, secret: bool, keys: (&str, Option<&str>)) -> ShieldStatus {
        let file = if secret { ", secret = \"/etc/syn.secret\"" } else { "" };
        let text = format!(
            "[node]\nname = {node:?}\ninterfaces = [\"eth0\"]\n[shield]\nsyn = {{ always = true{file} }}\n\
             [[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\nsyn = {syn:?}\n\
             backends = [{{ address = \"10.0.0.2\" }}]\n\
             [[service]]\nname = \"always\"\naddress = \"203.0.113.8\"\nport = 80\nsyn = \"challenge\"\n\
             backends = [{{ address = \"10.0.0.2\" }}]\n"
        );
        let config = ringway_config::parse(&text, "gw.toml").expect("valid");
        let mut status = ShieldStatus::new(&config, &RuntimeShield::default());
        let secrets = SynSecrets {
            present: keys.0.into(),
            former: keys.1.map(str::to_owned),
            is_shared: secret,
            since: SystemTime::UNIX_EPOCH,
        };
        status.enter_secrets(&config, Some(secrets));
        status
    }

    #[test]
    fn secrets_are_compared_with_those_before() {
        let found = |ours: (&str, Option<&str>), theirs: (&str, Option<&str>)| {
            let of = |node, keys| status(node, "proxy", true, keys);
            let outcome = secret(&of("gw1", ours), &of("gw2", theirs));
            (outcome.severity, format!("{} / {}", outcome.found, outcome.remedy()))
        };
        let (ok, warn) = (Severity::Ok, Severity::Warn);
        for (ours, theirs, severity, words) in [
            (("aa", None), ("aa", Some("bb")), ok, "both have the secret with fingerprint aa"),
            (("aa", Some("bb")), ("aa", Some("bb")), ok, "both have"),
            (("aa", Some("bb")), ("aa", Some("cc")), ok, "bb here, cc there"),
            (("aa", None), ("bb", None), warn, "aa here, bb there: the nodes do not know each"),
            (("aa", Some("bb")), ("bb", None), warn, "to gw2, mode 0600, and run"),
            (("bb", None), ("aa", Some("bb")), warn, "to this node, mode 0600, and run"),
        ] {
            let found = found(ours, theirs);
            assert!(found.0 == severity, "{ours:?}, {theirs:?}: {found:?}");
            assert!(found.1.contains(words), "{ours:?}, {theirs:?}: {found:?}");
        }
        let own = status("gw2", "proxy", false, ("aa", None));
        let found = secret(&status("gw1", "proxy", true, ("aa", None)), &own);
        assert_eq!(found.severity, warn, "{found}");
        assert!(found.found.starts_with("gw2 has made a key of its own"), "{found}");
    }

    #[test]
    fn answers_are_compared_as_they_are_meant_and_as_they_are() {
        let of = |node, syn| status(node, syn, true, ("aa", None));
        let found = |here: &ShieldStatus, there: &ShieldStatus| {
            answers(here, there).iter().map(|it| format!("{it}")).collect::<Vec<_>>()
        };
        let (here, there) = (of("gw1", "proxy"), of("gw2", "proxy"));
        assert_eq!(answers(&here, &there)[0].severity, Severity::Ok);
        let other = found(&here, &of("gw2", "off"));
        assert_eq!(other.len(), 1, "{other:?}");
        let words = "service web: syn is \"proxy\" here and \"off\" at gw2";
        assert!(other[0].contains(words), "{other:?}");
        let (mut here, mut there) = (here, there);
        let force = |status: &mut ShieldStatus, syn: &str| {
            status.limits.iter_mut().for_each(|it| it.syn_in_force = Some(syn.into()));
        };
        force(&mut here, "proxy");
        assert_eq!(answers(&here, &there)[0].severity, Severity::Ok, "not known there");
        force(&mut there, "challenge");
        let other = found(&here, &there).join("\n");
        assert!(other.contains("not every backend takes cookies of gw2"), "{other}");
    }

    #[test]
    fn files_of_anything_else_are_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("gw2.json");
        let refused = |text: &str| {
            fs::write(&file, text).expect("written");
            read(&file).expect_err(text)
        };
        let status = status("gw2", "proxy", true, ("aa", None));
        let good = serde_json::to_string(&status).expect("JSON");
        for (text, why) in [
            ("", "no JSON of Ringway"),
            ("[1]", "no JSON of Ringway"),
            ("{}", "it has no schema, and must be \"ringway.shield/1\""),
            ("{\"schema\":\"ringway.status/1\"}", "its schema is \"ringway.status/1\""),
            (
                &good.replace("\"limits\"", "\"x\"").replace("\"mode\":\"enforce\"", "\"mode\":7"),
                "it is damaged",
            ),
            (&good.replace("gw2", "gw2\\u001b[2J"), "control characters"),
        ] {
            let error = refused(text);
            assert!(error.what.contains(why), "{error}");
            assert!(error.remedy.to_string().contains("ringway shield status -o json"), "{error}");
        }
        fs::write(&file, good).expect("written");
        assert_eq!(read(&file).expect("good"), status);
        fs::remove_file(&file).expect("removed");
        assert!(read(&file).expect_err("gone").what.contains("No such file"));
    }
}
