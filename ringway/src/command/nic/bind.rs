//! `ringway nic bind` and `unbind`.

use std::path::Path;
use std::process::Command;

use ringway_host::Network;
use ringway_host::nics::{
    self, BindError, Binder, GivenBack, Nic, Record, Request, VFIO, full_address,
};
use ringway_terminal::error::Error;

use crate::cli::{BindArgs, UnbindArgs};
use crate::exit::{Exit, say};

/// Binds recorded devices at boot.
const UNIT: &str = "ringway-nics.service";

/// Gives these devices to vfio-pci.
pub fn bind(args: &BindArgs) -> anyhow::Result<Exit> {
    let binder = Binder::live();
    let wanted = || -> anyhow::Result<Vec<Nic>> {
        let all = binder.bus.nics()?;
        let found = args.nics.iter().map(|name| find(&binder, &all, name));
        Ok(found.collect::<Result<_, _>>().map_err(in_words)?)
    };
    wanted()?;
    let _lock = binder.records.lock()?;
    // As whoever had the lock has left them.
    let wanted = wanted()?;
    provide_vfio(&binder)?;
    bind_these(&binder, &wanted, args.force)?;
    for nic in &wanted {
        let record = binder.records.of(&nic.address)?;
        let before = record.as_ref().map_or_else(String::new, before);
        println!("{0}: {VFIO} has it, it was {before}; the engine's port is dpdk:{0}", nic.address);
        if nic.is_virtual {
            say(format!(
                "{}: it is a virtual function: after a reboot it is bound if it has been made \
                 before {UNIT}",
                nic.address
            ));
        }
    }
    Ok(at_boot(true))
}

fn bind_these(binder: &Binder, nics: &[Nic], force: bool) -> anyhow::Result<()> {
    let network = Network::read()?;
    let devices: Vec<_> = nics.iter().map(|nic| nic.address.clone()).collect();
    let allows_no_iommu = binder.bus.allows_no_iommu();
    let request = Request { devices: &devices, force, allows_no_iommu };
    nics.iter().try_for_each(|nic| nics::check(nic, &network, &request))?;
    if let Some(nic) = nics.iter().find(|nic| nic.iommu_group.is_none()) {
        say(format!("{}: no IOMMU confines it: a faulty program may write anywhere", nic.address));
    }
    Ok(binder.bind(nics)?)
}

/// Binds what was bound before. One that fails leaves the others.
pub fn bind_recorded() -> anyhow::Result<Exit> {
    let binder = Binder::live();
    let _lock = binder.records.lock()?;
    let records = binder.records.all()?;
    if records.is_empty() {
        println!("no NIC is recorded: `ringway nic bind` does that");
        return Ok(Exit::Done);
    }
    provide_vfio(&binder)?;
    for record in &records {
        binder.let_kernel_see(record).unwrap_or_else(say);
    }
    let all = binder.bus.nics()?;
    let (mut ready, mut exit) = (Vec::new(), Exit::Done);
    for record in &records {
        match recorded(&all, record) {
            Ok(nic) => ready.push(nic),
            Err(error) => {
                say(error);
                exit = Exit::Failed;
            }
        }
    }
    // Devices of a group are bound together.
    while !ready.is_empty() {
        let nic = ready.remove(0);
        let shares =
            |other: &mut Nic| nic.iommu_group.is_some() && other.iommu_group == nic.iommu_group;
        let others: Vec<_> = ready.extract_if(.., shares).collect();
        let group = [vec![nic], others].concat();
        match bind_these(&binder, &group, false) {
            Ok(()) => group.iter().for_each(|nic| println!("{}: {VFIO} has it", nic.address)),
            Err(error) => {
                say(format!("{error:#}"));
                exit = Exit::Failed;
            }
        }
    }
    Ok(exit)
}

/// The device of a record, if it is the same one.
fn recorded(all: &[Nic], record: &Record) -> Result<Nic, BindError> {
    let refused = |why: String| BindError::Refused {
        device: record.address.clone(),
        why,
        remedy: format!("`ringway nic unbind {}` forgets what was bound", record.address),
    };
    let nic = all.iter().find(|nic| nic.address == record.address);
    let nic = nic.ok_or_else(|| refused("there is no NIC any more".into()))?;
    record.differs(nic).map_or_else(|| Ok(nic.clone()), |differs| Err(refused(differs)))
}

/// Gives these devices back.
pub fn unbind(args: &UnbindArgs) -> anyhow::Result<Exit> {
    let binder = Binder::live();
    let records = binder.records.all()?;
    let wanted = args.nics.iter().map(|name| bound(&binder, &records, name));
    let wanted = wanted.collect::<Result<Vec<_>, _>>().map_err(in_words)?;
    let _lock = binder.records.lock()?;
    for address in &wanted {
        if let Some((process, name)) = binder.bus.user(address) {
            let what = format!("{address}: process {process} ({name}) has it");
            return Err(Error::failed(what, "end that first").into());
        }
    }
    for address in &wanted {
        match binder.give_back(address)? {
            GivenBack::Driver(driver) => {
                println!("{address}: {driver} has it{}", interface(&binder, address))
            }
            GivenBack::Nobody => {
                println!("{address}: no driver has it: none fits, or its module is not loaded")
            }
            GivenBack::Gone => {
                println!("{address}: there is no such device any more; it is forgotten")
            }
        }
    }
    let rest = !binder.records.all()?.is_empty();
    Ok(if rest { Exit::Done } else { at_boot(false) })
}

/// What a device was before: "eth1, with igb".
pub fn before(record: &Record) -> String {
    let driver =
        record.driver.as_ref().map_or("without a driver".into(), |driver| format!("with {driver}"));
    match record.interfaces.as_slice() {
        [] => driver,
        names => format!("{}, {driver}", names.join(" and ")),
    }
}

fn interface(binder: &Binder, address: &str) -> String {
    let nics = binder.bus.nics().unwrap_or_default();
    let names = nics.into_iter().find(|nic| nic.address == address).map(|nic| nic.interfaces);
    names
        .filter(|names| !names.is_empty())
        .map_or_else(String::new, |names| format!(" as {}", names.join(" and ")))
}

/// A NIC, by its address or its interface.
fn find(binder: &Binder, all: &[Nic], name: &str) -> Result<Nic, BindError> {
    let address = full_address(name);
    let is_it = |nic: &&Nic| match &address {
        Some(address) => nic.address == *address,
        None => nic.interfaces.iter().any(|one| one == name),
    };
    if let Some(nic) = all.iter().find(is_it) {
        return Ok(nic.clone());
    }
    let why = match address.as_deref().map(|address| (address, binder.bus.class(address))) {
        None => {
            "this is neither a PCI address (0000:01:00.0) nor an interface of a NIC on PCI".into()
        }
        Some((address, None)) => format!("there is no PCI device {address}"),
        Some((_, Some(class))) => format!("it is no network device (class {class})"),
    };
    Err(BindError::Unknown { device: name.into(), why })
}

/// The address of a device that vfio-pci has, or that is recorded.
fn bound(binder: &Binder, records: &[Record], name: &str) -> Result<String, BindError> {
    let unknown = |why: String| BindError::Unknown { device: name.into(), why };
    let not_pci = || unknown("this is no PCI address (0000:01:00.0)".into());
    let address = full_address(name).ok_or_else(not_pci)?;
    let driver = binder.bus.driver(&address);
    if records.iter().any(|record| record.address == address) || driver.as_deref() == Some(VFIO) {
        return Ok(address);
    }
    Err(match (binder.bus.class(&address), driver) {
        (None, _) => unknown("there is no such PCI device".into()),
        (_, Some(driver)) => unknown(format!("{driver} has it: it is not bound to {VFIO}")),
        (_, None) => unknown(format!("no driver has it: it is not bound to {VFIO}")),
    })
}

/// A name that is wrong is wrong usage.
fn in_words(error: BindError) -> Error {
    match error {
        BindError::Unknown { .. } => Error::configuration(error.to_string(), ""),
        error => Error::failed(error.to_string(), ""),
    }
}

fn provide_vfio(binder: &Binder) -> Result<(), Error> {
    binder.bus.provide(VFIO).map_err(|error| {
        let what = format!("the kernel has no driver {VFIO}: `modprobe {VFIO}`: {error}");
        Error::failed(
            what,
            "run this as root; the module is in the kernel's own package (not in those for clouds)",
        )
    })
}

/// Has recorded devices bound at boot, or not any more.
fn at_boot(wanted: bool) -> Exit {
    let word = if wanted { "enable" } else { "disable" };
    if !Path::new("/run/systemd/system").exists() {
        if wanted {
            say(
                "no systemd runs here: have `ringway nic bind --recorded` run at boot, before the network is configured",
            );
        }
        return Exit::Done;
    }
    let ran = Command::new("systemctl").args(["--quiet", word, UNIT]).output();
    let failed = match ran {
        Ok(ran) if ran.status.success() => return Exit::Done,
        Ok(ran) => String::from_utf8_lossy(&ran.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    if !wanted {
        return Exit::Done;
    }
    say(format!(
        "after a reboot they are not bound: `systemctl enable {UNIT}`: {failed}; the package ringway has that unit"
    ));
    Exit::Unhealthy
}
