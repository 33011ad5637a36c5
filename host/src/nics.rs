//! Network devices on PCI, whoever drives them: the kernel, or a program by vfio.

mod binding;
mod bus;
mod error;
#[cfg(test)]
mod fake_bus;
mod in_use;
mod record;

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ringway_wire::Mac;
use serde::Serialize;

pub use self::binding::{Binder, GivenBack};
pub use self::bus::{PciBus, full_address};
pub use self::error::BindError;
pub use self::in_use::{NO_IOMMU_REMEDY, Request, check};
pub use self::record::{Record, Records};
use crate::{Error, Result};

/// Drivers by which a program has a device.
pub const VFIO: &str = "vfio-pci";
/// Drivers of the kernel that DPDK works beside.
pub const BIFURCATED: [&str; 2] = ["mlx5_core", "mlx4_core"];
/// Network controllers, in the upper byte of the class (PCI Code and ID Assignment).
const NETWORK: &str = "0x02";
/// Bridges, which stay with the kernel whoever has what lies behind them.
const BRIDGE: &str = "0x06";

/// A network device, as sysfs shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// DOMAIN:BUS:DEVICE.FUNCTION, in hexadecimal.
    pub address: String,
    /// Vendor and device: "8086:10c9".
    pub id: String,
    /// None: no driver has it.
    pub driver: Option<String>,
    /// Vendor and device of the card: "8086:a03c".
    pub card: String,
    /// Names of its interfaces in the network namespace of this sysfs.
    pub interfaces: Vec<String>,
    /// The address that its maker gave it; none without an interface, or if that has another one.
    pub mac: Option<Mac>,
    /// Its virtual functions, which go when its driver does.
    pub virtual_functions: u32,
    /// Whether it is one.
    pub is_virtual: bool,
    /// The NUMA node that it is on; none where the machine has but one, or does not tell.
    pub numa_node: Option<u32>,
    /// None: no IOMMU confines it.
    pub iommu_group: Option<u32>,
    /// The other devices of that group, bridges left out: whoever drives one must drive all.
    pub group: Vec<GroupMember>,
}

/// A device of the same IOMMU group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupMember {
    pub address: String,
    pub driver: Option<String>,
}

/// Those of this machine, by address.
///
/// # Errors
/// A directory of sysfs cannot be read. Without PCI there are none.
pub fn all() -> Result<Vec<Nic>> {
    PciBus::live().nics()
}

fn all_in(devices: &Path) -> Result<Vec<Nic>> {
    let mut nics = Vec::new();
    for address in names(devices)? {
        let device = devices.join(&address);
        if text(&device.join("class")).is_some_and(|class| class.starts_with(NETWORK)) {
            nics.push(nic(devices, address)?);
        }
    }
    Ok(nics)
}

fn nic(devices: &Path, address: String) -> Result<Nic> {
    let device = devices.join(&address);
    let half = |name: &str| {
        text(&device.join(name)).unwrap_or_default().trim_start_matches("0x").to_owned()
    };
    let interfaces = interfaces(&device)?;
    let iommu_group = target(&device.join("iommu_group")).and_then(|name| name.parse().ok());
    let mut group = Vec::new();
    for other in names(&device.join("iommu_group/devices"))? {
        let is_bridge = text(&devices.join(&other).join("class"))
            .is_some_and(|class| class.starts_with(BRIDGE));
        if other != address && !is_bridge {
            let driver = target(&devices.join(&other).join("driver"));
            group.push(GroupMember { address: other, driver });
        }
    }
    Ok(Nic {
        id: format!("{}:{}", half("vendor"), half("device")),
        card: format!("{}:{}", half("subsystem_vendor"), half("subsystem_device")),
        driver: target(&device.join("driver")),
        mac: interfaces.iter().find_map(|name| permanent_mac(&device.join("net").join(name))),
        interfaces,
        virtual_functions: text(&device.join("sriov_numvfs"))
            .and_then(|count| count.parse().ok())
            .unwrap_or(0),
        is_virtual: device.join("physfn").exists(),
        // -1: it does not tell.
        numa_node: text(&device.join("numa_node")).and_then(|node| node.parse().ok()),
        iommu_group,
        group,
        address,
    })
}

/// Of the device itself, or of a virtio device on it.
fn interfaces(device: &Path) -> Result<Vec<String>> {
    let mut found: BTreeSet<_> = names(&device.join("net"))?.into_iter().collect();
    for below in names(device)?.iter().filter(|name| name.starts_with("virtio")) {
        found.extend(names(&device.join(below).join("net"))?);
    }
    Ok(found.into_iter().collect())
}

/// 0: not set, stolen or random (NET_ADDR_PERM in linux/netdevice.h).
fn permanent_mac(interface: &Path) -> Option<Mac> {
    text(&interface.join("addr_assign_type")).filter(|kind| kind == "0")?;
    text(&interface.join("address"))?.parse().ok()
}

/// What is in a directory, sorted; nothing if it is not there.
fn names(directory: &Path) -> Result<Vec<String>> {
    let failed = |source| Error::Read { path: directory.into(), source };
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned())
    };
    let mut names: Vec<String> = entries.map(name).collect::<Result<_>>()?;
    names.sort();
    Ok(names)
}

fn text(file: &PathBuf) -> Option<String> {
    Some(fs::read_to_string(file).ok()?.trim_end().to_owned())
}

/// The last part of what a link points to.
fn target(link: &PathBuf) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs of our own: `files` are paths and their text, or `->` and where they point.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match content.strip_prefix("->") {
                Some(to) => symlink(to, path).unwrap(),
                None => fs::write(path, content).unwrap(),
            }
        }
        root
    }

    #[test]
    fn who_drives_a_nic_and_who_shares_its_group() {
        let root = machine(&[
            ("0000:01:00.0/class", "0x020000\n"),
            ("0000:01:00.0/vendor", "0x8086\n"),
            ("0000:01:00.0/device", "0x10c9\n"),
            ("0000:01:00.0/driver", "->../../drivers/igb"),
            ("0000:01:00.0/net/eth1/mtu", "1500\n"),
            ("0000:01:00.0/numa_node", "1\n"),
            ("0000:01:00.0/iommu_group", "->../../kernel/iommu_groups/7"),
            ("kernel/iommu_groups/7/devices/0000:01:00.0", ""),
            ("0000:02:00.0/class", "0x020000\n"),
            ("0000:02:00.0/numa_node", "-1\n"),
            ("0000:02:00.0/virtio3/net/eth2/mtu", "1500\n"),
            ("0000:03:00.0/class", "0x010802\n"),
        ]);
        let nics = all_in(root.path()).unwrap();
        let [igb, virtio] = &*nics else { panic!("{nics:?}") };
        assert_eq!((&*igb.id, igb.driver.as_deref()), ("8086:10c9", Some("igb")));
        assert_eq!((igb.numa_node, igb.iommu_group), (Some(1), Some(7)));
        assert_eq!(igb.interfaces, ["eth1"]);
        assert_eq!((virtio.driver.as_deref(), virtio.iommu_group), (None, None));
        assert_eq!((virtio.numa_node, &*virtio.interfaces), (None, &["eth2".to_owned()][..]));
    }

    #[test]
    fn bridges_do_not_share_a_group() {
        let root = machine(&[
            ("0000:01:00.0/class", "0x020000"),
            ("0000:01:00.0/iommu_group", "->../groups/3"),
            ("groups/3/devices/0000:00:1c.0", ""),
            ("groups/3/devices/0000:01:00.0", ""),
            ("groups/3/devices/0000:01:00.1", ""),
            ("0000:00:1c.0/class", "0x060400"),
            ("0000:01:00.1/class", "0x010802"),
            ("0000:01:00.1/driver", "->../../drivers/nvme"),
        ]);
        let nics = all_in(root.path()).unwrap();
        let driver = Some("nvme".to_owned());
        assert_eq!(nics[0].group, [GroupMember { address: "0000:01:00.1".into(), driver }]);
        assert_eq!(all_in(Path::new("/nowhere")).unwrap(), []);
    }
}
