//! A device that DPDK drives, from its name to its end.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, ptr, thread};

use crate::error::{Error, checked};
use crate::pool::Mempool;
use crate::sys;

/// How long a link may take to come up: NICs agree on their speed first.
const LINK: Duration = Duration::from_secs(5);
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
}

/// Whether this names a PCI device: [DOMAIN:]BUS:DEVICE.FUNCTION, in hexadecimal.
pub fn is_pci(device: &str) -> bool {
    let name = device.split(',').next().unwrap_or_default();
    name.contains(':') && name.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.')
}

/// Why a PCI device cannot be DPDK's, before DPDK says less.
pub fn check_pci(name: &str, device: &str) -> Result<(), Error> {
    let short = device.split(',').next().unwrap_or_default();
    let full = if short.matches(':').count() == 1 { format!("0000:{short}") } else { short.into() };
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
    let why = match driver {
        Some(driver) => format!("the kernel's driver {driver} has it"),
        None => "no driver has it, so DPDK cannot reach it".into(),
    };
    let remedy = format!("`dpdk-devbind.py --bind=vfio-pci {full}`; the kernel loses it then");
    Err(Error::refused(name, why, remedy))
}

impl Device {
    /// Finds a PCI device, or makes a virtual one.
    pub fn open(name: &str, device: &str) -> Result<Self, Error> {
        let (short, options) = device.split_once(',').unwrap_or((device, ""));
        let text = |text: &str| {
            let zero = |_| Error::refused(name, "its name has a zero", "leave that out");
            CString::new(text).map_err(zero)
        };
        let (device_name, options) = (text(short)?, text(options)?);
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
        let (name, pools) = (name.to_owned(), Vec::new());
        match u16::try_from(port) {
            Ok(port) => Ok(Self { name, port, virtual_name, pools }),
            Err(_) => {
                let why = "none of DPDK's drivers has taken it as a network device";
                let remedy = "see what it wrote above; drivers are packages librte-net-*";
                Err(Error::refused(&name, why, remedy))
            }
        }
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

    /// Starts it with a queue for each of these pools, and waits for its link.
    pub fn start(&mut self, pools: &[Arc<Mempool>], slots: u16) -> Result<(), Error> {
        let (most, driver, _) = self.info()?;
        if pools.len() > most.into() {
            let why = format!("{} queues were asked for, and {driver} has {most}", pools.len());
            return Err(Error::refused(&self.name, why, format!("write `queues={most}`")));
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
        let began = Instant::now();
        while !self.link_is_up() {
            if began.elapsed() > LINK {
                let why = format!("its link is not up after {} s", LINK.as_secs());
                let remedy = "see to its cable and its far end, then start again";
                return Err(Error::refused(&self.name, why, remedy));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
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
        // SAFETY: a port of ours.
        unsafe { sys::rw_dpdk_link(self.port) == 1 }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: a port of ours, that no worker uses any more.
        unsafe {
            if !self.pools.is_empty() {
                sys::rte_eth_dev_stop(self.port);
            }
            sys::rte_eth_dev_close(self.port);
            if let Some(name) = &self.virtual_name {
                sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), name.as_ptr());
            }
        }
    }
}
