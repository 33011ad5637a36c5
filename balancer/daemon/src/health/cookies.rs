//! Do backends open connections of the gateway's SYN cookies (`syn = "backend"`)? Each is asked at the
//! service address, by the way that clients' packets take, as a client does whose SYN the gateway has
//! answered.
//!
//! An ACK brings a cookie back. It opens a connection, which is not answered; so a byte follows that
//! lies one beyond the next, which the backend acknowledges and gives to nobody. A backend without
//! `ringway accept` replies to the ACK with a RST, one that does not know the cookie with nothing.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ringway_host::tcp_repair::{self, Numbers};
use ringway_kernel::shield::ChallengeKey;
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::pace::Pace;
use super::peer::{Peer, ProbeRoute};
use super::{Health, HealthState};

/// What came is looked for after this, after twice as long, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Looks from here on send the ACK once more: it, or the byte, may have been lost. A connection that
/// is open replies to it.
const RESENT_AFTER: Duration = Duration::from_millis(10);
/// Questions at once: each has a descriptor.
const IN_FLIGHT: usize = 256;

/// Whether a backend opens connections of cookies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cookies {
    /// It has not been asked yet.
    #[default]
    Unknown,
    Taken,
    /// Why not.
    Refused(String),
}

#[derive(Clone, Debug)]
pub struct CookieTarget {
    /// The caller's number for it, returned with every event.
    pub id: usize,
    /// Of the service.
    pub address: SocketAddr,
    pub probe_route: ProbeRoute,
    pub interval: Duration,
    pub timeout: Duration,
    pub rise: u32,
    pub fall: u32,
    pub initial: Cookies,
}

/// A backend takes cookies now, or not any more, or does not for another reason.
#[derive(Clone, Debug)]
pub struct CookieEvent {
    /// [`CookieTarget::id`].
    pub id: usize,
    pub cookies: Cookies,
}

/// The running checks; dropping it stops them.
#[derive(Debug)]
pub struct CookieChecks {
    events: mpsc::Sender<CookieEvent>,
    key: watch::Sender<Option<ChallengeKey>>,
    in_flight: Arc<Semaphore>,
    tasks: JoinSet<()>,
    /// By the number of the target.
    running: HashMap<usize, AbortHandle>,
}

impl CookieChecks {
    /// Asks nobody yet.
    pub fn new(events: mpsc::Sender<CookieEvent>) -> CookieChecks {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        let (key, tasks, running) = (watch::Sender::new(None), JoinSet::new(), HashMap::new());
        CookieChecks { events, key, in_flight, tasks, running }
    }

    /// The key of cookies that are made from now on. While there is none that backends can have,
    /// nobody is asked.
    pub fn set_key(&self, key: Option<ChallengeKey>) {
        self.key.send_if_modified(|now| std::mem::replace(now, key) != key);
    }

    /// Asks these and no others from now on. Those whose number is being asked go on as they were.
    pub fn follow(&mut self, targets: Vec<CookieTarget>) {
        let wanted: HashSet<usize> = targets.iter().map(|target| target.id).collect();
        self.running.retain(|id, task| {
            let stays = wanted.contains(id);
            if !stays {
                task.abort();
            }
            stays
        });
        let new = targets.into_iter().filter(|target| !self.running.contains_key(&target.id));
        let new: Vec<CookieTarget> = new.collect();
        let count = new.len();
        for (place, target) in new.into_iter().enumerate() {
            let id = target.id;
            let watch = Watch {
                pace: Pace::new(id, place, count, target.interval),
                key: self.key.subscribe(),
                in_flight: self.in_flight.clone(),
                events: self.events.clone(),
                target,
            };
            self.running.insert(id, self.tasks.spawn(watch.run()));
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

/// The asking of one backend.
struct Watch {
    target: CookieTarget,
    pace: Pace,
    key: watch::Receiver<Option<ChallengeKey>>,
    in_flight: Arc<Semaphore>,
    events: mpsc::Sender<CookieEvent>,
}

impl Watch {
    async fn run(mut self) {
        let CookieTarget { id, interval, rise, fall, .. } = self.target;
        let known = match self.target.initial {
            Cookies::Unknown => Health::Unknown,
            Cookies::Taken => Health::Up,
            Cookies::Refused(_) => Health::Down,
        };
        let mut machine = HealthState::new(rise, fall, known);
        let mut told = self.target.initial.clone();
        let mut gaps = [self.pace.gap, self.pace.gap].into_iter();
        let mut next = Instant::now() + self.pace.first;
        loop {
            next = next.max(Instant::now());
            sleep_until(next).await;
            let Some(result) = self.ask().await else { return };
            machine.observe(result.is_ok());
            let now = match (machine.health(), result) {
                (Health::Up, _) => Cookies::Taken,
                (_, Err(why)) => Cookies::Refused(why),
                // Until it has often enough.
                (_, Ok(())) => told.clone(),
            };
            if now != told {
                told = now.clone();
                if self.events.send(CookieEvent { id, cookies: now }).await.is_err() {
                    return;
                }
            }
            next += gaps.next().unwrap_or(interval);
        }
    }

    /// Passes when a cookie opens a connection. `None`: nobody wants to know any more.
    async fn ask(&mut self) -> Option<Result<(), String>> {
        let key = (*self.key.wait_for(Option::is_some).await.ok()?)?;
        let _permit = self.in_flight.acquire().await.ok()?;
        let CookieTarget { address, probe_route, timeout, .. } = &self.target;
        let peer = Peer::new(*address, Some(probe_route.clone()));
        Some(ask(&peer, key, *timeout).await)
    }
}

/// Passes when a cookie of this key opens a connection.
async fn ask(peer: &Peer, key: ChallengeKey, limit: Duration) -> Result<(), String> {
    match timeout(limit, bring_back(peer, key)).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err("it resets connections whose SYN the gateway has answered".into()),
        Ok(Err(error)) => Err(format!("it cannot be asked: {error}")),
        Err(_) => Err("it does not reply to the gateway's cookies".into()),
    }
}

/// Whether it acknowledges; false: it resets.
async fn bring_back(peer: &Peer, key: ChallengeKey) -> io::Result<bool> {
    let isn = RandomState::new().build_hasher().finish() as u32;
    let socket = peer.bound_socket().await?;
    socket.set_zero_linger()?;
    let (from, to) = (socket.local_addr()?, peer.address);
    let cookie = key.cookie(from, to, isn, SystemTime::now());
    // The ACK of the handshake has the number before the next byte's.
    let numbers = Numbers { send: isn.wrapping_add(2), receive: cookie.wrapping_add(1) };
    tcp_repair::establish(&socket, to, numbers)?;
    tcp_repair::acknowledge(&socket)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::send(&socket, b"?", flags) {
        Err(Errno::CONNRESET | Errno::PIPE) => return Ok(false),
        sent => sent?,
    };
    let mut after = FIRST_LOOK;
    loop {
        sleep(after).await;
        let heard = tcp_repair::heard(&socket)?;
        if heard.is_reset {
            return Ok(false);
        }
        if heard.segments > 0 {
            return Ok(true);
        }
        after *= 2;
        if after > RESENT_AFTER {
            tcp_repair::acknowledge(&socket)?;
        }
    }
}
