//! `ringway engine`: packet programs in user space.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use ringway_engine::spread::Spread;
use ringway_host::Mac;
use ringway_kernel::SteerRule;

use super::OutputArgs;

/// `ringway engine`
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EngineArgs {
    #[command(subcommand)]
    pub app: EngineApp,
}

/// What the program does with packets.
#[derive(Debug, Subcommand)]
pub enum EngineApp {
    /// Forward between two ports, or back where it came from: the first and the second, the third
    /// and the fourth; the last of an odd number to itself.
    L2fwd(L2fwdArgs),
    /// Answer ARP, neighbour solicitations and pings; with --ping, ask as well.
    Icmp(IcmpArgs),
    /// Return datagrams to their senders.
    UdpEcho(UdpEchoArgs),
    /// Answer the requests of an auction: 50 bytes ask, 30 answer.
    Bid(BidArgs),
    /// Count packets and drop them.
    Sink(SinkArgs),
    /// Inspect a running engine from outside: the owner, age and content of its frames.
    Inspect(InspectArgs),
}

/// `ringway engine inspect`
#[derive(Debug, Args)]
#[command(
    after_help = "Takes root, or the user that the engine runs as. Its memory is mapped for reading: it does not notice. Ages are by the worker's clock. What is shown of a frame is what lies where received packets begin; how long it is only its owner knows.\n\n\
    Examples:\n  ringway engine inspect 4711\n  ringway engine inspect 4711 --interval 10 --hex\n  ringway engine inspect 4711 --memory-map"
)]
pub struct InspectArgs {
    /// The engine's process.
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// Repeat every N seconds, until Ctrl-C or the engine's end.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub interval: Option<u32>,
    /// Show so many of the oldest frames that are held, being sent or between workers.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub oldest: usize,
    /// With the first 64 bytes of each.
    #[arg(long)]
    pub hex: bool,
    /// Show instead where packet memory, rings, stacks and code lie, in which pages, and how much
    /// of each is in memory.
    #[arg(long, conflicts_with_all = ["interval", "hex", "output"])]
    pub memory_map: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What all apps have in common.
#[derive(Debug, Args)]
pub struct WorkArgs {
    /// Where packets come from and go to: af_xdp:IFACE:QUEUE, af_packet:IFACE, pcap:IN:OUT,
    /// memory:NAME, null:BYTES, options after commas. May be repeated. `ringway-dpdk` has
    /// dpdk:DEVICE, too.
    ///
    /// af_xdp takes all that arrives at the queue away from the kernel, or what --only says;
    /// `,copy` or `,zero-copy`, `,native` or `,generic` ask for a mode instead of the best there
    /// is, `,force` for an interface that carries the default route. Of several queues
    /// (af_xdp:IFACE:0-3, af_xdp:IFACE:all) each has a worker. af_packet leaves the kernel its
    /// packets; `,blocks=N` (of 128 KiB) and `,bypass` (no queueing discipline). Packets of a
    /// capture keep their times where they are written to another one. memory:NAME is an end of a
    /// cable between two ports or two workers; null:BYTES brings packets without end, and takes
    /// all.
    #[arg(short, long, value_name = "PORT", required = true)]
    pub port: Vec<Spread>,
    /// Take only these packets from the kernel, by where they go:
    /// PROTOCOL[:PORT[-PORT]][@ADDRESS[/LENGTH]] or ADDRESS[/LENGTH]. May be repeated.
    ///
    /// Protocols: udp, tcp, icmp, arp, nd (neighbour discovery), sctp, udplite, gre, esp, or a
    /// number. An address alone is about all of IP but nd. VLAN tags, IPv4 options and IPv6
    /// extension headers do not matter; fragments fit no rule that names ports. All other packets
    /// go to the kernel. Of af_xdp ports.
    #[arg(long, value_name = "WHAT")]
    pub only: Vec<SteerRule>,
    /// What to do when an af_xdp port loses its link, interface or XDP program.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = OnLoss::Exit)]
    pub on_loss: OnLoss,
    /// What happens to the queues' packets when the engine is killed or crashes: they pass to the
    /// kernel, or are dropped.
    ///
    /// With drop the XDP program outlives the engine, pinned below /sys/fs/bpf/ringway-engine,
    /// until another engine is started on the interface or the pin is removed. What --only does not
    /// name is the kernel's in either case; so are the packets of an engine that ended by itself or
    /// was told to.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = WhenDead::Pass)]
    pub when_dead: WhenDead,
    /// Stay on this CPU; of several workers, each on one: 0,2 or 0-3.
    ///
    /// Default: one worker runs anywhere; several have a CPU each if there are enough.
    #[arg(long, value_name = "CPUS")]
    pub cpu: Option<Cpus>,
    /// Never sleep: no packet waits for a wake-up, and the CPU is always busy.
    #[arg(long)]
    pub latency: bool,
    /// Slots of each af_xdp or dpdk port's RX ring, a power of two: how many packets may wait while
    /// the worker does not look. The other rings of af_xdp have twice as many [default: 1024].
    #[arg(long, value_name = "SLOTS", value_parser = ring)]
    pub ring: Option<u16>,
    /// Packets asked of a port at once.
    #[arg(long, value_name = "PACKETS", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub burst: u16,
    /// Frames for each worker's packets; each af_xdp port takes twice the slots of --ring for
    /// reception.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub frames: u32,
    /// Bytes of a frame; longer packets take several.
    #[arg(long, value_name = "BYTES", value_enum, default_value_t = FrameSize::Bytes2048)]
    pub frame_size: FrameSize,
    /// Bytes left free in front of received packets, beside the kernel's 256: for your own headers.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3072))]
    pub headroom: u32,
    /// Page size of packet memory. If there are none, smaller pages are used, with a message.
    ///
    /// It lies on the NUMA node of the first port's interface, if that has one.
    #[arg(long, value_name = "SIZE", value_enum, default_value_t = HugePages::None)]
    pub huge_pages: HugePages,
    /// Whether the driver puts packets into the program's memory itself: it must, it may, or the
    /// kernel copies. Of all af_xdp ports that do not say `,copy` or `,zero-copy`.
    #[arg(long, value_name = "CHOICE", value_enum, default_value_t = ZeroCopy::Prefer)]
    pub zero_copy: ZeroCopy,
    /// Let af_xdp ports' drivers work within the worker's calls, for so many microseconds at most,
    /// instead of in interrupts.
    ///
    /// The interface needs napi_defer_hard_irqs and gro_flush_timeout beside it
    /// (/sys/class/net/IFACE).
    #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub busy_poll: Option<u32>,
    /// Listen there for a successor, which goes on with sockets, memory and programs of this one:
    /// --take-over.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Take over from the engine of this process, or that listens at this path, and go on with its
    /// af_xdp ports: packets stay in their rings meanwhile. It takes the same workers and af_xdp
    /// ports, any app, and memory, program and sockets as they are. The other one ends; or goes on,
    /// where this does not work out.
    #[arg(long, value_name = "PID|PATH", conflicts_with_all = ["ring", "frames", "frame_size", "headroom", "huge_pages", "zero_copy", "busy_poll"])]
    pub take_over: Option<TakeOver>,
    /// Answer Prometheus there: http://ADDRESS:PORT/metrics. Whoever reaches it may read.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
    /// Say at the start where packet memory, rings, stacks and code lie, in which pages, and how
    /// much of each is in memory.
    #[arg(long)]
    pub memory_map: bool,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Options from a file of TOML, under their names here and in the place of this one: `ring =
    /// 512`. Those behind it go first. `ringway-lab bench forward --tune` writes such files.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

fn ring(text: &str) -> Result<u16, String> {
    let slots =
        text.parse().ok().filter(|n: &u16| n.is_power_of_two() && (64..=16_384).contains(n));
    slots.ok_or_else(|| "write a power of two from 64 to 16384".into())
}

/// What is done about a port that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// End, with exit code 1.
    Exit,
    /// Wait for it to be back, and go on.
    Reopen,
}

/// What becomes of packets whose engine is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WhenDead {
    /// They go to the kernel.
    Pass,
    /// They are dropped and counted.
    Drop,
}

/// Bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FrameSize {
    /// Enough for an MTU of 1 500.
    #[value(name = "2048")]
    Bytes2048,
    /// For headroom, or longer packets.
    #[value(name = "4096")]
    Bytes4096,
}

/// Pages of packet memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HugePages {
    /// The system's own.
    None,
    /// Of 2 MiB.
    #[value(name = "2MiB")]
    Mib2,
    /// Of 1 GiB.
    #[value(name = "1GiB")]
    Gib1,
}

/// Who puts packets into the program's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ZeroCopy {
    /// The driver, or it is an error.
    Require,
    /// The driver if it can.
    Prefer,
    /// The kernel.
    Never,
}

/// The engine that is taken over: what has digits alone is a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeOver {
    Process(u32),
    Path(PathBuf),
}

impl FromStr for TakeOver {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(pid) if number => Ok(Self::Process(pid)),
            _ if number => Err("a process has a smaller number; of a file write ./NAME".into()),
            _ => Ok(Self::Path(text.into())),
        }
    }
}

/// Numbers of CPUs, in order of workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last && last < 1 << 16).then(|| (first..=last).collect::<Vec<usize>>())
        };
        let cpus: Option<Vec<_>> = text.split(',').map(range).collect();
        let cpus = cpus.ok_or("write numbers of CPUs: 0, or 0,2, or 0-3")?.concat();
        let twice = (1..cpus.len()).find(|n| cpus[..*n].contains(&cpus[*n]));
        match twice {
            Some(n) => Err(format!("CPU {} is there twice; name one for each worker", cpus[n])),
            None => Ok(Self(cpus)),
        }
    }
}

/// `ringway engine l2fwd`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs until Ctrl-C, SIGTERM or SIGHUP, or until its capture files are at their end; SIGUSR1 and every minute show how it goes. \
    Exit code 3 if a packet or frame is not accounted for.\n\nExamples:\n  ringway engine l2fwd --port af_xdp:eth1:0 --port af_xdp:eth2:0\n  \
    ringway engine l2fwd --port pcap:in.pcap:out.pcap --swap -o json"
)]
pub struct L2fwdArgs {
    /// Swap a frame's addresses.
    #[arg(long)]
    pub swap: bool,
    /// Send all frames to this address; with --source.
    #[arg(long, value_name = "MAC", requires = "source", conflicts_with = "swap")]
    pub destination: Option<Mac>,
    /// And from this one.
    #[arg(long, value_name = "MAC", requires = "destination")]
    pub source: Option<Mac>,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// `ringway engine icmp`
#[derive(Debug, Args)]
#[command(
    after_help = "The addresses are the engine's alone: the kernel must not have them. Runs until Ctrl-C, SIGTERM or SIGHUP, or until all --count were asked. \
    Exit code 3 where --ping was not answered at all.\n\n\
    Examples:\n  ringway engine icmp --port af_xdp:eth1:0 --address 10.0.0.9 --address fd00::9\n  \
    ringway engine icmp --port af_xdp:eth1:0 --address 10.0.0.9 --ping 10.0.0.1 --count 5"
)]
pub struct IcmpArgs {
    /// Send echo requests to this address on the link, found by ARP or neighbour discovery, and
    /// print round-trip times.
    #[arg(long, value_name = "ADDRESS", value_parser = host_address)]
    pub ping: Option<IpAddr>,
    /// Time from one request to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval, requires = "ping")]
    pub interval: Duration,
    /// End after so many requests.
    #[arg(long, value_name = "N", requires = "ping", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Bytes that each request carries.
    #[arg(long, value_name = "BYTES", default_value_t = 56, requires = "ping", value_parser = clap::value_parser!(u16).range(18..=1472))]
    pub size: u16,
    #[command(flatten)]
    pub host: HostArgs,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("seconds, 0.001 to 3600".to_owned()),
    }
}

fn host_address(text: &str) -> Result<IpAddr, String> {
    let address = text.parse().map_err(|_| "write an address: 10.0.0.9 or fd00::9".to_owned())?;
    match ringway_engine::apps::is_host(address) {
        true => Ok(address),
        false => Err("no host has this address: write one of its own link, as 10.0.0.9".into()),
    }
}

fn host_mac(text: &str) -> Result<Mac, String> {
    let mac: Mac = text.parse().map_err(|e: <Mac as FromStr>::Err| e.to_string())?;
    match ringway_wire::Mac(mac.0).is_multicast() || mac.0 == [0; 6] {
        true => {
            Err("no host has this address: its first byte is even, as in 02:00:00:00:00:09".into())
        }
        false => Ok(mac),
    }
}

/// Whoever has addresses.
#[derive(Debug, Args)]
pub struct HostArgs {
    /// An address to answer for. May be repeated.
    #[arg(long, value_name = "ADDRESS", required = true, value_parser = host_address)]
    pub address: Vec<IpAddr>,
    /// The link-layer address it is at.
    ///
    /// Default: that of the first port's interface.
    #[arg(long, value_name = "MAC", value_parser = host_mac)]
    pub mac: Option<Mac>,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// `ringway engine udp-echo`
#[derive(Debug, Args)]
#[command(
    after_help = "Answers ARP, neighbour solicitations and pings, too. Runs until Ctrl-C, SIGTERM or SIGHUP.\n\n\
    Example:\n  ringway engine udp-echo --port af_xdp:eth1:0 --address 10.0.0.9 --udp-port 7"
)]
pub struct UdpEchoArgs {
    /// UDP port to listen on.
    #[arg(long, value_name = "PORT", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: u16,
    #[command(flatten)]
    pub host: HostArgs,
}

/// `ringway engine bid`
#[derive(Debug, Args)]
#[command(
    after_help = "Requests and answers are laid out as ringway_engine::apps::{Request, Answer}. Answers ARP, neighbour solicitations and \
    pings, too. Runs until Ctrl-C, SIGTERM or SIGHUP; what each client asked is part of the result.\n\n\
    Example:\n  ringway engine bid --port af_xdp:eth1:0 --address 10.0.0.9 --offers offers.txt"
)]
pub struct BidArgs {
    /// UDP port to listen on.
    #[arg(long, value_name = "PORT", default_value_t = 4242, value_parser = clap::value_parser!(u16).range(1..))]
    pub udp_port: u16,
    /// A line for each segment: its number, the price in millionths, the creative's number; #
    /// begins a comment.
    #[arg(long, value_name = "FILE")]
    pub offers: PathBuf,
    /// Clients have numbers below this.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub clients: u32,
    #[command(flatten)]
    pub host: HostArgs,
}

/// `ringway engine sink`
#[derive(Debug, Args)]
#[command(
    after_help = "Runs until Ctrl-C, SIGTERM or SIGHUP, or until its capture files are at their end.\n\n\
    Example:\n  ringway engine sink --port af_xdp:eth1:0 -o json"
)]
pub struct SinkArgs {
    /// Lose the frame of each Nth packet, as a program with a bug would: what finds leaks is tried
    /// out by this.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub leak_every: Option<u64>,
    #[command(flatten)]
    pub work: WorkArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_alone_are_a_process() {
        let of = |text: &str| text.parse::<TakeOver>();
        assert_eq!(of("4711"), Ok(TakeOver::Process(4711)));
        assert_eq!(of("./4711"), Ok(TakeOver::Path("./4711".into())));
        assert_eq!(of("/run/x"), Ok(TakeOver::Path("/run/x".into())));
        assert!(of("99999999999").is_err_and(|e| e.contains("./NAME")));
    }

    #[test]
    fn addresses_that_a_host_can_have() {
        for address in ["10.0.0.9", "192.0.2.1", "fd00::9", "fe80::1", "2001:db8::1"] {
            assert!(host_address(address).is_ok(), "{address}");
        }
        for address in
            ["0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "::1", "ff02::1", "x"]
        {
            assert!(host_address(address).unwrap_err().contains("10.0.0.9"), "{address}");
        }
        assert!(host_mac("02:00:00:00:00:09").is_ok());
        for mac in ["01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"] {
            assert!(host_mac(mac).unwrap_err().contains("02:00:00:00:00:09"), "{mac}");
        }
    }

    #[test]
    fn cpus_are_a_list() {
        let cpus = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.0);
        assert_eq!(cpus("3"), Ok(vec![3]));
        assert_eq!(cpus("4,0-2"), Ok(vec![4, 0, 1, 2]));
        for wrong in ["", "x", "2-1", "-1", "0,", "1,0-1", "0-99999"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }
}
