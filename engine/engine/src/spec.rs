//! The text form of ports: `af_packet:eth0`, `memory:a,slots=512`, `pcap:in.pcap:out.pcap`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ringway_xsk::{Mode, Pool, XdpMode};

use crate::port::{Port, PortError, advice_for};
use crate::port_context::PortContext;
use crate::ports::af_packet::{self, AfPacket};
use crate::ports::af_xdp::{self, AfXdp};
use crate::ports::{Null, Pcap};
use crate::programs::QUEUES;

/// A port that can be opened: KIND:ARGUMENTS, then options after commas. A text for a port of each
/// of several workers (`af_xdp:eth0:all`, `af_xdp:eth0:0-3`) is a
/// [`Spread`](crate::spread::Spread).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortSpec {
    /// `af_xdp:IFACE:QUEUE[,copy|zero-copy][,native|generic][,force]`: an AF_XDP socket on a queue,
    /// and the program that fills it.
    AfXdp(af_xdp::Config),
    /// `af_packet:IFACE[,blocks=N][,bypass]`: a packet socket, on any interface.
    AfPacket(af_packet::Config),
    /// `memory:NAME[,slots=N]`: an end of a cable; what is named twice is connected.
    Memory {
        cable: String,
        /// Packets that fit in each direction: a power of two. Whoever comes first decides.
        slots: u32,
    },
    /// `pcap:IN:OUT`: capture files; either may be empty, and neither name has a colon or comma.
    Pcap { input: Option<PathBuf>, output: Option<PathBuf> },
    /// `null:BYTES`: zeroes of this length without end; what is sent is gone.
    Null {
        /// Bytes of a packet, 14 to 3 840.
        len: u16,
    },
    /// `dpdk:DEVICE[,workers=N]`: a queue of a device that DPDK drives, for programs with DPDK.
    /// Options that are not ours are the driver's.
    Dpdk {
        /// A PCI address or a virtual device, with the driver's options: `net_pcap0,iface=eth0`.
        device: String,
        queue: u16,
    },
}

/// Why a text is no port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("port `{text}`: {why}; {}", advice_for(interface.as_deref().unwrap_or("IFACE"), remedy))]
pub struct SpecError {
    pub(crate) text: String,
    pub(crate) interface: Option<String>,
    pub(crate) why: String,
    pub(crate) remedy: &'static str,
    pub(crate) unknown_kind: bool,
}

impl SpecError {
    /// Whether there is no such kind of port. Whoever has further kinds names them, too.
    pub fn is_unknown_kind(&self) -> bool {
        self.unknown_kind
    }
}

const KINDS: &str = "write af_xdp:IFACE:QUEUE, af_packet:IFACE, dpdk:DEVICE, memory:NAME, pcap:IN:OUT or null:BYTES, options after commas";
const AF_XDP: &str = "write af_xdp:IFACE:QUEUE; `ethtool -l IFACE` shows how many queues it has";

/// The queues that a port is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queues {
    /// One, or the kind of port has none.
    One,
    /// Both included; a queue for each of several workers.
    Range(u32, u32),
    /// Those that the interface has; one for each of several workers.
    All,
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match parse(text)? {
            (spec, Queues::One) => Ok(spec),
            (spec, queues) => {
                let why = format!("`{queues}` is a queue for each of several workers");
                let remedy = "name one queue: af_xdp:IFACE:0";
                let interface = spec.interface().map(Into::into);
                Err(SpecError { text: text.into(), interface, why, remedy, unknown_kind: false })
            }
        }
    }
}

impl fmt::Display for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One => f.write_str("one"),
            Self::Range(first, last) => write!(f, "{first}-{last}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// The port of the first worker, and the queues of all.
pub(crate) fn parse(text: &str) -> Result<(PortSpec, Queues), SpecError> {
    let mut parser = Parser::new(text)?;
    let (spec, queues) = match parser.kind {
        "af_xdp" => parser.af_xdp()?,
        "af_packet" => (parser.af_packet()?, Queues::One),
        "memory" => (parser.memory()?, Queues::One),
        "pcap" => (parser.pcap()?, Queues::One),
        "null" => (parser.null()?, Queues::One),
        "dpdk" => parser.dpdk()?,
        kind => {
            let error = parser.wrong(format!("there is no kind `{kind}`"), KINDS);
            return Err(SpecError { unknown_kind: true, ..error });
        }
    };
    match parser.options.first() {
        None => Ok((spec, queues)),
        Some((name, _)) => {
            let why = format!("{} has no option `{name}`", parser.kind);
            Err(parser.wrong(why, "leave it out, or see what the kind of port has"))
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    kind: &'a str,
    argument: &'a str,
    options: Vec<(&'a str, Option<&'a str>)>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, SpecError> {
        let mut parts = text.split(',');
        let first = parts.next().unwrap_or_default();
        let (kind, argument) = first.split_once(':').unwrap_or((first, ""));
        let options: Vec<_> = parts.map(|option| name_and_value(option)).collect();
        let parser = Self { text, kind, argument, options };
        for (n, (name, _)) in parser.options.iter().enumerate() {
            if parser.options[..n].iter().any(|(other, _)| other == name) {
                let why = format!("option `{name}` is there twice");
                return Err(parser.wrong(why, "give it once"));
            }
        }
        Ok(parser)
    }

    fn wrong(&self, why: String, remedy: &'static str) -> SpecError {
        let interface = self.argument.split(':').next().filter(|name| !name.is_empty());
        let interface = interface.map(Into::into);
        SpecError { text: self.text.into(), interface, why, remedy, unknown_kind: false }
    }

    /// Takes an option out: none if it is not there, else its value, if it has one.
    fn option(&mut self, name: &str) -> Option<Option<&'a str>> {
        let at = self.options.iter().position(|(n, _)| *n == name)?;
        Some(self.options.remove(at).1)
    }

    fn flag(&mut self, name: &str) -> Result<bool, SpecError> {
        match self.option(name) {
            Some(Some(value)) => {
                let why = format!("option `{name}` has no value, and here it is `{value}`");
                Err(self.wrong(why, "write the option's name alone"))
            }
            found => Ok(found.is_some()),
        }
    }

    fn number(
        &mut self,
        name: &str,
        default: u32,
        fits: impl Fn(u32) -> bool,
        remedy: &'static str,
    ) -> Result<u32, SpecError> {
        let Some(value) = self.option(name) else { return Ok(default) };
        let number = value.and_then(|value| value.parse().ok()).filter(|n| fits(*n));
        number.ok_or_else(|| {
            let value = value.unwrap_or_default();
            self.wrong(format!("`{name}={value}` cannot be"), remedy)
        })
    }

    /// As the kernel checks names of interfaces (dev_valid_name, net/core/dev.c).
    fn interface(&self, name: &str) -> Result<String, SpecError> {
        let odd = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if name.is_empty() || name.len() > 15 || name.contains(odd) {
            let why = format!("`{name}` is no interface's name");
            return Err(self.wrong(why, "`ip link` has their names"));
        }
        Ok(name.into())
    }

    /// One of two options, or neither.
    fn either<T>(&mut self, one: (&str, T), other: (&str, T)) -> Result<Option<T>, SpecError> {
        match (self.flag(one.0)?, self.flag(other.0)?) {
            (true, true) => {
                let why = format!("`{}` and `{}` exclude each other", one.0, other.0);
                Err(self.wrong(why, "choose one of them, or leave the choice to Ringway"))
            }
            (first, second) => Ok(first.then_some(one.1).or(second.then_some(other.1))),
        }
    }

    /// FIRST-LAST, all, or the number of one; with the number of the first.
    fn queues(&self, text: &str) -> Result<(u32, Queues), SpecError> {
        let is_no_queue = |queue: &str| self.wrong(format!("`{queue}` is no queue"), AF_XDP);
        let number = |text: &str| text.parse::<u32>().ok();
        let range = text.split_once('-').and_then(|(first, last)| number(first).zip(number(last)));
        match range {
            _ if text == "all" => Ok((0, Queues::All)),
            Some((first, _)) if first >= QUEUES => Err(is_no_queue(&first.to_string())),
            Some((first, last)) if first > last || last >= QUEUES => {
                let why = format!("{first}-{last} are no queues");
                let remedy = "write FIRST-LAST, or all; `ethtool -l IFACE` shows how many";
                Err(self.wrong(why, remedy))
            }
            Some((first, last)) => Ok((first, Queues::Range(first, last))),
            None => {
                let queue = number(text).filter(|queue| *queue < QUEUES);
                Ok((queue.ok_or_else(|| is_no_queue(text))?, Queues::One))
            }
        }
    }

    fn af_xdp(&mut self) -> Result<(PortSpec, Queues), SpecError> {
        let split = self.argument.split_once(':');
        let (interface, queues) =
            split.ok_or_else(|| self.wrong("it has no queue".into(), AF_XDP))?;
        let interface = self.interface(interface)?;
        let (queue, queues) = self.queues(queues)?;
        let mode = self.either(("copy", Mode::Copy), ("zero-copy", Mode::ZeroCopy))?;
        let (native, generic) = (XdpMode::Native, XdpMode::Generic);
        let xdp_mode = self.either((native.name(), native), (generic.name(), generic))?;
        if (mode, xdp_mode) == (Some(Mode::ZeroCopy), Some(generic)) {
            let why = "behind the driver there is no zero-copy".into();
            return Err(self.wrong(why, "leave out `generic` or `zero-copy`"));
        }
        let (mode, force) = (mode.unwrap_or_default(), self.flag("force")?);
        let defaults = af_xdp::Config::new(interface, queue);
        let config = af_xdp::Config { mode, xdp_mode, force, ..defaults };
        Ok((PortSpec::AfXdp(config), queues))
    }

    fn af_packet(&mut self) -> Result<PortSpec, SpecError> {
        let mut config = af_packet::Config::new(self.interface(self.argument)?);
        let remedy = "write 2 to 1024, of 128 KiB each";
        config.blocks =
            self.number("blocks", config.blocks, |n| (2..=1024).contains(&n), remedy)?;
        config.bypass = self.flag("bypass")?;
        Ok(PortSpec::AfPacket(config))
    }

    fn memory(&mut self) -> Result<PortSpec, SpecError> {
        let cable = self.argument.to_owned();
        if cable.is_empty() || cable.contains(':') {
            let remedy = "write memory:NAME, twice the same name";
            return Err(self.wrong(format!("`{cable}` is no cable's name"), remedy));
        }
        let fits = |n: u32| n.is_power_of_two() && (2..=65_536).contains(&n);
        let slots = self.number("slots", 1024, fits, "write a power of two from 2 to 65536")?;
        Ok(PortSpec::Memory { cable, slots })
    }

    fn pcap(&mut self) -> Result<PortSpec, SpecError> {
        const REMEDY: &str = "write pcap:IN:OUT, one of which may be empty";
        let mut names = self.argument.split(':');
        let mut name = || names.next().filter(|name| !name.is_empty()).map(PathBuf::from);
        let (input, output) = (name(), name());
        if names.next().is_some() {
            return Err(self.wrong("it has more than two files".into(), REMEDY));
        }
        if input.is_none() && output.is_none() {
            return Err(self.wrong("it has no file".into(), REMEDY));
        }
        if input == output {
            let why = "it reads the file that it would write over".into();
            return Err(self.wrong(why, "give it two files"));
        }
        Ok(PortSpec::Pcap { input, output })
    }

    /// What is not ours is the driver's.
    fn dpdk(&mut self) -> Result<(PortSpec, Queues), SpecError> {
        let device = self.text.split_once(':').map_or("", |(_, device)| device);
        let name = device.split(',').next().unwrap_or_default();
        if name.is_empty() || name.contains(char::is_whitespace) {
            let remedy =
                "write a PCI address, dpdk:0000:01:00.0, or a virtual device, dpdk:net_null0";
            return Err(self.wrong(format!("`{name}` is no device"), remedy));
        }
        let fits = |n: u32| (1..=255).contains(&n);
        let workers = self.number("workers", 1, fits, "write 1 to 255; each has a queue")?;
        let ours = |part: &&str| part.split_once('=').is_some_and(|(name, _)| name == "workers");
        let parts: Vec<_> = device.split(',').filter(|part| !ours(part)).collect();
        self.options.clear();
        let queues = if workers == 1 { Queues::One } else { Queues::Range(0, workers - 1) };
        Ok((PortSpec::Dpdk { device: parts.join(","), queue: 0 }, queues))
    }

    fn null(&mut self) -> Result<PortSpec, SpecError> {
        let len = self.argument.parse().ok().filter(|len| (14..=3840).contains(len));
        let why = format!("`{}` is no length of a packet", self.argument);
        let remedy = "write null:BYTES, 14 to 3840";
        Ok(PortSpec::Null { len: len.ok_or_else(|| self.wrong(why, remedy))? })
    }
}

fn name_and_value(option: &str) -> (&str, Option<&str>) {
    option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)))
}

impl fmt::Display for PortSpec {
    /// Without its options: the name by which a port is known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |path: &Option<PathBuf>| {
            path.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
        };
        match self {
            PortSpec::AfXdp(config) => write!(f, "af_xdp:{}:{}", config.interface, config.queue),
            PortSpec::AfPacket(config) => write!(f, "af_packet:{}", config.interface),
            PortSpec::Memory { cable, .. } => write!(f, "memory:{cable}"),
            PortSpec::Pcap { input, output } => write!(f, "pcap:{}:{}", name(input), name(output)),
            PortSpec::Null { len } => write!(f, "null:{len}"),
            PortSpec::Dpdk { device, .. } => {
                write!(f, "dpdk:{}", device.split(',').next().unwrap_or_default())
            }
        }
    }
}

impl PortSpec {
    /// The interface that it is on, if it is on one.
    pub fn interface(&self) -> Option<&str> {
        match self {
            PortSpec::AfXdp(config) => Some(&config.interface),
            PortSpec::AfPacket(config) => Some(&config.interface),
            _ => None,
        }
    }

    /// Opens it for the worker that has this pool, on its thread.
    ///
    /// # Errors
    /// See [`PortError`].
    pub fn open(&self, pool: &Pool, context: &PortContext) -> Result<Box<dyn Port>, PortError> {
        let name = self.to_string();
        Ok(match self {
            PortSpec::AfXdp(config) => Box::new(AfXdp::open(name, pool, config, context)?),
            PortSpec::AfPacket(config) => Box::new(AfPacket::open(name, pool, config)?),
            PortSpec::Memory { cable, slots } => {
                let plug = context.plug(cable, *slots).ok_or_else(|| PortError::Refused {
                    port: name,
                    why: "a cable has two ends, and both are in use".into(),
                    remedy: "give this one a name of its own",
                })?;
                Box::new(plug.open(cable, pool)?)
            }
            PortSpec::Pcap { input, output } => {
                Box::new(Pcap::open(name, pool, input.as_deref(), output.as_deref())?)
            }
            PortSpec::Null { len } => Box::new(Null::open(name, pool, vec![0; (*len).into()])?),
            PortSpec::Dpdk { .. } => {
                return Err(PortError::Refused {
                    port: name,
                    why: "DPDK's packets lie in other memory than those of this program's ports"
                        .into(),
                    remedy: "give it dpdk ports alone, and run ringway-dpdk, from the package of that name",
                });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use ringway_xsk::Umem;

    use super::*;

    #[test]
    fn what_is_written_comes_back() {
        for text in [
            "af_xdp:eth0:3",
            "af_packet:eth0",
            "memory:a",
            "pcap:in.pcap:out.pcap",
            "pcap::x",
            "pcap:x:",
            "null:64",
        ] {
            assert_eq!(text.parse::<PortSpec>().unwrap().to_string(), text);
        }
        let memory = PortSpec::Memory { cable: "a".into(), slots: 512 };
        assert_eq!("memory:a,slots=512".parse(), Ok(memory));
        let config = af_packet::Config { interface: "eth0".into(), blocks: 64, bypass: true };
        assert_eq!("af_packet:eth0,bypass,blocks=64".parse(), Ok(PortSpec::AfPacket(config)));
        let only_in = PortSpec::Pcap { input: Some("a".into()), output: None };
        assert_eq!("pcap:a".parse(), Ok(only_in));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        for (text, why, remedy) in [
            ("", "no kind ``", "af_packet:IFACE"),
            ("af_xdp:eth0", "it has no queue", "af_xdp:eth0:QUEUE"),
            ("af_xdp:eth0:-1", "`-1` is no queue", "ethtool -l"),
            ("af_xdp:eth0:256", "`256` is no queue", "ethtool -l"),
            ("af_xdp:eth0:all", "`all` is a queue for each of", "one queue: af_xdp:eth0:0"),
            ("af_xdp:eth0:0-3", "`0-3` is a queue for each of", "one queue: af_xdp:eth0:0"),
            ("af_xdp::0", "`` is no interface", "ip link"),
            ("af_xdp:eth0:0,copy,zero-copy", "`copy` and `zero-copy` exclude", "choose one"),
            ("af_xdp:eth0:0,generic,native", "`native` and `generic` exclude", "choose one"),
            ("af_xdp:eth0:0,generic,zero-copy", "no zero-copy", "leave out"),
            ("afpacket:eth0", "no kind `afpacket`", "af_packet:eth0"),
            ("af_packet:", "`` is no interface", "ip link"),
            ("af_packet:a/b", "`a/b` is no interface", "ip link"),
            ("af_packet:0123456789abcdef", "is no interface", "ip link"),
            ("af_packet:eth0,copy", "no option `copy`", "leave it out"),
            ("af_packet:eth0,bypass=1", "has no value", "name alone"),
            ("af_packet:eth0,blocks=1", "`blocks=1` cannot be", "2 to 1024"),
            ("af_packet:eth0,blocks", "`blocks=` cannot be", "2 to 1024"),
            ("af_packet:eth0,blocks=4,blocks=8", "there twice", "once"),
            ("memory:", "no cable's name", "twice the same"),
            ("memory:a,slots=3", "`slots=3` cannot be", "power of two"),
            ("pcap:", "no file", "pcap:IN:OUT"),
            ("pcap:a:b:c", "more than two", "pcap:IN:OUT"),
            ("pcap:a:a", "write over", "two files"),
            ("null:13", "`13` is no length", "14 to 3840"),
        ] {
            let error = text.parse::<PortSpec>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
            assert!(error.contains(why) && error.contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn a_cable_has_two_ends() {
        let umem = Umem::new(&ringway_xsk::UmemConfig::default()).unwrap();
        let (pool, cables) = (umem.pool().unwrap(), PortContext::new(&umem));
        let spec: PortSpec = "memory:a".parse().unwrap();
        let _one = spec.open(&pool, &cables).unwrap();
        assert_eq!(cables.loose(), ["a"]);
        let _other = spec.open(&pool, &cables).unwrap();
        assert!(cables.loose().is_empty());
        let error = spec.open(&pool, &cables).err().unwrap().to_string();
        assert!(error.contains("both are in use"), "{error}");
        assert!(error.contains("a name of its own"), "{error}");
    }
}
