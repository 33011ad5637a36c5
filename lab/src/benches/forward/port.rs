//! An interface of the tester's.

use std::os::fd::BorrowedFd;
use std::thread;

use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::{Link, Namespace};

use crate::{Error, Result};

/// An interface of the tester's.
#[derive(Clone)]
pub(super) struct Port {
    /// None: that of this process.
    pub namespace: Option<Namespace>,
    pub name: String,
    pub mac: ringway_host::Mac,
    pub ifindex: u32,
    /// A NIC.
    pub hardware: bool,
}

impl From<Link> for Port {
    fn from(Link { namespace, name, mac, ifindex }: Link) -> Self {
        Self { namespace: Some(namespace), name, mac, ifindex, hardware: false }
    }
}

impl Port {
    /// On a thread of its own where it is.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        match &self.namespace {
            Some(namespace) => Ok(namespace.run(work)?),
            None => thread::scope(|scope| {
                let ran = scope.spawn(work).join();
                Ok(ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            }),
        }
    }

    /// Of the machine's interfaces a NIC's driver may have no XDP, and a virtual one would stop sending
    /// what XDP redirects: they are counted behind the driver.
    pub fn attach(&self, program: BorrowedFd<'_>) -> Result<XdpLink> {
        let link = |mode| XdpLink::attach(program, self.ifindex, mode);
        let attached = self.run(|| match (&self.namespace, self.hardware) {
            (Some(_), _) => link(XdpMode::Native),
            (None, true) => link(XdpMode::Native).or_else(|_| link(XdpMode::Generic)),
            (None, false) => link(XdpMode::Generic),
        })?;
        attached.map_err(|error| Error::Load(error.into()))
    }
}
