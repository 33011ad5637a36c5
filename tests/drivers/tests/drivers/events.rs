//! What befalls devices while a gateway runs on them: the driver goes and comes, a virtual function
//! appears, a bond loses a link. And nothing is left behind by attaching and detaching.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter};
use ringway_driver_tests::Cell;
use ringway_host::netlink::links;
use ringway_net_tests::{Echo, Gateway, Line, configuration, service};
use ringway_testnet::{wait_for, wait_until};
use ringway_xsk::Redirect;

use crate::bench::{Bench, Nic, SOON, ip, wait_link};
use crate::capabilities::QUEUES;
use crate::gateway::balances;

const PORT: u16 = 7;

/// One nat service between clients and a backend.
struct Service<'a> {
    client: &'a Nic,
    vip: SocketAddr,
    _echo: Echo,
}

impl<'a> Service<'a> {
    fn new(client: &'a Nic, backend: &Nic) -> Result<(Service<'a>, String)> {
        let to = SocketAddr::new(backend.address(2).parse()?, PORT);
        let vip = SocketAddr::new(client.address(80).parse()?, PORT);
        let echo = Echo::start(&backend.far, to, "b1")?;
        let more = "announce = \"arp\"\ncheck = { type = \"tcp\", interval = \"1s\" }\n";
        let body = service("nat", vip, &[to], more);
        Ok((Service { client, vip, _echo: echo }, body))
    }

    /// One that is served.
    fn start(bench: &Bench, client: &'a Nic, backend: &Nic) -> Result<(Service<'a>, Gateway)> {
        let (service, body) = Service::new(client, backend)?;
        let text = configuration(&bench.gateway, &[&client.name, &backend.name], &body);
        let gateway = Gateway::start(&bench.gateway, &text)?;
        service.answers("an answer before")?;
        Ok((service, gateway))
    }

    fn ask(&self) -> Result<()> {
        let mut line = Line::open(&self.client.far, self.vip)?;
        ensure!(line.ask(&"x".repeat(5000))? == "b1");
        Ok(())
    }

    fn answers(&self, what: &str) -> Result<()> {
        Ok(wait_for(what, SOON, || self.ask().map_err(|error| format!("{error:#}")))?)
    }

    /// Runs `work` while clients ask.
    fn under_load<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    let _ = self.ask();
                }
            });
            let done = work();
            over.store(true, Relaxed);
            done
        })
    }
}

/// The driver lets go of the device and takes it again, while clients ask: the gateway goes on once
/// the interface has its name and addresses again.
pub fn unbind_and_bind(bench: &Bench, nic: &Nic, other: &Nic) -> Result<()> {
    let (service, gateway) = Service::start(bench, nic, other)?;
    let device = fs::canonicalize(format!("/sys/class/net/{}/device", nic.name))?;
    let driver = fs::canonicalize(device.join("driver"))?;
    let id = device.file_name().context("an id")?.to_string_lossy().into_owned();
    let mac = nic.link()?.mac;
    service.under_load(|| {
        fs::write(driver.join("unbind"), &id)?;
        gateway.wait_status("an interface that is gone", |status| status["healthy"] == false)?;
        fs::write(driver.join("bind"), &id)?;
        let back = || links::all().ok()?.into_iter().find(|link| link.mac == mac);
        wait_until("the interface", SOON, || back().is_some())?;
        let name = back().context("it has gone again")?.name;
        if name != nic.name {
            ip(&format!("link set {name} down name {}", nic.name))?;
        }
        ip(&format!("addr add {}/24 dev {}", nic.address(1), nic.name))?;
        ip(&format!("addr add {}/64 dev {} nodad", nic.address6(1), nic.name))?;
        ip(&format!("link set {} up", nic.name))
    })?;
    nic.wait_up()?;
    service.answers("an answer by the driver that is back")?;
    gateway.wait_status("a healthy gateway", |status| status["healthy"] == true)?;
    ensure!(!nic.link()?.xdp.is_empty(), "nothing is attached");
    Ok(())
}

/// Generic mode where the driver has native: served, and no link goes down for it.
pub fn generic(bench: &Bench, nic: &Nic, other: &Nic) -> Result<()> {
    let (service, body) = Service::new(nic, other)?;
    let text = configuration(&bench.gateway, &[&nic.name, &other.name], &body);
    let text = text.replacen("\n\n", "\nxdp_mode = \"generic\"\n\n", 1);
    let before = nic.downs()?;
    let gateway = Gateway::start(&bench.gateway, &text)?;
    service.answers("an answer by generic mode")?;
    let status = gateway.status()?;
    for interface in status["interfaces"].as_array().context("interfaces")? {
        ensure!(interface["mode"] == "generic" && interface["attached"] == true, "{interface}");
    }
    balances(&status)?;
    ensure!(nic.downs()? == before, "the link went down for a generic program");
    Ok(())
}

/// A virtual function of a device that a gateway runs on.
pub fn virtual_function_appears(bench: &Bench, nic: &Nic, other: &Nic) -> Result<()> {
    let (service, gateway) = Service::start(bench, nic, other)?;
    let device = format!("/sys/class/net/{}/device", nic.name);
    let functions = Path::new(&device).join("sriov_numvfs");
    service.under_load(|| {
        fs::write(&functions, "2").context("making virtual functions")?;
        let there = || Path::new(&device).join("virtfn1/net").exists();
        Ok(wait_until("the interface of a virtual function", SOON, there)?)
    })?;
    let with = service.answers("an answer beside virtual functions");
    fs::write(&functions, "0")?;
    with?;
    service.answers("an answer without them")?;
    balances(&gateway.status()?)?;
    Ok(())
}

/// Two igb are one interface by name; its active link goes down, and comes back.
pub fn bond(bench: &Bench, nic: &Nic, other: &Nic) -> Result<()> {
    let second = format!("second{}", nic.hub);
    let made = (|| -> Result<()> {
        ip("link add pair type bond mode active-backup miimon 100")?;
        for name in [&*nic.name, &second] {
            ip(&format!("link set {name} down"))?;
            ip(&format!("link set {name} master pair"))?;
        }
        ip(&format!("addr flush dev {}", nic.name))?;
        ip(&format!("addr add {}/24 dev pair", nic.address(1)))?;
        ip("link set pair up")?;
        wait_link("pair", SOON)?;
        on_bond(bench, nic, other, &second)
    })();
    // As they were before.
    let _ = ip("link del pair");
    let _ = ip(&format!("link set {second} down"));
    let addresses = [format!("{}/24", nic.address(1)), format!("{}/64", nic.address6(1))];
    for address in addresses {
        ip(&format!("addr replace {address} dev {} nodad", nic.name))?;
    }
    ip(&format!("link set {} up", nic.name))?;
    made?;
    nic.wait_up()
}

fn on_bond(bench: &Bench, nic: &Nic, other: &Nic, second: &str) -> Result<()> {
    let (service, body) = Service::new(nic, other)?;
    let part = configuration(&bench.gateway, &[&nic.name, &other.name], &body);
    let (code, said) = Gateway::launch(&bench.gateway, &part)?.refusal()?;
    ensure!(code != 0 && said.contains("write \"pair\" instead"), "{said}");
    let text = configuration(&bench.gateway, &["pair", &other.name], &body);
    let gateway = Gateway::start(&bench.gateway, &text)?;
    service.answers("an answer by the bond")?;
    let native = bench.has(nic, Cell::Native) && bench.has(other, Cell::Native);
    let status = gateway.status()?;
    let mode = &status["interfaces"][0]["mode"];
    ensure!(*mode == if native { "native" } else { "generic" }, "{status}");
    for lost in [&*nic.name, second] {
        ip(&format!("link set {lost} down"))?;
        service.answers(&format!("an answer without {lost}"))?;
        ip(&format!("link set {lost} up"))?;
        wait_link(lost, SOON)?;
        service.answers(&format!("an answer with {lost} again"))?;
    }
    balances(&gateway.status()?)?;
    Ok(())
}

/// Attached and detached a hundred times on every driver: programs, maps and links are as many as
/// before, and the kernel's slabs have not grown by as much as a KiB each time.
pub fn attach_and_detach(bench: &Bench) -> Result<()> {
    let rounds = |times: u64| -> Result<()> {
        thread::scope(|scope| {
            let work = |nic: &Nic| {
                for _ in 0..times {
                    drop(Redirect::attach(&nic.name, bench.xdp_mode(nic), QUEUES)?);
                }
                Ok(())
            };
            let all: Vec<_> = bench.nics.iter().map(|nic| scope.spawn(move || work(nic))).collect();
            all.into_iter().try_for_each(|one| one.join().expect("no panic"))
        })
    };
    // What is allocated once is there then.
    rounds(5)?;
    let before = Held::settled()?;
    rounds(100)?;
    let now = Held::settled()?;
    println!("  {before:?}, after a hundred times {now:?}");
    ensure!(now.objects == before.objects, "{before:?}, then {now:?}");
    // Others' memory comes and goes meanwhile: by 64 KiB, as seen.
    ensure!(now.slab_kib < before.slab_kib + 100, "{before:?}, then {now:?}");
    bench.nics.iter().try_for_each(Nic::wait_up)
}

/// What attaching could leave behind.
#[derive(Debug)]
struct Held {
    /// Programs, maps, links.
    objects: [usize; 3],
    slab_kib: u64,
}

impl Held {
    /// The kernel frees what is gone a little later.
    fn settled() -> Result<Held> {
        let mut last = Held::now()?;
        for _ in 0..30 {
            thread::sleep(Duration::from_secs(1));
            let now = Held::now()?;
            if now.objects == last.objects {
                return Ok(now);
            }
            last = now;
        }
        bail!("programs, maps and links come and go: {last:?}")
    }

    fn now() -> Result<Held> {
        let objects = [
            ProgInfoIter::default().count(),
            MapInfoIter::default().count(),
            LinkInfoIter::default().count(),
        ];
        let memory = fs::read_to_string("/proc/meminfo")?;
        let slab =
            memory.lines().find(|line| line.starts_with("SUnreclaim:")).context("SUnreclaim")?;
        let slab_kib = slab.split_whitespace().nth(1).context("a number")?.parse()?;
        Ok(Held { objects, slab_kib })
    }
}
