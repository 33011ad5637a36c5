//! XDP programs of AF_XDP ports: which packets they bring, and what becomes of them with their
//! process.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::{fmt, io};

use ringway_xsk::{Program, Redirect, SetupError, XdpLink, XdpMode};

/// Queues that a program knows: 0 to 255.
pub const QUEUES: u32 = 256;

/// Where an engine's programs come from. Called on workers' threads. As it is here, they bring all
/// packets and go with their process.
pub trait Programs: fmt::Debug + Send + Sync {
    /// The packets that they choose, in words; a successor must choose the same. Empty: all
    /// packets.
    fn choice(&self) -> &str {
        ""
    }

    /// Loads one for an interface, as [`ringway_xsk::Redirect::attach_program`] says.
    ///
    /// # Errors
    /// [`SetupError`].
    fn load(&self, interface: &str, several_frames: bool) -> Result<Program, SetupError> {
        Program::for_queues(interface, QUEUES, several_frames)
    }

    /// Whether they outlive a process that is killed.
    fn outlive(&self) -> bool {
        false
    }

    /// Has an interface's program outlive this process if it is killed, until what it returns is
    /// dropped. Only where they [outlive](Self::outlive) it.
    ///
    /// # Errors
    /// Why that cannot be.
    fn keep(
        &self,
        interface: &str,
        link: BorrowedFd<'_>,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        let _ = (interface, link);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// An attachment that an engine which was killed has left on an interface, so that a program
    /// takes the place of its program and there is one at any time. `mode`: the one that is wanted;
    /// none: any. Each is given once, and none is left in the way which is not given.
    fn left(&self, interface: &str, mode: Option<XdpMode>) -> Option<(XdpLink, XdpMode)> {
        let _ = (interface, mode);
        None
    }
}

/// Those that bring all packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllPackets;

impl Programs for AllPackets {}

/// Has a program outlive this process if it is killed.
pub(crate) fn keep(
    programs: &dyn Programs,
    interface: &str,
    redirect: &Redirect,
) -> io::Result<()> {
    redirect.keep(programs.keep(interface, redirect.link())?);
    Ok(())
}
