//! `ringway doctor` while something goes wrong: what the kernel counts between two looks.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use ringway_net_tests::{SOON, needs_root};
use ringway_testnet::{Child, Namespace, wait_for, wait_until};
use serde_json::Value;

use crate::doctor::{Patient, pair, symptoms};

const LOOK: &str = "0.6";

fn ping(from: &Namespace, arguments: &[&str]) -> Result<Child> {
    let mut command = from.command("ping");
    command.args(["-i", "0.05", "-w", "60"]).args(arguments);
    Ok(from.spawn(command)?)
}

/// Makes the neighbour's entry for the patient permanent: the filter drops ARP requests, too.
fn know(far: &Namespace) -> Result<()> {
    let known = far.command("ping").args(["-c1", "-W30", "10.9.0.1"]).status()?;
    ensure!(known.success(), "{known}");
    Ok(far.ip("neigh change 10.9.0.1 dev vb nud permanent\n")?)
}

/// Looks until these words are found: what goes wrong may begin a moment later.
fn found(words: &str, look: impl Fn() -> Result<Vec<Value>>) -> Result<Vec<Value>> {
    let look = || {
        let found = look().map_err(|error| format!("{error:#}"))?;
        let said = found.iter().map(Value::to_string).collect::<String>();
        if said.contains(words) { Ok(found) } else { Err(format!("{found:#?}")) }
    };
    Ok(wait_for(words, SOON, look)?)
}

/// Looks while it goes wrong again and again.
pub fn meanwhile<T>(wrong: impl Fn() + Sync, action: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                wrong();
            }
        });
        let done = action();
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// A socket that listens with this backlog, which std does not let one choose.
fn listen(backlog: i32) -> Result<TcpListener> {
    let socket = TcpListener::bind("10.9.0.1:8080")?;
    // SAFETY: the socket is open; listen(2) on a listening socket sets its backlog.
    let rc = unsafe { libc::listen(socket.as_raw_fd(), backlog) };
    ensure!(rc == 0, "{}", std::io::Error::last_os_error());
    Ok(socket)
}

/// Connections that begin, whether they are answered or not.
fn begin(count: usize) -> Result<Vec<TcpStream>> {
    let one = |_| {
        let flags = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_INET, flags, 0) };
        ensure!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is fresh and nobody else's.
        let stream = unsafe { TcpStream::from_raw_fd(fd) };
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 8080_u16.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([10, 9, 0, 1]) },
            sin_zero: [0; 8],
        };
        let size = size_of_val(&address) as u32;
        // SAFETY: the address is a sockaddr_in of that size. That it is still under way is what is
        // wanted.
        unsafe { libc::connect(fd, (&raw const address).cast(), size) };
        Ok(stream)
    };
    (0..count).map(one).collect()
}

#[test]
fn an_accept_queue_that_overflows() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("accept")?;
    patient.ns.sysctl("net/core/somaxconn", "16")?;
    let slow = patient.ns.run(|| listen(4096))??;
    let _clients = far.run(|| begin(40))??;
    let full = || -> Result<bool> {
        let found = patient.symptoms("listen-overflows", LOOK)?;
        let evidence = |one: &Value| one["evidence"].to_string().contains("10.9.0.1:8080");
        Ok(found.iter().any(evidence))
    };
    wait_until("a full accept queue", SOON, || full().unwrap_or(false))?;
    // Asked everything, it is one finding all the same, and one command.
    let all = symptoms(&patient.doctor(&["--interval", LOOK])?);
    let about = |one: &&Value| one.to_string().contains("net.core.somaxconn=4096");
    ensure!(all.iter().filter(about).count() == 1, "{all:#?}");
    patient.treat("listen-overflows", LOOK)?;
    // The limit counts when a program begins to listen.
    drop((slow, _clients));
    let listening = || patient.ns.run(|| listen(4096))?;
    let _again = wait_for("the port to be free", SOON, listening)?;
    let _clients = far.run(|| begin(40))??;
    let gone = || Ok::<bool, anyhow::Error>(patient.symptoms("listen-overflows", LOOK)?.is_empty());
    wait_until("an accept queue with room", SOON, || gone().unwrap_or(false))?;
    Ok(())
}

/// No route leads to them: they would be dropped, however loosely it is filtered.
#[test]
fn senders_without_any_route() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("strangers")?;
    patient.ns.sysctl("net/ipv4/conf/va/rp_filter", "1")?;
    far.ip("address add 10.99.0.1/32 dev vb\n")?;
    know(&far)?;
    let _ping = ping(&far, &["-I", "10.99.0.1", "10.9.0.1"])?;
    let look = || patient.symptoms("reverse-path", LOOK);
    let all = found("reverse-path", look)?;
    ensure!(all.len() == 1 && all[0]["changes"] == serde_json::json!([]), "{all:#?}");
    // And so it is.
    patient.ns.sysctl("net/ipv4/conf/va/rp_filter", "2")?;
    let all = found("reverse-path", look)?;
    ensure!(all.len() == 1, "{all:#?}");
    Ok(())
}

#[test]
fn time_wait_without_room() -> Result<()> {
    needs_root!();
    let (patient, _far) = pair("wait")?;
    patient.ns.sysctl("net/ipv4/tcp_max_tw_buckets", "10")?;
    patient.ns.run(|| -> Result<()> {
        let server = TcpListener::bind("10.9.0.1:8080")?;
        for _ in 0..12 {
            let client = TcpStream::connect("10.9.0.1:8080")?;
            // Who closes first waits.
            client.shutdown(std::net::Shutdown::Both)?;
            drop(server.accept()?);
        }
        Ok(())
    })??;
    patient.cure("time-wait", "this machine", "0.1")
}

#[test]
fn ports_that_are_used_up() -> Result<()> {
    needs_root!();
    let (patient, _far) = pair("ports")?;
    patient.ns.sysctl("net/ipv4/ip_local_port_range", "40000 40019")?;
    let _server = patient.ns.run(|| listen(100))??;
    let connect =
        || (0..20).map(|_| TcpStream::connect("10.9.0.1:8080")).collect::<Result<Vec<_>, _>>();
    let _clients = patient.ns.run(connect)??;
    patient.cure("local-ports", "10.9.0.1 to 10.9.0.1 port 8080", "0.1")
}

#[test]
fn senders_that_live_elsewhere() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("reverse")?;
    patient.ns.ip("link add other type veth peer name rest\nlink set other up\nlink set rest up\nroute add 10.99.0.0/24 dev other\n")?;
    patient.ns.sysctl("net/ipv4/conf/va/rp_filter", "1")?;
    far.ip("address add 10.99.0.1/32 dev vb\n")?;
    know(&far)?;
    let _ping = ping(&far, &["-I", "10.99.0.1", "10.9.0.1"])?;
    patient.cure("reverse-path", "this machine", LOOK)
}

#[test]
fn packets_for_somebody_else() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("route")?;
    patient.ns.ip("link add other type veth peer name rest\nlink set other up\nlink set rest up\nroute add 10.77.0.0/24 dev other\n")?;
    patient.ns.sysctl("net/ipv4/ip_forward", "0")?;
    far.ip("route add 10.77.0.0/24 via 10.9.0.1\n")?;
    let _ping = ping(&far, &["10.77.0.1"])?;
    patient.cure("no-route", "this machine", LOOK)
}

#[test]
fn a_process_out_of_files() -> Result<()> {
    needs_root!();
    let patient = Patient::new("files")?;
    let pipe = patient.ns.directory().join("pipe");
    patient.sh(&format!("mkfifo {}", pipe.display()))?;
    let mut command = patient.ns.command("sh");
    // Its standard files and seven more; then it waits for a line that never comes.
    let script = "exec 0<>PIPE 3<&0 4<&0 5<&0 6<&0 7<&0 8<&0 9<&0; ulimit -S -n 10; read line";
    command.args(["-c", &script.replace("PIPE", &pipe.to_string_lossy())]);
    let child = patient.ns.spawn(command)?;
    let crowd = || -> Result<bool> {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.pid()))?;
        Ok(limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 10 ")))
    };
    wait_until("a process with few files", SOON, || crowd().unwrap_or(false))?;
    patient.cure("open-files", &format!("process sh ({})", child.pid()), "0.1")
}

#[test]
fn a_syn_queue_that_overflows() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("syn")?;
    patient.ns.sysctl("net/core/somaxconn", "16")?;
    patient.ns.sysctl("net/ipv4/tcp_max_syn_backlog", "16")?;
    let deaf = "nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; }'; \
                nft add rule ip t c tcp sport 8080 drop";
    let ran = far.command("sh").args(["-ec", deaf]).status()?;
    ensure!(ran.success(), "{ran}");
    let small = patient.ns.run(|| listen(4096))??;
    // Handshakes that stay half done, since no answer arrives.
    let knock = || drop(far.run(|| begin(40)));
    let all = meanwhile(knock, || found("syn-queue", || patient.treat("syn-queue", LOOK)))?;
    ensure!(all.len() == 1, "{all:?}");
    drop(small);
    let listening = || patient.ns.run(|| listen(4096))?;
    let _large = wait_for("the port to be free", SOON, listening)?;
    let _clients = far.run(|| begin(400))??;
    let found = patient.symptoms("syn-queue", LOOK)?;
    ensure!(found.is_empty(), "{found:?}");
    Ok(())
}
