//! Commands to try with a demo that was left standing.

use std::path::Path;

use super::site::{SERVICE_V4, Site};
use crate::{Result, programs};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    pub what: String,
    pub line: String,
}

/// Five commands, the last of which takes it all down.
pub(super) fn commands(ringway: &Path, site: &mut Site) -> Result<Vec<Command>> {
    let (ringway, lab) = (ringway.display(), programs::own()?);
    let configuration = site.configuration.display().to_string();
    let client = site.client().path();
    let pid = site.backend_pid(0);
    let list = [
        (
            "a request, by one of three backends",
            format!("nsenter --net={} curl http://{SERVICE_V4}/", client.display()),
        ),
        (
            "what the gateway thinks, and where every packet went",
            format!("{ringway} status --ledger -c {configuration}"),
        ),
        ("kill a backend, then ask again and look at the status", format!("kill -9 {pid}")),
        ("what the packet counters' names mean", format!("{ringway} reasons")),
        ("take everything down", format!("{} demo --clean", lab.display())),
    ];
    Ok(list.map(|(what, line)| Command { what: what.into(), line }).to_vec())
}
