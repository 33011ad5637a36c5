//! Whether a node should get traffic: the check for keepalived, BIRD and ExaBGP, which must have
//! its answer at once and withdraw a node only where another would do better.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use ringway_kernel::{BackendState, DEFAULT_BPFFS, ServiceState, View};

use crate::client::http::{self, Failure};
use crate::client::node_selector::NodeSelector;
use crate::documents::readiness::{Readiness, line};
use crate::node::liveness;
use crate::problem_kind::ProblemKind;

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_millis(60);
/// The tables are looked at when the daemon has not answered by then.
const HEAD_START: Duration = Duration::from_millis(15);
/// How long both may take together.
const IN_ALL: Duration = Duration::from_millis(85);
/// Asks the daemon, and waits no longer than a tenth of a second. Whatever goes wrong is a reason
/// not to be ready.
pub fn ask(selector: &NodeSelector<'_>, service: Option<&str>) -> Readiness {
    let target = match selector.find() {
        Ok(target) => target,
        // A user who may not read the pins may still ask the daemon.
        Err(error) => {
            let socket = Path::new(ringway_config::DEFAULT_SOCKET);
            let answer = http::get_at_once(socket, &path(service), PATIENCE);
            return answer.unwrap_or_else(|_| {
                Readiness::no("", line(&ProblemKind::DaemonSilent.because(error)))
            });
        }
    };
    let name = &target.node;
    let tables = Tables::read(name, service);
    let mut why = None;
    for socket in &target.sockets {
        match http::get_at_once::<Readiness>(socket, &path(service), PATIENCE) {
            Ok(found) if *name == found.node => return found,
            Ok(found) => {
                why = Some(format!("API socket {} is node {}'s", socket.display(), found.node));
            }
            Err(Failure::NotRunning) => {}
            Err(Failure::Late(error)) => {
                return match tables.serve() {
                    true => Readiness::busy(name),
                    false => Readiness::no(name, line(&ProblemKind::DaemonSilent.because(error))),
                };
            }
            Err(Failure::Failed(error)) => {
                return Readiness::no(name, line(&ProblemKind::DaemonSilent.because(error)));
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

/// The tables, read aside while the daemon is slow to answer.
struct Tables {
    /// Dropped when nobody wants to know any more.
    _wanted: SyncSender<()>,
    answer: Receiver<bool>,
    until: Instant,
}

impl Tables {
    fn read(node: &str, service: Option<&str>) -> Tables {
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
    let beats =
        view.daemon()?.is_some_and(|daemon| daemon.running && liveness::is_fresh(daemon.alive));
    if !beats || view.interfaces()?.iter().any(|interface| interface.mode.is_none()) {
        return Ok(false);
    }
    let taken = |backend: &BackendState| backend.up && backend.next_hop.is_some();
    let asked = |state: &ServiceState| service.is_none_or(|name| state.name == name);
    let services = view.services()?;
    if services.is_empty() && service.is_none() {
        return Ok(view.forward_state()?.is_some());
    }
    Ok(services.iter().any(|state| asked(state) && state.backends.iter().any(taken)))
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

    #[test]
    fn names_are_encoded() {
        assert_eq!(encoded("web-1.a_~"), "web-1.a_~");
        assert_eq!(encoded("w b&=é"), "w%20b%26%3D%C3%A9");
    }
}
