//! The text form of ports of several workers: `af_xdp:eth0:0-3` and `af_xdp:eth0:all` are a queue
//! for each.

use std::str::FromStr;
use std::{fmt, fs};

use ringway_host::ethtool::{Channels, Ethtool};
use ringway_xsk::XdpMode;

use crate::ports::af_xdp;
use crate::programs::QUEUES;
use crate::spec::{self, PortSpec, Queues, SpecError};

/// A port, of one worker or with a queue for each of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// As the first worker has it.
    first: PortSpec,
    queues: Queues,
}

impl FromStr for Spread {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (first, queues) = spec::parse(text)?;
        Ok(Self { first, queues })
    }
}

impl fmt::Display for Spread {
    /// Without its options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.first, self.queues) {
            (PortSpec::AfXdp(config), queues @ (Queues::Range(..) | Queues::All)) => {
                write!(f, "af_xdp:{}:{queues}", config.interface)
            }
            (port, _) => port.fmt(f),
        }
    }
}

impl Spread {
    /// The interface that it is on, if it is on one.
    pub fn interface(&self) -> Option<&str> {
        self.first.interface()
    }

    /// Whether DPDK drives it.
    pub fn is_dpdk(&self) -> bool {
        matches!(self.first, PortSpec::Dpdk { .. })
    }

    /// The settings of its sockets, if it is an AF_XDP port.
    pub fn af_xdp(&mut self) -> Option<&mut af_xdp::Config> {
        match &mut self.first {
            PortSpec::AfXdp(config) => Some(config),
            _ => None,
        }
    }

    fn refused(&self, why: String, remedy: &'static str) -> SpecError {
        let interface = self.interface().map(Into::into);
        SpecError { text: self.to_string(), interface, why, remedy, unknown_kind: false }
    }

    /// For each worker its own.
    fn each(&self) -> Result<Vec<PortSpec>, SpecError> {
        let queue = |queue| match &self.first {
            PortSpec::AfXdp(config) => PortSpec::AfXdp(af_xdp::Config { queue, ..config.clone() }),
            // At most 255.
            PortSpec::Dpdk { device, .. } => {
                PortSpec::Dpdk { device: device.clone(), queue: queue as u16 }
            }
            other => other.clone(),
        };
        Ok(match self.queues {
            Queues::One => vec![self.first.clone()],
            Queues::Range(first, last) => (first..=last).map(queue).collect(),
            Queues::All => (0..self.count()?).map(queue).collect(),
        })
    }

    /// How many queues the interface has once a program is on it.
    fn count(&self) -> Result<u32, SpecError> {
        let interface = self.interface().unwrap_or_default();
        let remedy = "name the queues: af_xdp:IFACE:0-3";
        let failed = |error: ringway_host::Error| self.refused(error.to_string(), remedy);
        let link = ringway_host::netlink::links::by_name(interface).map_err(failed)?;
        let ethtool = Ethtool::open().map_err(failed)?;
        let Some(channels) = ethtool.channels(interface).map_err(failed)? else {
            return Ok(link.rx_queues.clamp(1, QUEUES));
        };
        let generic = matches!(&self.first, PortSpec::AfXdp(config) if config.xdp_mode == Some(XdpMode::Generic));
        let driver = ethtool.driver(interface).map_err(failed)?.unwrap_or_default().name;
        let max = channels.max_rx;
        if !generic && brings_queues(&driver, &channels, cpus()) {
            let why = format!(
                "with its program on it virtio_net receives by more queues than it sends by, unless all are in use: \
                 `ethtool -L {interface} combined {max}`"
            );
            return Err(self.refused(why, "use all of its queues, or name some: af_xdp:IFACE:0-3"));
        }
        Ok(channels.rx.clamp(1, QUEUES))
    }
}

/// Whether receive queues come with a native program: virtio_net takes one for each CPU to redirect
/// by, if it has so many, and receives by these, too (virtnet_xdp_set, drivers/net/virtio_net.c). A
/// socket on one of them sends nothing, and no error says so (__xsk_generic_xmit, net/xdp/xsk.c).
fn brings_queues(driver: &str, channels: &Channels, cpus: u32) -> bool {
    driver == "virtio_net" && channels.rx + cpus <= channels.max_rx
}

/// Those that there may be: the kernel's nr_cpu_ids.
fn cpus() -> u32 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u32>().ok());
    last.map_or(0, |last| last + 1)
}

/// The ports of each worker. There are as many workers as a port has queues. All ports must have
/// that many, except `null` ports, which every worker gets.
///
/// # Errors
/// Ports differ in their number of queues, or an interface's queues are unknown.
pub fn workers(ports: &[Spread]) -> Result<Vec<Vec<PortSpec>>, SpecError> {
    let each: Vec<_> = ports.iter().map(Spread::each).collect::<Result<_, _>>()?;
    let count = each.iter().map(Vec::len).max().unwrap_or(1);
    for (port, each) in ports.iter().zip(&each) {
        if each.len() != count && !matches!(port.first, PortSpec::Null { .. }) {
            let queues = if each.len() == 1 { "queue" } else { "queues" };
            let why = format!(
                "it is for {} {queues}, and another port is for {count}, a worker each",
                each.len()
            );
            let remedy = match port.first {
                PortSpec::Dpdk { .. } => "write the same `,workers=N` for each port",
                _ => "name as many queues of each port: af_xdp:IFACE:0-3",
            };
            return Err(port.refused(why, remedy));
        }
    }
    // Those of one are the same for each.
    let of = |n: usize| each.iter().map(|each| each[n.min(each.len() - 1)].clone()).collect();
    Ok((0..count).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(ports: &[&str]) -> Result<Vec<String>, String> {
        let ports: Result<Vec<Spread>, _> = ports.iter().map(|port| port.parse()).collect();
        let workers = ports.and_then(|ports| workers(&ports)).map_err(|e| e.to_string())?;
        let of = |ports: &Vec<PortSpec>| {
            ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        Ok(workers.iter().map(of).collect())
    }

    #[test]
    fn a_queue_for_each() {
        let one = names(&["af_xdp:a:3,copy", "pcap:x:"]).unwrap();
        assert_eq!(one, ["af_xdp:a:3 pcap:x:"]);
        let two = names(&["af_xdp:a:2-3,copy", "af_xdp:b:0-1", "null:64"]).unwrap();
        assert_eq!(two, ["af_xdp:a:2 af_xdp:b:0 null:64", "af_xdp:a:3 af_xdp:b:1 null:64"]);
        let shown = "af_xdp:a:0-3,copy".parse::<Spread>().unwrap().to_string();
        assert_eq!(shown, "af_xdp:a:0-3");
    }

    #[test]
    fn as_many_as_the_interface_has() {
        // Loopback has no channels.
        assert_eq!(names(&["af_xdp:lo:all"]).unwrap(), ["af_xdp:lo:0"]);
    }

    #[test]
    fn virtio_net_receives_by_the_queues_that_xdp_sends_by() {
        let of = |rx, max_rx| Channels { rx, tx: rx, max_rx, max_tx: max_rx, apart: false };
        assert!(brings_queues("virtio_net", &of(2, 4), 2));
        assert!(!brings_queues("virtio_net", &of(2, 3), 2) && !brings_queues("igb", &of(2, 8), 2));
        assert!(cpus() > 0);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        for (ports, why, remedy) in [
            (vec!["af_xdp:a:3-2"], "3-2 are no queues", "FIRST-LAST"),
            (vec!["af_xdp:a:0-256"], "0-256 are no queues", "FIRST-LAST"),
            (vec!["af_xdp:a:0-x"], "`0-x` is no queue", "ethtool -l"),
            (vec!["af_xdp:a:0-1,fast"], "no option `fast`", "leave it out"),
            (vec!["af_xdp:a:0-3", "af_xdp:b:0"], "it is for 1 queue", "as many"),
            (vec!["af_xdp:a:0-3", "af_packet:b"], "for 4, a worker each", "as many"),
            (vec!["af_xdp:nosuch:all"], "nosuch", "name the queues"),
        ] {
            let error = names(&ports).unwrap_err();
            assert!(error.contains(why) && error.contains(remedy), "{ports:?}: {error}");
        }
    }
}
