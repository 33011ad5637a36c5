//! What is wrong with an expression, and where.

#![allow(clippy::unwrap_used)]

use ringway_filter::{Classic, Error, Filter, MOST_INSTRUCTIONS, MOST_TEXT};

fn error(expression: &str) -> Error {
    Filter::compile(expression, 65_535).unwrap_err()
}

/// The text that is marked; "" where something is missing at the end.
fn marked(expression: &str) -> String {
    match error(expression) {
        Error::Syntax { expression, at, .. } => expression[at].to_owned(),
        other => panic!("{expression}: {other}"),
    }
}

#[test]
fn the_place_is_found() {
    let cases = [
        ("tcp prt 80", "prt"),
        ("tcp port", ""),
        ("tcp and", ""),
        ("(tcp or udp", ""),
        ("tcp) or udp", ")"),
        ("tcp and and udp", "and"),
        ("host 192.0.2.1 192.0.2.2 and port 80", "192.0.2.2"),
        ("host 192.0.2.256", "192.0.2.256"),
        ("udp host 192.0.2.1", "host"),
        ("port 80 or port 99999", "99999"),
        ("port http-of-nobody or port 80", "http-of-nobody"),
        ("tcp[13", ""),
        ("tcp[13] & 2 !== 0", "!=="),
        ("tcp[13:3] = 1", "13:3"),
        ("((tcp[12] & 0xf0) >> 2) + = 5", "="),
        ("ip and (ip[0] & 0xf) = 5)", ")"),
        ("net 192.0.2.1/24", "192.0.2.1/24"),
        ("vlan 5 tcp", "tcp"),
        ("host www.example.com and tcp", "www.example.com"),
        ("ether host eth-of-nobody", "eth-of-nobody"),
        ("tcp\tand\nprt 80", "prt"),
    ];
    for (expression, expected) in cases {
        assert_eq!(marked(expression), expected, "{}", error(expression));
    }
}

/// What libpcap takes for possible: it does not know how long frames are.
#[test]
fn what_no_frame_can_be_is_refused() {
    for never in [
        "less 0",
        "less 13",
        "greater 65536",
        "less 60 and udp[100] = 1",
        "greater 100 and less 50",
        "len > 70000",
        "tcp[13] & 1 = 2",
        "ip[0] > 255",
        "ip[2:2] >= 65536",
        "tcp[13] & 0x100 != 0",
        "ip[8] >> 4 = 16",
        "tcp and less 20",
        "ip[65530] = 1",
        "tcp and udp",
        "ip and ip6",
        "port 80 and icmp",
        "1 = 2",
    ] {
        assert_eq!(error(never), Error::NeverMatches { expression: never.to_owned() });
    }
    for possible in [
        "less 14",
        "greater 65535",
        "tcp[999:4] = 1",
        "less 60 and udp[8] = 1",
        "greater 50 and less 100",
        "ip[0] >= 255",
        "tcp[13] & 0x80 != 0",
        "ip[8] >> 4 = 15",
        "not less 0",
        "len - 14 > 65000",
        "ip6 and ip6[40] + ip6[41] = 510",
    ] {
        assert!(Filter::compile(possible, 65_535).is_ok(), "{possible}");
    }
}

#[test]
fn it_is_told_in_libpcaps_words_with_a_mark_below() {
    assert_eq!(
        error("tcp and prt 80").to_string(),
        "the filter is not understood: syntax error (the language is that of tcpdump: see pcap-filter(7))\n  \
           tcp and prt 80\n          ^^^"
    );
    let unknown = error("tcp and host www.example.com").to_string();
    let words = "unknown host 'www.example.com'; names are not looked up";
    assert!(unknown.contains(words), "{unknown}");
    assert!(unknown.ends_with("\n               ^^^^^^^^^^^^^^^"), "{unknown}");
    let cut = error("tcp\0").to_string();
    assert!(cut.contains("a zero byte"), "{cut}");
}

#[test]
fn what_can_never_match_in_ip() {
    let can_match = |expression: &str| {
        let filter = Filter::compile(expression, 65_535).unwrap();
        [0x0800, 0x86dd].map(|ethertype| filter.can_match_ethertype(ethertype))
    };
    for never in ["vlan", "vlan 5 and udp", "arp", "ether proto 0x8100", "mpls", "pppoes"] {
        assert_eq!(can_match(never), [false; 2], "{never}");
    }
    for (expression, expected) in [
        ("udp", [true; 2]),
        ("not vlan", [true; 2]),
        ("vlan or tcp", [true; 2]),
        ("ip", [true, false]),
        ("ip6 and udp port 53", [false, true]),
        ("ether[0] & 1 = 1", [true; 2]),
    ] {
        assert_eq!(can_match(expression), expected, "{expression}");
    }
}

#[test]
fn what_is_in_no_packet() {
    for expression in ["inbound", "tcp and outbound", "ifindex 2"] {
        let outside = Error::NotInPackets { expression: expression.to_owned() };
        assert_eq!(error(expression), outside);
    }
}

#[test]
fn bounds() {
    let text = "a".repeat(MOST_TEXT + 1);
    assert_eq!(error(&text), Error::TooMuchText { bytes: MOST_TEXT + 1, limit: MOST_TEXT });
    let deep = "(".repeat(MOST_TEXT);
    assert!(matches!(error(&deep), Error::Syntax { .. }));
    let deep = format!("{}tcp{}", "(".repeat(2000), ")".repeat(2000));
    assert!(Filter::compile(&deep, 65_535).is_ok());
    let long = vec![Classic { code: 0x06, jt: 0, jf: 0, k: 1 }; MOST_INSTRUCTIONS + 1];
    let instructions = MOST_INSTRUCTIONS + 1;
    let too_long = Error::TooLong { instructions, limit: MOST_INSTRUCTIONS };
    assert_eq!(Filter::from_classic(&long).unwrap_err(), too_long);
    let loops = error("ip6 protochain 6").to_string();
    assert!(loops.contains("protochain"), "{loops}");
}

#[test]
fn programs_that_nobody_would_run() {
    let end = Classic { code: 0x06, jt: 0, jf: 0, k: 1 };
    let invalid = |code, jt, k| {
        let first = Classic { code, jt, jf: 0, k };
        matches!(Filter::from_classic(&[first, end]), Err(Error::Invalid { number: 0, .. }))
    };
    assert!(invalid(0x15, 1, 0), "a branch out of the program");
    assert!(invalid(0x05, 0, 1), "a jump out of the program");
    assert!(invalid(0x05, 0, u32::MAX), "a loop");
    assert!(invalid(0x34, 0, 0), "division by zero");
    assert!(invalid(0x60, 0, 16), "memory that there is not");
    assert!(invalid(0x0e, 0, 0), "return X, which aborts libpcap's interpreter");
    assert!(invalid(0x21, 0, 0), "X from the packet, likewise");
    assert!(Filter::from_classic(&[]).is_err());
    assert!(Filter::from_classic(&[Classic { code: 0x07, ..end }]).is_err(), "no end");
    // Every code there is, and none makes it panic.
    for code in 0..=u16::MAX {
        if let Ok(filter) = Filter::from_classic(&[Classic { code, jt: 0, jf: 0, k: 1 }, end]) {
            filter.matches(&[0; 60], 60);
            assert!(filter.translate_to_verdict(1, 2).len() > 2);
        }
    }
}

#[test]
fn an_empty_filter_matches_everything() {
    for expression in ["", "  "] {
        let filter = Filter::compile(expression, 1).unwrap();
        assert!(filter.matches(&[], 0));
    }
}
