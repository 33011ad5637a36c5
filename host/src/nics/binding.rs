//! A device from its kernel driver to vfio-pci, and back.

use std::io;

use super::{BindError, Nic, PciBus, Record, Records, VFIO};

/// Who has a device after it was given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GivenBack {
    Driver(String),
    /// No driver fits.
    Nobody,
    /// There is no such device any more.
    Gone,
}

type Step<T = ()> = Result<T, (&'static str, io::Error)>;

/// Changes drivers, and keeps records of it.
pub struct Binder {
    pub bus: PciBus,
    pub records: Records,
}

impl Binder {
    /// This machine's.
    pub fn live() -> Self {
        Self { bus: PciBus::live(), records: Records::live() }
    }

    /// Gives these devices to vfio-pci, all of them or none.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(&self, nics: &[Nic]) -> Result<(), BindError> {
        for (done, nic) in nics.iter().enumerate() {
            if let Err(error) = self.bind_one(nic) {
                // Those that were bound before stay so.
                let others =
                    nics[..done].iter().rev().filter(|nic| nic.driver.as_deref() != Some(VFIO));
                for other in others {
                    self.return_to_kernel(&other.address).map_err(|(step, source)| {
                        let source = io::Error::other(format!("{source}, after {error}"));
                        BindError::Halfway { device: other.address.clone(), step, source }
                    })?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn bind_one(&self, nic: &Nic) -> Result<(), BindError> {
        let address = &nic.address;
        // First of all: a bind that is killed can be undone.
        self.records.write(&self.record_of(nic)?)?;
        let Err((step, source)) = self.steps(address) else { return Ok(()) };
        let device = address.clone();
        match self.return_to_kernel(address) {
            Ok(now) => {
                let now = match now {
                    GivenBack::Driver(driver) => driver,
                    GivenBack::Nobody | GivenBack::Gone => "nobody".into(),
                };
                Err(BindError::Undone { device, step, source, now })
            }
            Err(_) => Err(BindError::Halfway { device, step, source }),
        }
    }

    /// What is already recorded says more than a device that has left its driver.
    fn record_of(&self, nic: &Nic) -> Result<Record, BindError> {
        let address = &nic.address;
        let has_driver = nic.driver.as_deref().is_some_and(|driver| driver != VFIO);
        let old = self.records.of(address)?.filter(|old| old.differs(nic).is_none());
        if let (Some(old), false) = (old, has_driver) {
            return Ok(old);
        }
        Ok(Record {
            address: address.clone(),
            id: nic.id.clone(),
            card: nic.card.clone(),
            mac: nic.mac,
            driver: nic.driver.clone().filter(|_| has_driver),
            driver_override: self.bus.driver_override(address).filter(|driver| driver != VFIO),
            interfaces: nic.interfaces.clone(),
        })
    }

    fn steps(&self, address: &str) -> Step {
        if self.bus.is_vfio(address) {
            return Ok(());
        }
        self.bus.set_override(address, Some(VFIO)).map_err(at("writing driver_override"))?;
        self.bus.unbind(address).map_err(at("having its driver let go of it"))?;
        self.bus.probe(address).map_err(at("having vfio-pci take it"))?;
        if self.bus.is_vfio(address) {
            return Ok(());
        }
        Err(("having vfio-pci take it", io::Error::other("it did not")))
    }

    /// Gives a device back to the driver that it had, from wherever a bind was left.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn give_back(&self, address: &str) -> Result<GivenBack, BindError> {
        self.return_to_kernel(address).map_err(|(step, source)| {
            let device = address.to_owned();
            BindError::Halfway { device, step, source }
        })
    }

    fn return_to_kernel(&self, address: &str) -> Step<GivenBack> {
        let other = |error: BindError| ("its record", io::Error::other(error.to_string()));
        let record = self.records.of(address).map_err(other)?;
        let now = match self.bus.class(address) {
            None => GivenBack::Gone,
            Some(_) => self.kernel_takes(address, record.as_ref())?,
        };
        self.records.remove(address).map_err(other)?;
        Ok(now)
    }

    fn kernel_takes(&self, address: &str, record: Option<&Record>) -> Step<GivenBack> {
        let before = record.and_then(|record| record.driver.as_deref());
        let driver_override = record.and_then(|record| record.driver_override.as_deref());
        if self.bus.is_vfio(address) {
            self.bus.unbind(address).map_err(at("having vfio-pci let go of it"))?;
        }
        self.bus.set_override(address, driver_override).map_err(at("restoring driver_override"))?;
        if self.bus.driver(address).is_none() {
            if let Some(driver) = before {
                self.bus.provide(driver).map_err(at("loading its driver"))?;
            }
            self.bus.probe(address).map_err(at("having its driver take it"))?;
        }
        match (self.bus.driver(address), before) {
            (Some(driver), _) => Ok(GivenBack::Driver(driver)),
            (None, None) => Ok(GivenBack::Nobody),
            (None, Some(_)) => Err(("having its driver take it", io::Error::other("it did not"))),
        }
    }

    /// Has the kernel's driver take a device that no driver has, so that its address can be
    /// compared with that of the card that was recorded.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn let_kernel_see(&self, record: &Record) -> Result<(), BindError> {
        let address = &record.address;
        let Some(driver) = &record.driver else { return Ok(()) };
        if self.bus.driver(address).is_some() || record.mac.is_none() {
            return Ok(());
        }
        let seen = || -> Step {
            self.bus.provide(driver).map_err(at("loading its driver"))?;
            self.bus.probe(address).map_err(at("having its driver take it"))
        };
        seen().map_err(|(step, source)| BindError::Refused {
            device: address.clone(),
            why: format!("its MAC address is not compared: {step}: {source}"),
            remedy: "load its driver before, or unbind it and bind it anew".into(),
        })
    }
}

fn at(step: &'static str) -> impl FnOnce(io::Error) -> (&'static str, io::Error) {
    move |source| (step, source)
}
