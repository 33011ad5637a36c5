//! `ringway nic`: NICs, the roads that they can take, and who drives them.

mod bind;

use std::collections::BTreeMap;
use std::fmt;

use ringway_host::netlink::xdp_features::{self, Features};
use ringway_host::nics::{
    self, BIFURCATED, GroupMember, NO_IOMMU_REMEDY, Nic, Record, Records, VFIO,
};
use ringway_host::{Interface, Network};
use serde::Serialize;

use crate::cli::{NicAction, NicArgs, Output, OutputArgs};
use crate::exit::{Exit, say};
use crate::table::{self, Cell, Table};

/// A way for packets of the engine's ports, and whether a NIC can take it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Road {
    /// The kind of port: "af_xdp".
    port: &'static str,
    ready: bool,
    /// How well; or why not, and what to do.
    note: String,
}

/// A NIC with what the kernel knows of its first interface.
#[derive(Clone, Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    nic: Nic,
    queues: Option<u32>,
    /// "up", "no carrier" or "down".
    link: Option<&'static str>,
    carries_default_route: bool,
    /// Who had it, if `nic bind` has given it to vfio-pci.
    bound: Option<Record>,
    roads: Vec<Road>,
}

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    nics: Vec<Row>,
}

pub fn main(args: &NicArgs) -> anyhow::Result<Exit> {
    match &args.action {
        NicAction::List(output) => list(output),
        NicAction::Bind(args) if args.recorded => bind::bind_recorded(),
        NicAction::Bind(args) => bind::bind(args),
        NicAction::Unbind(args) => bind::unbind(args),
    }
}

fn list(output: &OutputArgs) -> anyhow::Result<Exit> {
    let network = Network::read()?;
    // Before Linux 6.3 it does not tell.
    let features = xdp_features::devices()?.unwrap_or_default();
    let records = Records::live().all().unwrap_or_else(|error| {
        say(error);
        Vec::new()
    });
    let row = |nic: Nic| {
        let record = records.iter().find(|record| record.address == nic.address).cloned();
        Row::new(nic, record, &network, &features)
    };
    let nics: Vec<Row> = nics::all()?.into_iter().map(row).collect();
    match output.output {
        Output::Json => table::json(&Document { schema: "ringway.nics/1", nics })?,
        Output::Table if nics.is_empty() => table::print("no network device on PCI here\n")?,
        Output::Table => table::print(&text(&nics))?,
    }
    Ok(Exit::Done)
}

impl Row {
    fn new(
        nic: Nic,
        bound: Option<Record>,
        network: &Network,
        features: &BTreeMap<u32, Features>,
    ) -> Self {
        let interface = nic.interfaces.iter().find_map(|name| network.interface(name));
        let features = interface.and_then(|one| features.get(&one.link.ifindex));
        let link = |one: &Interface| match (one.link.up, one.link.carrier) {
            (false, _) => "down",
            (true, false) => "no carrier",
            (true, true) => "up",
        };
        Self {
            queues: interface.map(|one| one.channels.map_or(one.link.rx_queues, |c| c.rx)),
            link: interface.map(link),
            carries_default_route: interface.is_some_and(|one| one.carries_default_route),
            roads: vec![
                af_xdp(&nic, interface, features),
                af_packet(&nic, interface),
                dpdk(&nic, bound.as_ref(), interface),
            ],
            bound,
            nic,
        }
    }
}

/// Why a NIC without an interface here has none.
fn no_interface(nic: &Nic) -> String {
    match nic.driver.as_deref() {
        None => "no driver has it".into(),
        Some(VFIO) => format!("{VFIO} has it, and the kernel no interface"),
        Some(driver) => {
            format!("{driver} has it, and no interface of it is in this network namespace")
        }
    }
}

fn af_xdp(nic: &Nic, interface: Option<&Interface>, features: Option<&Features>) -> Road {
    let port = "af_xdp";
    let Some(interface) = interface else {
        return Road { port, ready: false, note: no_interface(nic) };
    };
    let mut note = match features {
        None => "its driver does not tell what it can".into(),
        Some(features) if features.xdp.zero_copy() => "native, zero-copy".to_owned(),
        Some(features) if features.xdp.native() => "native, with a copy".into(),
        Some(_) => "generic only, behind the driver: slow".into(),
    };
    if interface.carries_default_route {
        note += "; it carries the default route, so a port needs `,force`";
    }
    Road { port, ready: true, note }
}

fn af_packet(nic: &Nic, interface: Option<&Interface>) -> Road {
    let note =
        interface.map_or_else(|| no_interface(nic), |_| "the kernel gets its packets, too".into());
    Road { port: "af_packet", ready: interface.is_some(), note }
}

fn dpdk(nic: &Nic, bound: Option<&Record>, interface: Option<&Interface>) -> Road {
    let no = |note: String| Road { port: "dpdk", ready: false, note };
    let foreign = |member: &&GroupMember| {
        member.driver.as_deref().is_some_and(|driver| driver != VFIO && driver != "pci-stub")
    };
    let driver = nic.driver.as_deref().unwrap_or_default();
    let address = &nic.address;
    if BIFURCATED.contains(&driver) {
        let note = format!("beside {driver}, which keeps it: leave it bound");
        return Road { port: "dpdk", ready: true, note };
    }
    if nic.iommu_group.is_none() {
        return no(format!("no IOMMU confines it: {NO_IOMMU_REMEDY}"));
    }
    if let Some(GroupMember { address: other, driver }) = nic.group.iter().find(foreign) {
        let driver = driver.as_deref().unwrap_or_default();
        return no(format!(
            "{other}, which {driver} has, is in the same IOMMU group: a program gets all of a group or nothing"
        ));
    }
    if driver == VFIO {
        return Road { port: "dpdk", ready: true, note: format!("dpdk:{address}") };
    }
    if let Some(interface) = interface.filter(|one| one.carries_default_route) {
        return no(format!("{} carries the default route: take another NIC", interface.link.name));
    }
    let has = if driver.is_empty() { "no driver has it" } else { &*format!("{driver} has it") };
    no(match bound.map(|record| record.differs(nic)) {
        None => format!("{has}: `ringway nic bind {address}`, and the kernel loses it"),
        Some(Some(differs)) => {
            format!("{differs}, so it was not bound: `ringway nic bind {address}`")
        }
        Some(None) => format!(
            "{has}, though it was bound before: `journalctl -u ringway-nics` says why; \
             `ringway nic bind {address}`"
        ),
    })
}

impl fmt::Display for Road {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.ready { "yes" } else { "no" };
        writeln!(f, "    {:<9}  {word:<3}  {}", self.port, self.note)
    }
}

/// A row for each, and for which ports it is ready.
fn text(nics: &[Row]) -> String {
    let mut out = String::new();
    let mut sheet =
        Table::new(&["address", "id", "driver", "interface", "queues", "node", "group", "link"]);
    let known = |value: Option<String>| Cell::new(value.unwrap_or_else(|| "-".into()));
    for Row { nic, queues, link, carries_default_route, .. } in nics {
        let default = if *carries_default_route { ", default route" } else { "" };
        let names = Some(nic.interfaces.join(" ")).filter(|names| !names.is_empty());
        sheet.row(vec![
            Cell::new(nic.address.clone()),
            Cell::new(nic.id.clone()),
            known(nic.driver.clone()),
            known(names),
            known(queues.map(|n| n.to_string())),
            known(nic.numa_node.map(|n| n.to_string())),
            known(nic.iommu_group.map(|n| n.to_string())),
            known(link.map(|link| format!("{link}{default}"))),
        ]);
    }
    out += &sheet.render(false);
    for Row { nic, roads, bound, .. } in nics {
        out += &format!("\n  {}: ports of the engine\n", nic.address);
        if let (Some(record), Some(VFIO)) = (bound, nic.driver.as_deref()) {
            out += &format!("    bound by `ringway nic bind`; it was {}\n", bind::before(record));
        }
        roads.iter().for_each(|road| out += &road.to_string());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(driver: &str, group: Option<u32>) -> Nic {
        let driver = Some(driver.to_owned()).filter(|driver| !driver.is_empty());
        Nic { address: "0000:01:00.0".into(), driver, iommu_group: group, ..Nic::default() }
    }

    #[test]
    fn dpdk_is_refused_with_what_to_do() {
        let shared = GroupMember { address: "0000:01:00.1".into(), driver: Some("nvme".into()) };
        let with = |nic: Nic, member: GroupMember| Nic { group: vec![member], ..nic };
        let unbound = GroupMember { driver: None, ..shared.clone() };
        for (nic, ready, words) in [
            (nic("igb", None), false, "intel_iommu=on"),
            (nic("igb", Some(1)), false, "igb has it: `ringway nic bind 0000:01:00.0`"),
            (nic("", Some(1)), false, "no driver has it: `ringway nic bind"),
            (nic("vfio-pci", Some(1)), true, "dpdk:0000:01:00.0"),
            (with(nic("vfio-pci", Some(1)), shared), false, "0000:01:00.1, which nvme has"),
            (with(nic("vfio-pci", Some(1)), unbound), true, "dpdk:"),
            (nic("mlx5_core", None), true, "leave it bound"),
        ] {
            let road = dpdk(&nic, None, None);
            assert!(road.ready == ready && road.note.contains(words), "{nic:?}: {road:?}");
        }
    }

    #[test]
    fn a_nic_that_lost_its_binding_tells_why() {
        let record = |id: &str| Record { id: id.into(), ..Record::default() };
        let nic = Nic { id: "8086:10c9".into(), ..nic("igb", Some(1)) };
        for (id, words) in
            [("8086:10c9", "`journalctl -u ringway-nics`"), ("8086:1521", "8086:10c9 instead of")]
        {
            let road = dpdk(&nic, Some(&record(id)), None);
            assert!(!road.ready && road.note.contains(words), "{road:?}");
        }
    }

    #[test]
    fn without_an_interface_the_kernel_has_no_port() {
        let road = af_xdp(&nic("vfio-pci", Some(1)), None, None);
        assert!(!road.ready && road.note.starts_with("vfio-pci has it"), "{road:?}");
        assert!(!af_packet(&nic("", None), None).ready);
    }
}
