//! Health checks as values.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use crate::reader::located::Located;

/// A health check, run against every backend of its service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub kind: CheckKind,
    /// Address to ask; absent: the backend's own, under dsr the service's, by the path
    /// that the traffic takes.
    pub address: Option<Located<IpAddr>>,
    /// Port to ask, host byte order; absent: the backend's own port.
    pub port: Option<u16>,
    /// From the start of one check to the start of the next.
    pub interval: Duration,
    /// After which a check without an answer has failed; at most `interval`.
    pub timeout: Duration,
    /// Successes in a row that bring a backend up, 1..=100.
    pub rise: u32,
    /// Failures in a row that take it down, 1..=100.
    pub fall: u32,
    /// Whether every single result is logged; changes of state always are.
    pub log_checks: bool,
}

/// Where one backend is asked, if elsewhere than the service's check says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckAt {
    /// As [`Check::address`].
    pub address: Option<Located<IpAddr>>,
    /// As [`Check::port`].
    pub port: Option<u16>,
}

/// The question of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Does it accept a TCP connection?
    Tcp,
    /// Does `GET` give one of the expected statuses?
    Http(HttpCheck),
    /// The same within TLS.
    Https(HttpCheck, TlsCheck),
    /// Does it answer a datagram?
    Udp(UdpCheck),
    /// Does it answer a question over UDP?
    Dns(DnsCheck),
    /// Does a program end with 0?
    Exec(ExecCheck),
}

impl CheckKind {
    /// The word after `type =`.
    pub fn name(&self) -> &'static str {
        match self {
            CheckKind::Tcp => "tcp",
            CheckKind::Http(_) => "http",
            CheckKind::Https(..) => "https",
            CheckKind::Udp(_) => "udp",
            CheckKind::Dns(_) => "dns",
            CheckKind::Exec(_) => "exec",
        }
    }

    /// The transport protocol that it speaks; a program may speak any.
    pub fn protocol(&self) -> Option<crate::model::Protocol> {
        match self {
            CheckKind::Tcp | CheckKind::Http(_) | CheckKind::Https(..) => {
                Some(crate::model::Protocol::Tcp)
            }
            CheckKind::Udp(_) | CheckKind::Dns(_) => Some(crate::model::Protocol::Udp),
            CheckKind::Exec(_) => None,
        }
    }
}

/// An HTTP/1.1 GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// Begins with `/`; printable ASCII.
    pub path: String,
    /// The `Host` header; absent: address and port asked.
    pub host: Option<String>,
    pub expect: Statuses,
}

/// HTTP statuses: 200 to 399 unless written otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub(crate) Vec<RangeInclusive<u16>>);

impl Default for Statuses {
    fn default() -> Statuses {
        Statuses(vec![200..=399])
    }
}

impl Statuses {
    /// Is it one of them?
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

/// "200 to 399", "200, 204"
impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, range) in self.0.iter().enumerate() {
            f.write_str(if n == 0 { "" } else { ", " })?;
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{first}")?,
                (first, last) => write!(f, "{first} to {last}")?,
            }
        }
        Ok(())
    }
}

/// How a TLS server is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCheck {
    /// Whether the certificate must be valid, for the right name, and from a known authority.
    pub verify: bool,
    /// The authorities, PEM, absolute path; absent: the machine's own.
    pub ca_file: Option<Located<PathBuf>>,
    /// The name asked for, which the certificate must be for; absent: the host of
    /// [`HttpCheck::host`], else the address asked (then no name is sent).
    pub sni: Option<String>,
}

/// One datagram and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpCheck {
    /// 1 to 1024 bytes.
    pub send: Vec<u8>,
    /// Text that the answer must contain; absent: any answer passes.
    pub expect: Option<Vec<u8>>,
}

/// One question and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsCheck {
    /// A name without its last dot; empty: the root. Labels of 1 to 63 bytes, 253 in all.
    pub query: String,
    /// The record type that is asked for.
    pub record: DnsRecord,
    /// Codes of an answer that passes; at least one.
    pub rcodes: Vec<Rcode>,
}

/// Names with a number.
macro_rules! registry {
    ($(#[$doc:meta])* $name:ident, $number:ty, $all:ident, { $($variant:ident = $code:literal $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $(#[doc = $word] $variant = $code,)* }

        impl $name {
            pub(crate) const $all: &[(&'static str, $name)] = &[$(($word, $name::$variant),)*];

            /// Its number in a message.
            pub fn code(self) -> $number {
                self as $number
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($name::$variant => $word,)* })
            }
        }
    };
}

registry!(
    /// Types of records (RFC 1035, 3596, 2782, 9460).
    DnsRecord, u16, ALL, {
        A = 1 "A",
        Ns = 2 "NS",
        Cname = 5 "CNAME",
        Soa = 6 "SOA",
        Ptr = 12 "PTR",
        Mx = 15 "MX",
        Txt = 16 "TXT",
        Aaaa = 28 "AAAA",
        Srv = 33 "SRV",
        Https = 65 "HTTPS",
    }
);

registry!(
    /// Response codes (RFC 1035, section 4.1.1).
    Rcode, u8, ALL, {
        NoError = 0 "NOERROR",
        FormErr = 1 "FORMERR",
        ServFail = 2 "SERVFAIL",
        NxDomain = 3 "NXDOMAIN",
        NotImp = 4 "NOTIMP",
        Refused = 5 "REFUSED",
    }
);

impl Rcode {
    /// The name of a code of an answer, or its number.
    pub fn name_of(code: u8) -> String {
        let known = Rcode::ALL.iter().find(|(_, rcode)| rcode.code() == code);
        known.map_or_else(|| format!("RCODE {code}"), |(word, _)| (*word).to_owned())
    }
}

/// A program that asks in its own way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCheck {
    /// The program, an absolute path, and its arguments; no shell takes part.
    pub command: Located<Vec<String>>,
}
