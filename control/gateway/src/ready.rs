//! Whether a node should get traffic: the check for keepalived, BIRD and ExaBGP, which must have its
//! answer at once and withdraw a node only where another would do better.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use ringway_kernel::{BackendState, DEFAULT_BPFFS, ServiceState, View};
use serde::{Deserialize, Serialize};

use crate::api::client::{self, Failure};
use crate::ask::Whom;
use crate::board;
use crate::status::{Problem, Status};
use crate::trouble::Trouble;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.ready/1";

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(60);
/// The tables are looked at when the daemon has not answered by then.
const HEAD_START: Duration = Duration::from_millis(15);
/// How long both may take together.
const IN_ALL: Duration = Duration::from_millis(85);
/// A daemon beats twice a second.
pub(crate) const FRESH: Duration = Duration::from_secs(2);

/// Whether, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// [`SCHEMA`].
    pub schema: String,
    /// `[node] name`; empty when it is not known.
    pub node: String,
    /// Whether it should get traffic.
    pub ready: bool,
    /// Why not; or, where it should all the same, what is wrong with single services.
    pub reasons: Vec<String>,
}

impl Readiness {
    /// By what the daemon has posted. `service`: one of them, instead of any.
    pub fn of(posted: &Status, stalled: Option<Duration>, service: Option<&str>) -> Readiness {
        let mut unready: Vec<String> = posted.unready.iter().map(line).collect();
        if let Some(age) = stalled {
            unready.insert(0, board::stalled(age, posted.daemon.pid.unwrap_or_default()).error);
        }
        if let Some(name) = service {
            unready.extend(unserved(posted, name));
        }
        let ready = unready.is_empty();
        let reasons = if ready { posted.problems.iter().map(line).collect() } else { unready };
        Readiness { schema: SCHEMA.to_owned(), node: posted.node.clone(), ready, reasons }
    }

    fn no(node: &str, reason: String) -> Readiness {
        let (schema, node) = (SCHEMA.to_owned(), node.to_owned());
        Readiness { schema, node, ready: false, reasons: vec![reason] }
    }

    fn busy(node: &str) -> Readiness {
        let reasons = vec!["the daemon is busy: by the tables".to_owned()];
        Readiness { schema: SCHEMA.to_owned(), node: node.to_owned(), ready: true, reasons }
    }

    /// One line for people and logs.
    pub fn line(&self) -> String {
        let word = if self.ready { "ready" } else { "not ready" };
        let node = if self.node.is_empty() { "" } else { &format!(": node {}", self.node) };
        let but = if self.ready { ", although " } else { ": " };
        match self.reasons.as_slice() {
            [] => format!("{word}{node}"),
            [one] => format!("{word}{node}{but}{one}"),
            [one, rest @ ..] => format!("{word}{node}{but}{one} (and {} more)", rest.len()),
        }
    }
}

fn line(problem: &Problem) -> String {
    let Problem { error, remedy, .. } = problem;
    let text = if remedy.is_empty() { error.clone() } else { format!("{error}; {remedy}") };
    text.replace('\n', " ")
}

fn unserved(posted: &Status, name: &str) -> Option<String> {
    let mut of_name = posted.services.iter().filter(|service| service.name == name).peekable();
    if of_name.peek().is_none() {
        return Some(format!("there is no service {name:?}: `ringway status` lists them"));
    }
    let served = of_name.any(|service| service.serving() > 0);
    (!served).then(|| format!("service {name}: no backend gets traffic; see `ringway status`"))
}

/// Asks the daemon, and waits no longer than a tenth of a second. Whatever goes wrong is a reason
/// not to be ready.
pub fn ask(whom: &Whom<'_>, service: Option<&str>) -> Readiness {
    let target = match whom.find() {
        Ok(target) => target,
        // Who may not look at the pins may still ask.
        Err(error) => {
            let socket = Path::new(ringway_config::DEFAULT_SOCKET);
            let answer = client::get_at_once(socket, &path(service), PATIENCE);
            return answer.unwrap_or_else(|_| {
                Readiness::no("", line(&Trouble::DaemonSilent.because(error)))
            });
        }
    };
    let name = &target.node;
    let tables = Tables::look(name, service);
    let mut why = None;
    for socket in &target.sockets {
        match client::get_at_once::<Readiness>(socket, &path(service), PATIENCE) {
            Ok(found) if *name == found.node => return found,
            Ok(found) => {
                why = Some(format!("API socket {} is node {}'s", socket.display(), found.node));
            }
            Err(Failure::NotRunning) => {}
            Err(Failure::Late(error)) => {
                return match tables.serve() {
                    true => Readiness::busy(name),
                    false => Readiness::no(name, line(&Trouble::DaemonSilent.because(error))),
                };
            }
            Err(Failure::Failed(error)) => {
                return Readiness::no(name, line(&Trouble::DaemonSilent.because(error)));
            }
        }
    }
    let tried = target.sockets.iter().map(|socket| socket.display().to_string());
    let tried: Vec<String> = tried.collect();
    let nobody = || format!("daemon not running: nobody listens on {}", tried.join(" or "));
    Readiness::no(name, why.unwrap_or_else(nobody))
}

fn path(service: Option<&str>) -> String {
    service.map_or_else(|| "/v1/ready".into(), |name| format!("/v1/ready/{}", encoded(name)))
}

/// What the tables say, read aside while the daemon is slow to answer.
struct Tables {
    /// Dropped when nobody wants to know any more.
    _wanted: SyncSender<()>,
    answer: Receiver<bool>,
    until: Instant,
}

impl Tables {
    fn look(node: &str, service: Option<&str>) -> Tables {
        let (wanted, unwanted) = sync_channel::<()>(0);
        let (send, answer) = sync_channel(1);
        let (node, service) = (node.to_owned(), service.map(str::to_owned));
        std::thread::spawn(move || {
            if unwanted.recv_timeout(HEAD_START) == Err(RecvTimeoutError::Timeout) {
                let serves = serves(&node, service.as_deref());
                let _ = send.send(serves.unwrap_or_default());
            }
        });
        Tables { _wanted: wanted, answer, until: Instant::now() + IN_ALL }
    }

    /// A daemon that beats does not hang: it, or the machine, is busy. False: it does not beat, the
    /// tables say that nothing is served, or they were not read in time.
    fn serve(self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        self.answer.recv_timeout(left).unwrap_or_default()
    }
}

fn serves(node: &str, service: Option<&str>) -> ringway_kernel::Result<bool> {
    let view = View::open(Path::new(DEFAULT_BPFFS), node)?;
    let beats = view.daemon()?.is_some_and(|daemon| daemon.running && is_fresh(daemon.alive));
    if !beats || view.interfaces()?.iter().any(|interface| interface.mode.is_none()) {
        return Ok(false);
    }
    let taken = |backend: &BackendState| backend.up && backend.next_hop.is_some();
    let asked = |state: &ServiceState| service.is_none_or(|name| state.name == name);
    let services = view.services()?;
    Ok(services.iter().any(|state| asked(state) && state.backends.iter().any(taken)))
}

pub(crate) fn is_fresh(beat: SystemTime) -> bool {
    // A clock that was set back makes it come from the future: then it is not known.
    beat.elapsed().is_ok_and(|age| age < FRESH)
}

/// For a URL (RFC 3986, section 2.1).
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let one = |byte: u8| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") };
    name.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Health;
    use crate::status::{Backend, NextHop, Service};

    fn problem(error: &str) -> Problem {
        Problem { error: error.into(), remedy: "mend it".into(), ..Problem::default() }
    }

    fn service(name: &str, health: Health) -> Service {
        let backend = Backend { health, next_hop: Some(NextHop::default()), ..Backend::default() };
        Service { name: name.into(), backends: vec![backend], ..Service::default() }
    }

    #[test]
    fn one_service_of_two_is_no_reason_to_withdraw_the_node() {
        let posted = Status {
            node: "gw1".into(),
            problems: vec![problem("service web: no backend")],
            services: vec![service("web", Health::Down), service("dns", Health::Up)],
            ..Status::default()
        };
        let all = Readiness::of(&posted, None, None);
        assert!(all.ready);
        assert_eq!(all.line(), "ready: node gw1, although service web: no backend; mend it");
        assert!(Readiness::of(&posted, None, Some("dns")).ready);
        let web = Readiness::of(&posted, None, Some("web"));
        assert!(!web.ready && web.line().starts_with("not ready: node gw1: service web:"));
        assert!(!Readiness::of(&posted, None, Some("mail")).ready);
    }

    #[test]
    fn a_node_that_cannot_serve_says_why_in_one_line() {
        let unready = vec![problem("eth1 is\ndown"), problem("starting")];
        let posted = Status { node: "gw1".into(), unready, ..Status::default() };
        let said = Readiness::of(&posted, None, None).line();
        assert_eq!(said, "not ready: node gw1: eth1 is down; mend it (and 1 more)");
        let stalled = Readiness::of(&Status::default(), Some(Duration::from_secs(9)), None);
        assert!(!stalled.ready && stalled.reasons[0].contains("9 s"));
    }

    #[test]
    fn beats_grow_old() {
        let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
        assert!(is_fresh(ago(1)) && !is_fresh(ago(4)));
        assert!(!is_fresh(SystemTime::now() + Duration::from_secs(60)));
    }

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("web-1.a_~"), "web-1.a_~");
        assert_eq!(encoded("w b&=é"), "w%20b%26%3D%C3%A9");
    }
}
