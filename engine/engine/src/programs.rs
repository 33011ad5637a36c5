//! XDP programs of AF_XDP ports: the packets that they bring, and whether they outlive their
//! process.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::{fmt, io};

use ringway_xsk::{Program, Redirect, SetupError, XdpLink, XdpMode};

/// Queues that a program knows: 0 to 255.
pub const QUEUES: u32 = 256;

/// The source of an engine's programs, called on workers' threads. By default programs bring all
/// packets and end with their process.
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

    /// Has an interface's program outlive this process if it is killed, until the returned value is
    /// dropped. Called only if programs [outlive](Self::outlive) their process.
    ///
    /// # Errors
    /// The system refused it.
    fn keep(
        &self,
        interface: &str,
        link: BorrowedFd<'_>,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        let _ = (interface, link);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// An attachment that a killed engine left on an interface. A new program replaces its program,
    /// so that there is one at any time. `mode`: the wanted one; none: any. Each attachment is
    /// returned once, and one that is not returned must not stay in the way.
    fn left(&self, interface: &str, mode: Option<XdpMode>) -> Option<(XdpLink, XdpMode)> {
        let _ = (interface, mode);
        None
    }
}

/// Programs that bring all packets.
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
