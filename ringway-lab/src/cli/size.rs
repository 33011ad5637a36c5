//! `ringway-lab size`: a workload.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ringway_sizing::{DEFAULT_PORTS, Machine, Work, Workload};

use super::OutputArgs;
use ringway_terminal::quantity::{bytes, number};

/// `ringway-lab size`
#[derive(Debug, Args)]
#[command(
    after_help = "Roads are tried from the simplest on: kernel, tuned-kernel, xdp, af-xdp, dpdk. The first is taken on which packets need \
    no more than --share of one machine's cores. Costs are those of the reference run, or of \
    --costs FILE, which --calibrate has written. Exit code 2 when the workload contradicts itself.\n\n\
    Numbers are written 5000, 20k, 2.5M, 1G, 1T (thousands); rates of packets may end in pps. Memory has a unit: 500B, 16KiB, 1.5GiB (1024s), 1GB (thousands). \
    A packet's size is in bytes, with or without B. A link has a unit, too: 100Mbit, 25Gbit. Parts are written 0.5.\n\nExamples:\n  \
    ringway-lab size --packets 1.5M --packet-size 50\n  \
    ringway-lab size --connections 100M --messages-per-hour 6 --state 16KiB --memory 128GiB\n  \
    ringway-lab size --work forward --packets 3M --connections 10M --attack 5M --cores 32 --link 25Gbit -o json\n  \
    ringway-lab size --time-wait 30000 --destinations 1 --port-range 1024-65535\n  \
    ringway-lab size --calibrate costs.toml"
)]
pub struct SizeArgs {
    /// What is done with packets [default: connections with --connections or --time-wait, else
    /// answer].
    #[arg(long, value_enum, value_name = "WORK")]
    pub work: Option<WorkArg>,
    /// Packets a second that come in; with --work connections: beyond those that messages make.
    #[arg(short, long, value_name = "RATE", value_parser = rate)]
    pub packets: Option<f64>,
    /// Bytes of a packet from its IP header on.
    #[arg(long, value_name = "BYTES", default_value = "100", value_parser = packet_size)]
    pub packet_size: u32,
    /// Requests a second beyond the messages of connections.
    #[arg(short, long, value_name = "RATE", default_value = "0", value_parser = rate)]
    pub requests: f64,
    /// Connections, or flows, that are open at once.
    #[arg(short = 'n', long, value_name = "N", default_value = "0", value_parser = count)]
    pub connections: u64,
    /// Messages that one connection gets in an hour, each with its answer.
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = rate)]
    pub messages_per_hour: f64,
    /// Memory that the program keeps for one connection: 500B, 16KiB.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub state: Option<u64>,
    /// Sockets that are in TIME_WAIT at once: connections closed here in a minute.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count)]
    pub time_wait: u64,
    /// Connections are made from here, to so many pairs of address and port.
    #[arg(long, value_name = "N", value_parser = count)]
    pub destinations: Option<u64>,
    /// Local ports that they may have: the range of net.ipv4.ip_local_port_range, by default the
    /// kernel's.
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports, requires = "destinations")]
    pub port_range: Option<(u16, u16)>,
    /// Packets a second of an attack to be survived.
    #[arg(long, value_name = "RATE", default_value = "0", value_parser = rate)]
    pub attack: f64,
    /// Cores of one machine.
    #[arg(long, value_name = "N", default_value = "16", value_parser = cores)]
    pub cores: u32,
    /// Memory of one machine.
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = bytes)]
    pub memory: u64,
    /// Bandwidth of one machine's link, one way: 10Gbit.
    #[arg(long, value_name = "RATE", default_value = "10Gbit", value_parser = link)]
    pub link: u64,
    /// Part of a machine's cores that packets may take; the program needs the others.
    #[arg(long, value_name = "PART", default_value_t = 0.5)]
    pub share: f64,
    /// How busy a core may be on average, so that bursts find room.
    #[arg(long, value_name = "PART", default_value_t = 0.6)]
    pub busy: f64,
    /// Work from the costs in this file.
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// Measure what things cost on this machine, for three minutes, and write it to this file;
    /// nothing is sized. Needs root.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["costs", "packets", "requests", "connections"])]
    pub calibrate: Option<PathBuf>,
    /// Replace the file if it is there; without, that is refused.
    #[arg(long, requires = "calibrate", conflicts_with_all = ["costs", "packets", "requests", "connections"])]
    pub overwrite: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What is done with packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkArg {
    /// Messages over TCP connections are read and answered.
    Connections,
    /// Datagrams are answered by a program.
    Answer,
    /// Packets are sent on: balanced, routed, filtered.
    Forward,
}

impl SizeArgs {
    /// As the calculation wants it.
    pub fn workload(&self) -> Workload {
        let work = match self.work {
            Some(WorkArg::Connections) => Work::Connections,
            Some(WorkArg::Answer) => Work::Answer,
            Some(WorkArg::Forward) => Work::Forward,
            None if self.connections + self.time_wait > 0 => Work::Connections,
            None => Work::Answer,
        };
        Workload {
            work,
            packets_pps: self.packets,
            packet_bytes: self.packet_size,
            requests_per_s: self.requests,
            connections: self.connections,
            messages_per_hour: self.messages_per_hour,
            state_bytes: self.state.unwrap_or(0),
            time_wait: self.time_wait,
            destinations: self.destinations,
            ports: self.port_range.unwrap_or(DEFAULT_PORTS),
            attack_pps: self.attack,
            machine: Machine { cores: self.cores, memory_bytes: self.memory, link_bits: self.link },
            share: self.share,
            busy: self.busy,
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let number = number(text.strip_suffix("pps").unwrap_or(text)).filter(|rate| *rate >= 0.0);
    number.ok_or_else(|| "write a number as 5000, 100k or 2.5M".to_owned())
}

fn count(text: &str) -> Result<u64, String> {
    let number =
        number(text).filter(|number| (0.0..=1e15).contains(number) && number.fract() == 0.0);
    number
        .map(|number| number as u64)
        .ok_or_else(|| "write a number as 6000, 20k or 100M".to_owned())
}

fn cores(text: &str) -> Result<u32, String> {
    count(text)
        .and_then(|number| u32::try_from(number).map_err(|_| "that many there are not".to_owned()))
}

fn packet_size(text: &str) -> Result<u32, String> {
    let size = if text.ends_with('B') { bytes(text)? } else { count(text)? };
    u32::try_from(size).map_err(|_| "a packet has 65535 bytes at most".to_owned())
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let range = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    range
        .filter(|(first, last)| 0 < *first && first <= last)
        .ok_or_else(|| "write the first port and the last: 32768-60999".to_owned())
}

fn link(text: &str) -> Result<u64, String> {
    let bits = text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bit"));
    let bits = bits.and_then(number).filter(|bits| (1e6..=1e15).contains(bits));
    bits.map(|bits| bits as u64).ok_or_else(|| "write bits a second as 1Gbit or 400Gbit".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        assert_eq!(ports("1024-65535"), Ok((1024, 65_535)));
        assert_eq!((packet_size("1500"), packet_size("1.5kB")), (Ok(1500), Ok(1500)));
        assert_eq!(cores("64"), Ok(64));
        for wrong in ["0-5", "9-8", "1-65536", "80", "-", "a-b"] {
            assert!(ports(wrong).is_err(), "{wrong}");
        }
        assert!(cores("-4").is_err() && packet_size("1T").is_err() && packet_size("-1").is_err());
        assert_eq!(rate("1.5Mpps"), Ok(1.5e6));
        assert_eq!(count("100M"), Ok(100_000_000));
        assert_eq!(link("10Gbit/s"), Ok(10_000_000_000));
        for wrong in ["-1", "nan", "1.5Gbit", "many"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        assert!(count("0.5").is_err() && count("-1").is_err() && link("10G").is_err());
    }
}
