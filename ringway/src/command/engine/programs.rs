//! The engine's XDP programs: which packets they choose (`--only`), what becomes of packets when
//! the engine dies (`--when-dead`), and what an engine that was killed has left on an interface.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ringway_api::text::counted;
use ringway_engine::PortSpec;
use ringway_engine::programs::{Programs, QUEUES};
use ringway_host::netlink::links;
use ringway_kernel::{DeadEngine, Steer, SteerRule, XdpLink, XdpMode, dead_engines};
use ringway_xsk::{Cause, Program, SetupError, Step};

use crate::cli::{WhenDead, WorkArgs};
use crate::exit;

/// The programs of one run.
#[derive(Debug)]
pub struct EnginePrograms {
    only: Vec<SteerRule>,
    /// In words, in order.
    choice: String,
    /// Packets of its queues are dropped when the engine is dead.
    drops: bool,
    /// By interface, those that are read.
    queues: BTreeMap<String, Vec<u32>>,
    /// Leftovers of dead engines, by interface.
    dead: Mutex<BTreeMap<String, Vec<Left>>>,
}

#[derive(Debug)]
struct Left {
    engine: DeadEngine,
    /// A program of ours has taken the place of its program.
    inherited: bool,
}

impl EnginePrograms {
    /// For these ports. One that takes over has no dead engines before it.
    pub fn new<'a>(
        work: &WorkArgs,
        ports: impl Iterator<Item = &'a PortSpec>,
    ) -> anyhow::Result<Self> {
        let mut queues = BTreeMap::<String, Vec<u32>>::new();
        for port in ports {
            if let PortSpec::AfXdp(config) = port {
                queues.entry(config.interface.clone()).or_default().push(config.queue);
            }
        }
        let mut words: Vec<_> = work.only.iter().map(ToString::to_string).collect();
        words.sort();
        let mut dead = BTreeMap::new();
        for interface in queues.keys().filter(|_| work.take_over.is_none()) {
            // Opening it reports that it does not exist.
            let Ok(link) = links::by_name(interface) else { continue };
            let engines = dead_engines(link.ifindex)?.into_iter();
            let left = engines.map(|engine| Left { engine, inherited: false }).collect();
            dead.insert(interface.clone(), left);
        }
        let (only, choice, dead) = (work.only.clone(), words.join(", "), Mutex::new(dead));
        Ok(Self { only, choice, drops: work.when_dead == WhenDead::Drop, queues, dead })
    }

    /// Says what dead engines have dropped, and forgets them.
    pub fn bury(&self) -> anyhow::Result<()> {
        for (interface, left) in std::mem::take(&mut *self.dead()) {
            for Left { engine, inherited } in left {
                if !inherited {
                    engine.detach();
                }
                let dropped = counted(usize::try_from(engine.dropped_packets()?)?, "packet");
                exit::say(format_args!(
                    "warn: {interface}: an engine was killed here, and its program has dropped {dropped} since; this one has taken its place"
                ));
                engine.remove()?;
            }
        }
        Ok(())
    }

    fn dead(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Left>>> {
        // A panic does not leave the map half written.
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Programs for EnginePrograms {
    fn choice(&self) -> &str {
        &self.choice
    }

    fn load(&self, interface: &str, several_frames: bool) -> Result<Program, SetupError> {
        if self.only.is_empty() && !self.drops {
            return Program::for_queues(interface, QUEUES, several_frames);
        }
        let queues = self.queues.get(interface).filter(|_| self.drops);
        let drop = queues.map_or(&[][..], Vec::as_slice);
        let Steer { program, sockets } =
            Steer::load(&self.only, drop, several_frames).map_err(|e| SetupError {
                step: Step::Load,
                on: interface.into(),
                cause: Cause::Other,
                source: io::Error::other(e),
            })?;
        Ok(Program { program, map: sockets.into() })
    }

    fn outlive(&self) -> bool {
        self.drops
    }

    fn keep(
        &self,
        interface: &str,
        link: BorrowedFd<'_>,
    ) -> io::Result<Box<dyn Any + Send + Sync>> {
        let index = links::by_name(interface).map_err(io::Error::other)?.ifindex;
        Ok(Box::new(ringway_kernel::pin_link(index, link).map_err(io::Error::other)?))
    }

    fn left(&self, interface: &str, wanted: Option<XdpMode>) -> Option<(XdpLink, XdpMode)> {
        let mut dead = self.dead();
        let left = dead.get_mut(interface)?;
        let now = links::by_name(interface).ok().and_then(|link| Some(link.xdp.first()?.mode));
        let fits = now.filter(|now| wanted.is_none_or(|wanted| wanted == *now)).and_then(|now| {
            let one = left.iter_mut().find(|one| !one.inherited)?;
            let link = one.engine.attachment().ok()??;
            one.inherited = true;
            Some((link, now))
        });
        left.iter().filter(|one| !one.inherited).for_each(|one| one.engine.detach());
        fits
    }
}
