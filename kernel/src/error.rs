//! Errors between user space and the kernel, each with its remedy.

use std::io;
use std::path::PathBuf;

use ringway_host::Fix;
use rustix::io::Errno;

pub type Result<T> = std::result::Result<T, Error>;

/// Every error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process lacks privileges.
    #[error("not permitted: missing {}; run as root, or grant these capabilities", missing.join(", "))]
    NotPermitted {
        /// Names of the missing capabilities.
        missing: Vec<&'static str>,
    },
    /// The pins are for root alone.
    #[error("not permitted to look into {}: run as root (sudo)", path.display())]
    NotReadable {
        /// The path that could not be read.
        path: PathBuf,
    },
    /// The kernel is older than the floor.
    #[error("Linux {found} is too old: Ringway needs 6.1 or newer; boot a newer kernel")]
    KernelTooOld {
        /// Release of the running kernel.
        found: String,
    },
    /// No bpffs where the pins belong.
    #[error(
        "no bpf file system at {} and it could not be mounted ({source}); \
         as root: mount -t bpf bpf {}",
        path.display(), path.display()
    )]
    NoBpffs {
        /// Where it was looked for.
        path: PathBuf,
        source: io::Error,
    },
    /// Pins are below another bpffs.
    #[error(
        "another bpf file system is mounted on {}, over the one that was there first: if the program is this node's, its pins are there, \
         and packets flow on; take off the one on top (`umount {}`), then start again", path.display(), path.display()
    )]
    BpffsCovered { path: PathBuf },
    /// Another process looks after this node.
    #[error(
        "node {node} is already looked after by process {pid}; \
         stop it first (systemctl stop ringway, or kill {pid}; where it hangs, kill -KILL {pid}): traffic keeps flowing meanwhile; \
         another node, be it in another network namespace, needs a name of its own ([node] name, or --name)"
    )]
    Busy {
        node: String,
        /// Process that holds it, 0 when unknown.
        pid: u64,
    },
    /// The user's own program cannot stand behind ours.
    #[error("on_pass = \"{}\": {why}", path.display())]
    OnPass {
        path: PathBuf,
        /// The error, and its remedy.
        why: String,
    },
    /// The pins were made by a version with other tables.
    #[error(
        "the tables pinned for node {node} have layout {found}, this version has {expected}; \
         they cannot be taken over: run `ringway detach` (ends all connections), then start again"
    )]
    Layout {
        node: String,
        /// Layout found under the pins.
        found: u32,
        expected: u32,
    },
    /// A pinned map differs from what this version expects although the layout is the same.
    #[error(
        "pinned map {map} is not what this version expects ({detail}); \
         run `ringway detach` (ends all connections), then start again"
    )]
    PinnedMap { map: String, detail: String },
    /// The pins have not all the maps of this version.
    #[error(
        "the node's tables are of an earlier version: restart its daemon with this version first"
    )]
    EarlierVersion,
    /// The program that sends health checks of dsr backends could not be attached.
    #[error(
        "health checks of dsr backends: the program that sends them could not be attached ({source}); \
         a kernel from 6.6 on has tcx; older ones need sch_ingress (modprobe sch_ingress cls_bpf)"
    )]
    AttachProbe { source: libbpf_rs::Error },
    /// More addresses than decap has room for.
    #[error(
        "this host has {found} addresses, decap has room for {limit}: name those that tunnels end at and services have"
    )]
    TooManyAddresses { found: usize, limit: usize },
    /// The kernel cannot make a connection of somebody else's cookie.
    #[error(
        "Linux {found} lacks bpf_sk_assign_tcp_reqsk(), which opens connections here: boot 6.9 or newer, \
         with CONFIG_SYN_COOKIES=y and CONFIG_DEBUG_INFO_BTF=y; until then services of this backend use \
         syn = \"challenge\""
    )]
    NoAccept {
        /// Release of the running kernel.
        found: String,
    },
    /// More listeners than accept has room for.
    #[error("{found} listeners, and accept has room for {limit}: run it on several interfaces")]
    TooManyListeners { found: usize, limit: usize },
    /// A program could not be put at tc ingress.
    #[error("cannot attach to tc ingress of {iface}: {source}")]
    AttachIngress { iface: String, source: io::Error },
    /// Nothing is loaded for this node.
    #[error(
        "no gateway named {node} under {}{}; start one with `ringway run`, \
         or give the name of the right node",
        path.display(), known_nodes(known)
    )]
    NotLoaded {
        node: String,
        /// Where it was looked for.
        path: PathBuf,
        known: Vec<String>,
    },
    /// A node or interface name that cannot be a file name.
    #[error("{name:?} cannot name a node or interface: use 1 to 64 characters, no slash or NUL")]
    BadName { name: String },
    /// The kernel refused the program.
    #[error(
        "the kernel refused to load {program}: {source:#}{}{}",
        load_hint(source),
        log_tail(log)
    )]
    Load {
        program: &'static str,
        source: libbpf_rs::Error,
        /// The last lines of libbpf's and the verifier's log.
        log: String,
    },
    /// More rules than the steering program takes.
    #[error(
        "--only: {found} rules, and the program that chooses packets takes {limit} (icmp is two, for IPv4 and IPv6); \
         make one of several, by ranges of ports and prefixes: `--only udp:4242-4250@10.0.0.0/24`"
    )]
    TooManyRules { found: usize, limit: usize },
    /// The kernel refused a program at a tracepoint.
    #[error(
        "the kernel refused to attach {program} to its tracepoint: {source:#}; it must have \
         tracepoints and describe its types (CONFIG_DEBUG_INFO_BTF=y)"
    )]
    Trace { program: String, source: libbpf_rs::Error },
    /// A map could not be read or written.
    #[error("cannot {action} map {map}: {source:#}; {}", map_hint(source))]
    Map {
        /// "read", "write", "open", ...
        action: &'static str,
        map: String,
        source: libbpf_rs::Error,
    },
    /// A value under a pin has not the size or content it should have.
    #[error(
        "map {map} holds something this version cannot read ({detail}); \
         read it with the version that loaded it"
    )]
    Content { map: String, detail: String },
    /// A pin, directory or link could not be handled.
    #[error("cannot {action} {}: {source}{}", path.display(), root_hint(source))]
    Pin {
        /// "create", "remove", ...
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Tables that the packet path has no room for; nothing was changed.
    #[error("tables refused, nothing changed: {0}")]
    Tables(String),
    /// The last change of the tables failed on the way.
    #[error(
        "what the tables hold is not known since a change failed; the next one that succeeds ends this"
    )]
    TablesUnknown,
    #[error(
        "no interface {name} (index {ifindex}) in this network namespace; `ip link` lists them"
    )]
    NoInterface {
        name: String,
        /// The index it was thought to have.
        ifindex: u32,
    },
    /// The slot has not been given an interface.
    #[error("interface slot {slot} is not in use; call set_iface first (slots are 0 to {})", ringway_abi::raw::RW_MAX_IFACES - 1)]
    NoSlot { slot: u32 },
    /// Somebody else's XDP program is on the interface.
    #[error("{iface} already runs an XDP program, {name} (id {id}), which {owner}; {remedy}")]
    ForeignProgram {
        iface: String,
        id: u32,
        name: String,
        /// Its owner: `XdpOwner::owner`.
        owner: String,
        remedy: Box<Fix>,
    },
    /// An interface of this node is attached from another network namespace.
    #[error(
        "the pins of node {node} belong to interface {iface} of another network namespace; \
         run ringway there, or give this gateway another [node] name"
    )]
    OtherNamespace { node: String, iface: String },
    #[error("cannot attach to {iface} ({driver}) in {mode} mode: {source}; {hint}")]
    Attach {
        iface: String,
        /// "driver igb, Linux 6.12.1".
        driver: String,
        /// "native" or "generic".
        mode: &'static str,
        source: io::Error,
        hint: Box<Fix>,
    },
    /// A test run was refused.
    #[error(
        "test run refused: {source}; frames are 14 bytes or longer, and the receive queue must \
         exist on the given interface"
    )]
    TestRun { source: io::Error },
    /// As many captures as there can be are under way.
    #[error(
        "{} captures of node {node} are under way, and there cannot be more; \
         end one of the processes {}",
        pids.len(), pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    )]
    CapturesFull { node: String, pids: Vec<u32> },
    /// Another capture has been beginning or ending for longer than anybody should wait.
    #[error(
        "another capture of node {node} has been beginning or ending all the time, which others wait for; \
         try again, or look for one that stands still: `ps -C ringway`"
    )]
    CaptureBusy { node: String },
    /// Something lies where captures are, and none has put it there.
    #[error(
        "not Ringway's: {0}; a process with the daemon's rights has put that there: find out which, then: rm -r {0}",
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
    )]
    CaptureForeign { paths: Vec<PathBuf> },
    /// Captures of another version are under way.
    #[error(
        "captures of node {node} are under way that another version of ringway has begun; \
         end them, or capture with that version"
    )]
    CaptureVersion { node: String },
    /// The place of the capture is not there any more.
    #[error(
        "node {node} was detached, or started anew with larger tables: look with `ringway status`, \
         then capture again"
    )]
    CaptureGone { node: String },
    /// The kernel refused a filter.
    #[error("the kernel refused the filter: {source}; try a simpler one{}", log_tail(log))]
    CaptureFilter { source: io::Error, log: String },
    /// The kernel refused the program of the shield's rules.
    #[error(
        "the kernel refused the shield's rules: {source}; write fewer or simpler ones{}",
        log_tail(log)
    )]
    ShieldRules { source: io::Error, log: String },
    /// Something else the system refused.
    #[error("cannot {action}: {source}")]
    System { action: &'static str, source: io::Error },
}

fn root_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root (sudo), or grant CAP_BPF and CAP_NET_ADMIN"
        }
        _ => "",
    }
}

fn known_nodes(known: &[String]) -> String {
    match known {
        [] => String::new(),
        names => format!(" (there: {})", names.join(", ")),
    }
}

fn map_hint(source: &libbpf_rs::Error) -> &'static str {
    match source.kind() {
        libbpf_rs::ErrorKind::OutOfMemory => {
            "give the control group more memory (MemoryMax= of the unit)"
        }
        _ => "`ringway status` shows whether it is still loaded",
    }
}

fn load_hint(source: &libbpf_rs::Error) -> &'static str {
    match source.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => {
            " (run as root, or grant CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON)"
        }
        libbpf_rs::ErrorKind::OutOfMemory | libbpf_rs::ErrorKind::TooBig => {
            " (lower [nat] flows, or give the control group more memory)"
        }
        // The log says nothing about it.
        _ if is_out_of_files(source) => {
            " (raise the limit: `ulimit -n`, or LimitNOFILE= in the unit)"
        }
        _ => " (run with RINGWAY_LOG=debug for the whole log)",
    }
}

/// EMFILE or ENFILE. libbpf-rs has no kind for them and hides the number (its `source()` is none),
/// so that only their text is left to compare.
fn is_out_of_files(source: &libbpf_rs::Error) -> bool {
    let text = format!("{source:#}");
    [Errno::MFILE, Errno::NFILE].iter().any(|errno| {
        let os_error = io::Error::from(*errno).to_string();
        text.contains(&os_error)
    })
}

fn log_tail(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("\n{log}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_offered_where_it_helps() {
        let of = |errno: i32| load_hint(&libbpf_rs::Error::from_raw_os_error(errno)).to_owned();
        assert!(of(Errno::INVAL.raw_os_error()).contains("RINGWAY_LOG=debug"));
        for errno in [Errno::MFILE, Errno::NFILE] {
            let hint = of(errno.raw_os_error());
            assert!(hint.contains("ulimit -n") && !hint.contains("RINGWAY_LOG"), "{hint}");
        }
    }
}
