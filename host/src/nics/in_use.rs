//! Whether a device can be taken from the kernel, and what would be lost.

use std::collections::BTreeSet;

use super::{BIFURCATED, BindError, Nic, VFIO};
use crate::{Interface, Network};

/// What was asked for, about all of its devices.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Addresses of all devices that are to be bound.
    pub devices: &'a [String],
    /// Take what is in use, too.
    pub force: bool,
    /// Whether VFIO works without an IOMMU.
    pub allows_no_iommu: bool,
}

struct Refusal {
    why: String,
    remedy: String,
}

fn refusal<T>(why: impl Into<String>, remedy: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { why: why.into(), remedy: remedy.into() })
}

/// Whether this device may be bound.
///
/// # Errors
/// Why not: what cannot work, the default route, or without force whatever uses its interface.
pub fn check(nic: &Nic, network: &Network, request: &Request) -> Result<(), BindError> {
    works(nic, request).and_then(|()| is_free(nic, network, request.force)).map_err(
        |Refusal { why, remedy }| BindError::Refused { device: nic.address.clone(), why, remedy },
    )
}

/// Whether VFIO can have it.
fn works(nic: &Nic, request: &Request) -> Result<(), Refusal> {
    let driver = nic.driver.as_deref().unwrap_or_default();
    if BIFURCATED.contains(&driver) {
        return refusal(format!("DPDK works beside {driver}, which keeps it"), "leave it bound");
    }
    if nic.virtual_functions > 0 {
        let why =
            format!("its {} virtual functions would go with its driver", nic.virtual_functions);
        let file = format!("/sys/bus/pci/devices/{}/sriov_numvfs", nic.address);
        return refusal(why, format!("remove them (`echo 0 >{file}`), or bind one of them"));
    }
    if nic.iommu_group.is_none() && !request.allows_no_iommu {
        return refusal("no IOMMU confines it", NO_IOMMU_REMEDY);
    }
    let foreign = nic.group.iter().find(|member| {
        let harmless =
            member.driver.as_deref().is_none_or(|driver| [VFIO, "pci-stub"].contains(&driver));
        !harmless && !request.devices.contains(&member.address)
    });
    match foreign {
        None => Ok(()),
        Some(member) => {
            let (other, has) = (&member.address, member.driver.as_deref().unwrap_or_default());
            let why = format!(
                "{other}, which {has} has, is in the same IOMMU group, and a program gets all of a group or nothing"
            );
            refusal(
                why,
                format!(
                    "name both, if you can do without that (a NIC): `ringway nic bind {} {other}`; or take a slot that is isolated (ACS)",
                    nic.address
                ),
            )
        }
    }
}

/// What to do where there is no IOMMU.
pub const NO_IOMMU_REMEDY: &str = "turn VT-d or AMD-Vi on in the firmware, and write intel_iommu=on iommu=pt on the kernel's \
     command line (in a virtual machine: give it an IOMMU); where a faulty program may write to all of memory, \
     `modprobe vfio enable_unsafe_noiommu_mode=1` does without";

/// Whether nobody needs its interface.
fn is_free(nic: &Nic, network: &Network, force: bool) -> Result<(), Refusal> {
    let Some(driver) = nic.driver.as_deref().filter(|driver| *driver != VFIO) else {
        return Ok(());
    };
    let found: Vec<_> = nic.interfaces.iter().filter_map(|name| network.interface(name)).collect();
    for interface in &found {
        let name = &interface.link.name;
        let above = above(interface, network);
        if let Some(carrier) = above.iter().find(|one| one.carries_default_route) {
            let other = &carrier.link.name;
            let why = if other == name {
                format!("it is {name}, which carries the default route")
            } else {
                format!("it is {name}, a part of {other}, which carries the default route")
            };
            return refusal(why, "take another NIC: `ringway nic list`");
        }
        if let (Some(why), false) = (used(interface, &above, network), force) {
            return refusal(format!("it is {name}, {why}"), FORCE);
        }
    }
    if found.is_empty() && !force {
        let why = format!("{driver} has it, and no interface of it is in this network namespace");
        return refusal(why, format!("run this where its interface is; {FORCE}"));
    }
    Ok(())
}

const FORCE: &str = "`--force` takes it nevertheless";

/// The interface, and all whose packets may come by it.
fn above<'a>(interface: &'a Interface, network: &'a Network) -> Vec<&'a Interface> {
    let (mut found, mut next) = (vec![interface], 0);
    let mut seen = BTreeSet::from([interface.link.ifindex]);
    while let Some(lower) = found.get(next).copied() {
        next += 1;
        let uppers = network.interfaces.iter().filter(|one| lower.link.carries(&one.link));
        found.extend(uppers.filter(|one| seen.insert(one.link.ifindex)));
    }
    found
}

/// Who uses an interface.
fn used(interface: &Interface, above: &[&Interface], network: &Network) -> Option<String> {
    if let Some(upper) = above.get(1) {
        return Some(format!("and {} is made of it", upper.link.name));
    }
    if let Some(program) = interface.link.xdp.first() {
        return Some(format!("which has an XDP program ({})", program.program));
    }
    let found = network.addresses_of(interface.link.ifindex).find(|one| !one.local_scope)?;
    Some(format!("which has the address {}", found.address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::addresses::Address;
    use crate::netlink::links::{Link, Xdp, XdpMode};
    use crate::nics::GroupMember;

    fn nic() -> Nic {
        Nic {
            address: "0000:01:00.0".into(),
            driver: Some("igb".into()),
            interfaces: vec!["eth1".into()],
            iommu_group: Some(1),
            ..Nic::default()
        }
    }

    /// eth1 is interface 2.
    fn network(change: impl FnOnce(&mut Network)) -> Network {
        let interface = |ifindex, name: &str| -> Interface {
            let mut link = crate::netlink::links::by_name("lo").unwrap();
            link = Link { ifindex, name: name.into(), loopback: false, master: None, ..link };
            Interface {
                link,
                driver: None,
                channels: None,
                offloads: Default::default(),
                carries_default_route: false,
            }
        };
        let interfaces = vec![interface(2, "eth1"), interface(3, "bond0"), interface(4, "bond0.5")];
        let mut network = Network { interfaces, ..Network::default() };
        change(&mut network);
        network
    }

    fn refused(nic: &Nic, network: &Network, request: &Request) -> String {
        check(nic, network, request).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_cannot_work_is_refused_with_force_too() {
        let member = |driver: &str| {
            let address = "0000:01:00.1".into();
            let driver = Some(driver.to_owned()).filter(|driver| !driver.is_empty());
            vec![GroupMember { address, driver }]
        };
        let network = network(|_| ());
        for (nic, words) in [
            (nic(), ""),
            (Nic { iommu_group: None, ..nic() }, "intel_iommu=on"),
            (Nic { driver: Some("mlx5_core".into()), ..nic() }, "leave it bound"),
            (Nic { virtual_functions: 2, ..nic() }, "its 2 virtual functions"),
            (Nic { group: member("nvme"), ..nic() }, "0000:01:00.1, which nvme has"),
            (Nic { group: member("vfio-pci"), ..nic() }, ""),
            (Nic { group: member(""), ..nic() }, ""),
        ] {
            let request = Request { force: true, ..Request::default() };
            let told = refused(&nic, &network, &request);
            assert!(told.is_empty() == words.is_empty() && told.contains(words), "{told}");
        }
        // Both of a card with two ports, and a machine whose administrator does without.
        let devices = ["0000:01:00.0".to_owned(), "0000:01:00.1".to_owned()];
        let both = Request { devices: &devices, allows_no_iommu: true, ..Request::default() };
        assert_eq!(refused(&Nic { group: member("igb"), ..nic() }, &network, &both), "");
        assert_eq!(refused(&Nic { iommu_group: None, ..nic() }, &network, &both), "");
    }

    #[test]
    fn what_is_in_use_needs_force_and_the_default_route_stays() {
        let address = Address {
            ifindex: 2,
            address: "192.0.2.1".parse().unwrap(),
            prefix: 24,
            local_scope: false,
            unusable: false,
            deprecated: false,
        };
        let default = |network: &mut Network, at: usize| {
            network.interfaces[at].carries_default_route = true;
        };
        let bonded = |network: &mut Network| {
            network.interfaces[0].link.master = Some(3);
            network.interfaces[2].link.lower = Some(3);
        };
        let xdp = Xdp { program: 7, mode: XdpMode::Native };
        let local = Address { local_scope: true, ..address.clone() };
        let default_bonded = network(|it| {
            bonded(it);
            default(it, 2);
        });
        let a_part = "eth1, a part of bond0.5, which carries the default route";
        for (network, words, force_helps) in [
            (network(|_| ()), "", true),
            (network(|it| it.interfaces[0].link.up = true), "", true),
            (network(|it| it.addresses.push(local)), "", true),
            (
                network(|it| it.addresses.push(address)),
                "eth1, which has the address 192.0.2.1",
                true,
            ),
            (network(|it| it.interfaces[0].link.xdp.push(xdp)), "an XDP program (7)", true),
            (network(bonded), "eth1, and bond0 is made of it", true),
            (network(|it| it.interfaces.clear()), "no interface of it is in this", true),
            (network(|it| default(it, 0)), "eth1, which carries the default route", false),
            (default_bonded, a_part, false),
        ] {
            let told = refused(&nic(), &network, &Request::default());
            assert!(told.is_empty() == words.is_empty() && told.contains(words), "{told}");
            let forced = refused(&nic(), &network, &Request { force: true, ..Request::default() });
            assert_eq!(forced.is_empty(), force_helps, "{words}: {forced}");
        }
    }
}
