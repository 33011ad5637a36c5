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
use std::time::{Duration, SystemTime};

use ringway_host::tcp_repair::{self, Numbers};
use ringway_kernel::shield::ChallengeKey;
use rustix::io::Errno;
use rustix::net::SendFlags;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::peer::{Peer, ProbeRoute};
use super::{Health, HealthState};

/// What came is looked for after this, after twice as long, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// Looks from here on send the ACK once more: it may have been lost.
const RESENT_AFTER: Duration = Duration::from_millis(100);

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
    tasks: JoinSet<()>,
    /// By the number of the target.
    running: HashMap<usize, AbortHandle>,
}

impl CookieChecks {
    /// Asks nobody yet.
    pub fn new(events: mpsc::Sender<CookieEvent>) -> CookieChecks {
        let (key, tasks, running) = (watch::Sender::new(None), JoinSet::new(), HashMap::new());
        CookieChecks { events, key, tasks, running }
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
        for target in targets {
            if self.running.contains_key(&target.id) {
                continue;
            }
            let (id, key, events) = (target.id, self.key.subscribe(), self.events.clone());
            self.running.insert(id, self.tasks.spawn(watch_one(target, key, events)));
        }
        while self.tasks.try_join_next().is_some() {}
    }
}

async fn watch_one(
    target: CookieTarget,
    mut key: watch::Receiver<Option<ChallengeKey>>,
    events: mpsc::Sender<CookieEvent>,
) {
    let known = match target.initial {
        Cookies::Unknown => Health::Unknown,
        Cookies::Taken => Health::Up,
        Cookies::Refused(_) => Health::Down,
    };
    let mut machine = HealthState::new(target.rise, target.fall, known);
    let mut told = target.initial;
    let peer = Peer { address: target.address, probe_route: Some(target.probe_route) };
    let mut next = Instant::now();
    loop {
        next = next.max(Instant::now());
        sleep_until(next).await;
        let Ok(present) = key.wait_for(Option::is_some).await.map(|key| *key) else { return };
        let Some(present) = present else { continue };
        let result = ask(&peer, present, target.timeout).await;
        machine.observe(result.is_ok());
        let now = match (machine.health(), result) {
            (Health::Up, _) => Cookies::Taken,
            (_, Err(why)) => Cookies::Refused(why),
            // Until it has often enough.
            (_, Ok(())) => told.clone(),
        };
        if now != told {
            told = now.clone();
            if events.send(CookieEvent { id: target.id, cookies: now }).await.is_err() {
                return;
            }
        }
        next += target.interval;
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
