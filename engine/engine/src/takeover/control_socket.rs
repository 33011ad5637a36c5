//! Running engines: which one has an interface, and where it listens for its successor.

use std::fs;
use std::path::{Path, PathBuf};

use crate::status::inspect::Inspection;
use crate::takeover::TakeoverError;

/// Flag and type of a listening socket of sequenced packets in `/proc/net/unix`
/// (net/unix/af_unix.c, unix_seq_show).
const LISTENS: &str = "00010000";
const SEQPACKET: &str = "0005";

/// The path that the engine of this process was given: `--control PATH`.
///
/// # Errors
/// Where there is no such process, it may not be looked at, is no engine, or listens nowhere.
pub fn control_of(pid: u32) -> Result<PathBuf, TakeoverError> {
    let failed = |why: String, remedy| TakeoverError::Where { pid, why, remedy };
    let engines = "`pgrep -af 'ringway engine'` lists engines";
    // It has packet memory, if it is one.
    Inspection::open(pid)?;
    let process = PathBuf::from(format!("/proc/{pid}"));
    let read = |name: &str| {
        let text = fs::read_to_string(process.join(name));
        text.map_err(|e| failed(format!("{name} in /proc: {e}"), engines))
    };
    let sockets = read("net/unix")?;
    let open = descriptors(&process).map_err(|e| failed(e.to_string(), engines))?;
    let path = sockets.lines().filter_map(listener).find(|(inode, _)| open.contains(inode));
    let (_, path) = path.ok_or_else(|| {
        let remedy = "start it with `--control PATH`, so that a successor can be heard; or end it, and start anew";
        failed("it listens for no successor".into(), remedy)
    })?;
    // Relative to where it was started, and as its own mounts are.
    let directory = fs::read_link(process.join("cwd")).unwrap_or_default();
    let path = directory.join(path);
    let own = process.join("root").join(path.strip_prefix("/").unwrap_or(&path));
    Ok(if path.exists() { path } else { own })
}

/// The process of an engine that has queues of this interface, in the network namespace of the
/// calling thread. None: there is no such engine, or this user may not see it.
pub fn engine_on(interface: &str) -> Option<u32> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    let ours = namespace("thread-self")?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_it = |pid: &u32| {
        let sample = Inspection::open(*pid).and_then(|inspection| inspection.sample(0));
        sample.is_ok_and(|sample| sample.interfaces.iter().any(|one| one.interface == interface))
    };
    let others = pids.filter(|pid| *pid != std::process::id());
    others.filter(|pid| namespace(&pid.to_string()).as_ref() == Some(&ours)).find(has_it)
}

/// Inode and path of a line of `/proc/net/unix`: "Num RefCount Protocol Flags Type St Inode Path".
fn listener(line: &str) -> Option<(u64, &Path)> {
    let mut words = line.split_whitespace().skip(3);
    let (flags, kind, _state, inode) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let path = &line[line.find(inode)? + inode.len()..];
    let path = path.trim_start();
    let ours = flags == LISTENS && kind == SEQPACKET && !path.is_empty() && !path.starts_with('@');
    Some((inode.parse().ok()?, Path::new(path))).filter(|_| ours)
}

/// Inodes of the sockets that a process has open.
fn descriptors(process: &Path) -> std::io::Result<Vec<u64>> {
    let links = fs::read_dir(process.join("fd"))?.flatten();
    let target = links.filter_map(|entry| fs::read_link(entry.path()).ok());
    let inode = |target: PathBuf| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    Ok(target.filter_map(inode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_net_unix() {
        let line = |flags: &str, kind: &str, path: &str| {
            format!("0000000000000000: 00000002 00000000 {flags} {kind} 01 21987{path}")
        };
        for (text, expected) in [
            (line(LISTENS, SEQPACKET, " /run/a b"), Some((21987, Path::new("/run/a b")))),
            // Not listening, of another type, without a path, abstract.
            (line("00000000", SEQPACKET, " /run/a"), None),
            (line(LISTENS, "0001", " /run/a"), None),
            (line(LISTENS, SEQPACKET, ""), None),
            (line(LISTENS, SEQPACKET, " @a"), None),
            ("Num       RefCount Protocol Flags    Type St Inode Path".into(), None),
        ] {
            assert_eq!(listener(&text), expected, "{text}");
        }
    }
}
