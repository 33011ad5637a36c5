//! The tunnel that the checks of dsr backends take, and its routes. The kernel may take its time to
//! make them: that is done on a thread that may wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ringway_api::error::Error;
use ringway_config::Config;
use ringway_host::netlink::rules::MarkRule;
use ringway_kernel::{Interface, ProbeProgram};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use crate::backends::BackendSet;
use crate::health::ProbeRoute;
use crate::health::dsr_probe::{ProbeTunnel, Surroundings};
use crate::network::next_hop::{Hop, NoWay};

/// A configuration that may follow, and its backends.
type Next<'n> = (&'n Arc<Config>, &'n BackendSet);

/// Routes that were made for a change.
pub(super) enum Made {
    /// A tunnel, if one is needed; and the program, where no tunnel has taken it.
    Opened(Box<Result<Option<ProbeTunnel>, Error>>, Option<ProbeProgram>),
    /// To be added to the tunnel there is.
    Added(Result<Vec<MarkRule>, Error>),
}

/// The tunnel, if there is one.
pub(super) struct ProbeRoutes {
    tunnel: Option<ProbeTunnel>,
    /// For a tunnel that a reload opens, when nothing can be loaded any more.
    program: Option<ProbeProgram>,
    /// The change that routes were made for last.
    led: u64,
    send: mpsc::UnboundedSender<Made>,
    receive: mpsc::UnboundedReceiver<Made>,
}

impl ProbeRoutes {
    pub(super) fn new(tunnel: Option<ProbeTunnel>, program: Option<ProbeProgram>) -> ProbeRoutes {
        let (send, receive) = mpsc::unbounded_channel();
        ProbeRoutes { tunnel, program, led: 0, send, receive }
    }

    /// Makes the routes of what may follow, once for the change of this number. `None`: that takes
    /// a while, [`ProbeRoutes::next`] has the outcome.
    pub(super) fn lead(&mut self, number: u64, next: Next<'_>) -> Option<Result<(), Error>> {
        if std::mem::replace(&mut self.led, number) == number {
            return None;
        }
        let (config, send) = (next.0.clone(), self.send.clone());
        match &self.tunnel {
            None if !ProbeTunnel::is_needed(&config) => return Some(Ok(())),
            None => {
                let (ids, mut program) = (next.1.ids(), self.program.take());
                spawn_blocking(move || {
                    let opened = ProbeTunnel::open(&config, &ids, &mut program);
                    // Closed only when the daemon has ended.
                    let _ = send.send(Made::Opened(Box::new(opened), program));
                });
            }
            Some(tunnel) => match tunnel.leading(&config) {
                None => return Some(self.take(Made::Added(Ok(Vec::new())), Some(next))),
                Some(lead) => {
                    spawn_blocking(move || drop(send.send(Made::Added(lead()))));
                }
            },
        }
        None
    }

    /// The next that was made.
    pub(super) async fn next(&mut self) -> Option<Made> {
        self.receive.recv().await
    }

    /// Takes it for what may follow.
    ///
    /// # Errors
    /// The routes cannot be.
    pub(super) fn take(&mut self, made: Made, next: Option<Next<'_>>) -> Result<(), Error> {
        let rules = match made {
            Made::Opened(opened, program) => {
                self.program = program;
                self.tunnel = (*opened)?;
                Vec::new()
            }
            Made::Added(rules) => rules?,
        };
        match (&mut self.tunnel, next) {
            (Some(tunnel), Some((config, set))) => tunnel.add(config, &set.ids(), rules),
            _ => Ok(()),
        }
    }

    /// Keeps the routes of these alone, and returns them.
    pub(super) fn keep(&mut self, has: impl Fn(usize) -> bool) -> BTreeMap<usize, ProbeRoute> {
        let Some(tunnel) = &mut self.tunnel else { return BTreeMap::new() };
        tunnel.keep(has);
        tunnel.routes()
    }

    /// Has the tunnel lead where the ways lead now; why it does not.
    pub(super) fn update(
        &mut self,
        ways: &HashMap<usize, &Result<Hop, NoWay>>,
        interfaces: &[Interface],
        around: &Surroundings,
    ) -> Option<Error> {
        self.tunnel.as_mut()?.update(ways, interfaces, around).err()
    }
}
