//! Nodes of other network namespaces: pins are the machine's, interfaces are a namespace's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ringway_kernel::{DEFAULT_BPFFS, View, bpffs_is_hidden, bpffs_is_overmounted};

/// Where namespaces have names (ip-netns(8)).
const NAMED: &str = "/run/netns";

/// Prefix of a command that is to run where the node is, such as
/// `nsenter --net=/run/netns/gw`; `None`: the node is here, as far as can be told.
pub fn enter(view: &View) -> Option<String> {
    let daemon = view.daemon().ok().flatten().filter(|daemon| daemon.running);
    let at = daemon.and_then(|daemon| Some((daemon.pid, identity(&net(&daemon.pid.to_string()))?)));
    match (at, identity(&net("self"))) {
        (Some((_, there)), Some(here)) if there == here => None,
        (Some((pid, there)), Some(_)) => Some(by_process(pid, name(Path::new(NAMED), there))),
        _ => {
            let states = view.interfaces().unwrap_or_default();
            let here = states.is_empty() || states.iter().any(|state| state.mode.is_some());
            (!here).then(|| format!("nsenter --net={NAMED}/NAMESPACE"))
        }
    }
}

/// The way into the namespace of this process, for a command that is to find what it does not; with
/// a word in the place of a name that cannot be found.
pub fn here() -> String {
    let own = identity(&net("self")).and_then(|own| name(Path::new(NAMED), own));
    format!("nsenter --net={NAMED}/{}", own.as_deref().unwrap_or("NAMESPACE"))
}

/// Why this process cannot tell what is loaded, and what to do; `None` where it can. `what`: what
/// cannot be seen. `command`: what to run where it can.
pub fn hidden(what: &str, command: &str) -> Option<(String, String)> {
    let reason = format!("{what} cannot be seen here: this process has no {DEFAULT_BPFFS}");
    bpffs_is_hidden(Path::new(DEFAULT_BPFFS)).then(|| (reason, unhide(command)))
}

/// How to run a command where the pins can be seen, for a process that cannot see them.
pub fn unhide(command: &str) -> String {
    match bpffs_is_overmounted(Path::new(DEFAULT_BPFFS)) {
        true => format!(
            "another file system is mounted over it: `umount {DEFAULT_BPFFS}`, then `{command}`"
        ),
        false => format!(
            "if it was started by `ip netns exec`, which hides that: `{} {command}` does not",
            here()
        ),
    }
}

fn by_process(pid: u64, name: Option<String>) -> String {
    match name {
        Some(name) => format!("nsenter --net={NAMED}/{name}"),
        None => format!("nsenter -t {pid} -n"),
    }
}

fn net(process: &str) -> String {
    format!("/proc/{process}/ns/net")
}

/// Device and inode of what a path leads to: two names of one namespace have the same.
fn identity(path: &str) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The first name of a namespace in a directory of them.
fn name(directory: &Path, namespace: (u64, u64)) -> Option<String> {
    let mut paths: Vec<_> = fs::read_dir(directory).ok()?.flatten().map(|e| e.path()).collect();
    paths.sort();
    let found = paths.iter().find(|path| identity(&path.to_string_lossy()) == Some(namespace))?;
    Some(found.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_entered_by_its_name_or_by_its_process() {
        let place = tempfile::tempdir().expect("a directory");
        let file = |name: &str| {
            let path = place.path().join(name);
            fs::write(&path, "").expect("written");
            identity(&path.to_string_lossy()).expect("there")
        };
        let (one, other) = (file("a"), file("b"));
        assert_eq!(name(place.path(), one).as_deref(), Some("a"));
        assert_eq!(name(place.path(), other).as_deref(), Some("b"));
        assert_eq!(name(place.path(), (0, 0)), None);
        assert_eq!(by_process(7, Some("gw".into())), "nsenter --net=/run/netns/gw");
        assert_eq!(by_process(7, None), "nsenter -t 7 -n");
        assert_eq!(identity(&net("self")), identity(&net(&std::process::id().to_string())));
    }
}
