//! What a valid `[shield]` may do that nobody means: drop clients, backends or whole services, limit
//! what one client needs, or nothing at all. `ringway check` and `ringway reload` warn of it.

use std::net::{IpAddr, SocketAddr};

use ringway_config::{
    Config, Limits, ListAction, Protocol, RateLimit, RuleAction, Service, Shield, ShieldMode,
    ShieldRule, Syn,
};

use super::shield_plan::{ReadList, ShieldPlan};
use crate::health::dsr_probe;

/// Packets a second of a kind that one client alone may need.
const FEW: u32 = 10;
/// What one client alone needs, packets a second, by the key of the limit.
const NEEDED: [(&str, u32); 4] =
    [("packets", 100), ("destination", 100), ("new_flows", 10), ("source", 10)];
/// Clients that have nothing in common. A rule that drops what all of them send spares nobody.
const CLIENTS: [(&str, &str, u16); 3] = [
    ("5.6.7.8", "2003:ab:1::8", 61_234),
    ("93.184.216.34", "2606:2800:220::34", 40_001),
    ("203.0.113.201", "2a00:1450:4001::65", 1_025),
];

/// `plan`: with the lists as they were read.
pub fn warnings(config: &Config, plan: Option<&ShieldPlan>) -> Vec<String> {
    let Some(shield) = &config.shield else { return Vec::new() };
    let mut all = spare_nobody(config, shield);
    all.extend(low_limits(config, shield));
    all.extend(low_thresholds(shield));
    all.extend(idle_answers(config, shield));
    all.extend(dropped_services(config, shield));
    all.extend(shield.mitigation.iter().filter_map(|mitigation| {
        let arms = config.services.iter().any(|service| *service.syn != Syn::Off);
        let idle = mitigation.limits.is_empty() && mitigation.run.is_empty() && !arms;
        let only = "[shield.mitigation] has neither limits nor run, so an attack is announced and \
                    nothing is done: write limits = { source = \"500pps\" }";
        idle.then(|| only.to_owned())
    }));
    all.extend(plan.map(list_warnings).unwrap_or_default());
    all
}

/// What whoever has SYNs challenged should know, though nothing is wrong with it.
pub fn challenges(config: &Config) -> Vec<String> {
    let Some(shield) = &config.shield else { return Vec::new() };
    let challenged = config.services.iter().filter(|service| *service.syn == Syn::Challenge);
    let when = if shield.syn.always { "always" } else { "while it is attacked" };
    let note = |service: &Service| {
        format!(
            "service {}: syn = \"challenge\": {when}, clients behind a firewall that drops answers whose \
             number fits no connection, or the RST that replies to them, do not get in unless they \
             were clients before; compare `replies` with `answered` in `ringway shield status`, and \
             put such networks into an allow list",
            *service.name
        )
    };
    challenged.map(note).collect()
}

/// Services whose backends nobody asks whether they take the cookies that clients are answered with.
pub fn unasked_cookies(config: &Config) -> Vec<String> {
    let is_asked = |service: &Service| {
        service.backends.iter().all(|backend| dsr_probe::is_taken(service, backend))
    };
    let with_cookies = config.services.iter().filter(|service| *service.syn == Syn::Backend);
    let note = |service: &Service| {
        format!(
            "service {}: syn = \"backend\": a backend without a check at the service address is not asked \
             whether it takes cookies: without `ringway accept` it resets connections, and nobody \
             notices; write check = {{ type = \"tcp\" }}",
            *service.name
        )
    };
    with_cookies.filter(|service| !is_asked(service)).map(note).collect()
}

/// Those of lists alone, which come and go with their files.
pub fn list_warnings(plan: &ShieldPlan) -> Vec<String> {
    let of = |list: &ReadList| {
        let name = list.name.clone();
        list.wide.clone().into_iter().map(move |wide| format!("list {name}: {wide}"))
    };
    plan.lists.iter().flat_map(of).collect()
}

/// Limits of dsr services, under which nothing is learnt.
fn spare_nobody(config: &Config, shield: &Shield) -> Vec<String> {
    if shield.lists.iter().any(|list| list.action == ListAction::Allow) {
        return Vec::new();
    }
    let limited =
        |service: &&Service| service.forward.is_dsr() && !shield.limits_of(service).is_empty();
    let note = |service: &Service| {
        format!(
            "service {}: {}: answers do not pass here, so no source is learnt, and limits hold for \
             all: list the sources that matter in an allow list",
            *service.name, service.forward
        )
    };
    config.services.iter().filter(limited).map(note).collect()
}

fn low_limits(config: &Config, shield: &Shield) -> Vec<String> {
    let low = |place: &str, limits: Limits| -> Vec<String> {
        let pairs = limits.named().into_iter().zip(NEEDED);
        let low = pairs.filter_map(|((key, limit), (_, needed))| {
            let limit = limit.filter(|limit| limit.packets_per_second < needed)?;
            let rate = limit.rate();
            Some(format!(
                "{key} = \"{rate}\" of {place}: one client alone may need {needed} a second: write more"
            ))
        });
        low.collect()
    };
    let mut all = low("[shield.limits]", shield.limits.every_service);
    for service in &config.services {
        let own = service.shield.map(|own| own.limits.instead_of(Limits::default()));
        all.extend(low(&format!("service {}", *service.name), own.unwrap_or_default()));
    }
    let armed = shield.mitigation.as_ref().map(|mitigation| mitigation.limits);
    all.extend(low("limits of [shield.mitigation]", armed.unwrap_or_default()));
    all
}

/// Thresholds that one client alone is above.
fn low_thresholds(shield: &Shield) -> Vec<String> {
    let Some(mitigation) = &shield.mitigation else { return Vec::new() };
    let minimum = mitigation.above_baseline.map(|above| above.minimum);
    let thresholds = [
        ("packets", mitigation.packets, 100),
        ("new_flows", mitigation.new_flows, 10),
        ("minimum", minimum, 100),
    ];
    let low = thresholds.into_iter().filter_map(|(key, rate, needed)| {
        let rate = RateLimit::new(rate.filter(|rate| *rate < needed)?).rate();
        Some(format!(
            "{key} = \"{rate}\" of [shield.mitigation]: one client alone may need {needed} a second, \
             which would be an attack: write more"
        ))
    });
    low.collect()
}

/// Services whose SYNs nobody answers though they say so.
fn idle_answers(config: &Config, shield: &Shield) -> Vec<String> {
    let answered = config.services.iter().filter(|service| *service.syn != Syn::Off);
    let note = |service: &Service| {
        let why = match shield.mode_of(service) {
            ShieldMode::Enforce => return None,
            ShieldMode::Observe => {
                "mode = \"observe\": SYNs that would be answered are counted, and none is: write \
                 \"enforce\" to have them answered"
            }
            ShieldMode::Off => {
                "its shield is \"off\", so no SYN is answered: take syn or the mode out"
            }
        };
        Some(format!("service {}: syn = \"{}\" has no effect: {why}", *service.name, *service.syn))
    };
    answered.filter_map(note).collect()
}

/// Services for which a rule drops what every client must send.
fn dropped_services(config: &Config, shield: &Shield) -> Vec<String> {
    let mut all = Vec::new();
    for service in &config.services {
        for protocol in &service.protocols {
            let dropped = |sent: &Sent| Some((*sent, dropped_by_one(shield, service, *sent)?));
            if let Some((sent, rule)) = Sent::over(*protocol).iter().find_map(dropped) {
                let (does, remedy) = match rule.action {
                    RuleAction::Limit(limit) => (
                        format!("limits to {}, for all clients together,", limit.rate()),
                        format!("one client alone may need {FEW} a second: write a higher rate"),
                    ),
                    _ => ("drops".to_owned(), "write a narrower match".to_owned()),
                };
                all.push(format!(
                    "rule {:?} ({}) {does} {} of every client of service {} ({protocol}): {remedy}",
                    *rule.name,
                    rule.filter.expression(),
                    sent.words(),
                    *service.name,
                ));
            }
        }
    }
    all
}

/// The rule that drops this packet of all clients, if one does.
fn dropped_by_one<'s>(shield: &'s Shield, service: &Service, sent: Sent) -> Option<&'s ShieldRule> {
    let mut by = [*service.port, service.last_port].into_iter().flat_map(|port| {
        let to = SocketAddr::new(*service.address, port);
        CLIENTS.map(|client| dropped_by(shield, &sent.frame(client, to)))
    });
    let first = by.next().flatten()?;
    by.all(|other| other == Some(first)).then_some(first)
}

/// The rule that drops a packet, or nearly all of its kind, if one does.
fn dropped_by<'s>(shield: &'s Shield, packet: &[u8]) -> Option<&'s ShieldRule> {
    let decides = |rule: &&ShieldRule| {
        rule.action != RuleAction::Count && rule.filter.matches(packet, packet.len() as u32)
    };
    shield.rules.iter().find(decides).filter(|rule| match rule.action {
        RuleAction::Drop => true,
        RuleAction::Limit(limit) => limit.packets_per_second < FEW,
        RuleAction::Pass | RuleAction::Count => false,
    })
}

/// What a client sends first: its handshake and a request, or a datagram.
#[derive(Clone, Copy)]
enum Sent {
    Syn,
    Ack,
    Request,
    Datagram,
}

impl Sent {
    const fn over(protocol: Protocol) -> &'static [Self] {
        match protocol {
            Protocol::Tcp => &[Self::Syn, Self::Ack, Self::Request],
            Protocol::Udp => &[Self::Datagram],
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Syn => "the SYN",
            Self::Ack => "the ACK that ends the handshake",
            Self::Request => "the first request",
            Self::Datagram => "the datagrams",
        }
    }

    /// Behind the ports, of a client as Linux is one: a SYN with MSS, SACK, timestamps and window
    /// scale, later segments with timestamps.
    fn transport(self) -> (u8, Vec<u8>) {
        let tcp = |words: u8, flags: u8, rest: &[u8]| {
            let head = [0, 0, 0, 1, 0, 0, 0, 0, words << 4, flags, 0xff, 0xff, 0, 0, 0, 0];
            (6, [&head[..], rest].concat())
        };
        let timestamps = [8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
        let later = [&[1, 1][..], &timestamps].concat();
        match self {
            Self::Syn => {
                tcp(10, 0x02, &[&[2, 4, 5, 180, 4, 2][..], &timestamps, &[1, 3, 3, 7]].concat())
            }
            Self::Ack => tcp(8, 0x10, &later),
            Self::Request => tcp(8, 0x18, &[&later[..], &[b'x'; 80]].concat()),
            Self::Datagram => (17, [&[0, 28, 0, 0][..], &[0; 20]].concat()),
        }
    }

    /// With an Ethernet header.
    fn frame(self, (v4, v6, port): (&str, &str, u16), to: SocketAddr) -> Vec<u8> {
        let (number, transport) = self.transport();
        let transport = [&port.to_be_bytes()[..], &to.port().to_be_bytes(), &transport].concat();
        let (length, macs) = (transport.len() as u16, [2; 12]);
        let (kind, head) = match to.ip() {
            IpAddr::V4(to) => {
                let from = v4.parse::<std::net::Ipv4Addr>().map_or([0; 4], |from| from.octets());
                let total = (20 + length).to_be_bytes();
                let head = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, number, 0, 0];
                (0x0800_u16, [&head[..], &from, &to.octets()].concat())
            }
            IpAddr::V6(to) => {
                let from = v6.parse::<std::net::Ipv6Addr>().map_or([0; 16], |from| from.octets());
                let payload = length.to_be_bytes();
                let head = [0x60, 0, 0, 0, payload[0], payload[1], number, 64];
                (0x86dd, [&head[..], &from, &to.octets()].concat())
            }
        };
        [&macs[..], &kind.to_be_bytes(), &head, &transport].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::shield_plan::{SecretReading, Unreadable};
    use crate::testing::gateway;

    fn config(shield: &str, service: &str) -> Config {
        gateway(&format!("[shield]\n{shield}"), service)
    }

    fn of(shield: &str, service: &str) -> Vec<String> {
        warnings(&config(shield, service), None)
    }

    fn of_rule(expression: &str) -> usize {
        of(&format!("rule = [{{ match = {expression:?}, action = \"drop\" }}]"), "").len()
    }

    #[test]
    fn firewalls_before_clients_are_told() {
        let told = |shield, service| challenges(&config(shield, service));
        let challenge = "syn = \"challenge\"";
        let always = told("syn = { always = true }", challenge);
        assert!(always.len() == 1 && always[0].contains("always, clients behind a"), "{always:?}");
        let armed = told("mitigation = { new_flows = \"20kpps\" }", challenge);
        assert!(armed[0].contains("while it is attacked, clients behind a"), "{armed:?}");
        assert!(told("syn = { always = true }", "").is_empty());
    }

    #[test]
    fn backends_that_are_not_asked_for_cookies_are_told() {
        let told = |own: &str| {
            let own = format!("forward = \"dsr-l2\"\n{own}");
            let syn = "syn = { always = true, secret = \"/s\" }";
            unasked_cookies(&config(syn, &own)).len()
        };
        assert_eq!(told("syn = \"backend\""), 1);
        assert_eq!(
            told("syn = \"backend\"\ncheck = { type = \"tcp\", address = \"10.0.0.9\" }"),
            1
        );
        assert_eq!(told("syn = \"backend\"\ncheck = { type = \"tcp\" }"), 0);
        assert_eq!(told("syn = \"challenge\""), 0);
    }

    #[test]
    fn limits_of_dsr_services_that_spare_nobody_are_told() {
        let (limits, dsr) = ("limits = { packets = \"1kpps\" }", "forward = \"dsr-l2\"");
        let told = of(limits, dsr);
        assert!(told.len() == 1 && told[0].starts_with("service web: dsr-l2: answers"), "{told:?}");
        let allow = "list = [{ name = \"a\", file = \"/a\", action = \"allow\" }]";
        for (shield, own) in [
            ("", dsr),
            (limits, ""),
            (&format!("{limits}\n{allow}"), dsr),
            (limits, &format!("{dsr}\nshield = {{ packets = \"none\" }}")),
        ] {
            assert_eq!(of(shield, own), Vec::<String>::new(), "{shield} {own}");
        }
    }

    #[test]
    fn a_rule_that_drops_all_of_a_service_is_told() {
        let drop_all = "tcp, ip, dst port 80, tcp[tcpflags] & tcp-syn != 0, not udp, \
                        tcp[12] & 0xf0 > 0x80, tcp[tcpflags] == tcp-ack, \
                        tcp[tcpflags] & tcp-push != 0 and greater 100";
        for all in drop_all.split(", ") {
            assert_eq!(of_rule(all), 1, "{all}");
        }
        for some in
            ["udp", "ip6", "dst port 81", "net 5.6.0.0/16", "tcp src port 40001", "greater 600"]
        {
            assert_eq!(of_rule(some), 0, "{some}");
        }
        let rules = |first: &str| {
            let last = "{ match = \"tcp\", action = \"drop\" }";
            of(&format!("rule = [{first}, {last}]"), "")
        };
        let told = rules("{ match = \"udp\", action = \"drop\" }");
        let words = "rule \"rule 2\" (tcp) drops the SYN of every client";
        assert!(told[0].starts_with(words), "{told:?}");
        assert_eq!(rules("{ match = \"tcp\", action = \"count\" }").len(), 1);
        assert_eq!(rules("{ match = \"tcp\", action = \"pass\" }").len(), 0, "none reaches it");
        let six = "rule = [{ match = \"ip6\", action = \"drop\" }]\n[[service]]\nname = \"six\"\n\
                   address = \"2001:db8::9\"\nport = 53\nprotocol = [\"tcp\", \"udp\"]\n\
                   backends = [{ address = \"2001:db8::2\" }]";
        assert_eq!(of(six, "").len(), 2, "{:?}", of(six, ""));
    }

    #[test]
    fn a_rule_that_hardly_lets_anything_pass_is_told() {
        let rule = |rate: &str| {
            let rule = format!("{{ match = \"tcp\", action = \"limit\", rate = \"{rate}\" }}");
            of(&format!("rule = [{rule}]"), "")
        };
        let told = rule("9pps");
        assert!(told.len() == 1 && told[0].contains("limits to 9pps, for all"), "{told:?}");
        assert_eq!(rule("10pps"), Vec::<String>::new());
    }

    #[test]
    fn limits_below_what_one_client_needs_are_told() {
        for low in ["source = \"9pps\"", "packets = \"99pps\"", "new_flows = \"1pps\""] {
            for (shield, own) in [
                (format!("limits = {{ {low} }}"), String::new()),
                (String::new(), format!("shield = {{ {low} }}")),
                (
                    format!("mitigation = {{ packets = \"1kpps\", limits = {{ {low} }} }}"),
                    String::new(),
                ),
            ] {
                assert_eq!(of(&shield, &own).len(), 1, "{shield} {own}");
            }
        }
        let enough = "limits = { source = \"10pps\", packets = \"100pps\", new_flows = \"10pps\" }";
        assert_eq!(of(enough, ""), Vec::<String>::new());
    }

    #[test]
    fn thresholds_that_one_client_is_above_are_told() {
        let with = |threshold: &str| {
            of(&format!("mitigation = {{ {threshold}, run = [\"/a\"] }}"), "").len()
        };
        for low in [
            "packets = \"99pps\"",
            "new_flows = \"9pps\"",
            "above_baseline = 8, minimum = \"9pps\"",
        ] {
            assert_eq!(with(low), 1, "{low}");
        }
        assert_eq!(with("packets = \"100pps\", new_flows = \"10pps\", above_baseline = 8"), 0);
    }

    #[test]
    fn answers_that_nobody_gets_are_told() {
        let always = "syn = { always = true }";
        let observe = &*format!("mode = \"observe\"\n{always}");
        let told = |shield: &str, own: &str| of(shield, &format!("syn = \"proxy\"\n{own}"));
        assert_eq!(told(always, ""), Vec::<String>::new());
        assert_eq!(told(observe, "shield = \"enforce\""), Vec::<String>::new());
        assert!(told(observe, "")[0].contains("syn = \"proxy\" has no effect: mode = \"observe\""));
        assert!(told(always, "shield = \"off\"")[0].contains("its shield is \"off\""));
        assert_eq!(of(observe, ""), Vec::<String>::new());
    }

    #[test]
    fn mitigation_that_does_nothing_is_told() {
        let told = of("mitigation = { packets = \"1kpps\" }", "");
        assert!(told.len() == 1 && told[0].contains("neither limits nor run"), "{told:?}");
        assert_eq!(of("mitigation = { packets = \"1kpps\", run = [\"/a\"] }", "").len(), 0);
        let challenge = "syn = \"challenge\"";
        assert_eq!(of("mitigation = { new_flows = \"20kpps\" }", challenge).len(), 0);
    }

    #[test]
    fn a_list_that_blocks_all_or_our_own_is_told() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("list");
        let with = |text: &str, action: &str| {
            std::fs::write(&file, text).expect("written");
            let list = format!("list = [{{ name = \"l\", file = {file:?}, action = {action:?} }}]");
            let config = config(&list, "");
            let plan = ShieldPlan::read(&config, Unreadable::Refused, SecretReading::default())
                .expect("readable");
            warnings(&config, plan.as_deref())
        };
        let told = with("192.0.2.0/24\n10.0.0.0/8\n", "block");
        assert_eq!(told, ["list l: line 2: 10.0.0.0/8 blocks 10.0.0.2, a backend of service web"]);
        let told = with("0.0.0.0/0\n::/0\n203.0.113.9\n10.0.0.0/7\n10.0.0.2\n", "block");
        assert!(told[0].ends_with("0.0.0.0/0 blocks all of IPv4"), "{told:?}");
        assert!(told[2].ends_with("203.0.113.9, the address of service web"), "{told:?}");
        assert_eq!((told.len(), &*told[3]), (4, "list l: 2 such lines more"));
        assert_eq!(with("192.0.2.0/24\n10.0.0.3\n9.0.0.0/8\n", "block").len(), 0);
        let told = with("192.0.2.0/24\n128.0.0.0/1\n10.0.0.2\n", "allow");
        assert_eq!(told, ["list l: line 2: 128.0.0.0/1 allows a large part of IPv4"]);
    }
}
