//! A host in a namespace of its own, with a peer; faults are planted in it.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ringway_doctor::{Collection, Facts, Report, judge, rules};
use ringway_host::ethtool::{Ethtool, Offload};
use ringway_host::netlink::neighbours::{self, NeighbourState};
use ringway_testnet::{End, Namespace, VethOptions, attach_generic_pass, veth, wait_until};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, listen, socket_with};

use super::corpus::{Side, Step, TCP, UDP};

/// Settings are read; traffic has to be counted, some of it when TCP tries again after a second.
const GLANCE: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1500);
/// Between two packets.
const PACE: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections of a peer at a time: less than the usual limit of open files.
const MOST_OPEN: usize = 500;
/// Settings that a namespace inherits from the machine, and the kernel's own defaults.
const INHERITED: [(&str, &str); 6] = [
    ("net/ipv4/tcp_rmem", "4096 131072 6291456"),
    ("net/ipv4/tcp_wmem", "4096 16384 4194304"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/all/arp_ignore", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/default/arp_ignore", "0"),
];

/// Two hosts on one link. All goes when it is dropped.
pub struct Patient {
    ns: Namespace,
    peer: Namespace,
    processes: Vec<Full>,
    sockets: Vec<OwnedFd>,
}

/// A process to be ended.
struct Full(Child);

impl Drop for Full {
    fn drop(&mut self) {
        // It may have ended: fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Patient {
    /// Healthy, and known to its peer.
    pub fn new() -> Result<Self> {
        let (ns, peer) = (Namespace::new("patient")?, Namespace::new("peer")?);
        for (key, value) in INHERITED {
            ns.sysctl(key, value)?;
        }
        let (va, vb) = (End::new(&ns, "va"), End::new(&peer, "vb"));
        let options = VethOptions { offloads: true, ..VethOptions::default() };
        veth(&va.address("10.9.0.1/24"), &vb.address("10.9.0.2/24"), &options)?;
        // Refused, which takes a MAC address on either side.
        drop(peer.run(|| TcpStream::connect(TCP))?);
        Ok(Self { ns, peer, processes: Vec::new(), sockets: Vec::new() })
    }

    fn side(&self, side: Side) -> &Namespace {
        match side {
            Side::Patient => &self.ns,
            Side::Peer => &self.peer,
        }
    }

    /// Plants a fault; what is traffic begins when the doctor looks.
    pub fn plant(&mut self, steps: &[Step]) -> Result<()> {
        steps.iter().try_for_each(|step| self.take(*step))
    }

    fn take(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Sysctl(key, value) => self.ns.sysctl(key, value)?,
            Step::Ip(side, line) => self.side(side).ip(&format!("{line}\n"))?,
            Step::Nft(side, script) => nft(self.side(side), script)?,
            Step::Rules(count) => nft(&self.ns, &rules_of(count))?,
            Step::NoSegmentation => self.ns.run(no_segmentation)??,
            Step::GenericXdp => attach_generic_pass(&self.ns, "va")?,
            Step::FullProcess => self.processes.push(full_process(&self.ns)?),
            Step::Listen(backlog) => self.sockets.push(self.ns.run(|| listener(backlog))??),
            Step::Unread => self.sockets.push(self.ns.run(|| UdpSocket::bind(UDP))??.into()),
            Step::Connect(count) => self.sockets.extend(self.ns.run(|| begin(TCP, count))??),
            Step::GivesUp { next_hop, to } => self.ns.run(|| gives_up(next_hop, to))??,
            Step::Knocks(..) | Step::Sends(..) | Step::Flaps => {}
        }
        Ok(())
    }

    /// The doctor's report, with the traffic of these steps meanwhile.
    pub fn diagnose(&self, steps: &[Step]) -> Result<Report> {
        let traffic: Vec<Step> = steps.iter().copied().filter(|step| step.is_traffic()).collect();
        let (stop, interval) =
            (&AtomicBool::new(false), if traffic.is_empty() { GLANCE } else { LOOK });
        thread::scope(|scope| {
            let send = |step| scope.spawn(move || self.keep_up(step, stop));
            let senders: Vec<_> = traffic.into_iter().map(send).collect();
            let report = self.ns.run_with_sysfs(|| examine(interval));
            stop.store(true, Ordering::Relaxed);
            for sender in senders {
                sender.join().map_err(|_| anyhow!("the traffic ended in a panic"))??;
            }
            Ok(report?)
        })
    }

    /// Traffic until it is told to stop.
    fn keep_up(&self, step: Step, stop: &AtomicBool) -> Result<()> {
        let go_on = |pace| {
            thread::sleep(pace);
            !stop.load(Ordering::Relaxed)
        };
        match step {
            Step::Sends(side, from, to) => self.side(side).run(|| sends(from, to, go_on))??,
            Step::Knocks(side, to) => self.side(side).run(|| knocks(to, go_on))??,
            Step::Flaps => {
                while go_on(PACE) {
                    self.peer.ip("link set vb down\nlink set vb up\n")?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn examine(interval: Duration) -> Report {
    let facts = Facts::new(&Collection::live(interval), None);
    judge(rules::ALL.iter().filter(|rule| rule.applies(None)), &facts)
}

fn nft(ns: &Namespace, script: &str) -> Result<()> {
    let output = ns.tool("nft")?.arg(script).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "nft: {}", said.lines().next().unwrap_or_default());
    Ok(())
}

fn rules_of(count: usize) -> String {
    let rules = "tcp dport 80 accept; ".repeat(count);
    format!("table ip t {{ chain c {{ type filter hook input priority 0; {rules}}}; }}")
}

fn no_segmentation() -> Result<()> {
    let ethtool = Ethtool::open()?;
    for offload in [Offload::Tso, Offload::Gso] {
        ethtool.set("va", offload, false)?;
    }
    Ok(())
}

/// It says when it is ready, and then waits for a line that never comes.
fn full_process(ns: &Namespace) -> Result<Full> {
    const SCRIPT: &str =
        "exec 3<&0 4<&0 5<&0 6<&0 7<&0 8<&0 9<&0; ulimit -S -n 10; echo; read line";
    let mut command: Command = ns.command("sh");
    command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut full = Full(command.spawn()?);
    let mut out = full.0.stdout.take().context("sh has no output")?;
    out.read_exact(&mut [0])?;
    Ok(full)
}

fn listener(backlog: i32) -> io::Result<OwnedFd> {
    let socket = TcpListener::bind(TCP)?;
    listen(&socket, backlog)?;
    Ok(socket.into())
}

/// Connections, whether they are answered or not.
fn begin(to: &str, count: usize) -> Result<Vec<OwnedFd>> {
    let to: SocketAddr = to.parse()?;
    let one = |_| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        // It is under way, or nothing leads there.
        let _ = connect(&socket, &to);
        Ok(socket)
    };
    (0..count).map(one).collect()
}

/// Each tries again by itself while it is open.
fn knocks(to: &str, go_on: impl Fn(Duration) -> bool) -> Result<()> {
    let mut open = Vec::new();
    while go_on(PACE * 10) && open.len() < MOST_OPEN {
        open.extend(begin(to, 1)?);
    }
    while go_on(PACE) {}
    Ok(())
}

fn sends(from: &str, to: &str, go_on: impl Fn(Duration) -> bool) -> Result<()> {
    let socket = UdpSocket::bind((from, 0))?;
    socket.set_nonblocking(true)?;
    while go_on(PACE) {
        // Lost, refused or without a route: it is meant so.
        let _ = socket.send_to(&[0; 1000], to);
    }
    Ok(())
}

fn gives_up(next_hop: &str, to: &str) -> Result<()> {
    let next_hop: std::net::IpAddr = next_hop.parse()?;
    UdpSocket::bind("0.0.0.0:0")?.send_to(&[0], to)?;
    let failed = || {
        let all = neighbours::all().unwrap_or_default();
        all.iter().any(|one| one.address == next_hop && one.state == NeighbourState::Failed)
    };
    Ok(wait_until("a next hop that does not answer", PATIENCE, failed)?)
}
