//! A device that DPDK drives, from its name to its end.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, ptr, thread};

use ringway_host::interface_by_name;
use ringway_host::nics::{self, Records};
use ringway_wire::Mac;
use tracing::warn;

use crate::error::{Error, checked};
use crate::pool::Mempool;
use crate::sys;

/// How long a link may take to come up: NICs agree on their speed first.
const LINK: Duration = Duration::from_secs(10);
/// Time for the last packets to leave: a ring of long ones at 1 Gbit/s.
const LAST_PACKETS: Duration = Duration::from_millis(15);
/// Drivers of the kernel that leave a device to DPDK; Mellanox's stays beside it.
const BINDS: [&str; 5] = ["vfio-pci", "uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core"];

/// The device of a port, by its text without `dpdk:`.
pub struct Device {
    /// As it was written: `dpdk:net_null0`.
    pub name: String,
    pub port: u16,
    /// The name of a virtual one, which we made.
    virtual_name: Option<CString>,
    /// One for each queue, once it is started: it has frames of theirs until it is closed.
    pools: Vec<Arc<Mempool>>,
    /// As its first queue's thread has seen it last.
    link_is_up: AtomicBool,
    /// Leaked, because DPDK's own thread sets it: its driver is to let go of it.
    is_gone: &'static AtomicBool,
}

/// Ports of DPDK's that are open.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn open_ports() -> MutexGuard<'static, BTreeSet<u16>> {
    // A panic leaves the set whole.
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this names a PCI device: [DOMAIN:]BUS:DEVICE.FUNCTION, in hexadecimal.
pub fn is_pci(device: &str) -> bool {
    let name = device.split(',').next().unwrap_or_default();
    name.contains(':') && name.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.')
}

/// A device's name without options; of PCI with its domain, in small letters.
pub fn full_name(device: &str) -> String {
    let short = device.split(',').next().unwrap_or_default();
    match is_pci(device) {
        false => short.into(),
        true if short.matches(':').count() == 1 => format!("0000:{}", short.to_lowercase()),
        true => short.to_lowercase(),
    }
}

/// Why a PCI device cannot be DPDK's, before DPDK says less.
pub fn check_pci(name: &str, device: &str) -> Result<(), Error> {
    let full = full_name(device);
    let path = Path::new("/sys/bus/pci/devices").join(&full);
    if !path.exists() {
        let why = format!("there is no PCI device {full}");
        return Err(Error::refused(name, why, "`lspci -D` shows all"));
    }
    let driver = fs::read_link(path.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    if driver.is_some_and(|driver| BINDS.contains(&driver)) {
        return Ok(());
    }
    let nic = nics::all().unwrap_or_default().into_iter().find(|nic| nic.address == full);
    let interfaces = nic.map(|nic| nic.interfaces).unwrap_or_default();
    let carries = |interface: &String| {
        interface_by_name(interface).is_ok_and(|found| found.carries_default_route)
    };
    if let Some(interface) = interfaces.into_iter().find(carries) {
        let why = format!("it is {interface}, which carries the default route");
        return Err(Error::refused(name, why, "take another NIC: `ringway nic list`"));
    }
    let why = match driver {
        Some(driver) => format!("the kernel's driver {driver} has it"),
        None => "no driver has it, so DPDK cannot reach it".into(),
    };
    let was_bound = Records::live().of(&full).is_ok_and(|record| record.is_some());
    let (why, remedy) = if was_bound {
        let why = format!("{why}, though `ringway nic bind` gave it to vfio-pci before");
        (why, format!("`journalctl -u ringway-nics` says why; `ringway nic bind {full}`"))
    } else {
        (why, format!("`ringway nic bind {full}`; the kernel loses it then"))
    };
    Err(Error::refused(name, why, remedy))
}

impl Device {
    /// Finds a PCI device, or makes a virtual one.
    pub fn open(name: &str, device: &str) -> Result<Self, Error> {
        let (short, options) = (full_name(device), device.split_once(',').map_or("", |d| d.1));
        let text = |text: &str| {
            let zero = |_| Error::refused(name, "its name has a zero", "leave that out");
            CString::new(text).map_err(zero)
        };
        let (device_name, options) = (text(&short)?, text(options)?);
        let mut open = open_ports();
        // SAFETY: a text that ends with a zero.
        let there = unsafe { sys::rw_dpdk_port_of(device_name.as_ptr()) };
        if u16::try_from(there).is_ok_and(|port| open.contains(&port)) {
            return Err(Error::refused(name, "it is open in this process", "name another device"));
        }
        let mut virtual_name = None;
        if !is_pci(device) {
            // SAFETY: texts that end with a zero.
            let made = unsafe {
                sys::rte_eal_hotplug_add(c"vdev".as_ptr(), device_name.as_ptr(), options.as_ptr())
            };
            checked(made).map_err(|source| Error::Device {
                port: name.into(),
                step: "making a virtual device".into(),
                source,
                remedy: "write a driver's name and a number, and its options: net_null0, net_ring0, \
                         net_pcap0,iface=eth0, net_af_packet0,iface=eth0, net_af_xdp0,iface=eth0",
            })?;
            virtual_name = Some(device_name.clone());
        }
        // SAFETY: as above.
        let port = unsafe { sys::rw_dpdk_port_of(device_name.as_ptr()) };
        let Ok(port) = u16::try_from(port) else {
            if let Some(made) = virtual_name {
                // SAFETY: as above; it was made here.
                unsafe { sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), made.as_ptr()) };
            }
            let why = "none of DPDK's drivers has taken it as a network device";
            let remedy = "see what DPDK wrote above; its drivers are the packages librte-net-*, and \
                          what is on PCI must be there when it starts";
            return Err(Error::refused(name, why, remedy));
        };
        let is_gone: &'static AtomicBool = Box::leak(Box::default());
        if is_pci(device) {
            // SAFETY: a text that ends with a zero, and a flag that lives as long as the program.
            unsafe { sys::rw_dpdk_watch(device_name.as_ptr(), is_gone.as_ptr().cast()) };
        }
        open.insert(port);
        let (name, pools) = (name.to_owned(), Vec::new());
        let link_is_up = AtomicBool::default();
        Ok(Self { name, port, virtual_name, pools, link_is_up, is_gone })
    }

    /// Its link-layer address.
    pub fn mac(&self) -> Option<Mac> {
        let mut mac = [0; 6];
        // SAFETY: a port of ours, and a place for six bytes.
        let asked = unsafe { sys::rte_eth_macaddr_get(self.port, &mut mac) };
        (asked == 0).then_some(Mac(mac))
    }

    /// Bytes of an IP packet that it sends, at most.
    pub fn mtu(&self) -> usize {
        let mut mtu = u16::MAX;
        // SAFETY: a port of ours, and a place for the answer.
        unsafe { sys::rte_eth_dev_get_mtu(self.port, &mut mtu) };
        mtu.into()
    }

    /// The NUMA node that it is on; none if it does not matter.
    pub fn node(&self) -> i32 {
        self.info().map_or(-1, |(.., node)| node)
    }

    fn info(&self) -> Result<(u16, String, i32), Error> {
        let (mut queues, mut driver, mut node) = (0, [0 as c_char; 64], 0);
        // SAFETY: places for its answers, of the given size.
        let asked = unsafe {
            sys::rw_dpdk_info(self.port, &mut queues, driver.as_mut_ptr(), driver.len(), &mut node)
        };
        self.done("asking for its abilities", asked, "restart it")?;
        // SAFETY: it ends with a zero, within the array.
        let driver = unsafe { CStr::from_ptr(driver.as_ptr()) }.to_string_lossy().into_owned();
        Ok((queues, driver, node))
    }

    fn done(&self, step: &str, returned: i32, remedy: &'static str) -> Result<(), Error> {
        let failed =
            |source| Error::Device { port: self.name.clone(), step: step.into(), source, remedy };
        checked(returned).map(drop).map_err(failed)
    }

    /// Starts it with a queue for each of these pools.
    pub fn start(&mut self, pools: &[Arc<Mempool>], slots: u16) -> Result<(), Error> {
        let (most, driver, _) = self.info()?;
        if pools.len() > most.into() {
            let why = format!("{} queues were asked for, and {driver} has {most}", pools.len());
            let remedy = format!("write `workers={most}`; a virtual device has an option for more");
            return Err(Error::refused(&self.name, why, remedy));
        }
        let mut step = ptr::null();
        let mut raw: Vec<_> = pools.iter().map(|pool| pool.mempool.as_ptr()).collect();
        self.pools = pools.to_vec();
        // SAFETY: pools that this device holds from now on; it writes a text that lives as long as
        // the program.
        let started = unsafe {
            let queues = raw.len() as u16;
            sys::rw_dpdk_start(self.port, queues, slots, slots, raw.as_mut_ptr(), &mut step)
        };
        // SAFETY: set by then.
        let step = unsafe { CStr::from_ptr(step) }.to_string_lossy();
        self.done(&step, started, "see what DPDK wrote above; more frames may help (`--frames`)")?;
        if started == 1 {
            warn!(
                "{}: {driver} does not spread packets over queues (RSS): all may come to one worker",
                self.name
            );
        }
        Ok(())
    }

    /// Waits until its link is up.
    pub fn wait_for_link(&self) -> Result<(), Error> {
        let began = Instant::now();
        loop {
            self.look();
            if self.link_is_up() {
                return Ok(());
            }
            if began.elapsed() > LINK {
                let why = format!("its link is not up after {} s", LINK.as_secs());
                let remedy = "see to its cable and its far end, then start again; \
                              `--on-loss reopen` starts without it";
                return Err(Error::refused(&self.name, why, remedy));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks for its state; one thread at a time.
    pub fn look(&self) {
        // SAFETY: a port of ours, whose settings nobody else asks for meanwhile.
        let (up, gone) = unsafe {
            (sys::rw_dpdk_link(self.port) == 1, sys::rte_eth_dev_is_removed(self.port) == 1)
        };
        self.link_is_up.store(up, Relaxed);
        self.is_gone.fetch_or(gone, Relaxed);
    }

    /// Whether it was removed, or the kernel waits for this program to let go of it.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }

    /// Its own counters that are not 0 (xstats), by their names.
    pub fn counters(&self) -> Vec<(String, u64)> {
        // SAFETY: with no place for them it only counts them.
        let count = unsafe { sys::rte_eth_xstats_get_names(self.port, ptr::null_mut(), 0) };
        let count = usize::try_from(count).unwrap_or(0);
        let mut names = vec![sys::CounterName([0; 64]); count];
        let mut values = vec![sys::Counter::default(); count];
        // SAFETY: places for so many; it says when there are more by now, and writes none then.
        let filled = unsafe {
            let named = sys::rte_eth_xstats_get_names(self.port, names.as_mut_ptr(), count as u32);
            let read = sys::rte_eth_xstats_get(self.port, values.as_mut_ptr(), count as u32);
            named.min(read)
        };
        let filled = usize::try_from(filled).unwrap_or(0).min(count);
        let name = |name: &sys::CounterName| {
            let bytes = name.0.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0);
            String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
        };
        let of = |one: &sys::Counter| Some((name(names.get(one.id as usize)?), one.value));
        values[..filled].iter().filter(|one| one.value > 0).filter_map(of).collect()
    }

    pub fn link_is_up(&self) -> bool {
        self.link_is_up.load(Relaxed)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut open = open_ports();
        if !self.pools.is_empty() {
            // What it was given last is on its way: stopping throws away what is in its rings.
            thread::sleep(LAST_PACKETS);
        }
        // SAFETY: a port of ours, that no worker uses any more.
        unsafe {
            if !self.pools.is_empty() {
                sys::rte_eth_promiscuous_disable(self.port);
                sys::rte_eth_dev_stop(self.port);
            }
            sys::rte_eth_dev_close(self.port);
            if let Some(name) = &self.virtual_name {
                sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr());
            }
        }
        open.remove(&self.port);
    }
}
