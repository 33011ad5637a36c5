//! The PCI bus in sysfs, and the writes that change who drives a device.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Nic, VFIO, all_in, names, target, text};
use crate::Result;

pub(super) type Write = Box<dyn Fn(&Path, &str) -> io::Result<()>>;
pub(super) type Load = Box<dyn Fn(&str) -> io::Result<()>>;

/// A machine's PCI bus. Tests have one below another root, whose kernel is a function.
pub struct PciBus {
    root: PathBuf,
    write: Write,
    /// Loads a module.
    load: Load,
}

impl PciBus {
    /// This machine's.
    pub fn live() -> Self {
        // Files of sysfs are never made.
        let write = |path: &Path, text: &str| {
            OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
        };
        Self::new(Path::new("/"), Box::new(write), Box::new(modprobe))
    }

    pub(super) fn new(root: &Path, write: Write, load: Load) -> Self {
        Self { root: root.into(), write, load }
    }

    /// Its network devices, by address.
    ///
    /// # Errors
    /// A directory of sysfs cannot be read. Without PCI there are none.
    pub fn nics(&self) -> Result<Vec<Nic>> {
        all_in(&self.bus("devices"))
    }

    /// The class of a device ("0x010802"); none: there is no such device.
    pub fn class(&self, address: &str) -> Option<String> {
        text(&self.device(address, "class"))
    }

    /// Which driver has a device.
    pub fn driver(&self, address: &str) -> Option<String> {
        target(&self.device(address, "driver"))
    }

    /// Whether VFIO works without an IOMMU, because the administrator has said so.
    pub fn allows_no_iommu(&self) -> bool {
        let file = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        text(&self.root.join(file)).is_some_and(|value| value == "Y")
    }

    /// The process that has a device by VFIO: its number and its name.
    pub fn user(&self, address: &str) -> Option<(u32, String)> {
        let group = target(&self.device(address, "iommu_group"));
        let mut files: Vec<_> =
            group.map(|group| format!("/dev/vfio/{group}")).into_iter().collect();
        let of_device = names(&self.device(address, "vfio-dev")).unwrap_or_default();
        files.extend(of_device.into_iter().map(|name| format!("/dev/vfio/devices/{name}")));
        let has = |process: &Path| {
            let open = names(&process.join("fd")).unwrap_or_default();
            open.iter().any(|fd| {
                let file = std::fs::read_link(process.join("fd").join(fd));
                file.is_ok_and(|file| files.iter().any(|one| file == Path::new(one)))
            })
        };
        let proc = self.root.join("proc");
        let processes = names(&proc).unwrap_or_default();
        let mut numbers = processes.iter().filter_map(|name| name.parse::<u32>().ok());
        let user = numbers.find(|pid| has(&proc.join(pid.to_string())))?;
        Some((user, text(&proc.join(user.to_string()).join("comm")).unwrap_or_default()))
    }

    /// Loads a driver's module, unless the driver is there.
    ///
    /// # Errors
    /// What modprobe says.
    pub fn provide(&self, driver: &str) -> io::Result<()> {
        if self.bus("drivers").join(driver).exists() { Ok(()) } else { (self.load)(driver) }
    }

    /// The only driver that may have a device from now on; none: whichever fits.
    pub(super) fn driver_override(&self, address: &str) -> Option<String> {
        text(&self.device(address, "driver_override"))
            .filter(|driver| !driver.is_empty() && driver != "(null)")
    }

    pub(super) fn set_override(&self, address: &str, driver: Option<&str>) -> io::Result<()> {
        let driver = format!("{}\n", driver.unwrap_or_default());
        (self.write)(&self.device(address, "driver_override"), &driver)
    }

    /// Has the driver of a device let go of it.
    pub(super) fn unbind(&self, address: &str) -> io::Result<()> {
        match self.driver(address) {
            Some(driver) => (self.write)(&self.bus("drivers").join(driver).join("unbind"), address),
            None => Ok(()),
        }
    }

    /// Looks for a driver for a device.
    pub(super) fn probe(&self, address: &str) -> io::Result<()> {
        (self.write)(&self.bus("drivers_probe"), address)
    }

    pub(super) fn is_vfio(&self, address: &str) -> bool {
        self.driver(address).as_deref() == Some(VFIO)
    }

    fn bus(&self, name: &str) -> PathBuf {
        self.root.join("sys/bus/pci").join(name)
    }

    fn device(&self, address: &str, file: &str) -> PathBuf {
        self.bus("devices").join(address).join(file)
    }
}

fn modprobe(module: &str) -> io::Result<()> {
    let ran = Command::new("modprobe").arg(module).output()?;
    if ran.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned()))
}

/// DOMAIN:BUS:DEVICE.FUNCTION in small letters, of an address with or without its domain; none:
/// this is no address.
pub fn full_address(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let (domain, rest) = match *parts {
        [bus, device, function] => ("0000", [bus, device, function]),
        [domain, bus, device, function] => (domain, [bus, device, function]),
        _ => return None,
    };
    let [bus, device, function] = rest;
    let is_hex =
        |part: &str, digits| part.len() == digits && part.chars().all(|c| c.is_ascii_hexdigit());
    let fits = is_hex(domain, 4) && is_hex(bus, 2) && is_hex(device, 2) && is_hex(function, 1);
    let full = format!("{domain}:{bus}:{device}.{function}").to_lowercase();
    // The signs between them, too.
    (fits && full.ends_with(&text.to_lowercase())).then_some(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_completed_and_checked() {
        for good in ["0000:0a:00.1", "0a:00.1", "0000:0A:00.1"] {
            assert_eq!(full_address(good).as_deref(), Some("0000:0a:00.1"));
        }
        for wrong in
            ["", "eth1", "0a:00", "0a.00.1", "0a:00:1", "0a:0.1", "0000:0a:00.1.2", "0g:00.1"]
        {
            assert_eq!(full_address(wrong), None, "{wrong}");
        }
    }
}
