//! What becomes of packets when the engine dies (`--when-dead`), and what an engine that was killed has left on an interface.

use std::collections::BTreeMap;
use std::io;

use ringway_engine::PortSpec;
use ringway_engine::ports::af_xdp::Keeper;
use ringway_gateway::words::counted;
use ringway_kernel::dead_engines;

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
        let index = ringway_host::links::by_name(interface).map_err(io::Error::other)?.ifindex;
        Ok(Box::new(ringway_kernel::keep(index, link).map_err(io::Error::other)?))
    })
}

/// Takes off what dead engines have left, so that there is room for ours.
pub fn clear(queues: &Queues) -> anyhow::Result<()> {
    for interface in queues.0.keys() {
        // Whoever opens it says that it is not there.
        let Ok(link) = ringway_host::links::by_name(interface) else { continue };
        for dead in dead_engines(link.ifindex)? {
            let dropped = counted(usize::try_from(dead.dropped_packets()?)?, "packet");
            exit::say(format_args!(
                "warn: {interface}: an engine was killed here, and its program has dropped {dropped} since: it is taken off now"
            ));
            dead.remove()?;
        }
    }
    Ok(())
}
