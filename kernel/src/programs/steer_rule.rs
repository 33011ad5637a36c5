//! Which packets come to user space, as it is written: `udp:4242@10.0.0.9`, `tcp:8000-8099`,
//! `icmp`, `arp@10.0.0.9`, `10.0.0.0/8`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ringway_abi::addr_to_words;
use ringway_abi::raw::{RW_STEER_ARP, RW_STEER_IP, RW_STEER_ND, RW_STEER_NO_PORT, rw_steer_rule};

const ICMP: u32 = 1;
const ICMPV6: u32 = 58;
/// Protocols with names, those with ports first.
const NAMES: [(&str, &[u32]); 9] = [
    ("udp", &[17]),
    ("tcp", &[6]),
    ("sctp", &[132]),
    ("udplite", &[136]),
    ("icmp", &[ICMP, ICMPV6]),
    ("gre", &[47]),
    ("esp", &[50]),
    ("arp", &[RW_STEER_ARP]),
    ("nd", &[RW_STEER_ND]),
];
const WITH_PORTS: usize = 4;

/// Packets of a protocol, to ports, to addresses; what is not said is any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteerRule {
    kinds: Vec<u32>,
    /// Both included.
    ports: Option<(u16, u16)>,
    /// And how many bits of it count.
    address: Option<(IpAddr, u8)>,
}

/// Why a text names no packets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}`: {why}; write PROTOCOL[:PORT[-PORT]][@ADDRESS[/LENGTH]] or ADDRESS[/LENGTH], say udp:4242, icmp@10.0.0.9, 10.0.0.0/8"
)]
pub struct SteerRuleError {
    text: String,
    why: String,
}

impl FromStr for SteerRule {
    type Err = SteerRuleError;

    fn from_str(text: &str) -> Result<Self, SteerRuleError> {
        let parsed = parse(text).map_err(|why| SteerRuleError { text: text.into(), why })?;
        Ok(parsed)
    }
}

impl fmt::Display for SteerRule {
    /// In one way, however it was written.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_ip = self.kinds == [RW_STEER_IP];
        match NAMES.iter().find(|(_, kinds)| *kinds == self.kinds) {
            Some((name, _)) => f.write_str(name)?,
            None if of_ip => (),
            None => self.kinds.iter().try_for_each(|kind| write!(f, "{kind}"))?,
        }
        match self.ports {
            Some((first, last)) if first == last => write!(f, ":{first}")?,
            Some((first, last)) => write!(f, ":{first}-{last}")?,
            None => (),
        }
        match self.address {
            Some((address, length)) if of_ip => write!(f, "{address}/{length}"),
            Some((address, length)) => write!(f, "@{address}/{length}"),
            None => Ok(()),
        }
    }
}

fn parse(text: &str) -> Result<SteerRule, String> {
    let (what, address) = match text.split_once('@') {
        Some((what, address)) => (Some(what), Some(address)),
        // Neither a protocol nor ports have a dot, a slash or two colons.
        None if text.contains(['.', '/']) || text.matches(':').count() > 1 => (None, Some(text)),
        None => (Some(text), None),
    };
    let address = address.map(prefix).transpose()?;
    let Some(what) = what else {
        return Ok(SteerRule { kinds: vec![RW_STEER_IP], ports: None, address });
    };
    let (name, ports) = what.split_once(':').map_or((what, None), |(name, p)| (name, Some(p)));
    let (kinds, has_ports) = protocol(name)?;
    if ports.is_some() && !has_ports {
        return Err(format!("{name} has no ports"));
    }
    let parsed = SteerRule { kinds, ports: ports.map(range).transpose()?, address };
    match parsed.address {
        Some((IpAddr::V6(_), _)) if name == "arp" => Err("arp is about IPv4; nd about IPv6".into()),
        Some((IpAddr::V4(_), _)) if name == "nd" => Err("nd is about IPv6; arp about IPv4".into()),
        _ => Ok(parsed),
    }
}

/// Kinds of packets, and whether they have ports.
fn protocol(name: &str) -> Result<(Vec<u32>, bool), String> {
    if let Some(n) = NAMES.iter().position(|(known, _)| *known == name) {
        return Ok((NAMES[n].1.to_vec(), n < WITH_PORTS));
    }
    let names = || NAMES.map(|(name, _)| name).join(", ");
    let number: Result<u8, _> = name.parse();
    let number = number.map_err(|_| {
        format!("`{name}` is no protocol: there are {}, and numbers up to 255", names())
    })?;
    let has_ports = NAMES[..WITH_PORTS].iter().any(|(_, kinds)| kinds.contains(&number.into()));
    Ok((vec![number.into()], has_ports))
}

fn range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ends = first.parse().ok().zip(last.parse().ok()).filter(|(first, last)| first <= last);
    // Nobody is reached at port 0.
    let ends = ends.filter(|(first, _)| *first > 0);
    ends.ok_or_else(|| format!("`{text}` is neither a port nor a range of ports, 1 to 65535"))
}

fn prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| format!("`{address}` is no address"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Some(most), |length| length.parse().ok());
    let length = length.filter(|length| *length <= most);
    Ok((address, length.ok_or_else(|| format!("a prefix of it has 0 to {most} bits"))?))
}

impl SteerRule {
    /// As the program has it.
    pub(crate) fn rules(&self) -> impl Iterator<Item = rw_steer_rule> + '_ {
        let (first_port, last_port) = match self.ports {
            Some((first, last)) => (first.into(), last.into()),
            None => (0, RW_STEER_NO_PORT),
        };
        let (addr, mask, family) = match self.address {
            Some((address, length)) => {
                let (family, skipped) = if address.is_ipv4() { (4, 96) } else { (6, 0) };
                (addr_to_words(address), mask(skipped + u32::from(length)), family)
            }
            None => Default::default(),
        };
        self.kinds.iter().map(move |kind| rw_steer_rule {
            addr,
            mask,
            kind: *kind,
            family,
            first_port,
            last_port,
        })
    }
}

/// So many bits, from the first on, in network byte order.
fn mask(bits: u32) -> [u32; 4] {
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    addr_to_words(IpAddr::V6(mask.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_rules() {
        let parsed: SteerRule = "udp:4242-4243@10.0.0.0/8".parse().unwrap();
        let rules: Vec<_> = parsed.rules().collect();
        let [rule] = rules.as_slice() else { panic!("{rules:?}") };
        assert_eq!((rule.kind, rule.family), (17, 4));
        assert_eq!((rule.first_port, rule.last_port), (4242, 4243));
        assert_eq!(rule.mask.map(u32::from_be), [!0, !0, !0, 0xff00_0000]);
        for (text, kinds) in [
            ("10.0.0.9", vec![RW_STEER_IP]),
            ("fd00::9", vec![RW_STEER_IP]),
            ("::/0", vec![RW_STEER_IP]),
            ("icmp", vec![1, 58]),
            ("nd@fd00::9/64", vec![RW_STEER_ND]),
            ("89", vec![89]),
        ] {
            let rules = text.parse::<SteerRule>().unwrap();
            assert_eq!(rules.rules().map(|rule| rule.kind).collect::<Vec<_>>(), kinds, "{text}");
            assert!(rules.rules().all(|rule| rule.last_port == RW_STEER_NO_PORT), "{text}");
        }
    }

    #[test]
    fn written_in_one_way() {
        for (text, shown) in [
            ("udp:4242-4242@10.0.0.9", "udp:4242@10.0.0.9/32"),
            ("17:1-2", "udp:1-2"),
            ("icmp", "icmp"),
            ("89@fd00::/8", "89@fd00::/8"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("nd@fd00::9", "nd@fd00::9/128"),
            ("arp", "arp"),
        ] {
            let parsed: SteerRule = text.parse().unwrap();
            assert_eq!(parsed.to_string(), shown);
            assert_eq!(shown.parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("", "`` is no protocol: there are udp, tcp"),
            ("udp:", "`` is neither a port"),
            ("udp:70000", "`70000` is neither a port"),
            ("udp:9-7", "`9-7` is neither"),
            ("udp:0", "`0` is neither"),
            ("tcp:0-80", "ports, 1 to 65535"),
            ("icmp:7", "icmp has no ports"),
            ("47:7", "47 has no ports"),
            ("300", "`300` is no protocol"),
            ("udp@10.0.0", "`10.0.0` is no address"),
            ("10.0.0.9/33", "0 to 32 bits"),
            ("fd00::/129", "0 to 128 bits"),
            ("arp@fd00::9", "nd about IPv6"),
            ("nd@10.0.0.9", "arp about IPv4"),
        ] {
            let error = text.parse::<SteerRule>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("udp:4242"), "{text}: {error}");
        }
    }
}
