//! `ringway bundle`: what a bug report needs, in one archive.

use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::Context;
use ringway_api::client::{self, status_query};
use ringway_api::error::Error;
use ringway_api::{clock, output_file};
use ringway_inspect::flows::filter::Filter;
use ringway_inspect::flows::{self, FlowNames};
use ringway_inspect::memory;
use ringway_kernel::{DEFAULT_BPFFS, View};
use serde_json::json;

use crate::cli::BundleArgs;
use crate::exit::Exit;
use crate::table;

/// Flows that are put in at most.
const FLOWS: usize = 100_000;
/// Lines of the log.
const LOG_LINES: &str = "1000";
/// The unit that packaging installs.
const UNIT: &str = "ringway.service";

/// Collects, and writes the archive.
pub fn main(args: &BundleArgs) -> anyhow::Result<Exit> {
    let target = args.node.selector().find().ok();
    let node = target.map(|target| target.node);
    let file = file(args);
    let secrets = file.as_ref().map_err(Clone::clone).and_then(|file| secrets(file));
    let subject = Subject { args, node: node.as_deref(), file, secrets };
    if args.file.as_os_str() == "-" {
        if io::stdout().is_terminal() {
            let fix = "name a file, or lead it into one: ringway bundle - > gw1.tar";
            return Err(Error::configuration("an archive is not for a terminal", fix).into());
        }
        write(&subject, BufWriter::new(io::stdout().lock()))?;
        return Ok(Exit::Done);
    }
    let file = output_file::create(&args.file, args.overwrite)?;
    let regular = file.metadata().is_ok_and(|about| about.is_file());
    let written = write(&subject, BufWriter::new(file));
    let failed = match written {
        Ok(failed) => failed,
        Err(error) => {
            // Half an archive helps nobody.
            if regular {
                let _ = fs::remove_file(&args.file);
            }
            return Err(full(&args.file, error));
        }
    };
    let mut said = format!("{}: written; read it before you send it\n", args.file.display());
    for (name, why) in failed {
        said += &format!("  without {name}: {}\n", why.lines().next().unwrap_or_default());
    }
    table::print(&said)?;
    Ok(Exit::Done)
}

fn full(path: &Path, error: anyhow::Error) -> anyhow::Error {
    let cause = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let fix = match cause {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
            "make room, or write it elsewhere; `ringway bundle - | xz > FILE` takes less"
        }
        _ => "write it elsewhere",
    };
    Error::failed(format!("{} was not written: {error:#}", path.display()), fix).into()
}

struct Subject<'a> {
    args: &'a BundleArgs,
    /// Not known: no configuration and nothing loaded.
    node: Option<&'a str>,
    /// Its configuration; or why that is not known.
    file: Result<PathBuf, String>,
    /// Secrets of the configuration; or why they are not known.
    secrets: Result<Vec<String>, String>,
}

impl Subject<'_> {
    /// Takes the secrets out of a text, as they are and as JSON has them.
    fn clean(&self, bytes: Vec<u8>) -> Vec<u8> {
        let Ok(secrets) = &self.secrets else { return bytes };
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        for secret in secrets {
            text = text.replace(secret, ringway_config::REMOVED);
            let escaped = json!(secret).to_string();
            text = text.replace(escaped.trim_matches('"'), ringway_config::REMOVED);
        }
        text.into_bytes()
    }

    fn file(&self) -> anyhow::Result<&Path> {
        self.file.as_deref().map_err(|why| anyhow::anyhow!("{why}"))
    }

    /// That it is known what is secret: for texts that may quote the configuration.
    fn knows_secrets(&self) -> anyhow::Result<()> {
        match &self.secrets {
            Ok(_) => Ok(()),
            Err(why) => anyhow::bail!(
                "it may quote the configuration, of which the secrets are not known: {why}"
            ),
        }
    }
}

/// The one that is named, or that the daemon says it runs by, or the packaged one.
fn file(args: &BundleArgs) -> Result<PathBuf, String> {
    let running = || status_query::status(&args.node.selector()).ok()?.daemon.configuration;
    let named = args.node.config.clone().or_else(|| running().map(PathBuf::from));
    let path = named.unwrap_or_else(|| ringway_config::DEFAULT_PATH.into());
    match path.exists() {
        true => Ok(path),
        false => Err(format!("no {}: name the configuration with -c FILE", path.display())),
    }
}

fn secrets(file: &Path) -> Result<Vec<String>, String> {
    let files = ringway_config::redacted(file)?;
    let mut secrets: Vec<String> = files.into_iter().flat_map(|file| file.secrets).collect();
    // One may be part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    Ok(secrets)
}

type Failed = Vec<(String, String)>;

/// Its file in the archive, what it holds, and how it is had.
type Part = (&'static str, &'static str, fn(&Subject<'_>) -> anyhow::Result<Vec<u8>>);

const PARTS: [Part; 10] = [
    ("versions.txt", "versions of Ringway, the kernel and the machine", versions),
    ("status.json", "ringway status -o json: services, health, counters, ledger", status),
    ("shield.json", "ringway shield status -o json; sources with --with-flows alone", shield),
    ("memory.json", "ringway status --memory -o json: every map", maps),
    ("programs.json", "the loaded programs", programs),
    ("check.json", "ringway check --host -o json", check),
    (
        "network.json",
        "interfaces, addresses, routes; neighbours that are routers or backends",
        network,
    ),
    ("log.txt", "the last lines of the log", log),
    ("configuration.toml", "the configuration without secrets and comments", configuration),
    ("flows.json", "flows with their clients' addresses", with_flows),
];

fn write(subject: &Subject<'_>, out: impl Write) -> anyhow::Result<Failed> {
    let mut archive = tar::Builder::new(out);
    let now = clock::unix_s(SystemTime::now());
    let directory = format!("ringway-{}", subject.node.unwrap_or("unknown"));
    let mut manifest =
        format!("What `ringway bundle` collected at {}\n\n", clock::rfc3339(SystemTime::now()));
    let mut failed = Failed::new();
    for (name, what, had) in PARTS {
        if name == "flows.json" && !subject.args.with_flows {
            manifest +=
                &format!("{name}: left out, it holds addresses of clients (--with-flows)\n");
            continue;
        }
        match had(subject) {
            Ok(bytes) => {
                let bytes = subject.clean(bytes);
                append(&mut archive, &directory, name, now, &bytes)?;
                manifest += &format!("{name}: {what}, {} bytes\n", bytes.len());
            }
            Err(error) => {
                let why = subject.clean(format!("{error:#}").into_bytes());
                let why = String::from_utf8_lossy(&why).into_owned();
                manifest += &format!("{name}: not had: {}\n", why.replace('\n', "\n    "));
                failed.push((name.to_owned(), why));
            }
        }
    }
    append(&mut archive, &directory, "MANIFEST.txt", now, manifest.as_bytes())?;
    archive.into_inner()?.flush()?;
    Ok(failed)
}

fn append<W: Write>(
    archive: &mut tar::Builder<W>,
    directory: &str,
    name: &str,
    now: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(now);
    archive.append_data(&mut header, format!("{directory}/{name}"), bytes)
}

fn pretty(value: &impl serde::Serialize) -> anyhow::Result<Vec<u8>> {
    Ok(serde_json::to_vec_pretty(value)?)
}

fn view(subject: &Subject<'_>) -> anyhow::Result<View> {
    let node = subject.node.context("no node is loaded or configured here")?;
    Ok(View::open(Path::new(DEFAULT_BPFFS), node)?)
}

fn versions(_: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let mut text = format!("ringway {}\n", crate::version::TEXT);
    for file in
        ["/proc/version", "/etc/os-release", "/proc/cmdline", "/proc/loadavg", "/proc/meminfo"]
    {
        let found = fs::read_to_string(file).unwrap_or_else(|error| format!("{error}\n"));
        text += &format!("\n{file}\n{found}");
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    text += &format!("\nprocessors: {processors}\n");
    Ok(text.into_bytes())
}

fn status(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let mut status = status_query::status(&subject.args.node.selector())?;
    if let (Some(reload), Err(_)) = (&mut status.last_reload, subject.knows_secrets()) {
        // It may quote the configuration.
        reload.error = ringway_config::REMOVED.to_owned();
    }
    pretty(&status)
}

fn shield(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let mut status = client::shield::status(&subject.args.node.selector())?;
    if !subject.args.with_flows {
        status.heavy_sources.clear();
    }
    pretty(&status)
}

fn maps(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    pretty(&memory::memory(&subject.args.node.selector())?)
}

fn programs(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let programs = view(subject)?.programs()?;
    let shown = programs.iter().map(|program| {
        json!({
            "id": program.id,
            "name": program.name,
            "verified_instructions": program.verified_instructions,
            "map_ids": program.maps,
        })
    });
    pretty(&json!({ "programs": shown.collect::<Vec<_>>() }))
}

fn check(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    subject.knows_secrets()?;
    pretty(&super::check::host_document(subject.file()?))
}

fn configuration(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let files = ringway_config::redacted(subject.file()?).map_err(anyhow::Error::msg)?;
    let text = files.iter().map(|file| format!("# {}\n{}\n", file.file.display(), file.text));
    Ok(text.collect::<String>().into_bytes())
}

/// A neighbour that is neither a router nor a backend may be a client.
fn network(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let mut network = ringway_host::Host::live().network()?;
    let status = status_query::status(&subject.args.node.selector()).unwrap_or_default();
    let backends = status.services.iter().flat_map(|service| &service.backends);
    let mut known: Vec<_> = backends.map(|backend| backend.address).collect();
    known.extend(network.routes.iter().filter_map(|route| route.gateway));
    let all = network.neighbours.len();
    network.neighbours.retain(|neighbour| known.contains(&neighbour.address) || neighbour.managed);
    let left_out = all - network.neighbours.len();
    pretty(&json!({ "network": network, "neighbours_left_out": left_out }))
}

fn log(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    subject.knows_secrets()?;
    let arguments =
        ["--unit", UNIT, "--lines", LOG_LINES, "--no-pager", "--output", "short-iso", "--quiet"];
    let ran = Command::new("journalctl").args(arguments).stdin(Stdio::null()).output();
    let ran = ran.context("journalctl cannot be run")?;
    let said = String::from_utf8_lossy(&ran.stderr);
    anyhow::ensure!(ran.status.success(), "journalctl: {}", said.trim());
    anyhow::ensure!(!ran.stdout.is_empty(), "the journal has no lines of {UNIT}");
    Ok(ran.stdout)
}

fn with_flows(subject: &Subject<'_>) -> anyhow::Result<Vec<u8>> {
    let view = view(subject)?;
    let names = FlowNames::read(&view)?;
    let mut rows = Vec::new();
    let totals = flows::list::<anyhow::Error>(
        &view,
        &Filter::default(),
        &names,
        |_| (),
        |flow| {
            if rows.len() < FLOWS {
                rows.push(serde_json::to_value(names.row(flow))?);
            }
            Ok(())
        },
    )?;
    pretty(&json!({ "schema": flows::SCHEMA, "flows": rows, "totals": totals }))
}
