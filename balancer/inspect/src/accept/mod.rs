//! `ringway accept`: opens the connections at a backend whose SYNs the gateway has answered, while it
//! runs.

mod fitness;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use ringway_abi::Accept as End;
use ringway_abi::raw::rw_accept_counts;
use ringway_api::clock::Timestamp;
use ringway_api::documents::changes::SecretChange;
use ringway_api::documents::named;
use ringway_api::error::Error;
use ringway_api::syn_secret::{self, Reader};
use ringway_host::netlink::links::{self, Link};
use ringway_kernel::shield::FORMER_KEY_COUNTS;
use ringway_kernel::{Accept, AcceptState, accept_state, require_accept};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

use fitness::Problem;
pub use fitness::{Accepts, accepts};

/// How often the clock, the key and the listeners are looked at.
const EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct AcceptOptions {
    /// The interface by which clients' packets come.
    pub interface: String,
    /// The file with the gateways' key.
    pub secret: PathBuf,
    /// The services' addresses and ports.
    pub listeners: Vec<SocketAddr>,
}

/// An accept as it stands: schema `ringway.accept/1`.
#[derive(Clone, Debug, Serialize)]
pub struct AcceptStatus {
    /// `ringway.accept/1`.
    pub schema: &'static str,
    pub interface: String,
    /// Of the secret: gateways with the same one make its cookies. It gives nobody the secret.
    pub fingerprint: String,
    /// Of the secret before, whose cookies are still taken.
    pub former_fingerprint: Option<String>,
    /// What this kernel agrees to with clients.
    pub accepts: Accepts,
    pub listeners: Vec<ListenerStatus>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ListenerStatus {
    pub address: SocketAddr,
    /// Why it gets no connections; `null`: it does.
    pub problem: Option<String>,
    /// Its segments by their end; only those that occurred.
    pub counters: Vec<EndCounter>,
}

/// How often segments ended in one way.
#[derive(Clone, Debug, Serialize)]
pub struct EndCounter {
    #[serde(serialize_with = "named::serialize")]
    pub end: End,
    pub dropped: bool,
    pub packets: u64,
}

/// Opens connections until SIGTERM or SIGINT. `tell` is given lines for people. Returns the last
/// status.
///
/// # Errors
/// It cannot begin, or the program was taken off its interface.
pub fn run(options: &AcceptOptions, tell: impl Fn(&str)) -> Result<AcceptStatus, Error> {
    require_accept().map_err(kernel)?;
    let link = find(&options.interface)?;
    if accept_state(link.ifindex).map_err(kernel)?.is_some() {
        return Err(Error::failed(
            format!("another ringway accept is at work on {}", link.name),
            format!(
                "`ringway accept -i {} --status` shows it; to end it, stop that process",
                link.name
            ),
        ));
    }
    let key = syn_secret::read(Reader::Backend, &options.secret)?;
    let mut problems = fitness::problems(&options.listeners, &link)?;
    if let Some(problem) = problems.first() {
        return Err(Error::configuration(&problem.what, problem.remedy.as_str()));
    }
    let mut accept = Accept::load(&options.listeners, link.mac.is_some(), key).map_err(kernel)?;
    accept.attach(&link.name, link.ifindex).map_err(kernel)?;
    let listeners: Vec<String> = options.listeners.iter().map(ToString::to_string).collect();
    tell(&format!("attached to {}: opens connections to {}", link.name, listeners.join(", ")));
    fitness::advice().iter().for_each(|line| tell(line));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed(format!("no runtime: {error}"), ""))?;
    runtime.block_on(look_after(&accept, options, &link, &mut problems, &tell))?;
    shown(&link, accept.state(), &problems)
}

/// An accept's status, whichever process began it.
///
/// # Errors
/// None is at work on this interface.
pub fn status(interface: &str) -> Result<AcceptStatus, Error> {
    let link = find(interface)?;
    let state = accept_state(link.ifindex).map_err(not_allowed)?.ok_or_else(|| {
        Error::unhealthy(
            format!("no ringway accept is at work on {interface}"),
            format!(
                "start it with `ringway accept -i {interface} --secret /etc/ringway/syn.secret --listen 203.0.113.10:80`"
            ),
        )
    })?;
    let listeners: Vec<SocketAddr> = state.counts().map_err(kernel)?.into_keys().collect();
    shown(&link, &state, &fitness::problems(&listeners, &link)?)
}

async fn look_after(
    accept: &Accept,
    options: &AcceptOptions,
    link: &Link,
    problems: &mut Vec<Problem>,
    tell: &impl Fn(&str),
) -> Result<(), Error> {
    let listen = |kind| {
        signal(kind).map_err(|error| Error::failed(format!("signals not heard: {error}"), ""))
    };
    let (mut terminate, mut interrupt) =
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let (mut ticks, mut secret_problem) = (interval(EVERY), None);
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = ticks.tick() => {}
        }
        if !accept.is_attached() {
            return Err(lost(&link.name));
        }
        let now = fitness::problems(&options.listeners, link)?;
        tell_changes(problems, &now, tell);
        *problems = now;
        let now = follow_secret(accept, options, tell).err().map(|error| error.to_string());
        if let Some(problem) = now.as_ref().filter(|_| now != secret_problem) {
            tell(&format!("{problem}; the key read before stays"));
        }
        secret_problem = now;
        accept.follow_clock(SystemTime::now()).map_err(kernel)?;
    }
}

fn follow_secret(
    accept: &Accept,
    options: &AcceptOptions,
    tell: &impl Fn(&str),
) -> Result<(), Error> {
    let key = syn_secret::read(Reader::Backend, &options.secret)?;
    let before = accept.state().secrets().map_err(kernel)?;
    accept.set_key(key).map_err(kernel)?;
    if let Some(mut change) = SecretChange::between(&before, Some(key)) {
        change.former_until = Some(Timestamp(SystemTime::now() + FORMER_KEY_COUNTS));
        tell(&change.to_string());
    }
    Ok(())
}

/// What has come and what has gone.
fn tell_changes(before: &[Problem], now: &[Problem], tell: &impl Fn(&str)) {
    for problem in now.iter().filter(|problem| !before.contains(problem)) {
        tell(&format!("{}; {}", problem.what, problem.remedy));
    }
    for problem in before.iter().filter(|problem| !now.contains(problem)) {
        tell(&format!("no longer: {}", problem.what));
    }
}

fn find(interface: &str) -> Result<Link, Error> {
    let link = links::by_name(interface)
        .map_err(|error| Error::configuration(error.to_string(), "give another with -i IFACE"))?;
    if link.loopback {
        return Err(Error::configuration(
            format!("{interface} is the loopback interface"),
            "give the one by which clients' packets come",
        ));
    }
    Ok(link)
}

fn shown(link: &Link, state: &AcceptState, problems: &[Problem]) -> Result<AcceptStatus, Error> {
    let counts: BTreeMap<SocketAddr, rw_accept_counts> = state.counts().map_err(kernel)?;
    let listener = |(address, counts): (SocketAddr, rw_accept_counts)| ListenerStatus {
        address,
        problem: problems
            .iter()
            .find(|problem| problem.listener.is_none_or(|one| one == address))
            .map(|problem| format!("{}; {}", problem.what, problem.remedy)),
        counters: End::all()
            .map(|end| EndCounter { end, dropped: end.is_dropped(), packets: counts.of(end) })
            .filter(|counter| counter.packets > 0)
            .collect(),
    };
    let secrets = state.secrets().map_err(kernel)?;
    Ok(AcceptStatus {
        schema: "ringway.accept/1",
        interface: link.name.clone(),
        fingerprint: secrets.present,
        former_fingerprint: secrets.former,
        accepts: accepts()?,
        listeners: counts.into_iter().map(listener).collect(),
    })
}

/// Programs and maps of other processes are for the privileged alone.
fn not_allowed(error: ringway_kernel::Error) -> Error {
    let refused = matches!(&error, ringway_kernel::Error::System { source, .. }
        if source.kind() == io::ErrorKind::PermissionDenied);
    let remedy = "run it as root (sudo), or with CAP_NET_ADMIN and CAP_SYS_ADMIN";
    Error::failed(error.to_string(), if refused { remedy } else { "" })
}

fn lost(interface: &str) -> Error {
    Error::failed(
        format!("{interface}: the interface has vanished, or our program was detached"),
        format!("see `ip link show dev {interface}`, then start `ringway accept` again"),
    )
}

fn kernel(error: ringway_kernel::Error) -> Error {
    Error::failed(error.to_string(), "")
}

fn host(error: ringway_host::Error) -> Error {
    Error::failed(error.to_string(), "")
}
