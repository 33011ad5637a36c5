//! `ringway-lab gen`: packets to measure with.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use ringway_engine::{PortSpec, SpecError};
use ringway_host::Mac;
use ringway_measure::generate::{Addresses, IMIX, Numbers, Rate, Transport};

use super::OutputArgs;
use ringway_terminal::quantity::number;

/// `ringway-lab gen`
#[derive(Debug, Args)]
#[command(
    after_help = "Each packet carries a stream, a sequence number and a time, by which --sink tells what was lost, came late or twice, and how \
    long it took. Loss is a result, not a failure: exit code 3 only if the ledger does not balance. Sending and receiving take a CPU each, \
    entirely. Ctrl-C ends it, with the report. Between machines, compare latencies only if their clocks agree (PTP).\n\nExamples:\n  \
    ringway-lab gen --port af_xdp:eth1:0 --destination 10.0.0.9 --rate 100k --seconds 10\n  \
    ringway-lab gen --port af_packet:eth1 --sink af_packet:eth2 --destination 10.0.0.0/24 --size imix --rate 1Gbit -o json\n  \
    ringway-lab gen --port xdp:eth1 --source 10.1.0.0/16 --source-ports 1024-65535 --destination 10.0.0.9 --protocol tcp-syn\n  \
    ringway-lab gen --port af_packet:eth1 --pcap web.pcap --rate 50k --count 1000000\n  ringway-lab gen --sink af_xdp:eth2:0 --seconds 60"
)]
pub struct GenArgs {
    /// Where packets are sent: af_xdp:IFACE:QUEUE, af_packet:IFACE, xdp:IFACE and others of
    /// `ringway engine`.
    ///
    /// xdp:IFACE sends from within the kernel, without a socket: the highest rate. Left out, with
    /// --sink: only receives.
    #[arg(short, long, value_name = "PORT", required_unless_present = "sink")]
    pub port: Option<GenPort>,
    /// Where they come back, to be counted. May be repeated.
    #[arg(short, long, value_name = "PORT", value_parser = sink)]
    pub sink: Vec<PortSpec>,
    #[command(flatten)]
    pub packets: PacketArgs,
    /// Packets or bits of frames a second: 100k, 2.5M, 1Gbit. Left out: as fast as the port takes
    /// them.
    #[arg(short, long, value_name = "RATE", value_parser = rate, requires = "port")]
    pub rate: Option<Rate>,
    /// End after so many packets.
    #[arg(short, long, value_name = "N", requires = "port", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Say every so many seconds how it goes.
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// Send from this CPU.
    #[arg(long, value_name = "N", requires = "port")]
    pub cpu: Option<usize>,
    /// Receive on this CPU.
    #[arg(long, value_name = "N", requires = "sink")]
    pub sink_cpu: Option<usize>,
    /// Frames for packets; each af_xdp port takes 2048 of them for reception.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub frames: u32,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What is sent.
#[derive(Debug, Args)]
pub struct PacketArgs {
    /// To which addresses, in turn: ADDRESS, ADDRESS/BITS or FIRST-LAST.
    #[arg(short, long, value_name = "ADDRESSES", requires = "port", conflicts_with = "pcap")]
    pub destination: Option<Addresses>,
    /// From which [default: the interface's, or 198.18.0.1 or 2001:2::1, which are there for
    /// benchmarks].
    #[arg(long, value_name = "ADDRESSES", requires = "destination")]
    pub source: Option<Addresses>,
    /// To which ports, in turn: PORT or FIRST-LAST [default: 9, which discards].
    #[arg(long, value_name = "PORTS", requires = "destination")]
    pub destination_ports: Option<Numbers>,
    /// From which [default: 49152].
    #[arg(long, value_name = "PORTS", requires = "destination")]
    pub source_ports: Option<Numbers>,
    /// To which link-layer address [default: that of the destination, or of the router on the way
    /// there].
    #[arg(long, value_name = "MAC", requires = "destination")]
    pub destination_mac: Option<Mac>,
    /// From which [default: the interface's].
    #[arg(long, value_name = "MAC", requires = "destination")]
    pub source_mac: Option<Mac>,
    /// What they carry: udp, tcp-syn or icmp [default: udp].
    #[arg(long, value_name = "PROTOCOL", requires = "destination")]
    pub protocol: Option<Transport>,
    /// Bytes of a frame without its checksum, or several with commas, in turn; imix: 7 of 60, 4 of
    /// 590, 1 of 1514 [default: 60, or as many as the headers need].
    #[arg(long, value_name = "BYTES", requires = "destination", value_delimiter = ',', value_parser = sizes)]
    pub size: Vec<Sizes>,
    /// In this VLAN.
    #[arg(long, value_name = "ID", requires = "destination", value_parser = clap::value_parser!(u16).range(1..=4094))]
    pub vlan: Option<u16>,
    /// Send the packets of this capture (pcap) instead, as they are, over and over. May be
    /// repeated.
    #[arg(long, value_name = "FILE", requires = "port", conflicts_with = "sink")]
    pub pcap: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GenPort {
    /// A port of the engine.
    Engine(PortSpec),
    /// An interface, from within the kernel.
    Live(String),
}

impl GenPort {
    /// The interface that it is on, if it is on one.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Engine(spec) => spec.interface(),
            Self::Live(name) => Some(name),
        }
    }
}

impl FromStr for GenPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("xdp:") {
            Some(name) if name.is_empty() || name.contains([':', ',', '/']) => {
                Err(format!("port `{text}`: `{name}` is no interface's name; write xdp:IFACE"))
            }
            Some(name) => Ok(Self::Live(name.into())),
            None => text.parse().map(Self::Engine).map_err(|error: SpecError| {
                let more =
                    if error.is_unknown_kind() { ", or write xdp:IFACE to send" } else { "" };
                format!("{error}{more}")
            }),
        }
    }
}

fn sink(text: &str) -> Result<PortSpec, String> {
    match text.starts_with("xdp:") {
        true => Err(format!(
            "port `{text}`: xdp: only sends; receive by af_xdp:IFACE:QUEUE or af_packet:IFACE"
        )),
        false => text.parse().map_err(|error: SpecError| error.to_string()),
    }
}

impl std::fmt::Display for GenPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Engine(spec) => spec.fmt(f),
            Self::Live(name) => write!(f, "xdp:{name}"),
        }
    }
}

/// A size, or a mix of them.
#[derive(Clone, Debug)]
pub struct Sizes(pub Vec<u16>);

fn sizes(text: &str) -> Result<Sizes, String> {
    match text {
        "imix" => Ok(Sizes(IMIX.to_vec())),
        _ => text
            .parse()
            .map(|size| Sizes(vec![size]))
            .map_err(|_| "write a number of bytes, several with commas, or imix".to_owned()),
    }
}

fn rate(text: &str) -> Result<Rate, String> {
    let wrong = || "write packets a second as 5000, 100k or 2.5M, or bits as 1Gbit".to_owned();
    let (text, bits) = text.strip_suffix("bit").map_or((text, false), |text| (text, true));
    match number(text).ok_or_else(wrong)? {
        number if !(1.0..=1e12).contains(&number) => {
            Err(format!("a rate of 1 a second at least, 1e12 at most; {}", wrong()))
        }
        number if bits => Ok(Rate::Bits(number as u64)),
        number => Ok(Rate::Packets(number as u64)),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=1e6).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds, 0.1 to 1000000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, want) in [
            ("5000", Rate::Packets(5000)),
            ("100k", Rate::Packets(100_000)),
            ("2.5M", Rate::Packets(2_500_000)),
            ("1Gbit", Rate::Bits(1_000_000_000)),
            ("800kbit", Rate::Bits(800_000)),
            ("9600bit", Rate::Bits(9600)),
        ] {
            assert_eq!(rate(text), Ok(want), "{text}");
        }
        for text in ["", "0", "k", "-1", "nan", "inf", "1e30", "0.5", "1GB", "100 kpps"] {
            assert!(rate(text).unwrap_err().contains("write packets"), "{text}");
        }
    }

    #[test]
    fn ports() {
        assert_eq!("xdp:eth0".parse(), Ok(GenPort::Live("eth0".into())));
        assert!("xdp:".parse::<GenPort>().unwrap_err().contains("no interface"));
        assert!("x:y".parse::<GenPort>().unwrap_err().ends_with("or write xdp:IFACE to send"));
        assert_eq!("null:64".parse::<GenPort>().unwrap().to_string(), "null:64");
        assert!(sink("xdp:eth0").unwrap_err().contains("xdp: only sends"));
        assert_eq!(sink("null:64").unwrap().to_string(), "null:64");
    }
}
