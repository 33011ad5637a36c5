//! Devices and pools of an engine's workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};

use ringway_engine::{EngineError, Opened, Port, PortError, PortOpener, PortSpec};
use ringway_wire::Mac;

use crate::device::{Device, check_pci, full_name, is_pci};
use crate::environment::{self, Options};
use crate::error::{Error, last};
use crate::pool::{MbufPool, Mempool};
use crate::port::DpdkPort;
use crate::sys;

/// DPDK's devices, for the workers of one engine. They are closed with the last clone of it.
#[derive(Clone)]
pub struct Dpdk {
    devices: BTreeMap<String, Arc<Device>>,
    /// One for each worker, and whether that has it.
    pools: Vec<(Arc<Mempool>, Arc<AtomicBool>)>,
    options: Options,
}

/// A thread that is one of DPDK's, which has a cache in each pool, until it ends.
struct Joined(bool);

impl Joined {
    fn now() -> Self {
        // SAFETY: DPDK has been started.
        Self(unsafe { sys::rw_dpdk_join() } == 0)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: as above; the thread is about to end.
            unsafe { sys::rw_dpdk_leave() };
        }
    }
}

thread_local! {
    static JOINED: Joined = Joined::now();
}

/// Pools of one process have names of their own.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The text of a port, and its device.
fn device_of(port: &PortSpec) -> Result<(String, &str), Error> {
    match port {
        PortSpec::Dpdk { device, .. } => Ok((port.to_string(), device)),
        other => {
            let why = "its packets do not lie in DPDK's memory";
            let remedy = "give dpdk ports alone; net_af_packet, net_af_xdp and net_pcap are some";
            Err(Error::refused(&other.to_string(), why, remedy))
        }
    }
}

impl Dpdk {
    /// Opens the devices of these workers, each of which has the same ones, and waits for their
    /// links.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(workers: &[Vec<PortSpec>], options: &Options) -> Result<Self, Error> {
        let ports = workers.first().map_or(&[][..], Vec::as_slice);
        let named: Vec<_> = ports.iter().map(device_of).collect::<Result<_, _>>()?;
        for (n, (name, device)) in named.iter().enumerate() {
            if named[..n].iter().any(|(_, other)| full_name(other) == full_name(device)) {
                let remedy = "name each device once; `workers=N` gives it several workers";
                return Err(Error::refused(name, "it is there twice", remedy));
            }
            if is_pci(device) {
                check_pci(name, device)?;
            }
        }
        let pci: Vec<_> = named.iter().map(|(_, device)| *device).filter(|d| is_pci(d)).collect();
        environment::start(&pci, workers.len() as u64, options.frames.into())?;
        let open = |(name, device): &(String, &str)| Device::open(name, device);
        let mut devices: Vec<Device> = named.iter().map(open).collect::<Result<_, _>>()?;
        let node = devices.first().map_or(-1, Device::node);
        // Of virtual devices, that of AF_XDP hands mbufs to a NIC where that has zero-copy.
        let dense = !named.iter().any(|(_, device)| device.starts_with("net_af_xdp"));
        let pool = |_| {
            let name = format!("ringway-{}", MADE.fetch_add(1, Relaxed));
            Mempool::new(&name, options.frames, node, dense).map(Arc::new)
        };
        let pools: Vec<_> = workers.iter().map(pool).collect::<Result<_, _>>()?;
        devices.iter_mut().try_for_each(|one| one.start(&pools, options.slots))?;
        match options.waits_for_link {
            // Workers begin with what is known of it.
            true => devices.iter().for_each(Device::look),
            false => devices.iter().try_for_each(Device::wait_for_link)?,
        }
        let pools = pools.into_iter().map(|pool| (pool, Arc::default())).collect();
        let devices = devices.into_iter().map(|one| (one.name.clone(), Arc::new(one))).collect();
        Ok(Self { devices, pools, options: options.clone() })
    }

    /// The link-layer address of the first device of these ports.
    pub fn mac(&self, ports: &[PortSpec]) -> Option<Mac> {
        self.devices.get(&ports.first()?.to_string())?.mac()
    }
}

impl PortOpener for Dpdk {
    type Pool = MbufPool;
    type Port = PortSpec;

    fn open(&self, worker: usize, ports: &[PortSpec]) -> Result<Opened<MbufPool>, EngineError> {
        let refused = |port: String, why: String, remedy| EngineError::Port {
            worker,
            source: PortError::Refused { port, why, remedy },
        };
        if !JOINED.with(|joined| joined.0) {
            let why = format!("DPDK does not take this thread: {}", last());
            return Err(refused(format!("worker {worker}"), why, "start fewer workers"));
        }
        let unknown = || {
            let why = "it was not named when devices were opened".into();
            refused(format!("worker {worker}"), why, "open devices for all workers")
        };
        let (pool, taken) = self.pools.get(worker).ok_or_else(unknown)?;
        let pool = if taken.swap(true, Relaxed) { None } else { pool.of_thread() };
        let pool = pool.ok_or_else(|| {
            let why = "a worker and a thread have one pool each, and had it".into();
            refused(format!("worker {worker}"), why, "start each worker once, on a new thread")
        })?;
        let port = |spec: &PortSpec| -> Result<Box<dyn Port<MbufPool>>, EngineError> {
            let device = self.devices.get(&spec.to_string()).ok_or_else(unknown)?.clone();
            let queue = worker as u16;
            Ok(Box::new(DpdkPort::new(device, queue, self.options.waits_for_link)))
        };
        Ok((pool, ports.iter().map(port).collect::<Result<_, _>>()?))
    }
}
