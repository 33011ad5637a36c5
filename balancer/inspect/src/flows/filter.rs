//! Which flows: a few words, joined by `and`. The grammar, for people in docs/observing.md:
//!
//! ```text
//! filter  = [ term { "and" term } ]
//! term    = [ "not" ] ( "tcp" | "udp" | "ipv4" | "ipv6" | "dsr" | "probation"
//!                     | "service" NAME | "backend" HOST | "client" HOST | "port" NUMBER
//!                     | "state" STATE | "idle" ( "<" | ">" ) TIME )
//! HOST    = ADDRESS [ "/" LENGTH ] [ ":" PORT ]      IPv6 with a port: [ADDRESS/LENGTH]:PORT
//! TIME    = NUMBER ( "s" | "m" | "h" | "d" )
//! ```

use std::net::{IpAddr, SocketAddr};

use ringway_abi::FlowState;
use ringway_api::error::Error;
use ringway_kernel::is_udp;

use super::{Flow, FlowNames};

/// Words that begin a term.
const TERMS: [&str; 12] = [
    "tcp",
    "udp",
    "ipv4",
    "ipv6",
    "dsr",
    "probation",
    "service",
    "backend",
    "client",
    "port",
    "state",
    "idle",
];
const EXAMPLE: &str = "write terms joined by and, such as 'service web and client 192.0.2.0/24 and \
    state established and idle > 30s'; docs/observing.md has them all";
/// Units of time, in seconds.
const UNITS: [(&str, u32); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86400)];

/// A filter; the default lets every flow through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    not: bool,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Udp(bool),
    V6(bool),
    Dsr,
    Probation,
    /// Ids of the services of one name: one per protocol.
    Service(Vec<u16>),
    Backend(Host),
    Client(Host),
    Port(u16),
    State(FlowState),
    IdleBelow(u32),
    IdleAbove(u32),
}

/// Addresses, and one port or any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    address: IpAddr,
    length: u8,
    port: Option<u16>,
}

impl Host {
    fn contains(&self, at: SocketAddr) -> bool {
        self.port.is_none_or(|port| port == at.port())
            && mask(at.ip(), self.length) == Some(self.address)
            && at.is_ipv4() == self.address.is_ipv4()
    }
}

impl Host {
    /// Whether no address and port are in both.
    fn excludes(&self, other: &Host) -> bool {
        let ports = self.port.zip(other.port).is_some_and(|(a, b)| a != b);
        let length = self.length.min(other.length);
        let apart = mask(self.address, length) != mask(other.address, length);
        ports || apart || self.address.is_ipv4() != other.address.is_ipv4()
    }
}

/// An address without the bits beyond a prefix; `None`: it has no prefix so long.
fn mask(address: IpAddr, length: u8) -> Option<IpAddr> {
    match address {
        IpAddr::V4(ip) => {
            let beyond = 32u32.checked_sub(length.into())?;
            let bits = ip.to_bits() & u32::MAX.checked_shl(beyond).unwrap_or(0);
            Some(IpAddr::V4(bits.into()))
        }
        IpAddr::V6(ip) => {
            let beyond = 128u32.checked_sub(length.into())?;
            let bits = ip.to_bits() & u128::MAX.checked_shl(beyond).unwrap_or(0);
            Some(IpAddr::V6(bits.into()))
        }
    }
}

impl Filter {
    /// Reads a filter. Names are looked up now, so that one that nobody has is an error.
    ///
    /// # Errors
    /// It makes no sense, or no flow can ever fit it: where and what to write instead.
    pub fn parse(text: &str, names: &FlowNames) -> Result<Filter, Error> {
        let mut reader = Reader { text, tokens: tokens(text), at: 0, names };
        let filter = reader.filter().map_err(|wrong| wrong.error(text))?;
        match filter.contradiction() {
            None => Ok(filter),
            Some(why) => Err(Error::configuration(
                format!("the filter {text:?} can never fit: {why}"),
                "leave one of the two out",
            )),
        }
    }

    /// Whether it lets a flow through.
    pub fn lets_through(&self, flow: &Flow, names: &FlowNames) -> bool {
        self.terms.iter().all(|term| term.test.fits(flow, names) != term.not)
    }

    /// Whether it asks for what records of dsr services do not hold.
    pub fn asks_for_clients(&self) -> bool {
        let asks = |term: &Term| {
            !term.not && matches!(term.test, Test::Client(_) | Test::Port(_) | Test::V6(_))
        };
        self.terms.iter().any(asks)
    }

    fn contradiction(&self) -> Option<String> {
        let wanted: Vec<&Test> = self.terms.iter().filter(|t| !t.not).map(|t| &t.test).collect();
        for (n, one) in wanted.iter().enumerate() {
            if let Some(why) = wanted[n + 1..].iter().find_map(|other| one.excludes(other)) {
                return Some(why.to_owned());
            }
        }
        if wanted.contains(&&Test::IdleBelow(0)) {
            return Some("no flow is idle for less than nothing".to_owned());
        }
        let denied = self.terms.iter().find(|t| t.not && wanted.contains(&&t.test))?;
        Some(format!("it asks for something and for its opposite ({:?})", denied.test))
    }
}

impl Test {
    fn fits(&self, flow: &Flow, names: &FlowNames) -> bool {
        let nat = flow.nat.as_ref();
        match self {
            Test::Udp(udp) => flow.udp() == *udp,
            Test::V6(v6) => nat.is_some_and(|nat| nat.client.is_ipv6() == *v6),
            Test::Dsr => nat.is_none(),
            Test::Probation => flow.on_probation,
            Test::Service(ids) => names.service_of(flow).is_some_and(|id| ids.contains(&id)),
            Test::Backend(host) => names.backend_of(flow).is_some_and(|at| host.contains(at)),
            Test::Client(host) => nat.is_some_and(|nat| host.contains(nat.client)),
            Test::Port(port) => nat.is_some_and(|nat| nat.port == *port),
            Test::State(state) => flow.state == *state,
            Test::IdleBelow(seconds) => flow.idle_s < *seconds,
            Test::IdleAbove(seconds) => flow.idle_s > *seconds,
        }
    }

    /// Why no flow fits both.
    fn excludes(&self, other: &Test) -> Option<&'static str> {
        let pair = |a: &Test, b: &Test| match (a, b) {
            (Test::Udp(a), Test::Udp(b)) if a != b => Some("a flow is TCP or UDP, not both"),
            (Test::V6(a), Test::V6(b)) if a != b => Some("a flow is IPv4 or IPv6, not both"),
            (Test::Udp(udp), Test::State(state)) if is_udp(*state) != *udp => {
                Some("flows of that protocol are never in that state")
            }
            (Test::State(a), Test::State(b)) if a != b => Some("a flow is in one state"),
            (Test::Service(a), Test::Service(b)) if a != b => Some("a flow has one service"),
            (Test::Port(a), Test::Port(b)) if a != b => Some("a flow has one port"),
            (Test::IdleBelow(below), Test::IdleAbove(above))
                if *below <= above.saturating_add(1) =>
            {
                Some("nothing lies between the two times")
            }
            (Test::Client(a), Test::Client(b)) if a.excludes(b) => Some("a flow has one client"),
            (Test::Backend(a), Test::Backend(b)) if a.excludes(b) => Some("a flow has one backend"),
            (Test::V6(v6), Test::Client(client)) if client.address.is_ipv6() != *v6 => {
                Some("the client's address is of the other family")
            }
            (Test::Dsr, Test::Client(_) | Test::Port(_) | Test::V6(_)) => {
                Some("records of dsr flows hold no client")
            }
            _ => None,
        };
        pair(self, other).or_else(|| pair(other, self))
    }
}

/// An error and its place: characters from 0.
struct Wrong {
    at: usize,
    what: String,
}

impl Wrong {
    fn error(self, text: &str) -> Error {
        let Wrong { at, what } = self;
        let mark = " ".repeat(at);
        let what = format!("the filter, column {}: {what}\n  {text}\n  {mark}^", at + 1);
        Error::configuration(what, EXAMPLE)
    }
}

/// A word or an operator, and the character at which it begins.
#[derive(Clone, Copy)]
struct Token<'t> {
    at: usize,
    text: &'t str,
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    #[derive(PartialEq)]
    enum Kind {
        Space,
        Operator,
        Word,
    }
    let kind = |c: char| match c {
        _ if c.is_whitespace() => Kind::Space,
        '<' | '>' | '=' => Kind::Operator,
        _ => Kind::Word,
    };
    let mut found: Vec<Token<'_>> = Vec::new();
    let mut before = Kind::Space;
    for (n, (byte, c)) in text.char_indices().enumerate() {
        let this = kind(c);
        if this != Kind::Space {
            let end = byte + c.len_utf8();
            match found.last_mut() {
                Some(last) if this == before => {
                    let begin = last.text.as_ptr() as usize - text.as_ptr() as usize;
                    last.text = &text[begin..end];
                }
                _ => found.push(Token { at: n, text: &text[byte..end] }),
            }
        }
        before = this;
    }
    found
}

struct Reader<'t, 'n> {
    text: &'t str,
    tokens: Vec<Token<'t>>,
    at: usize,
    names: &'n FlowNames,
}

impl<'t> Reader<'t, '_> {
    fn filter(&mut self) -> Result<Filter, Wrong> {
        let mut terms = Vec::new();
        while self.at < self.tokens.len() {
            if !terms.is_empty() {
                self.and()?;
            }
            terms.push(self.term()?);
        }
        Ok(Filter { terms })
    }

    fn and(&mut self) -> Result<(), Wrong> {
        let token = self.next("and")?;
        match token.text {
            "and" => Ok(()),
            "or" | "||" => Err(wrong(token, "there is no or: ask twice".to_owned())),
            "&&" => Err(wrong(token, "write and instead".to_owned())),
            other => Err(wrong(token, format!("{other:?} where and belongs, between two terms"))),
        }
    }

    /// The next word; `what` is expected there.
    fn next(&mut self, what: &str) -> Result<Token<'t>, Wrong> {
        let end = self.text.trim_end().chars().count();
        let token = self.tokens.get(self.at).copied();
        self.at += 1;
        token.ok_or_else(|| Wrong { at: end, what: format!("it ends where {what} belongs") })
    }

    fn term(&mut self) -> Result<Term, Wrong> {
        let mut word = self.next("a term")?;
        let not = word.text == "not";
        if not {
            word = self.next("a term")?;
        }
        let test = match word.text {
            "tcp" => Test::Udp(false),
            "udp" => Test::Udp(true),
            "ipv4" => Test::V6(false),
            "ipv6" => Test::V6(true),
            "dsr" => Test::Dsr,
            "probation" => Test::Probation,
            "service" => self.service()?,
            "backend" => Test::Backend(self.host("a backend's address")?),
            "client" => Test::Client(self.host("a client's address or prefix")?),
            "port" => self.port()?,
            "state" => self.state()?,
            "idle" => self.idle()?,
            other => {
                let near = ringway_config::nearest(other, &TERMS);
                let hint = near.map_or_else(
                    || format!("terms begin with {}", TERMS.join(", ")),
                    |near| format!("did you mean {near}?"),
                );
                return Err(wrong(word, format!("{other:?} begins no term; {hint}")));
            }
        };
        Ok(Term { not, test })
    }

    fn service(&mut self) -> Result<Test, Wrong> {
        let word = self.next("the name of a service")?;
        let named = self.names.services.iter().filter(|(_, service)| service.name == word.text);
        let mut ids: Vec<u16> = named.map(|(id, _)| *id).collect();
        ids.sort_unstable();
        if ids.is_empty() {
            let known: Vec<&str> = self.names.service_names.iter().map(String::as_str).collect();
            let hint = match (ringway_config::nearest(word.text, &known), known.as_slice()) {
                (Some(near), _) => format!("did you mean {near}?"),
                (None, []) => "the node has none".to_owned(),
                (None, few) => format!("there is {}", few[..few.len().min(8)].join(", ")),
            };
            return Err(wrong(word, format!("no service {:?}; {hint}", word.text)));
        }
        Ok(Test::Service(ids))
    }

    fn host(&mut self, what: &str) -> Result<Host, Wrong> {
        let word = self.next(what)?;
        host(word.text).map_err(|complaint| wrong(word, complaint))
    }

    fn port(&mut self) -> Result<Test, Wrong> {
        let word = self.next("a port")?;
        match word.text.parse() {
            Ok(port) if port != 0 => Ok(Test::Port(port)),
            _ => Err(wrong(word, format!("{:?} is no port: 1 to 65535", word.text))),
        }
    }

    fn state(&mut self) -> Result<Test, Wrong> {
        let word = self.next("a state")?;
        let lives = |state: &FlowState| !matches!(state, FlowState::Free | FlowState::Claimed);
        let names: Vec<&str> = FlowState::all().filter(lives).map(FlowState::name).collect();
        let found = FlowState::all().filter(lives).find(|state| state.name() == word.text);
        found.map(Test::State).ok_or_else(|| {
            let near = ringway_config::nearest(word.text, &names);
            let hint = near.map_or_else(
                || format!("states are {}", names.join(", ")),
                |near| format!("did you mean {near}?"),
            );
            wrong(word, format!("{:?} is no state; {hint}", word.text))
        })
    }

    fn idle(&mut self) -> Result<Test, Wrong> {
        let operator = self.next("< or >")?;
        let above = match operator.text {
            ">" => true,
            "<" => false,
            other => return Err(wrong(operator, format!("{other:?} where < or > belongs"))),
        };
        let word = self.next("a time")?;
        let seconds = seconds(word.text).map_err(|complaint| wrong(word, complaint))?;
        Ok(if above { Test::IdleAbove(seconds) } else { Test::IdleBelow(seconds) })
    }
}

fn wrong(token: Token<'_>, what: String) -> Wrong {
    Wrong { at: token.at, what }
}

fn seconds(text: &str) -> Result<u32, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let Ok(number) = number.parse::<u32>() else {
        return Err(format!("{text:?} is no time: write 30s, 5m, 2h or 1d"));
    };
    let unit = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
    match unit {
        Some(unit) => {
            number.checked_mul(*unit).ok_or_else(|| format!("{text:?} is longer than any flow"))
        }
        None if digits == text.len() => Err(format!("{text:?} has no unit: write {text}s")),
        None => Err(format!("{text:?} has no unit that is known: s, m, h or d")),
    }
}

/// ADDRESS, ADDRESS/LENGTH, either with :PORT; IPv6 with a port in brackets.
fn host(text: &str) -> Result<Host, String> {
    let no_port = |port: &str| format!("{port:?} is no port: 1 to 65535");
    let number = |port: &str| match port.parse::<u16>() {
        Ok(port) if port != 0 => Ok(Some(port)),
        _ => Err(no_port(port)),
    };
    let (prefix, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inside, "")) => (inside, None),
            Some((inside, port)) => match port.strip_prefix(':') {
                Some(port) => (inside, number(port)?),
                None => return Err(format!("{port:?} behind the bracket is no :PORT")),
            },
            None => return Err(format!("{text:?} has no closing bracket")),
        },
        None => match text.split_once(':') {
            // One colon is a port's; IPv6 addresses have two or more.
            Some((inside, port)) if !port.contains(':') => (inside, number(port)?),
            _ => (text, None),
        },
    };
    let (address, length) = match prefix.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (prefix, None),
    };
    let address: IpAddr = address.parse().map_err(|_| {
        format!("{address:?} is no address (names are not looked up); 192.0.2.7, 192.0.2.0/24:443, [2001:db8::/32]:443")
    })?;
    let most: u8 = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => most,
        Some(length) => match length.parse() {
            Ok(length) if length <= most => length,
            _ => return Err(format!("/{length} is no prefix length: /0 to /{most}")),
        },
    };
    match mask(address, length) {
        Some(masked) if masked == address => Ok(Host { address, length, port }),
        Some(masked) => {
            Err(format!("{address}/{length} has bits beyond its prefix: write {masked}/{length}"))
        }
        None => Err(format!("/{length} is no prefix length: /0 to /{most}")),
    }
}

#[cfg(test)]
mod tests;
