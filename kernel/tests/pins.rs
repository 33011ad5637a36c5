//! Attaching, pinning, taking over and detaching, on a veth between two namespaces.
#![allow(clippy::unwrap_used)] // tests

mod common;

use std::path::Path;
use std::time::{Duration, SystemTime};

use libbpf_rs::MapCore as _;
use ringway_abi::raw::{RW_HASH_MULTILINEAR, RW_HASH_NH};
use ringway_kernel::{
    Applied, Error, Explainer, Gateway, GatewayOptions, Interface, Orphan, OrphanCause, Result,
    XdpMode,
};
use ringway_testnet::{End, Link, Namespace, VethOptions, attach_pass, veth, wait_for, wait_until};

use common::node::Node;
use common::tables;

/// A process that another test is starting has inherited the lock of a gateway until it runs its
/// program.
const SOON: Duration = Duration::from_secs(30);

/// A gateway's namespace and a client's, with a veth between them.
struct Wire {
    gateway: Link,
    client: Link,
}

fn wire() -> Wire {
    let (a, b) = (Namespace::new("pinsg").unwrap(), Namespace::new("pinsc").unwrap());
    let end = |ns, address| End::new(ns, "eth0.1").address(address);
    let (gateway, client) =
        veth(&end(&a, "10.9.0.1/24"), &end(&b, "10.9.0.2/24"), &VethOptions::default()).unwrap();
    Wire { gateway, client }
}

/// Skips the test without root.
fn wired(test: &str) -> Option<(Node, Wire)> {
    Some((Node::of(test)?, wire()))
}

fn interface(link: &Link) -> Interface {
    common::interface(0, &link.name, link.ifindex)
}

/// Opens the node in the link's namespace, puts it on the link, and lets go of it again.
fn attach_once(
    link: &Link,
    options: &GatewayOptions,
    mode: Option<XdpMode>,
) -> Result<(XdpMode, bool)> {
    let attach = || -> Result<_> {
        let (mut gateway, _) = Gateway::open(options)?;
        gateway.set_iface(&interface(link))?;
        let attached = gateway.attach(0, mode)?;
        gateway.apply(&tables::empty())?;
        gateway.heartbeat(SystemTime::now())?;
        Ok((attached.mode, attached.taken_over))
    };
    link.namespace.run(attach).unwrap()
}

fn ping(wire: &Wire) {
    let output =
        wire.client.namespace.command("ping").args(["-c3", "-i0.01", "-W2", "10.9.0.1"]).output();
    assert!(output.unwrap().status.success(), "the gateway passes what is not a service's");
}

#[test]
fn traffic_outlives_the_process_and_is_taken_over() {
    let Some((node, wire)) = wired("traffic_outlives_the_process_and_is_taken_over") else {
        return;
    };
    let first = attach_once(&wire.gateway, &node.options(), None).unwrap();
    assert_eq!(first, (XdpMode::Native, false));

    ping(&wire);
    let view = node.view().unwrap();
    let states = wire.gateway.namespace.run(|| view.interfaces()).unwrap().unwrap();
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].name.as_deref(), Some("eth0.1"));
    assert_eq!(states[0].mode, Some(XdpMode::Native));
    assert!(states[0].ledger.seen >= 3, "{}", states[0].ledger.seen);
    assert_eq!(states[0].ledger.difference(), 0);
    assert_eq!(view.daemon().unwrap().unwrap().pid, u64::from(std::process::id()));
    wait_until("the end of its lock", SOON, || !view.daemon().unwrap().unwrap().running).unwrap();

    let keys = view.settings().unwrap().keys;
    assert!(keys.iter().all(|key| *key != 0));
    assert_eq!(view.settings().unwrap().hash, RW_HASH_NH);
    // As a release before it left it: the flows lie where its hash put them.
    node.change_settings(|settings| settings.hash = RW_HASH_MULTILINEAR);
    let second = attach_once(&wire.gateway, &node.options(), None).unwrap();
    assert_eq!(second, (XdpMode::Native, true));
    let view = node.view().unwrap();
    assert_eq!(view.settings().unwrap().keys, keys);
    assert_eq!(view.settings().unwrap().hash, RW_HASH_MULTILINEAR);
    assert!(view.ledger(0).unwrap().seen >= states[0].ledger.seen);
    ping(&wire);
}

#[test]
fn detach_leaves_nothing() {
    let Some((node, wire)) = wired("detach_leaves_nothing") else { return };
    attach_once(&wire.gateway, &node.options(), Some(XdpMode::Native)).unwrap();
    let detached = wait_for("the lock of the node", SOON, || node.detach()).unwrap();
    assert_eq!(detached.interfaces, ["eth0.1"]);
    // Root, balancer and ICMP; and those that count losses, where the kernel has them.
    assert!(detached.programs.len() >= 3, "{detached:?}");
    assert!(detached.maps.len() >= 17, "{detached:?}");
    assert_eq!(detached.leftovers(SOON), [""; 0]);
    assert!(!node.pins().dir().exists());
    assert!(matches!(node.view().unwrap_err(), Error::NotLoaded { .. }));
    assert!(matches!(node.detach().unwrap_err(), Error::NotLoaded { .. }));
    ping(&wire);
    // Nothing of ours is on the interface: another node may have it.
    let other = Node::new();
    attach_once(&wire.gateway, &other.options(), Some(XdpMode::Native)).unwrap();
}

#[test]
fn one_process_at_a_time() {
    let Some(node) = Node::of("one_process_at_a_time") else { return };
    let (mut gateway, opened) = Gateway::open(&node.options()).unwrap();
    assert!(opened.taken_over.is_none());
    gateway.heartbeat(SystemTime::now()).unwrap();
    let own = u64::from(std::process::id());
    assert!(
        matches!(Gateway::open(&node.options()).unwrap_err(), Error::Busy { pid, .. } if pid == own)
    );
    assert!(matches!(node.detach().unwrap_err(), Error::Busy { pid, .. } if pid == own));
    assert!(node.view().unwrap().daemon().unwrap().unwrap().running);
    drop(gateway);
    let running = || node.view().unwrap().daemon().unwrap().unwrap().running;
    wait_until("the end of its lock", SOON, || !running()).unwrap();
}

#[test]
fn another_layout_is_refused_and_can_be_detached() {
    let Some(node) = Node::of("another_layout_is_refused_and_can_be_detached") else { return };
    Gateway::open(&node.options()).unwrap();
    node.change_settings(|settings| settings.layout = 99);
    let error = Gateway::open(&node.options()).unwrap_err();
    assert!(matches!(error, Error::Layout { found: 99, .. }), "{error}");
    assert!(error.to_string().contains("ringway detach"));
    assert!(matches!(node.view().unwrap_err(), Error::Layout { .. }));
    wait_for("the lock of the node", SOON, || node.detach()).unwrap();
}

#[test]
fn a_start_that_was_cut_short_is_cleared_away() {
    let Some(node) = Node::of("a_start_that_was_cut_short_is_cleared_away") else { return };
    Gateway::open(&node.options()).unwrap();
    std::fs::remove_file(node.pins().map("settings")).unwrap();
    assert!(matches!(node.view().unwrap_err(), Error::NotLoaded { .. }));
    let (_, opened) = Gateway::open(&node.options()).unwrap();
    assert!(opened.unfinished_removed && opened.taken_over.is_none());
    let (_, opened) = Gateway::open(&node.options()).unwrap();
    assert!(!opened.unfinished_removed && opened.taken_over.is_some());
}

#[test]
fn pinned_tables_keep_their_size() {
    let Some(node) = Node::of("pinned_tables_keep_their_size") else { return };
    Gateway::open(&node.options()).unwrap();
    let larger = GatewayOptions { flows: 100_000, ..node.options() };
    let (gateway, opened) = Gateway::open(&larger).unwrap();
    assert_eq!(opened.taken_over.unwrap().flow_buckets, Some((2048, 65536)));
    assert_eq!(gateway.view().flows().unwrap().capacity, 3 * 2048);
    assert_eq!(gateway.view().settings().unwrap().flow_mask, 2047);
}

#[test]
fn a_vanished_interface_is_an_orphan() {
    let Some((node, wire)) = wired("a_vanished_interface_is_an_orphan") else { return };
    attach_once(&wire.gateway, &node.options(), None).unwrap();
    wire.gateway.namespace.ip("link delete eth0.1").unwrap();
    let open = || Gateway::open(&node.options());
    let (_gateway, opened) = wire.gateway.namespace.run(open).unwrap().unwrap();
    let orphan = Orphan { iface: "eth0.1".into(), cause: OrphanCause::Vanished };
    assert_eq!(opened.orphans, [orphan]);
    assert_eq!(opened.taken_over.unwrap().interfaces, [""; 0]);
    assert_eq!(node.pins().iface_names().unwrap(), [""; 0]);
}

#[test]
fn a_renamed_interface_is_an_orphan() {
    let Some((node, wire)) = wired("a_renamed_interface_is_an_orphan") else { return };
    attach_once(&wire.gateway, &node.options(), None).unwrap();
    wire.gateway
        .namespace
        .ip("link set eth0.1 down\nlink set eth0.1 name lan\nlink set lan up")
        .unwrap();
    let renamed = Link { name: "lan".into(), ..wire.gateway.clone() };
    let open = || -> Result<_> {
        let (mut gateway, opened) = Gateway::open(&node.options())?;
        gateway.set_iface(&interface(&renamed))?;
        gateway.attach(0, None)?;
        Ok(opened)
    };
    let opened = wire.gateway.namespace.run(open).unwrap().unwrap();
    let orphan = Orphan { iface: "eth0.1".into(), cause: OrphanCause::Renamed };
    assert_eq!(opened.orphans, [orphan]);
    assert_eq!(node.pins().iface_names().unwrap(), ["lan"]);
}

#[test]
fn an_interface_that_has_just_gone_is_named() {
    let Some((node, wire)) = wired("an_interface_that_has_just_gone_is_named") else { return };
    let gone = Link { ifindex: 0x7fff_0000, ..wire.gateway.clone() };
    let describe = || Gateway::open(&node.options())?.0.set_iface(&interface(&gone));
    let error = wire.gateway.namespace.run(describe).unwrap().unwrap_err();
    assert!(matches!(error, Error::NoInterface { .. }), "{error}");
}

#[test]
fn another_namespace_is_refused() {
    // The client's end has the same name, and may have the same index.
    let Some((node, wire)) = wired("another_namespace_is_refused") else { return };
    attach_once(&wire.gateway, &node.options(), None).unwrap();
    let error = attach_once(&wire.client, &node.options(), None).unwrap_err();
    assert!(matches!(error, Error::OtherNamespace { .. }), "{error}");
    // It is still attached where it was.
    ping(&wire);
    assert!(node.view().unwrap().ledger(0).unwrap().seen >= 3);
}

#[test]
fn the_mode_is_kept_or_changed_as_asked() {
    let Some((node, wire)) = wired("the_mode_is_kept_or_changed_as_asked") else { return };
    let attach = |mode| attach_once(&wire.gateway, &node.options(), mode).unwrap();
    assert_eq!(attach(Some(XdpMode::Generic)), (XdpMode::Generic, false));
    assert_eq!(attach(None), (XdpMode::Generic, true));
    ping(&wire);
    assert_eq!(attach(Some(XdpMode::Native)), (XdpMode::Native, false));
    assert_eq!(attach(Some(XdpMode::Native)), (XdpMode::Native, true));
    ping(&wire);
}

#[test]
fn auto_says_why_it_is_not_native() {
    let Some(node) = Node::of("auto_says_why_it_is_not_native") else { return };
    let namespace = Namespace::new("pinslo").unwrap();
    let attach = || -> Result<_> {
        let (mut gateway, _) = Gateway::open(&node.options())?;
        // It has no native XDP.
        gateway.set_iface(&common::interface(0, "lo", 1))?;
        let refused = gateway.attach(0, Some(XdpMode::Native)).unwrap_err().to_string();
        Ok((refused, gateway.attach(0, None)?))
    };
    let (error, attached) = namespace.run(attach).unwrap().unwrap();
    assert!(error.contains("cannot attach to lo (driver unknown, Linux "), "{error}");
    assert!(error.contains(") in native mode: "), "{error}");
    assert_eq!(attached.mode, XdpMode::Generic);
    let why = attached.refused.unwrap().to_string();
    assert!(why.contains("native mode refused") && why.contains("no native XDP"), "{why}");
}

#[test]
fn a_foreign_program_is_named() {
    let Some((node, wire)) = wired("a_foreign_program_is_named") else { return };
    attach_pass(&wire.gateway.namespace, &wire.gateway.name).unwrap();
    let error = attach_once(&wire.gateway, &node.options(), None).unwrap_err();
    assert!(matches!(&error, Error::ForeignProgram { id, .. } if *id != 0), "{error}");
    assert!(error.to_string().contains("ip link set dev eth0.1 xdp off"), "{error}");
}

#[test]
fn interfaces_that_are_not_wanted_any_more_are_released() {
    let Some((node, wire)) = wired("interfaces_that_are_not_wanted_any_more_are_released") else {
        return;
    };
    attach_once(&wire.gateway, &node.options(), None).unwrap();
    let release = || -> Result<_> {
        let (mut gateway, opened) = Gateway::open(&node.options())?;
        Ok((opened.taken_over, gateway.release_others()?, gateway.existing()?.ifaces))
    };
    let (taken_over, released, ifaces) = wire.gateway.namespace.run(release).unwrap().unwrap();
    assert_eq!(taken_over.unwrap().interfaces, ["eth0.1"]);
    assert_eq!(released, ["eth0.1"]);
    assert_eq!(ifaces, []);
    let other = Node::new();
    attach_once(&wire.gateway, &other.options(), None).unwrap();
}

#[test]
fn nodes_that_are_there_are_named() {
    let Some(node) = Node::of("nodes_that_are_there_are_named") else { return };
    Gateway::open(&node.options()).unwrap();
    let bpffs = Path::new(ringway_kernel::DEFAULT_BPFFS);
    let error = ringway_kernel::View::open(bpffs, "no-such-node").unwrap_err();
    assert!(error.to_string().contains(&node.name), "{error}");
}

#[test]
fn a_new_daemon_finds_its_predecessors_tables() {
    let Some(node) = Node::of("a_new_daemon_finds_its_predecessors_tables") else { return };
    let wanted = tables::web(&["10.0.0.2:80", "10.0.0.3:80"]);
    let (mut first, _) = Gateway::open(&node.options()).unwrap();
    first.apply(&wanted).unwrap();
    let existing = first.existing().unwrap();
    drop(first);

    let (mut second, _) = Gateway::open(&node.options()).unwrap();
    assert_eq!(second.existing().unwrap(), existing);
    // What a ring holds is not read back, so it is swapped for its equal.
    assert_eq!(second.apply(&wanted).unwrap(), Applied { rings: 1, ..Applied::default() });
    assert!(second.apply(&wanted).unwrap().is_unchanged());
}

/// Between the installation of another version and the daemon's restart.
#[test]
fn pins_of_a_version_with_fewer_maps_are_read_and_completed() {
    let Some(node) = Node::of("pins_of_a_version_with_fewer_maps_are_read_and_completed") else {
        return;
    };
    let wanted = tables::web(&["10.0.0.2:80"]);
    let (mut earlier, _) = Gateway::open(&node.options()).unwrap();
    earlier.apply(&wanted).unwrap();
    drop(earlier);
    let added = ["service_index", "service_places"].map(|name| node.pins().map(name));
    added.iter().for_each(|pin| std::fs::remove_file(pin).unwrap());

    let view = node.view().unwrap();
    assert_eq!(view.services().unwrap().len(), 1);
    assert!(matches!(Explainer::new(&view), Err(Error::EarlierVersion)));
    assert!(!added[0].exists());
    Gateway::open(&node.options()).unwrap();
    assert!(added.iter().all(|pin| pin.exists()));
    Explainer::new(&node.view().unwrap()).unwrap();
}

/// A larger configuration, and what a release before has left.
#[test]
fn a_table_of_services_too_small_is_made_anew() {
    let Some(node) = Node::of("a_table_of_services_too_small_is_made_anew") else { return };
    let wanted = tables::wide(203, 600);
    let entries = || node.map("service_places").max_entries();
    let (mut small, _) = Gateway::open(&node.options()).unwrap();
    assert!(small.apply(&wanted).is_err());
    let before = entries();
    drop(small);
    let larger = GatewayOptions { services: 20_000, ..node.options() };
    let (mut gateway, _) = Gateway::open(&larger).unwrap();
    assert!(entries() > before);
    gateway.apply(&wanted).unwrap();
    let after = entries();
    drop(gateway);
    for name in ["service_index", "service_places"] {
        std::fs::remove_file(node.pins().map(name)).unwrap();
    }
    Gateway::open(&node.options()).unwrap();
    assert_eq!(entries(), after);
}
