//! Files that are right, and what they mean.

#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::time::Duration;

use ringway_config::*;

const PACKAGED: &str = include_str!("../../../packaging/ringway.toml");

fn right(text: &str) -> Config {
    parse(text, "gw.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

const MINIMAL: &str = r#"
[node]
name = "gw1"
interfaces = ["eth0"]
[[service]]
name = "web"
address = "203.0.113.10"
port = 80
backends = [{ address = "10.0.0.2" }]
"#;

#[test]
fn packaged_example() {
    let config = right(PACKAGED);
    assert_eq!(*config.node.name, "gw1");
    assert_eq!(config.services.len(), 2);
    let web = &config.services[0];
    assert_eq!(web.backends[1].endpoint(), "10.0.0.3:80".parse().unwrap());
    let check = web.check.as_ref().unwrap();
    assert_eq!(
        check.kind,
        CheckKind::Http(HttpCheck { path: "/".into(), host: None, expect: Statuses::default() })
    );
    assert_eq!((check.rise, check.fall), (2, 2));
    let dns = &config.services[1];
    assert_eq!(dns.protocols, [Protocol::Tcp, Protocol::Udp]);
    assert_eq!(dns.announce, Announce::Routed);
}

/// What the comments of the packaged example call the default is the default.
#[test]
fn packaged_example_shows_defaults() {
    let uncommented: String = PACKAGED
        .lines()
        .map(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line))
        .filter(|line| !line.starts_with("addresses =") && !line.starts_with("announce = \"arp\""))
        .map(|line| format!("{line}\n"))
        .collect();
    assert!(uncommented.contains("\nxdp_mode") && uncommented.contains("\nlevel"));
    let shown = right(&uncommented);
    assert_eq!(shown, right(PACKAGED));
}

#[test]
fn the_shield_and_its_defaults() {
    let read =
        |text: &str| right(&(MINIMAL.replace("port = 80", "port = 80\nshield = \"off\"") + text));
    assert_eq!(right(MINIMAL).shield, None);
    let empty = read("[shield]\n");
    let shield = empty.shield.unwrap();
    let want = (ShieldMode::Enforce, Protect::Services, true);
    assert_eq!((shield.mode, shield.protect, shield.sanity), want);
    assert!(shield.lists.is_empty() && shield.rules.is_empty());
    assert_eq!(shield.mode_of(&empty.services[0]), ShieldMode::Off);
    let limits = shield.limits_of(&empty.services[0]);
    assert!(limits.is_empty() && limits.to_string() == "none");
    let ShieldLimits { source_prefix, flow_rate, allow_rate, .. } = shield.limits;
    assert_eq!(
        (source_prefix, flow_rate.rate(), allow_rate.rate()),
        ((32, 64), "10kpps".into(), "500pps".into())
    );

    let config = read(
        "[shield]\nmode = \"observe\"\nprotect = \"host\"\nsanity = false\n\
         list = [{ name = \"drop\", file = \"/drop.txt\", action = \"block\" }]\n\
         [[shield.rule]]\nmatch = \"udp src port 19\"\naction = \"pass\"\nname = \"chargen\"\n\
         [[shield.rule]]\npreset = \"dns-amplification\"\naction = \"drop\"\n\
         [[shield.rule]]\npreset = \"udp-flood\"\naction = \"limit\"\nrate = \"15kpps\"\n\
         [[shield.rule]]\nmatch = 'tcp[tcpflags] & tcp-syn != 0'\naction = \"limit\"\nrate = \"3pps\"\n\
         [[shield.rule]]\nmatch = \"icmp\"\naction = \"limit\"\nrate = \"2Mpps\"\nburst = 7\n\
         [[shield.rule]]\nmatch = \"icmp6\"\naction = \"count\"\n",
    );
    let shield = config.shield.unwrap();
    let want = (ShieldMode::Observe, Protect::Host, false);
    assert_eq!((shield.mode, shield.protect, shield.sanity), want);
    let list = &shield.lists[0];
    assert_eq!((list.name.as_str(), list.file.as_path()), ("drop", Path::new("/drop.txt")));
    assert_eq!((list.action, list.bad_lines), (ListAction::Block, BadLines::Refuse));
    let rules: Vec<(&str, &str, RuleAction)> = shield
        .rules
        .iter()
        .map(|rule| (rule.name.as_str(), rule.filter.expression(), rule.action))
        .collect();
    let limit =
        |packets_per_second, burst| RuleAction::Limit(RateLimit { packets_per_second, burst });
    let wanted = [
        ("chargen", "udp src port 19", RuleAction::Pass),
        ("dns-amplification", "udp src port 53 and greater 600", RuleAction::Drop),
        ("udp-flood", "udp", limit(15_000, 1500)),
        ("rule 4", "tcp[tcpflags] & tcp-syn != 0", limit(3, 1)),
        ("rule 5", "icmp", limit(2_000_000, 7)),
        ("rule 6", "icmp6", RuleAction::Count),
    ];
    assert_eq!(rules, wanted);
    let shown: Vec<String> = shield.rules.iter().map(|rule| rule.action.to_string()).collect();
    assert_eq!(shown, ["pass", "drop", "limit 15kpps", "limit 3pps", "limit 2Mpps", "count"]);
}

#[test]
fn limits_of_the_shield_and_those_of_a_service() {
    let read = |own: &str| {
        let limits = "[shield]\nmode = \"observe\"\n[shield.limits]\npackets = \"5Mpps\"\n\
                      destination = \"8Mpps\"\nsource = \"3pps\"\nsource_prefix_v4 = 24\n\
                      source_prefix_v6 = 56\nflow_rate = \"1Mpps\"\nallow_rate = \"50pps\"\n";
        let service = MINIMAL.replace("port = 80", &format!("port = 80\n{own}"));
        right(&(service + limits))
    };
    for (own, mode, limits) in [
        ("", ShieldMode::Observe, "packets 5Mpps, destination 8Mpps, source 3pps"),
        ("shield = \"off\"", ShieldMode::Off, "packets 5Mpps, destination 8Mpps, source 3pps"),
        (
            "shield = { mode = \"enforce\", packets = \"none\", new_flows = \"1kpps\" }",
            ShieldMode::Enforce,
            "destination 8Mpps, new_flows 1kpps, source 3pps",
        ),
        (
            "shield = { source = \"40pps\" }",
            ShieldMode::Observe,
            "packets 5Mpps, destination 8Mpps, source 40pps",
        ),
    ] {
        let config = read(own);
        let (shield, service) = (config.shield.as_ref().unwrap(), &config.services[0]);
        assert_eq!(shield.mode_of(service), mode, "{own}");
        assert_eq!(shield.limits_of(service).to_string(), limits, "{own}");
    }
    let limits = read("").shield.unwrap().limits;
    assert_eq!(limits.every_service.source, Some(RateLimit { packets_per_second: 3, burst: 1 }));
    let packets = RateLimit { packets_per_second: 5_000_000, burst: 500_000 };
    assert_eq!(limits.every_service.packets, Some(packets));
    let ShieldLimits { source_prefix, flow_rate, allow_rate, .. } = limits;
    assert_eq!((source_prefix, flow_rate.burst, allow_rate.burst), ((24, 56), 100_000, 5));
}

/// Every preset is a filter, takes a packet of its attack, and lets others be.
#[test]
fn presets_match_their_attacks_alone() {
    let filter = |preset: &str| {
        let more = if preset.ends_with("-flood") { "limit\"\nrate = \"1pps" } else { "drop" };
        let text =
            format!("{MINIMAL}[[shield.rule]]\npreset = \"{preset}\"\naction = \"{more}\"\n");
        let config = right(&text);
        config.shield.unwrap().rules[0].filter.clone()
    };
    // A frame of this protocol, source port and length.
    let frame = |protocol: u8, port: u16, length: usize| {
        let mut frame = vec![0; length];
        frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
        frame[23] = protocol;
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame
    };
    const UDP: u8 = 17;
    let [dns, full_dns, long_dns] = [300, 578, 600].map(|length| frame(UDP, 53, length));
    let [ntp, monlist] = [110, 482].map(|length| frame(UDP, 123, length));
    let [ssdp, memcached, chargen] = [1900, 11211, 19].map(|port| frame(UDP, port, 200));
    let (icmp, tcp) = (frame(1, 8, 98), frame(6, 53, 600));
    // UDP behind these headers of IPv6: hop-by-hop, routing and destination options, and these
    // behind a fragment header; at last a fragment and UDP alone.
    let v6 = |headers: &[u8]| {
        let mut frame = vec![0; 110];
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        frame[20] = headers.first().copied().unwrap_or(UDP);
        for (at, next) in (54..).step_by(8).zip(headers.iter().skip(1).chain([&UDP])) {
            frame[at] = *next;
        }
        frame
    };
    let behind_fragment: [&[u8]; 4] = [&[44, 0], &[44, 43], &[44, 60], &[44, 44]];
    let extended =
        [&[0][..], &[43], &[60]].into_iter().chain(behind_fragment).chain([&[44][..], &[]]);
    let mut all = vec![dns, full_dns, long_dns, ntp, monlist, ssdp, memcached, chargen, icmp, tcp];
    all.extend(extended.map(v6));
    for (preset, wanted) in [
        ("dns-amplification", &[2][..]),
        ("ntp-amplification", &[4]),
        ("ssdp-amplification", &[5]),
        ("memcached-amplification", &[6]),
        ("chargen-amplification", &[7]),
        ("ipv6-extension", &[10, 11, 12, 13, 14, 15, 16]),
        ("udp-flood", &[0, 1, 2, 3, 4, 5, 6, 7, 17, 18]),
        ("icmp-flood", &[8]),
    ] {
        let filter = filter(preset);
        let found: Vec<usize> =
            (0..all.len()).filter(|i| filter.matches(&all[*i], all[*i].len() as u32)).collect();
        assert_eq!(found, wanted, "{preset}");
    }
}

#[test]
fn interfaces_say_whom_they_face() {
    let text = MINIMAL.replace(
        "[\"eth0\"]",
        "[\"eth0\", { name = \"eth1\", faces = \"clients\" }, \
          { name = \"eth2\", faces = \"backends\" }, { name = \"eth3\", faces = \"both\" }]",
    );
    let node = right(&text).node;
    let found: Vec<(&str, Faces)> =
        node.interfaces.iter().map(|name| (name.as_str(), node.faces(name))).collect();
    let wanted = [
        ("eth0", Faces::Both),
        ("eth1", Faces::Clients),
        ("eth2", Faces::Backends),
        ("eth3", Faces::Both),
    ];
    assert_eq!(found, wanted);
    let plain = right(&MINIMAL.replace("[\"eth0\"]", "[{ name = \"eth0\" }]"));
    assert_eq!(plain.node, right(MINIMAL).node);
}

#[test]
fn defaults() {
    let config = right(MINIMAL);
    assert_eq!(*config.node.xdp_mode, None);
    assert!(!config.node.allow_default_route);
    assert_eq!(*config.nat.ports, PortRange { first: 10000, last: 29999 });
    assert_eq!(config.nat.ports.count(), 20000);
    assert_eq!(config.nat.flows, 1 << 20);
    // The least that RFC 5382 (REQ-5: 2 h 4 min, 4 min) and RFC 4787 (REQ-5: 2 min) want.
    let [syn, established, closing, closed, udp_new, udp] =
        [240, 7440, 240, 240, 120, 120].map(Duration::from_secs);
    let timeouts = Timeouts { syn, established, closing, closed, udp_new, udp };
    assert_eq!(config.nat.timeouts, timeouts);
    assert_eq!(*config.api.socket, Path::new(DEFAULT_SOCKET));
    assert_eq!(*config.metrics.listen.unwrap(), "127.0.0.1:9810".parse().unwrap());
    let service = &config.services[0];
    assert_eq!((config.flows.tracked, config.flows.new_per_prefix), (1 << 20, 4000));
    assert_eq!(service.protocols, [Protocol::Tcp]);
    assert_eq!(service.affinity, Affinity::FiveTuple);
    assert_eq!(service.source, SourceMode::Node);
    assert_eq!(service.announce, Announce::Kernel);
    assert_eq!(service.when_none_healthy, WhenNoneHealthy::Reset);
    assert_eq!(service.max_unhealthy, None);
    assert_eq!(service.check, None);
    assert_eq!(service.keep_for, Some(Duration::from_secs(300)));
    assert_eq!(*service.backends[0].address, ip("10.0.0.2"));
    assert_eq!((service.backends[0].port, service.backends[0].weight), (80, 1));
}

#[test]
fn what_becomes_of_connections_of_a_backend_that_is_down() {
    let keep_for = |more: &str| right(&format!("{MINIMAL}{more}\n")).services[0].keep_for;
    assert_eq!(keep_for("on_down = \"reset\""), None);
    let half_a_minute = Some(Duration::from_secs(30));
    assert_eq!(keep_for("on_down = \"keep\"\nkeep_for = \"30s\""), half_a_minute);
    assert_eq!(keep_for("keep_for = \"30s\""), half_a_minute);
}

#[test]
fn default_timeout_fits_the_interval() {
    let text = format!("{MINIMAL}check = {{ type = \"tcp\", interval = \"100ms\" }}\n");
    let config = right(&text);
    assert_eq!(config.services[0].check.as_ref().unwrap().timeout, Duration::from_millis(100));
}

#[test]
fn later_errors_have_their_place() {
    let config = parse(MINIMAL, "gw.toml").unwrap();
    let error = config.error_at(&config.node.interfaces[0], "no such interface: plug it in");
    assert_eq!(
        error.to_string(),
        "gw.toml:4:15: no such interface: plug it in\n    4 | interfaces = [\"eth0\"]\n      |               ^^^^^^"
    );
    let key = config.error_at_key("node", "name", "taken");
    assert_eq!(key.to_string(), "gw.toml:3:1: taken\n    3 | name = \"gw1\"\n      | ^^^^^^^^^^^^");
    assert_eq!(config.error_at_key("nat", "flows", "too many").to_string(), "gw.toml: too many");
    let mode = config.error_at(&config.node.xdp_mode, "a default has no place");
    assert_eq!((mode.line, mode.column), (0, 0));
    assert_eq!(mode.to_string(), "gw.toml: a default has no place");
}

#[test]
fn loading() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ringway.toml");
    let error = load(&path).unwrap_err().to_string();
    assert!(error.contains("No such file") && error.contains("give the path"), "{error}");
    std::fs::write(&path, MINIMAL).unwrap();
    assert_eq!(load(&path).unwrap(), right(MINIMAL));
    std::fs::write(&path, b"[node]\nname = \"\xff\"\n").unwrap();
    let error = load(&path).unwrap_err().to_string();
    assert!(error.ends_with("is not UTF-8 in line 2: save it as UTF-8 text"), "{error}");
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("is not a regular file: give the path"), "{error}");
    let pipe = dir.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success() && load(&pipe).is_err(), "a named pipe must not be waited for");
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(MINIMAL.as_bytes()).unwrap();
    drop(writer);
    let open = format!("/proc/self/fd/{}", reader.as_raw_fd());
    assert_eq!(load(Path::new(&open)).unwrap(), right(MINIMAL));
    std::fs::File::create(&path).unwrap().set_len(40 << 20).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("larger than 32 MiB"));
}
