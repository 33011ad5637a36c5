//! A configuration that can be shown to others: what may be secret is taken out, and so is whatever
//! is not known, and every comment. It need not be valid otherwise.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::files::include::expand;
use crate::files::{MAX_FILE, read_text};

/// In place of what was taken out.
pub const REMOVED: &str = "[removed]";

/// Keys whose values say nothing that is secret. The model's others are in [`SECRET`]; a test holds
/// both against the packaged configuration and the documentation.
const SHOWN: &[&str] = &[
    "above_baseline",
    "action",
    "address",
    "addresses",
    "affinity",
    "allow_default_route",
    "allow_rate",
    "always",
    "learn_udp",
    "announce",
    "api",
    "backends",
    "bad_lines",
    "burst",
    "bypass_firewall",
    "ca_file",
    "check",
    "closed",
    "closing",
    "destination",
    "established",
    "faces",
    "fall",
    "file",
    "flow_rate",
    "flows",
    "for",
    "format",
    "forward",
    "gue_port",
    "host",
    "include",
    "interfaces",
    "interval",
    "keep_for",
    "level",
    "limits",
    "list",
    "listen",
    "log",
    "log_checks",
    "marks",
    "match",
    "max_unhealthy",
    "metrics",
    "minimum",
    "mitigation",
    "mode",
    "mss_clamp",
    "name",
    "nat",
    "new_flows",
    "new_per_prefix",
    "node",
    "on_down",
    "on_pass",
    "packets",
    "port",
    "ports",
    "preset",
    "protect",
    "protocol",
    "query",
    "rate",
    "rcode",
    "record",
    "rise",
    "rule",
    "run_after",
    "sanity",
    "secret",
    "service",
    "shield",
    "slow_start",
    "sni",
    "socket",
    "source",
    "source_prefix_v4",
    "source_prefix_v6",
    "state",
    "syn",
    "timeout",
    "timeouts",
    "tls_verify",
    "tracked",
    "tunnel",
    "type",
    "udp",
    "udp_new",
    "weight",
    "when_none_healthy",
    "xdp_mode",
];

/// Keys that may hold a password or a token: the path of a URL, the arguments of a program, what is
/// sent to a backend and expected from it.
const SECRET: &[&str] = &["path", "command", "run", "send", "expect"];

/// A file that can be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redacted {
    /// Where it was read.
    pub file: PathBuf,
    /// The rest, as TOML.
    pub text: String,
    /// Words taken out, to be taken out of other texts as well; short words are not among them.
    pub secrets: Vec<String>,
}

/// Shorter ones are in any text.
const SHORT: usize = 5;

/// The configuration and what it includes, without secrets and comments, the main file first.
///
/// # Errors
/// One cannot be read or is no TOML: which, and why. Nothing of it is shown then.
pub fn redacted(path: &Path) -> Result<Vec<Redacted>, String> {
    let mut files = vec![path.to_owned()];
    let mut shown = Vec::new();
    let mut at = 0;
    while let Some(file) = files.get(at).cloned() {
        let wrong = |why: String| format!("{}: {why}", file.display());
        let text = read_text(&file, MAX_FILE).map_err(wrong)?;
        let document = DeTable::parse(&text).map_err(|error| wrong(error.message().to_owned()))?;
        let directory = file.parent().unwrap_or(Path::new(""));
        for pattern in patterns(document.get_ref()) {
            let found = expand(&directory.join(pattern));
            let found = found.map_err(|(place, error)| format!("{}: {error}", place.display()))?;
            files.extend(found.into_iter().filter(|one| !files.contains(one)).collect::<Vec<_>>());
        }
        let mut secrets = Vec::new();
        for (key, value) in document.get_ref() {
            collect(key.get_ref(), value.get_ref(), false, &mut secrets);
        }
        shown.push(Redacted { text: table(document.get_ref()), secrets, file });
        at += 1;
    }
    Ok(shown)
}

fn patterns<'t>(document: &'t DeTable<'t>) -> Vec<&'t str> {
    let list = document.get("include").and_then(|value| value.get_ref().as_array());
    list.into_iter().flatten().filter_map(|item| item.get_ref().as_str()).collect()
}

/// What is not shown of a value, and of what it holds.
fn collect(key: &str, value: &DeValue<'_>, secret: bool, into: &mut Vec<String>) {
    let secret = secret || !SHOWN.contains(&key);
    match value {
        DeValue::Table(table) => {
            table.iter().for_each(|(k, v)| collect(k.get_ref(), v.get_ref(), secret, into));
        }
        DeValue::Array(items) => {
            items.iter().for_each(|item| collect(key, item.get_ref(), secret, into));
        }
        DeValue::String(text) if secret && text.len() >= SHORT => into.push(text.to_string()),
        _ => {}
    }
}

/// A whole file: keys first, then tables under their headers.
fn table(table: &DeTable<'_>) -> String {
    let mut keys = String::new();
    let mut tables = String::new();
    for (key, value) in table {
        let (key, value) = (key.get_ref().as_ref(), value.get_ref());
        let lines = |table: &DeTable<'_>| -> String {
            table.iter().map(|(k, v)| line(k.get_ref(), v.get_ref())).collect()
        };
        match value {
            DeValue::Table(inner) if SHOWN.contains(&key) => {
                tables += &format!("\n[{key}]\n{}", lines(inner));
            }
            DeValue::Array(items)
                if SHOWN.contains(&key)
                    && items.iter().all(|item| item.get_ref().is_table())
                    && items.iter().next().is_some() =>
            {
                for item in items.iter().filter_map(|item| item.get_ref().as_table()) {
                    tables += &format!("\n[[{key}]]\n{}", lines(item));
                }
            }
            _ => keys += &line(key, value),
        }
    }
    keys + &tables
}

/// A key that nobody knows may be a secret in the wrong place.
fn line(key: &str, value: &DeValue<'_>) -> String {
    match is_known(key) {
        true => format!("{key} = {}\n", kept(key, value)),
        false => format!("# {REMOVED}\n"),
    }
}

fn is_known(key: &str) -> bool {
    SHOWN.contains(&key) || SECRET.contains(&key)
}

fn kept(key: &str, value: &DeValue<'_>) -> String {
    // Statuses of HTTP are numbers; what a UDP check expects is text.
    let number = key == "expect" && matches!(value, DeValue::Integer(_));
    match SHOWN.contains(&key) || number {
        true => written(value),
        false => quoted(REMOVED),
    }
}

fn written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(word) => word.to_string(),
        DeValue::Datetime(moment) => moment.to_string(),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| written(item.get_ref())).collect();
            format!("[{}]", items.join(", "))
        }
        DeValue::Table(table) => {
            let pairs = table.iter().map(|(key, value)| (key.get_ref(), value.get_ref()));
            let known = pairs.filter(|(key, _)| is_known(key));
            let pairs = known.map(|(key, value)| format!("{key} = {}", kept(key, value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
    }
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        password = "hunter2" # a comment: hunter2
        include = ["services.d/*.toml"]
        [node]
        name = "gw1"
        interfaces = ["eth0"]
        [hunter2]
        x = 1
        [[service]]
        name = "w\"eb"
        address = "203.0.113.10"
        port = 80
        check = { type = "https", path = "/health?token=hunter2", expect = 204, headers = { a = "hunter2" } }
        backends = [{ address = "10.0.0.2", weight = 0, hunter2 = 3 }]
        [[service]]
        name = "other"
        [service.check]
        type = "exec"
        command = ["/usr/bin/check", "--password", "hunter2"]
    "#;

    #[test]
    fn secrets_do_not_leave() {
        let place = tempfile::tempdir().unwrap();
        let main = place.path().join("ringway.toml");
        std::fs::create_dir(place.path().join("services.d")).unwrap();
        let more = place.path().join("services.d/more.toml");
        std::fs::write(&main, TEXT).unwrap();
        std::fs::write(&more, "[[service]]\nname = \"more\"\ncheck = { type = \"udp\", send = \"hunter2\", expect = \"hunter2\" }\n").unwrap();
        let files = redacted(&main).unwrap();
        assert_eq!(files.iter().map(|f| &f.file).collect::<Vec<_>>(), [&main, &more]);
        for file in &files {
            assert!(!file.text.contains("hunter2"), "{}", file.text);
            assert!(DeTable::parse(&file.text).is_ok(), "{}", file.text);
        }
        for secret in ["hunter2", "/health?token=hunter2", "--password"] {
            assert!(files[0].secrets.iter().any(|one| one == secret), "{:?}", files[0].secrets);
        }
        assert!(!files[0].secrets.iter().any(|one| one == "https"));
        for line in [
            "[node]",
            "name = \"gw1\"",
            "interfaces = [\"eth0\"]",
            "[[service]]",
            "name = \"w\\\"eb\"",
            "{ expect = 204, path = \"[removed]\", type = \"https\" }",
            "{ command = \"[removed]\", type = \"exec\" }",
            "[{ address = \"10.0.0.2\", weight = 0 }]",
            "# [removed]",
        ] {
            assert!(files[0].text.contains(line), "no {line} in {}", files[0].text);
        }
        std::fs::write(&main, "[node\nhunter2").unwrap();
        let error = redacted(&main).unwrap_err();
        assert!(error.contains("ringway.toml") && !error.contains("hunter2"), "{error}");
    }

    /// A new key has to be put in one of the two lists.
    #[test]
    fn every_key_is_shown_or_secret() {
        let packaged = include_str!("../../../../packaging/ringway.toml");
        let checks = include_str!("../../../../docs/health-checks.md");
        let keys = |line: &str| -> Vec<String> {
            let line = line.trim_start_matches("# ").trim_start_matches('#');
            let parts = line.split(['{', ',']).filter_map(|part| part.split_once(" = "));
            let word = |key: &str| key.trim().to_owned();
            let plain = |key: &String| key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            parts.map(|(key, _)| word(key)).filter(|key| !key.is_empty()).filter(plain).collect()
        };
        let lines = packaged.lines().chain(checks.lines().filter(|line| line.contains(" = ")));
        let all: Vec<String> = lines.flat_map(keys).collect();
        assert!(all.len() > 40, "{all:?}");
        for key in all {
            let known = SHOWN.contains(&key.as_str()) || SECRET.contains(&key.as_str());
            assert!(known, "{key} is in neither list of redact.rs");
        }
        assert!(SHOWN.iter().all(|key| !SECRET.contains(key)));
    }
}
