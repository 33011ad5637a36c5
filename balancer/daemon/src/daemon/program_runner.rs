//! The program of `[shield.mitigation]`, which is told of attacks. It runs as user ringway, one at a
//! time. Of what waits for it, each service's newest is told.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::mitigation_event::{MitigationEvent, SCHEMA};
use ringway_config::Protocol;
use tokio::sync::Semaphore;

use super::step::ProgramRun;
use crate::health::Failure;
use crate::health::exec::{self, LastRun};
use crate::monitor::mitigation_program;
use crate::snapshot::{Sources, StatusStore};

/// A program that runs longer is killed.
const LIMIT: Duration = Duration::from_secs(10);

pub struct ProgramRunner {
    status_store: Arc<StatusStore>,
    waiting: Arc<Mutex<Waiting>>,
    /// One that cannot be killed keeps the room, and no other runs.
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Waiting {
    /// By whether it begins, service and command: after a reload the former program hears the end
    /// before the present one hears the beginning. Both may keep one file.
    runs: BTreeMap<(bool, IpAddr, u16, Protocol, Vec<String>), ProgramRun>,
    /// A task runs one after the other.
    busy: bool,
}

impl Waiting {
    /// Adds one in place of what the service had for this program; returns whether a task is to begin.
    fn add(&mut self, run: ProgramRun) -> bool {
        let AttackStatus { address, port, protocol, .. } = run.attack;
        let key = |begins| (begins, address, port, protocol, run.command.clone());
        self.runs.remove(&key(!run.begins));
        self.runs.insert(key(run.begins), run);
        !std::mem::replace(&mut self.busy, true)
    }

    /// The next one; `None`: the task ends.
    fn next(&mut self) -> Option<ProgramRun> {
        let next = self.runs.pop_first().map(|(_, run)| run);
        self.busy = next.is_some();
        next
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProgramRunner {
    pub fn new(status_store: Arc<StatusStore>) -> ProgramRunner {
        let room = Arc::new(Semaphore::new(1));
        ProgramRunner { status_store, waiting: Arc::default(), room }
    }

    /// Runs it when those before it have ended.
    pub fn run(&self, run: ProgramRun) {
        if !lock(&self.waiting).add(run) {
            return;
        }
        let (status_store, room) = (self.status_store.clone(), self.room.clone());
        let waiting = self.waiting.clone();
        tokio::spawn(async move {
            let next = || lock(&waiting).next();
            while let Some(run) = next() {
                let (service, event) = (run.attack.service.clone(), run.event());
                let outcome = tell(&status_store, &room, &run).await;
                let failure = outcome.as_ref().err().map(Failure::to_string);
                status_store.program_outcomes.note(&run.attack, &run.command, run.begins, failure);
                match outcome {
                    Ok(said) => {
                        tracing::info!(service, event, said, "the program was told of an attack");
                    }
                    Err(error) => {
                        tracing::error!(service, event, %error, "the program was not told of an attack");
                    }
                }
            }
        });
    }
}

/// The first line that it says.
async fn tell(
    status_store: &Arc<StatusStore>,
    room: &Arc<Semaphore>,
    run: &ProgramRun,
) -> Result<Option<String>, Failure> {
    let Some((program, arguments)) = run.command.split_first() else { return Ok(None) };
    let user = mitigation_program::user().map_err(Failure::Program)?;
    // It is told without them where they cannot be read.
    let shield = StatusStore::shield(status_store, Sources::Of(run.attack.clone())).await;
    let event = MitigationEvent {
        schema: SCHEMA.into(),
        node: status_store.node(),
        event: run.event().into(),
        attack: run.attack.clone(),
        heavy_sources: shield.map_or(Vec::new(), |it| it.heavy_sources),
    };
    let words =
        serde_json::to_string(&event).map_err(|error| Failure::Program(error.to_string()))?;
    let permit = room.clone().acquire_owned().await;
    let permit = Arc::new(permit.map_err(|error| Failure::Program(error.to_string()))?);
    let mut last = LastRun::default();
    exec::tell(program, arguments, &format!("{words}\n"), user, LIMIT, &mut last, permit).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::mitigation_program::tests::attack;

    fn run(port: u16, begins: bool) -> ProgramRun {
        ProgramRun { command: Vec::new(), begins, attack: attack(port) }
    }

    #[test]
    fn of_what_waits_the_newest_of_each_service_is_told() {
        let mut waiting = Waiting::default();
        assert!(waiting.add(run(80, true)), "a task begins");
        assert_eq!(waiting.next(), Some(run(80, true)));
        let more = [run(80, true), run(443, true), run(80, false)];
        assert_eq!(more.map(|run| waiting.add(run)), [false; 3], "it runs");
        let told = [waiting.next(), waiting.next(), waiting.next()];
        assert_eq!(told, [Some(run(80, false)), Some(run(443, true)), None]);
        assert!(waiting.add(run(80, true)), "it has ended");
    }

    #[test]
    fn the_program_before_a_reload_hears_the_end_that_waits() {
        let mut waiting = Waiting::default();
        let by =
            |program: &str, begins| ProgramRun { command: vec![program.into()], ..run(80, begins) };
        waiting.add(by("/present", true));
        waiting.add(by("/that was", false));
        let told = [waiting.next(), waiting.next(), waiting.next()];
        assert_eq!(told, [Some(by("/that was", false)), Some(by("/present", true)), None]);
    }
}
