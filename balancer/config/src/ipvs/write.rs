//! Writes a Ringway configuration for what IPVS did.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;

use super::{Server, Service, Virtual};
use crate::model::{Forward, Protocol};

/// The greatest weight that Ringway takes.
const MAX_WEIGHT: u32 = 1000;

/// Settings that IPVS does not know.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    pub node: String,
    /// Its interfaces; none: left open, and `ringway check` says where.
    pub interfaces: Vec<String>,
}

/// The configuration, and what is not as it was, each in a sentence.
pub fn write(services: &[Service], options: &ImportOptions) -> (String, Vec<String>) {
    let mut warnings = Vec::new();
    let mut text = head(options);
    for service in services {
        let mut notes = Vec::new();
        let body = one(service, &mut notes);
        warnings.extend(notes.iter().map(|note| format!("{}: {note}", service.at)));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n# {} -s {}", service.at, service.scheduler);
        for note in notes {
            let _ = writeln!(text, "# {note}");
        }
        text += &body;
    }
    (text, warnings)
}

fn head(options: &ImportOptions) -> String {
    let interfaces = match options.interfaces.as_slice() {
        [] => "# Those by which clients come and those by which backends are reached.\ninterfaces = []\n"
            .to_owned(),
        names => format!("interfaces = {names:?}\n"),
    };
    format!(
        "# From a list of IPVS (ringway import ipvs). IPVS asks no backend whether it is well, so neither does\n\
         # this: add check = {{ type = \"tcp\" }} to the services.\n\
         [node]\nname = {:?}\n{interfaces}",
        options.node
    )
}

/// One service, or a comment in its place.
fn one(service: &Service, notes: &mut Vec<String>) -> String {
    let (protocol, at) = match service.at {
        Virtual::Endpoint(protocol, at) => (protocol, at),
        Virtual::Sctp(_) => {
            notes.push("left out: Ringway balances TCP and UDP, not SCTP".to_owned());
            return String::new();
        }
        Virtual::Mark(_) => {
            notes.push(
                "left out: Ringway knows no firewall marks; write a [[service]] for each address and port \
                 that the rules mark"
                    .to_owned(),
            );
            return String::new();
        }
    };
    let Some(forward) = forward(service, notes) else { return String::new() };
    let protocol = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
    let name = name(protocol, at);
    let mut text = format!("[[service]]\nname = {name:?}\naddress = \"{}\"\n", at.ip());
    text += &match at.port() {
        0 => "port = \"*\"\n".to_owned(),
        port => format!("port = {port}\n"),
    };
    let _ = writeln!(text, "protocol = \"{protocol}\"\nforward = \"{forward}\"");
    if forward == Forward::Nat {
        // As IPVS does it: clients' addresses stay, and replies come back by this node's routes.
        text += "source = \"client\"\n";
    }
    if let Some(port) =
        service.servers.iter().find_map(|s| s.gue_port).filter(|_| forward == Forward::DsrGue)
    {
        let _ = writeln!(text, "gue_port = {port}");
    }
    if by_source(service, notes) {
        text += "affinity = \"source\"\n";
    }
    others(service, notes);
    text + &backends(service, at.port(), forward, notes)
}

/// All servers' way; ours is the service's.
fn forward(service: &Service, notes: &mut Vec<String>) -> Option<Forward> {
    let Some(first) = service.servers.first() else {
        notes.push("left out: it has no server".to_owned());
        return None;
    };
    if let Some(server) = service.servers.iter().find(|server| server.forward.is_none()) {
        notes.push(format!(
            "left out: the tunnel of {} (line {}) is neither IPIP nor GUE",
            server.address, server.line
        ));
        return None;
    }
    let differs = |server: &&Server| {
        server.forward != first.forward
            || first.forward == Some(Forward::DsrGue) && server.gue_port != first.gue_port
    };
    if let Some(other) = service.servers.iter().find(differs) {
        notes.push(format!(
            "left out: {} and {} (line {}) are forwarded in different ways, which all backends of a \
             Ringway service share",
            first.address, other.address, other.line
        ));
        return None;
    }
    first.forward
}

/// `tcp-192.0.2.1-80`; colons are not for names.
fn name(protocol: &str, at: SocketAddr) -> String {
    let port = if at.port() == 0 { "all".to_owned() } else { at.port().to_string() };
    format!("{protocol}-{}-{port}", at.ip().to_string().replace(':', "-"))
}

/// Whether all of a client's flows go to one backend; notes what becomes of the scheduler.
fn by_source(service: &Service, notes: &mut Vec<String>) -> bool {
    let has = |flag: &str| service.flags.iter().any(|have| have == flag);
    let by_source = match service.scheduler.as_str() {
        "rr" | "wrr" => {
            notes.push(format!(
                "-s {}: new flows are spread by a hash, by weight, not in turns",
                service.scheduler
            ));
            false
        }
        "sh" if has("sh-port") => false,
        "mh" if has("mh-port") => false,
        "sh" | "mh" => true,
        "dh" => {
            notes.push(
                "-s dh: not by the client's destination but by addresses and ports".to_owned(),
            );
            false
        }
        scheduler => {
            notes.push(format!(
                "-s {scheduler}: Ringway does not count connections; new flows are spread by a hash, by weight"
            ));
            false
        }
    };
    if let Some(seconds) = service.persistent {
        notes.push(format!(
            "-p {seconds}: a client stays with its backend by its address, for good instead of for \
             {seconds} s after its last connection"
        ));
        if let Some(prefix) = service.prefix.as_deref().filter(|prefix| !whole(prefix)) {
            notes.push(format!("-M {prefix}: clients of one prefix are not kept together"));
        }
    }
    by_source || service.persistent.is_some()
}

/// A mask of one address.
fn whole(prefix: &str) -> bool {
    matches!(prefix, "255.255.255.255" | "128")
}

fn others(service: &Service, notes: &mut Vec<String>) {
    let mut said = BTreeSet::new();
    for option in service.others.iter().chain(service.servers.iter().flat_map(|s| &s.others)) {
        let word = option.split(' ').next().unwrap_or_default();
        let note = match word {
            "-o" | "--ops" => "every datagram by itself: a flow's datagrams share a backend here",
            "--pe" => "by a field of the protocol (SIP): not possible here",
            "-x" | "-y" | "--u-threshold" | "--l-threshold" => {
                "a limit of connections: Ringway has none, use weights"
            }
            _ => "checksums of the tunnel: Ringway sends none in the outer UDP header",
        };
        if said.insert(word) {
            notes.push(format!("{option}: {note}"));
        }
    }
}

fn backends(service: &Service, port: u16, forward: Forward, notes: &mut Vec<String>) -> String {
    let most = service.servers.iter().map(|server| server.weight).max().unwrap_or_default();
    if most > MAX_WEIGHT {
        notes.push(format!("weights up to {most}: scaled, since {MAX_WEIGHT} is the most"));
    }
    let alike = matches!(service.scheduler.as_str(), "rr" | "lc");
    if alike && service.servers.iter().any(|server| server.weight > 1) {
        notes.push(format!("-s {} ignores weights: left out", service.scheduler));
    }
    let mut text = "backends = [\n".to_owned();
    for server in &service.servers {
        let _ = write!(text, "    {{ address = \"{}\"", server.address);
        if server.port != port && server.port != 0 {
            if forward == Forward::Nat {
                let _ = write!(text, ", port = {}", server.port);
            } else {
                notes.push(format!(
                    "port {} of {}: IPVS changes no port in this mode either",
                    server.port, server.address
                ));
            }
        }
        let weight = match server.weight {
            0 => 0,
            _ if alike => 1,
            weight if most > MAX_WEIGHT => {
                (u64::from(weight) * u64::from(MAX_WEIGHT) / u64::from(most)).max(1) as u32
            }
            weight => weight,
        };
        if weight != 1 {
            let _ = write!(text, ", weight = {weight}");
        }
        text += " },\n";
    }
    text + "]\n"
}
