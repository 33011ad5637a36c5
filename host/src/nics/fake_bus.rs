//! A PCI bus in a directory, and a kernel that fails where it is told to.

use std::cell::Cell;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::bus::{Load, Write};
use super::{Binder, GivenBack, Nic, PciBus, Record, Records, VFIO};

/// Two ports of a card that igb drives.
const DEVICES: [&str; 2] = ["0000:01:00.0", "0000:01:00.1"];

/// Which writes fail: bit N is the Nth.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    writes: u64,
    /// A write that fails has had its effect.
    late: bool,
    /// vfio-pci does not take devices, and nothing says so.
    vfio_declines: bool,
}

struct Machine {
    root: tempfile::TempDir,
    failures: Rc<Cell<Failures>>,
    binder: Binder,
}

impl Machine {
    fn new() -> Self {
        // Records are synced, which takes long on a disk.
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        for (number, address) in DEVICES.iter().enumerate() {
            let device = device(root.path(), address);
            fs::create_dir_all(&device).unwrap();
            for (file, text) in [
                ("class", "0x020000\n"),
                ("vendor", "0x8086\n"),
                ("device", "0x10c9\n"),
                ("subsystem_vendor", "0x8086\n"),
                ("subsystem_device", "0xa03c\n"),
                ("driver_override", "(null)\n"),
            ] {
                fs::write(device.join(file), text).unwrap();
            }
            fs::write(device.join("mac"), format!("02:00:00:00:00:0{number}\n")).unwrap();
        }
        let pci = root.path().join("sys/bus/pci");
        for driver in ["igb", VFIO] {
            fs::create_dir_all(pci.join("drivers").join(driver)).unwrap();
        }
        DEVICES.iter().for_each(|address| take(root.path(), address, "igb"));
        let failures = Rc::new(Cell::new(Failures::default()));
        let bus =
            PciBus::new(root.path(), kernel(root.path(), failures.clone()), modprobe(root.path()));
        let records = Records::new(&root.path().join("records"));
        let _unlocked = records.lock().unwrap();
        Self { root, failures, binder: Binder { bus, records } }
    }

    fn nics(&self) -> Vec<Nic> {
        self.binder.bus.nics().unwrap()
    }

    fn drivers(&self) -> Vec<Option<String>> {
        self.nics().into_iter().map(|nic| nic.driver).collect()
    }

    fn records(&self) -> Vec<Record> {
        self.binder.records.all().unwrap()
    }

    /// Drivers, interfaces and overrides are as at the beginning, and nothing is recorded.
    fn assert_untouched(&self, what: &str) {
        for nic in self.nics() {
            assert_eq!(nic.driver.as_deref(), Some("igb"), "{what}: {nic:?}");
            assert_eq!(nic.interfaces.len(), 1, "{what}: {nic:?}");
            assert_eq!(self.binder.bus.driver_override(&nic.address), None, "{what}");
        }
        assert_eq!(self.records(), [], "{what}");
    }
}

fn device(root: &Path, address: &str) -> PathBuf {
    root.join("sys/bus/pci/devices").join(address)
}

fn take(root: &Path, address: &str, driver: &str) {
    let device = device(root, address);
    symlink(Path::new("../../drivers").join(driver), device.join("driver")).unwrap();
    if driver == "igb" {
        let interface = device.join("net").join(format!("eth{}", &address[11..]));
        fs::create_dir_all(&interface).unwrap();
        fs::write(interface.join("addr_assign_type"), "0\n").unwrap();
        fs::copy(device.join("mac"), interface.join("address")).unwrap();
    }
}

fn kernel(root: &Path, failures: Rc<Cell<Failures>>) -> Write {
    let root = root.to_owned();
    Box::new(move |path, text| {
        let now = failures.get();
        failures.set(Failures { writes: now.writes >> 1, ..now });
        let fails = now.writes & 1 == 1;
        if !fails || now.late {
            effect(&root, path, text, now.vfio_declines);
        }
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    })
}

fn effect(root: &Path, path: &Path, text: &str, vfio_declines: bool) {
    let device = device(root, text.trim());
    match path.file_name().unwrap().to_str().unwrap() {
        "driver_override" if text == "\n" => fs::write(path, "(null)\n").unwrap(),
        "driver_override" => fs::write(path, text).unwrap(),
        "unbind" => {
            fs::remove_file(device.join("driver")).unwrap();
            let _ = fs::remove_dir_all(device.join("net"));
        }
        "drivers_probe" => {
            let only = fs::read_to_string(device.join("driver_override")).unwrap();
            let driver = if only.trim() == "(null)" { "igb" } else { only.trim() };
            let is_there = root.join("sys/bus/pci/drivers").join(driver).exists();
            let declines = driver == VFIO && vfio_declines;
            if is_there && !declines && !device.join("driver").exists() {
                take(root, text, driver);
            }
        }
        other => panic!("a write to {other}"),
    }
}

fn modprobe(root: &Path) -> Load {
    let drivers = root.join("sys/bus/pci/drivers");
    Box::new(move |driver| fs::create_dir_all(drivers.join(driver)))
}

fn all_vfio(machine: &Machine) -> bool {
    machine.drivers().iter().all(|driver| driver.as_deref() == Some(VFIO))
}

#[test]
fn bound_and_given_back() {
    let machine = Machine::new();
    let nics = machine.nics();
    machine.binder.bind(&nics).unwrap();
    assert!(all_vfio(&machine));
    let records = machine.records();
    assert_eq!(records[1].driver.as_deref(), Some("igb"));
    assert_eq!((records[1].mac, &*records[1].interfaces), (nics[1].mac, &["eth1".to_owned()][..]));
    // Again: who had them before is still known.
    machine.binder.bind(&machine.nics()).unwrap();
    assert_eq!(machine.records(), records);
    for address in DEVICES {
        assert_eq!(machine.binder.give_back(address).unwrap(), GivenBack::Driver("igb".into()));
    }
    machine.assert_untouched("given back");
}

#[test]
fn a_driver_that_was_not_loaded_yet_gets_it_back() {
    let machine = Machine::new();
    machine.binder.bind(&machine.nics()).unwrap();
    fs::remove_dir(machine.root.path().join("sys/bus/pci/drivers/igb")).unwrap();
    for address in DEVICES {
        machine.binder.give_back(address).unwrap();
    }
    machine.assert_untouched("after a reboot");
}

#[test]
fn an_override_of_the_administrator_comes_back() {
    let machine = Machine::new();
    let file = device(machine.root.path(), DEVICES[0]).join("driver_override");
    fs::write(&file, "igb\n").unwrap();
    machine.binder.bind(&machine.nics()[..1]).unwrap();
    machine.binder.give_back(DEVICES[0]).unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), "igb\n");
}

#[test]
fn a_device_that_is_gone_is_forgotten() {
    let machine = Machine::new();
    machine.binder.bind(&machine.nics()).unwrap();
    fs::remove_dir_all(device(machine.root.path(), DEVICES[0])).unwrap();
    assert_eq!(machine.binder.give_back(DEVICES[0]).unwrap(), GivenBack::Gone);
    assert_eq!(machine.records().len(), 1);
}

/// Whichever writes fail, also all from one on, as when it is killed: devices are bound, or as they
/// were, or there is a record by which they are given back.
#[test]
fn a_bind_that_fails_anywhere_is_undone() {
    let mut halfway = 0;
    // Twelve writes at most: three for each device, and as many to undo them.
    let masks = (0..12).flat_map(|first| {
        let rest = !0 << first;
        (0..12).map(move |second| 1 << first | 1 << second).chain([rest])
    });
    for (writes, late, vfio_declines) in
        masks.flat_map(|mask| [(mask, false, false), (mask, true, false), (mask, false, true)])
    {
        let machine = Machine::new();
        let nics = machine.nics();
        let failures = Failures { writes, late, vfio_declines };
        machine.failures.set(failures);
        let what = format!("{failures:?}");
        let bound = machine.binder.bind(&nics);
        machine.failures.set(Failures::default());
        match bound {
            Ok(()) => assert!(all_vfio(&machine), "{what}"),
            Err(super::BindError::Undone { .. }) => machine.assert_untouched(&what),
            Err(error) => {
                halfway += 1;
                assert!(error.to_string().contains("`ringway nic unbind 0000:01:00."), "{error}");
                let recorded = machine.records();
                for nic in machine.nics() {
                    let is_recorded = recorded.iter().any(|record| record.address == nic.address);
                    assert!(is_recorded || nic.driver.as_deref() == Some("igb"), "{what}: {nic:?}");
                }
                for record in recorded {
                    machine.binder.give_back(&record.address).unwrap();
                }
                machine.assert_untouched(&what);
            }
        }
    }
    assert!(halfway > 12);
}

#[test]
fn another_card_is_seen_before_it_is_bound() {
    let machine = Machine::new();
    machine.binder.bind(&machine.nics()).unwrap();
    let record = machine.records().swap_remove(0);
    // A boot: nobody has the device, and a card of the same kind is in the slot.
    let device = device(machine.root.path(), DEVICES[0]);
    fs::remove_file(device.join("driver")).unwrap();
    fs::write(device.join("driver_override"), "(null)\n").unwrap();
    fs::write(device.join("mac"), "02:00:00:00:00:77\n").unwrap();
    assert_eq!(record.differs(&machine.nics()[0]), None);
    machine.binder.let_kernel_see(&record).unwrap();
    let differs = record.differs(&machine.nics()[0]).unwrap();
    assert!(differs.contains("02:00:00:00:00:77 instead of 02:00:00:00:00:00"), "{differs}");
}
