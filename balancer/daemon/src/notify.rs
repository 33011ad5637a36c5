//! systemd's notification protocol (sd_notify(3)): datagrams to `$NOTIFY_SOCKET`.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The service manager, when there is one.
#[derive(Debug)]
pub struct Notifier {
    to: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

/// What [`Notifier::keep`] gives is called so by the manager.
const KEPT: &str = "nodes";

/// A manager that does not read its socket is waited for no longer: the daemon has others to serve.
const PATIENCE: Duration = Duration::from_millis(100);

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. Without them every call does
    /// nothing.
    pub fn from_env() -> Notifier {
        let socket = std::env::var("NOTIFY_SOCKET").ok();
        let usec = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let ours =
            std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        Notifier::new(socket.as_deref(), usec.filter(|_| ours))
    }

    fn new(socket: Option<&str>, watchdog_usec: Option<u64>) -> Notifier {
        let open = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_write_timeout(Some(PATIENCE)).ok()?;
            Some(socket)
        };
        let to = socket.and_then(address).and_then(|to| Some((open()?, to)));
        // Twice per period, as sd_watchdog_enabled(3) advises.
        let watchdog = watchdog_usec.filter(|_| to.is_some());
        Notifier { to, watchdog: watchdog.map(|usec| Duration::from_micros(usec / 2)) }
    }

    /// Whether there is a service manager.
    pub fn is_there(&self) -> bool {
        self.to.is_some()
    }

    /// How often [`Notifier::watchdog`] must be called.
    pub fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog
    }

    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\nMAINPID={}", std::process::id()));
    }

    /// One line for `systemctl status`.
    pub fn status(&self, status: &str) {
        self.send(&format!("STATUS={status}"));
    }

    /// The configuration is being read again (Type=notify-reload).
    pub fn reloading(&self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let usec = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}"));
    }

    /// It was, or what is in force stays.
    pub fn reloaded(&self) {
        self.send("READY=1");
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Has the manager keep a descriptor for the next process of this service, in place of a former
    /// one; for as long as the service is not stopped (FileDescriptorStoreMax= in
    /// systemd.service(5)).
    pub fn keep(&self, descriptor: BorrowedFd<'_>) {
        let Some((_, to)) = &self.to else { return };
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={KEPT}"));
        let give = || -> std::io::Result<()> {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(PATIENCE))?;
            socket.connect_addr(to)?;
            let descriptors = [descriptor];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut room);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            let message = format!("FDSTORE=1\nFDNAME={KEPT}");
            sendmsg(
                &socket,
                &[IoSlice::new(message.as_bytes())],
                &mut ancillary,
                SendFlags::NOSIGNAL,
            )?;
            Ok(())
        };
        if let Err(error) = give() {
            tracing::debug!(%error, "the service manager keeps no descriptor");
        }
    }

    /// What a former process of this service gave to [`Notifier::keep`]: a descriptor that this
    /// process was started with (sd_listen_fds(3)).
    pub fn kept() -> Option<RawFd> {
        let set = |name| std::env::var(name).ok();
        let ours = set("LISTEN_PID")? == std::process::id().to_string();
        let place = set("LISTEN_FDNAMES")?.split(':').position(|name| name == KEPT)?;
        ours.then(|| FIRST_PASSED.saturating_add_unsigned(place as u32))
    }

    /// The daemon's loop is alive.
    pub fn watchdog(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, to)) = &self.to
            && let Err(error) = socket.send_to_addr(message.as_bytes(), to)
        {
            tracing::debug!(%error, "service manager not notified");
        }
    }
}

/// SD_LISTEN_FDS_START.
const FIRST_PASSED: RawFd = 3;

/// A path, or `@name` for the abstract namespace.
fn address(socket: &str) -> Option<SocketAddr> {
    match socket.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name.as_bytes()).ok(),
        None => SocketAddr::from_pathname(socket).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive() {
        let name = format!("@ringway-notify-{}", std::process::id());
        let manager = UnixDatagram::bind_addr(&address(&name).expect("address")).expect("bind");
        let notifier = Notifier::new(Some(&name), Some(2_000_000));
        assert_eq!(notifier.watchdog_period(), Some(Duration::from_secs(1)));
        notifier.ready("1 service");
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).expect("message");
        assert!(buffer[..length].starts_with(b"READY=1\nSTATUS=1 service\n"));
        notifier.reloading();
        let length = manager.recv(&mut buffer).expect("message");
        assert!(buffer[..length].starts_with(b"RELOADING=1\nMONOTONIC_USEC="));
        notifier.watchdog();
        let length = manager.recv(&mut buffer).expect("message");
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
    }

    #[test]
    fn a_manager_that_does_not_read_holds_up_nobody() {
        let name = format!("@ringway-notify-full-{}", std::process::id());
        let _manager = UnixDatagram::bind_addr(&address(&name).expect("address")).expect("bind");
        let notifier = Notifier::new(Some(&name), None);
        let most = std::fs::read_to_string("/proc/sys/net/unix/max_dgram_qlen").expect("proc");
        for _ in 0..most.trim().parse::<u32>().expect("a number") + 3 {
            notifier.watchdog();
        }
    }

    #[test]
    fn no_manager_no_watchdog() {
        let notifier = Notifier::new(None, Some(5));
        assert_eq!(notifier.watchdog_period(), None);
        notifier.stopping();
    }
}
