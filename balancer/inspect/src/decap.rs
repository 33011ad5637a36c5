//! `ringway decap`: opens the tunnels that end at a backend, while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ringway_abi::{Reason, Verdict};
use ringway_api::clock;
use ringway_api::documents::named;
use ringway_api::documents::status::Ledger;
use ringway_api::error::Error;
use ringway_host::netlink::addresses::{self, Address};
use ringway_host::netlink::links::{self, Link};
use ringway_host::netlink::routes;
use ringway_host::{Host, NetlinkChange, NetlinkMonitor};
use ringway_kernel::{
    Attached, DEFAULT_BPFFS, Decap, DecapPin, DecapState, Uses, XdpMode, decap_state,
};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// Addresses often change together.
const SETTLE: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct DecapOptions {
    /// The interface by which tunnel packets come.
    pub interface: String,
    /// Where tunnels end; empty: at every address of the interface.
    pub addresses: Vec<IpAddr>,
    /// UDP port of GUE, host byte order.
    pub gue_port: u16,
    pub mode: Option<XdpMode>,
    /// Stay attached afterwards.
    pub pin: bool,
    /// Attach even to an interface that carries the default route.
    pub allow_default_route: bool,
}

/// A decap as it stands: schema `ringway.decap/1`.
#[derive(Clone, Debug, Serialize)]
pub struct DecapStatus {
    /// `ringway.decap/1`.
    pub schema: &'static str,
    pub interface: String,
    /// "native" or "generic".
    pub mode: String,
    /// It stays when the process that began it ends.
    pub pinned: bool,
    /// UDP port that GUE is taken at.
    pub gue_port: u16,
    /// Where tunnels end.
    pub outer_addresses: Vec<IpAddr>,
    /// Destinations that may come out of them: every address of this host.
    pub inner_addresses: Vec<IpAddr>,
    /// Packets by verdict and reason; only those that occurred.
    pub counters: Vec<Counter>,
    pub ledger: Ledger,
}

/// How often packets ended in one way.
#[derive(Clone, Debug, Serialize)]
pub struct Counter {
    #[serde(serialize_with = "named::serialize")]
    pub verdict: Verdict,
    #[serde(serialize_with = "named::serialize")]
    pub reason: Reason,
    pub packets: u64,
}

/// Opens tunnels until SIGTERM or SIGINT, and then detaches, unless it is to stay. `tell` is given
/// lines for people. Returns the last status.
///
/// # Errors
/// It cannot begin, or the program was taken off its interface.
pub fn run(options: &DecapOptions, tell: impl Fn(&str)) -> Result<DecapStatus, Error> {
    let link = find(&options.interface)?;
    refuse_default_route(options, &link)?;
    let pin = DecapPin::new(Path::new(DEFAULT_BPFFS), &link.name).map_err(kernel)?;
    alone(options, &link, &pin)?;
    let mut decap = pin.load(link.ifindex, options.gue_port).map_err(kernel)?;
    // Watching begins before the first look, so that no change is missed.
    let notify = Arc::new(Notify::new());
    let teller = notify.clone();
    let watching = NetlinkMonitor::open().and_then(|monitor| {
        monitor.spawn(move |change| {
            if !matches!(
                change,
                NetlinkChange::Neighbour(_)
                    | NetlinkChange::NeighbourGone { .. }
                    | NetlinkChange::Routes
            ) {
                teller.notify_one();
            }
            true
        })
    });
    let _watching = watching.map_err(host)?;
    let told = refresh(&mut decap, options, &link)?;
    let attached = decap.attach(&pin, link.ifindex, options.mode).map_err(kernel)?;
    if options.pin {
        decap.pin(&pin).map_err(kernel)?;
    }
    tell(&start_line(options, &attached, &told));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("no runtime: {error}"), ""))?;
    let outcome = runtime.block_on(look_after(&mut decap, options, &link, &notify, &tell));
    let status = match decap_state(&link.name, link.ifindex) {
        Ok(Some(state)) => Some(shown(&link.name, state, pin.exists())),
        _ => None,
    };
    match &outcome {
        Ok(()) if options.pin => {
            let interface = &options.interface;
            tell(&format!(
                "stopped; tunnels stay open; `ringway decap -i {interface} --detach` closes them"
            ));
        }
        _ => decap.detach(&pin).map_err(kernel)?,
    }
    outcome?;
    status.ok_or_else(|| lost(&link.name))
}

/// A decap's status, whichever process began it.
///
/// # Errors
/// None is at work on this interface.
pub fn status(interface: &str) -> Result<DecapStatus, Error> {
    let link = find(interface)?;
    let state = decap_state(&link.name, link.ifindex).map_err(kernel)?.ok_or_else(|| {
        Error::unhealthy(
            format!("no ringway decap is at work on {interface}"),
            format!("start it with `ringway decap -i {interface}`"),
        )
    })?;
    let pin = DecapPin::new(Path::new(DEFAULT_BPFFS), &link.name).map_err(kernel)?;
    Ok(shown(&link.name, state, pin.exists()))
}

/// Takes off what was to stay; false when there is nothing.
///
/// # Errors
/// A process still looks after it, or the kernel refuses.
pub fn detach(interface: &str) -> Result<bool, Error> {
    let link = find(interface)?;
    let pin = DecapPin::new(Path::new(DEFAULT_BPFFS), &link.name).map_err(kernel)?;
    if pin.detach().map_err(kernel)? {
        return Ok(true);
    }
    match decap_state(&link.name, link.ifindex).map_err(kernel)? {
        None => Ok(false),
        Some(_) => Err(Error::failed(
            format!("a running process holds the program on {interface}"),
            "stop that `ringway decap` (Ctrl-C, SIGTERM): it detaches",
        )),
    }
}

/// What is pinned is replaced by what is to stay as well, and what runs by nothing: the end of this
/// process would be the end of the other's tunnels.
fn alone(options: &DecapOptions, link: &Link, pin: &DecapPin) -> Result<(), Error> {
    let interface = &link.name;
    match pin.since(link.ifindex).map_err(kernel)? {
        Some(_) if options.pin => Ok(()),
        Some(since) => Err(Error::failed(
            format!(
                "a ringway decap is at work on {interface}, pinned since {}",
                clock::rfc3339(since)
            ),
            format!(
                "`ringway decap -i {interface} --status` shows it, `--detach` ends it, `--pin` replaces it"
            ),
        )),
        None if decap_state(interface, link.ifindex).map_err(kernel)?.is_some() => {
            Err(Error::failed(
                format!("another running ringway decap is at work on {interface}"),
                format!(
                    "`ringway decap -i {interface} --status` shows it; to end it, stop that process \
                     (Ctrl-C, SIGTERM)"
                ),
            ))
        }
        None => Ok(()),
    }
}

async fn look_after(
    decap: &mut Decap,
    options: &DecapOptions,
    link: &Link,
    changed: &Notify,
    tell: &impl Fn(&str),
) -> Result<(), Error> {
    let listen = |kind| {
        signal(kind).map_err(|error| Error::failed(format!("signals not heard: {error}"), ""))
    };
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            () = changed.notified() => {}
        }
        tokio::time::sleep(SETTLE).await;
        if !decap_state(&link.name, link.ifindex).is_ok_and(|state| state.is_some()) {
            return Err(lost(&link.name));
        }
        let before = decap.addresses().clone();
        let now = refresh(decap, options, link)?;
        if now != before {
            tell(&format!("addresses: {}", ends(&now)));
        }
    }
}

fn find(interface: &str) -> Result<Link, Error> {
    let link = links::by_name(interface)
        .map_err(|error| Error::configuration(error.to_string(), "give another with -i IFACE"))?;
    if link.loopback || link.mac.is_none() {
        return Err(Error::configuration(
            format!("{interface} is not an Ethernet interface"),
            "give the one by which the gateway's packets come",
        ));
    }
    Ok(link)
}

/// Attaching to the interface by which an administrator came in can lock them out.
fn refuse_default_route(options: &DecapOptions, link: &Link) -> Result<(), Error> {
    if options.allow_default_route || !Host::live().first_network_namespace() {
        return Ok(());
    }
    let carriers = routes::default_interfaces(&routes::all().map_err(host)?);
    if ![Some(link.ifindex), link.master].iter().flatten().any(|index| carriers.contains(index)) {
        return Ok(());
    }
    Err(Error::configuration(
        format!(
            "{} is guarded: it carries the default route, a mistake there cuts this machine off",
            link.name
        ),
        "use another interface, or say --allow-default-route",
    ))
}

/// Tells the program the host's addresses.
fn refresh(
    decap: &mut Decap,
    options: &DecapOptions,
    link: &Link,
) -> Result<BTreeMap<IpAddr, Uses>, Error> {
    let wanted = uses(&addresses::all().map_err(host)?, options, link);
    decap.set_addresses(&wanted).map_err(kernel)?;
    Ok(wanted)
}

fn uses(all: &[Address], options: &DecapOptions, link: &Link) -> BTreeMap<IpAddr, Uses> {
    let here =
        |address: &Address| address.ifindex == link.ifindex || link.master == Some(address.ifindex);
    let given: BTreeSet<IpAddr> = options.addresses.iter().copied().collect();
    let mut wanted: BTreeMap<IpAddr, Uses> = BTreeMap::new();
    for address in all.iter().filter(|a| !a.unusable && !a.address.is_loopback()) {
        let uses = wanted.entry(address.address).or_default();
        uses.inner = true;
        uses.outer |= given.is_empty() && here(address);
    }
    for address in given {
        wanted.entry(address).or_default().outer = true;
    }
    wanted
}

fn start_line(
    options: &DecapOptions,
    attached: &Attached,
    told: &BTreeMap<IpAddr, Uses>,
) -> String {
    let over = if attached.taken_over { ", in place of the one before" } else { "" };
    let mut text = format!(
        "attached to {} ({}{over}): opens IP in IP, and GUE on UDP port {}, sent to {}",
        options.interface,
        attached.mode,
        options.gue_port,
        ends(told)
    );
    if let Some(refused) = &attached.refused {
        text += &format!("\n{refused}");
    }
    text
}

fn ends(told: &BTreeMap<IpAddr, Uses>) -> String {
    let outer = told.iter().filter(|(_, uses)| uses.outer);
    let outer: Vec<String> = outer.map(|(address, _)| address.to_string()).collect();
    if outer.is_empty() { "no address yet".into() } else { outer.join(", ") }
}

fn shown(interface: &str, state: DecapState, pinned: bool) -> DecapStatus {
    let with = |wanted: fn(&Uses) -> bool| {
        let all = state.addresses.iter().filter(|(_, uses)| wanted(uses));
        all.map(|(address, _)| *address).collect()
    };
    let counters = state.ledger.entries();
    let counters = counters.map(|(verdict, reason, packets)| Counter { verdict, reason, packets });
    DecapStatus {
        schema: "ringway.decap/1",
        interface: interface.to_owned(),
        mode: state.mode.name().to_owned(),
        pinned,
        gue_port: state.gue_port,
        outer_addresses: with(|uses| uses.outer),
        inner_addresses: with(|uses| uses.inner),
        counters: counters.collect(),
        ledger: Ledger::new(state.ledger.seen, state.ledger.sum()),
    }
}

fn lost(interface: &str) -> Error {
    Error::failed(
        format!("{interface}: the interface has vanished, or our program was detached or replaced"),
        format!("see `ip link show dev {interface}`, then start `ringway decap` again"),
    )
}

fn kernel(error: ringway_kernel::Error) -> Error {
    Error::failed(error.to_string(), "")
}

fn host(error: ringway_host::Error) -> Error {
    Error::failed(error.to_string(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ifindex: u32, address: &str) -> Address {
        let address = address.parse().expect("an address");
        Address {
            ifindex,
            address,
            prefix: 32,
            local_scope: false,
            unusable: false,
            deprecated: false,
        }
    }

    #[test]
    fn tunnels_end_at_the_interface_and_hold_what_is_anybodys() {
        let mut link = links::by_name("lo").expect("lo");
        link.ifindex = 7;
        let all = [address(7, "10.0.0.2"), address(1, "203.0.113.9"), address(1, "127.0.0.1")];
        let mut options = DecapOptions {
            interface: "eth0".into(),
            addresses: Vec::new(),
            gue_port: 6080,
            mode: None,
            pin: false,
            allow_default_route: false,
        };
        let list = |options: &DecapOptions| -> Vec<(String, bool, bool)> {
            let found = uses(&all, options, &link);
            found.iter().map(|(a, uses)| (a.to_string(), uses.outer, uses.inner)).collect()
        };
        assert_eq!(
            list(&options),
            [("10.0.0.2".into(), true, true), ("203.0.113.9".into(), false, true)]
        );
        options.addresses = vec!["192.0.2.1".parse().expect("an address")];
        assert_eq!(
            list(&options),
            [
                ("10.0.0.2".into(), false, true),
                ("192.0.2.1".into(), true, false),
                ("203.0.113.9".into(), false, true)
            ]
        );
    }
}
