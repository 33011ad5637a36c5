//! What becomes of packets when the engine dies (`--when-dead`), and what an engine that was killed has left on an interface.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringway_api::text::counted;
use ringway_engine::PortSpec;
use ringway_engine::ports::af_xdp::{Keeper, Legacy};
use ringway_host::netlink::links::{self, XdpMode};
use ringway_kernel::{DeadEngine, dead_engines};
use ringway_xsk::Hook;

use crate::exit;

/// By interface, those that are read.
#[derive(Clone, Debug, Default)]
pub struct Queues(BTreeMap<String, Vec<u32>>);

impl Queues {
    pub fn of<'a>(ports: impl Iterator<Item = &'a PortSpec>) -> Self {
        let mut queues = Self::default();
        for port in ports {
            if let PortSpec::AfXdp(config) = port {
                queues.0.entry(config.interface.clone()).or_default().push(config.queue);
            }
        }
        queues
    }

    pub fn of_interface(&self, interface: &str) -> &[u32] {
        self.0.get(interface).map_or(&[], Vec::as_slice)
    }
}

/// Has programs outlive the engine if it is killed.
pub fn keeper() -> Keeper {
    Keeper::new(|interface, link| {
        let index = links::by_name(interface).map_err(io::Error::other)?.ifindex;
        Ok(Box::new(ringway_kernel::pin_link(index, link).map_err(io::Error::other)?))
    })
}

/// What dead engines have left, by interface.
#[derive(Clone, Default)]
pub struct Dead(Arc<Mutex<BTreeMap<String, Vec<Left>>>>);

struct Left {
    engine: DeadEngine,
    /// A program of ours has taken the place of its program.
    inherited: bool,
}

impl Dead {
    /// Looks for them.
    pub fn find(queues: &Queues) -> anyhow::Result<Self> {
        let mut found = BTreeMap::new();
        for interface in queues.0.keys() {
            // Whoever opens it says that it is not there.
            let Ok(link) = links::by_name(interface) else { continue };
            let engines = dead_engines(link.ifindex)?.into_iter();
            let left = engines.map(|engine| Left { engine, inherited: false }).collect();
            found.insert(interface.clone(), left);
        }
        Ok(Self(Arc::new(Mutex::new(found))))
    }

    /// Has programs take the places of theirs where they run at the same hook, and takes them off where not.
    pub fn legacy(&self) -> Legacy {
        let dead = self.clone();
        Legacy::new(move |interface, wanted| {
            let mut dead = dead.lock();
            let left = dead.get_mut(interface)?;
            let found = hook(interface).filter(|hook| wanted.is_none_or(|wanted| wanted == *hook));
            let fits = found.and_then(|hook| {
                let one = left.iter_mut().find(|one| !one.inherited)?;
                let link = one.engine.attachment().ok()??;
                one.inherited = true;
                Some((link, hook))
            });
            let others = left.iter().filter(|one| !one.inherited);
            others.for_each(|one| one.engine.detach());
            fits
        })
    }

    /// Says what they have dropped, and forgets them.
    pub fn bury(&self) -> anyhow::Result<()> {
        for (interface, left) in std::mem::take(&mut *self.lock()) {
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Left>>> {
        // Whoever panicked left a map behind that is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a program runs on an interface, if one does.
fn hook(interface: &str) -> Option<Hook> {
    match links::by_name(interface).ok()?.xdp.first()?.mode {
        XdpMode::Native => Some(Hook::Native),
        XdpMode::Generic => Some(Hook::Generic),
        XdpMode::Hardware => None,
    }
}
