//! Rules of this network namespace's firewall that name a destination: an address, a port or both.
//! XDP takes packets before any of them; so such a rule may stand there and see nothing.
//!
//! Read by the tools that everybody has, `nft` and `iptables-save`; what they cannot be asked is an
//! error.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::process::Command;

use serde_json::Value;

use crate::Fix;

/// A rule that names a destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    pub place: Place,
    /// The rule, as its tool prints it.
    pub text: String,
    /// Removes it.
    pub removal: Fix,
    /// The program whose rule it is, where that shows: "Docker", "firewalld", "ufw".
    pub owner: Option<&'static str>,
    /// `tcp` or `udp`, where it says so.
    pub protocol: Option<String>,
    /// Destination prefixes; none: any.
    pub destinations: Vec<(IpAddr, u8)>,
    /// Destination ports, first and last; none: any.
    pub ports: Vec<(u16, u16)>,
}

/// Where a rule stands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Place {
    /// As nft calls it: `ip`, `ip6`, `inet`.
    pub family: String,
    pub table: String,
    pub chain: String,
    /// Of nft's rules alone.
    pub handle: Option<u64>,
}

impl Place {
    /// Removes the rule of nft that stands here.
    pub fn delete(&self) -> Fix {
        let handle = self.handle.unwrap_or_default().to_string();
        let Self { family, table, chain, .. } = self;
        Fix::command(["nft", "delete", "rule", family, table, chain, "handle", &handle])
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.family, self.table, self.chain)?;
        self.handle.map_or(Ok(()), |handle| write!(f, " handle {handle}"))
    }
}

impl Rule {
    /// Whether it names this destination: its address, or its port alone.
    pub fn names(&self, address: IpAddr, ports: (u16, u16), protocols: &[&str]) -> bool {
        let (first, last) = ports;
        let port = self.ports.iter().any(|(low, high)| *low <= last && first <= *high);
        let spoken = self.protocol.as_deref().is_none_or(|protocol| protocols.contains(&protocol));
        if !spoken || !(self.ports.is_empty() || port) {
            return false;
        }
        match self.destinations.as_slice() {
            [] => port,
            // A rule about everything names nobody.
            some => some.iter().any(|(net, bits)| *bits > 0 && covers(*net, *bits, address)),
        }
    }
}

/// All rules of this namespace that name a destination.
///
/// # Errors
/// A sentence that says which tool is missing or what it answered.
pub fn rules() -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    let nft = run("nft", &["-j", "list", "ruleset"]);
    let mut found = matches!(nft, Ran::Said(_));
    match nft {
        Ran::Said(text) => rules.extend(nft_rules(&text)?),
        Ran::Failed(why) => return Err(why),
        Ran::Missing => {}
    }
    // Those of iptables-nft are nft's too, but what its extensions match nft does not tell.
    for (tool, family) in [("iptables-save", "ip"), ("ip6tables-save", "ip6")] {
        match run(tool, &[]) {
            Ran::Said(text) => {
                found = true;
                rules.retain(|rule| !(rule.owner.is_none() && is_of_iptables(rule, family)));
                rules.extend(iptables_rules(&text, family));
            }
            Ran::Failed(why) => return Err(why),
            Ran::Missing => {}
        }
    }
    match found {
        true => Ok(rules),
        false => Err("neither nft nor iptables-save is installed".into()),
    }
}

/// The result of running a tool.
enum Ran {
    Said(String),
    Failed(String),
    Missing,
}

fn run(tool: &str, arguments: &[&str]) -> Ran {
    // Not on the PATH of plain users, and of some services.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let ran = Command::new(tool).args(arguments).env("PATH", path).output();
    match ran {
        Ok(output) if output.status.success() => {
            Ran::Said(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Ran::Failed(format!("{tool}: {}", said.lines().next().unwrap_or("no answer")))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ran::Missing,
        Err(error) => Ran::Failed(format!("{tool}: {error}")),
    }
}

/// The tables that iptables-nft makes.
fn is_of_iptables(rule: &Rule, family: &str) -> bool {
    let Place { family: own, table, .. } = &rule.place;
    own == family && ["filter", "nat", "mangle", "raw", "security"].contains(&table.as_str())
}

/// `nft -j list ruleset` (libnftables-json(5)).
fn nft_rules(json: &str) -> Result<Vec<Rule>, String> {
    let document: Value =
        serde_json::from_str(json).map_err(|error| format!("nft -j list ruleset: {error}"))?;
    let objects = document["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut sets: HashMap<(Table, String), &Value> = HashMap::new();
    let mut outgoing = Vec::new();
    for object in objects {
        let (set, chain) = (&object["set"], &object["chain"]);
        if set.is_object() {
            sets.insert((table(set), format!("@{}", word(&set["name"]))), &set["elem"]);
        }
        if matches!(chain["hook"].as_str(), Some("output" | "postrouting" | "egress")) {
            outgoing.push((table(chain), word(&chain["name"])));
        }
    }
    let rules = objects.iter().map(|object| &object["rule"]).filter(|rule| rule.is_object());
    let incoming = rules.filter(|rule| !outgoing.contains(&(table(rule), word(&rule["chain"]))));
    let read = incoming.map(|rule| nft_rule(rule, &sets));
    Ok(read.filter(|rule| !(rule.destinations.is_empty() && rule.ports.is_empty())).collect())
}

/// Family and name.
type Table = (String, String);

fn table(object: &Value) -> Table {
    (word(&object["family"]), word(&object["table"]))
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn nft_rule(rule: &Value, sets: &HashMap<(Table, String), &Value>) -> Rule {
    let table = table(rule);
    let ((family, name), chain) = (table.clone(), word(&rule["chain"]));
    let owner = owner(&name, &chain);
    let place = Place { family, table: name, chain, handle: rule["handle"].as_u64() };
    let mut read = Rule { removal: place.delete(), owner, place, ..Rule::default() };
    let mut words = Vec::new();
    for expression in rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let matched = &expression["match"];
        let payload = &matched["left"]["payload"];
        let wanted = matched["op"].as_str().is_none_or(|op| op == "==" || op == "in");
        let field = payload["field"].as_str().unwrap_or_default();
        let values = || {
            let right = &matched["right"];
            let named = right.as_str().filter(|name| name.starts_with('@'));
            let set = named.and_then(|name| sets.get(&(table.clone(), name.to_owned())));
            elements(set.copied().unwrap_or(right))
        };
        match field {
            "daddr" if wanted => {
                let values = values();
                words.push(format!("{} daddr {}", word(&payload["protocol"]), values.join(", ")));
                read.destinations.extend(values.iter().filter_map(|value| prefix(value)));
            }
            "dport" if wanted => {
                let values = values();
                let protocol = word(&payload["protocol"]);
                words.push(format!("{protocol} dport {}", values.join(", ")));
                read.ports.extend(values.iter().filter_map(|value| ports(value)));
                // "th" is any transport protocol.
                read.protocol = Some(protocol).filter(|name| name != "th");
            }
            _ => {
                let verdict = expression.as_object().and_then(|object| object.keys().next());
                let verdict = verdict.map(String::as_str).unwrap_or_default();
                let said =
                    ["accept", "drop", "reject", "dnat", "redirect", "jump", "goto", "return"];
                words.extend(said.contains(&verdict).then(|| verdict.to_owned()));
            }
        }
    }
    read.text = words.join(" ");
    read
}

/// The values of one side of a match: a value, a range, a prefix, or a set of these.
fn elements(value: &Value) -> Vec<String> {
    if let Some(list) = value.as_array() {
        return list.iter().flat_map(elements).collect();
    }
    let (set, element, prefix, range) =
        (&value["set"], &value["elem"]["val"], &value["prefix"], &value["range"]);
    if !set.is_null() {
        return elements(set);
    }
    if !element.is_null() {
        return elements(element);
    }
    if prefix.is_object() {
        return vec![format!("{}/{}", word(&prefix["addr"]), prefix["len"])];
    }
    if let Some([first, last]) = range.as_array().map(Vec::as_slice) {
        return vec![format!("{}-{}", word(first), word(last))];
    }
    vec![word(value)]
}

/// `iptables-save` and `ip6tables-save`.
fn iptables_rules(text: &str, family: &str) -> Vec<Rule> {
    let tool = if family == "ip" { "iptables" } else { "ip6tables" };
    let mut table = "";
    let mut rules = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let Some(rest) = line.strip_prefix("-A ") else { continue };
        let (chain, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let words = unquoted(rest);
        // `! -d ADDRESS` names all others.
        let after = |keys: &[&str]| {
            let at = words.iter().position(|word| keys.contains(&word.as_str()))?;
            let negated = at > 0 && words[at - 1] == "!";
            words.get(at + 1).map(String::as_str).filter(|_| !negated)
        };
        let listed = after(&["--dport", "--dports", "--destination-port"]).unwrap_or_default();
        let delete = [tool, "-t", table, "-D", chain].map(str::to_owned);
        let rule = Rule {
            place: Place {
                family: family.to_owned(),
                table: table.to_owned(),
                chain: chain.to_owned(),
                handle: None,
            },
            text: rest.to_owned(),
            removal: Fix::command(delete.into_iter().chain(words.iter().cloned())),
            owner: owner(table, chain),
            protocol: after(&["-p"]).map(str::to_owned),
            destinations: after(&["-d"]).and_then(prefix).into_iter().collect(),
            ports: listed.split(',').filter_map(ports).collect(),
        };
        let outgoing = matches!(chain, "OUTPUT" | "POSTROUTING");
        let names_nobody = rule.destinations.is_empty() && rule.ports.is_empty();
        if !(outgoing || names_nobody) {
            rules.push(rule);
        }
    }
    rules
}

/// The arguments of a rule. iptables-save quotes those that need it, with `"` and `\`.
fn unquoted(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), None::<String>, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c == ' ' && !quoted {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match c {
            '"' => quoted = !quoted,
            '\\' if quoted => word.extend(chars.next()),
            c => word.push(c),
        }
    }
    words.extend(word);
    words
}

/// The owner of a chain, by its name.
fn owner(table: &str, chain: &str) -> Option<&'static str> {
    if chain.starts_with("DOCKER") {
        Some("Docker")
    } else if chain.starts_with("ufw") {
        Some("ufw")
    } else if table.ends_with("firewalld") {
        Some("firewalld")
    } else {
        None
    }
}

/// `203.0.113.0/24` or a plain address.
fn prefix(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    Some((address, if bits.is_empty() { all } else { bits.parse().ok()? }))
}

/// `80`, `80-90` or `80:90`.
fn ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once(['-', ':']).unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn covers(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(bits.min(32))).unwrap_or(0) == 0
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(bits.min(128))).unwrap_or(0)
                == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NFT: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"table": {"family": "inet", "name": "filter", "handle": 1}},
        {"chain": {"family": "inet", "table": "filter", "name": "input", "handle": 1, "type": "filter",
            "hook": "input", "prio": 0, "policy": "accept"}},
        {"chain": {"family": "inet", "table": "filter", "name": "out", "handle": 2, "type": "filter",
            "hook": "output", "prio": 0, "policy": "accept"}},
        {"set": {"family": "inet", "name": "vips", "table": "filter", "type": "ipv4_addr",
            "elem": ["203.0.113.20", {"prefix": {"addr": "203.0.113.64", "len": 26}}]}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "handle": 3, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
                "right": "203.0.113.10"}},
            {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
                "right": {"set": [80, {"range": [8000, 8100]}]}}}, {"drop": null}]}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "handle": 4, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
                "right": "@vips"}}, {"accept": null}]}},
        {"rule": {"family": "inet", "table": "filter", "chain": "input", "handle": 5, "expr": [
            {"match": {"op": "!=", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
                "right": "203.0.113.10"}}, {"drop": null}]}},
        {"rule": {"family": "inet", "table": "filter", "chain": "out", "handle": 6, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}},
                "right": 80}}, {"drop": null}]}}]}"#;

    const IPTABLES: &str = "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n\
        -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80\n\
        -A OUTPUT ! -d 127.0.0.0/8 -j DOCKER\nCOMMIT\n*filter\n\
        -A INPUT -d 203.0.113.10/32 -p udp -m multiport --dports 53,5000:5010 -j REJECT\n\
        -A INPUT ! -d 203.0.113.10/32 -j DROP\n-A INPUT -m state --state NEW -j ACCEPT\nCOMMIT\n";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nft() {
        let rules = nft_rules(NFT).unwrap();
        let handles: Vec<String> = rules.iter().map(|rule| rule.place.to_string()).collect();
        assert_eq!(handles, ["inet filter input handle 3", "inet filter input handle 4"]);
        assert_eq!(rules[0].text, "ip daddr 203.0.113.10 tcp dport 80, 8000-8100 drop");
        assert_eq!(rules[0].removal.to_string(), "nft delete rule inet filter input handle 3");
        let named = |address: &str, port: u16, protocol: &str| -> Vec<usize> {
            let one = |rule: &Rule| rule.names(ip(address), (port, port), &[protocol]);
            (0..rules.len()).filter(|n| one(&rules[*n])).collect()
        };
        assert_eq!(named("203.0.113.10", 80, "tcp"), [0]);
        assert_eq!(named("203.0.113.10", 8050, "tcp"), [0]);
        assert_eq!(named("203.0.113.10", 80, "udp"), [0; 0]);
        assert_eq!(named("203.0.113.11", 80, "tcp"), [0; 0]);
        assert_eq!(named("203.0.113.20", 1, "udp"), [1]);
        assert_eq!(named("203.0.113.127", 1, "udp"), [1]);
        assert_eq!(named("203.0.113.128", 1, "udp"), [0; 0]);
        assert!(nft_rules("nonsense").is_err());
    }

    #[test]
    fn iptables() {
        let rules = iptables_rules(IPTABLES, "ip");
        assert_eq!(rules.len(), 2, "{rules:?}");
        let (docker, input) = (&rules[0], &rules[1]);
        assert_eq!(
            (docker.owner, docker.place.to_string()),
            (Some("Docker"), "ip nat DOCKER".into())
        );
        // By its port alone.
        assert!(docker.names(ip("203.0.113.10"), (8080, 8080), &["tcp"]));
        assert!(docker.names(ip("203.0.113.10"), (1, 65535), &["tcp", "udp"]));
        assert!(!docker.names(ip("203.0.113.10"), (80, 80), &["tcp"]));
        assert!(input.names(ip("203.0.113.10"), (5005, 5005), &["udp"]));
        assert!(!input.names(ip("203.0.113.9"), (5005, 5005), &["udp"]));
        let removal = input.removal.to_string();
        assert!(removal.starts_with("iptables -t filter -D INPUT -d 203.0.113.10/32 -p udp"));
    }

    #[test]
    fn a_comment_is_one_argument() {
        let text = "*filter\n-A INPUT -p tcp -m comment  --comment \"not -d 10.0.0.9 \\\"x\\\"\" -m tcp \
                    --dport 80 -j DROP\n";
        let rule = &iptables_rules(text, "ip")[0];
        assert!(rule.destinations.is_empty(), "{rule:?}");
        let removal = rule.removal.to_string();
        assert!(removal.contains("--comment 'not -d 10.0.0.9 \"x\"' -m tcp"), "{removal}");
    }

    #[test]
    fn a_rule_about_everything_names_nobody() {
        let any = Rule { destinations: vec![(ip("0.0.0.0"), 0)], ..Rule::default() };
        assert!(!any.names(ip("203.0.113.10"), (80, 80), &["tcp"]));
        let six = Rule { destinations: vec![(ip("2001:db8::"), 32)], ..Rule::default() };
        assert!(six.names(ip("2001:db8::1"), (80, 80), &["tcp"]));
        assert!(!six.names(ip("2001:db9::1"), (80, 80), &["tcp"]));
    }
}
