//! The text of list files, and lists joined.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use ringway_plan::prefix_list::{
    Entry, Family, ListFile, ListFileError, MAX_BAD_LINES, MAX_ENTRIES, Prefix, PrefixError,
    PrefixSet, TooMany, Why, parse,
};

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// What a file says, as lines and prefixes.
fn entries(text: &str) -> Vec<(u32, String)> {
    let file = parse(text.as_bytes()).unwrap();
    assert_eq!(file.bad, [], "{text:?}");
    file.entries.iter().map(|entry| (entry.line, entry.prefix.to_string())).collect()
}

fn expected(want: &[(u32, &str)]) -> Vec<(u32, String)> {
    want.iter().map(|(line, prefix)| (*line, (*prefix).to_owned())).collect()
}

/// The bad lines of a file, as it prints them.
fn bad(text: &str) -> Vec<String> {
    parse(text.as_bytes()).unwrap().bad.iter().map(ToString::to_string).collect()
}

#[test]
fn a_prefix_a_line() {
    let text = "\u{feff}# a list\r\n192.0.2.0/24 ; SBL1\r\n\r\n \t198.51.100.7\t# one\n\
                2001:DB8::/32\n::1;\n;\n0.0.0.0/0\n::/0\n203.0.113.255/32";
    let want = [
        (2, "192.0.2.0/24"),
        (4, "198.51.100.7/32"),
        (5, "2001:db8::/32"),
        (6, "::1/128"),
        (8, "0.0.0.0/0"),
        (9, "::/0"),
        (10, "203.0.113.255/32"),
    ];
    assert_eq!(entries(text), expected(&want));
}

#[test]
fn comments_may_have_any_encoding() {
    let file = parse(b"192.0.2.0/24 # caf\xe9\ncaf\xe9\n").unwrap();
    assert_eq!(file.entries, [Entry { prefix: prefix("192.0.2.0/24"), line: 1 }]);
    assert_eq!(file.bad[0].why, Why::Prefix(PrefixError::Address));
    assert_eq!(file.bad[0].text, "caf\u{fffd}");
}

#[test]
fn drop_as_spamhaus_publishes_it() {
    let lines = "{\"cidr\":\"1.10.16.0/20\",\"sblid\":\"SBL256894\",\"rir\":\"apnic\"}\r\n\
                 {\"sblid\":\"SBL2\",\"cidr\":\"2001:db8::\\/32\"}\n\n\
                 {\"type\":\"metadata\",\"timestamp\":1747915201,\"size\":92154,\"records\":2}\n";
    assert_eq!(entries(lines), expected(&[(1, "1.10.16.0/20"), (2, "2001:db8::/32")]));

    let array = "\u{feff} [\n{\"cidr\":\"1.10.16.0/20\"}, {\"cidr\":\"192.0.2.1\"},\n\n{\n\
                 \"cidr\": \"2001:db8::/32\"\n},{\"type\":\"metadata\"}]\n";
    let want = [(2, "1.10.16.0/20"), (2, "192.0.2.1/32"), (4, "2001:db8::/32")];
    assert_eq!(entries(array), expected(&want));
}

#[test]
fn bad_lines_say_what_to_write() {
    let host_bits = "the address has bits behind the length: write 1.2.3.0/24, or 1.2.3.4 for one \
                     address alone";
    let host_bits_v6 = "the address has bits behind the length: write 2001:db8::/32, or \
                        2001:db8::1 for one address alone";
    let no_length =
        "1.2.3.4/33, 1.2.3.4/+8, 1.2.3.0/024, 1.2.3.0/, 1.2.3.0/24/8, 1.2.3.0/255.255.255.0";
    let octal = "an octet begins with 0, which can mean octal: write it as a decimal number";
    let zone = "packets carry no zone id: write the address without `%` and what follows";
    let mapped = "an IPv4-mapped IPv6 address: write the IPv4 prefix";
    let no_address = "no IPv4 or IPv6 address: write a prefix as 192.0.2.0/24 or 2001:db8::/32";
    for (lines, why) in [
        ("1.2.3.4/24", host_bits),
        ("2001:db8::1/32", host_bits_v6),
        (no_length, "the length of the prefix is no number from 0 to 32"),
        ("2001:db8::/129", "the length of the prefix is no number from 0 to 128"),
        ("010.0.0.0/8", octal),
        ("fe80::1%eth0", zone),
        ("::ffff:1.2.3.4, ::ffff:0:0/96", mapped),
        ("1.2.3/24, 1.2.3.4 5.6.7.8, example.com", no_address),
    ] {
        for line in lines.split(", ") {
            let text = format!("192.0.2.0/24\n\n  {line}\t# comment");
            assert_eq!(bad(&text), [format!("line 3: \"{line}\\t# comment\", {why}")]);
        }
    }
    let first = "{\"cidr\":\"192.0.2.0/24\"}\n";
    let no_cidr = "no object with a string \"cidr\": write {\"cidr\": \"192.0.2.0/24\"}";
    let no_json = "no JSON (column 17): write one object a line, {\"cidr\": \"192.0.2.0/24\"}";
    for (line, why) in [
        ("{\"cidr\":1}", no_cidr),
        ("{\"type\":\"x\"}", no_cidr),
        ("[\"1.2.3.4\"]", no_cidr),
        ("{\"cidr\":\"1.2.3.4\"", no_json),
        ("{\"cidr\":\"1.2.3.4/24\"}", host_bits),
    ] {
        let want = format!("line 2: {line:?}, {why}");
        assert_eq!(bad(&format!("{first}{line}")), [want]);
    }
}

#[test]
fn what_is_no_list() {
    let binary = |text: &[u8], line, byte| {
        assert_eq!(parse(text), Err(ListFileError::Binary { line, byte }));
    };
    binary(b"\x1f\x8b\x08\x00", 1, 0x1f);
    binary(b"192.0.2.0/24\n\x00", 2, 0);
    binary(b"\xff\xfe1\x00.\x00", 1, 0);
    let cut = parse(b"[{\"cidr\":\"192.0.2.0/24\"},\n{\"cidr\":").unwrap_err();
    assert!(matches!(cut, ListFileError::Array { line: 2, column: 8, .. }), "{cut}");
    assert!(parse(b"[]").unwrap().entries.is_empty());
    assert!(matches!(parse(b"[] 1"), Err(ListFileError::Array { .. })));
    assert_eq!(parse(b""), Ok(ListFile::default()));
}

#[test]
fn what_is_too_long_is_cut_or_refused() {
    let long = "\u{e9}".repeat(300);
    let file = parse(format!("{long}\n").repeat(MAX_BAD_LINES + 7).as_bytes()).unwrap();
    assert_eq!((file.bad.len(), file.bad_lines), (MAX_BAD_LINES, MAX_BAD_LINES + 7));
    assert_eq!(file.bad[0].text.chars().count(), 80);

    let full = "192.0.2.0/24\n".repeat(MAX_ENTRIES) + &"::\n".repeat(MAX_ENTRIES);
    let file = parse(full.as_bytes()).unwrap();
    assert_eq!(file.entries.len(), 2 * MAX_ENTRIES);
    let over = parse((full + "::1\n::2\n192.0.2.0/33").as_bytes()).unwrap_err();
    let entries = MAX_ENTRIES + 2;
    assert_eq!(over, TooMany { family: Family::V6, entries }.into());
    let want = "1000002 IPv6 prefixes are more than 1000000: aggregate them";
    assert_eq!(over.to_string(), want);
}

#[test]
fn a_prefix_within_another_is_absorbed() {
    let list = |texts: &[&str]| -> Vec<Entry> {
        texts.iter().map(|text| Entry { prefix: prefix(text), line: 1 }).collect()
    };
    let first = list(&["10.1.0.0/16", "192.0.2.0/24", "2001:db8:1::/48", "10.0.0.0/9"]);
    let second = list(&["10.0.0.0/8", "192.0.2.0/24", "::/0", "11.0.0.0/8", "9.255.255.255"]);
    // The lists' order does not matter.
    let set = PrefixSet::new([(7, &second[..]), (3, &first[..])]).unwrap();
    let of = |family| -> Vec<(String, u8)> {
        set.of(family).iter().map(|listed| (listed.prefix.to_string(), listed.list)).collect()
    };
    let want = [
        ("9.255.255.255/32".to_owned(), 7),
        ("10.0.0.0/8".to_owned(), 7),
        ("11.0.0.0/8".to_owned(), 7),
        ("192.0.2.0/24".to_owned(), 3),
    ];
    assert_eq!(of(Family::V4), want);
    assert_eq!(of(Family::V6), [("::/0".to_owned(), 7)]);
}

#[test]
fn lists_together_have_their_limit() {
    let list: Vec<Entry> = (0..MAX_ENTRIES as u32)
        .map(|bits| Entry {
            prefix: Prefix::new(Ipv4Addr::from_bits(bits).into(), 32).unwrap(),
            line: 1,
        })
        .collect();
    let one = [Entry { prefix: prefix("203.0.113.0/24"), line: 1 }];
    let within = [Entry { prefix: prefix("0.0.0.0/24"), line: 1 }];
    let full = PrefixSet::new([(0, &list[..]), (1, &within[..]), (2, &one[..])]).unwrap();
    assert_eq!(full.of(Family::V4).len(), MAX_ENTRIES - 256 + 2);
    let over = PrefixSet::new([(0, &list[..]), (2, &one[..])]).unwrap_err();
    assert_eq!(over, TooMany { family: Family::V4, entries: MAX_ENTRIES + 1 });
}

/// An address of few bits, so that prefixes meet; or any.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        (0..4u8).prop_map(|bits| IpAddr::from([bits << 6, 0, 0, 0])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_prefix_is_read_as_it_is_written(addr in address(), len in 0..=128u8) {
        let most = Family::of(addr).bits();
        match Prefix::new(addr, len) {
            Ok(prefix) => {
                prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
                prop_assert_eq!((prefix.addr(), prefix.length()), (addr, len));
                prop_assert!(prefix.contains(addr));
            }
            Err(PrefixError::HostBits { network, host }) => {
                prop_assert!(network.contains(host) && network.addr() != addr && host == addr);
                prop_assert_eq!(network.length(), len);
            }
            Err(error) => prop_assert_eq!(error, PrefixError::Length { most }),
        }
    }

    /// Bytes that mean something, in any order: nothing panics, and what is read is in the text.
    #[test]
    fn any_bytes_are_a_list_or_none(
        parts in prop::collection::vec(
            prop_oneof![
                4 => prop::sample::select(vec![
                    &b"192.0.2.0/24"[..], b"::1", b"2001:db8::/32", b"\n", b"\r\n", b"/", b"#",
                    b";", b"{", b"}", b"[", b"]", b",", b"{\"cidr\":\"192.0.2.0/24\"}", b"\"", b"\\",
                    b"\"cidr\":", b"\xef\xbb\xbf", b"%eth0", b"::ffff:", b"1", b"0", b".", b":",
                    b"{\"type\":\"metadata\"}", b" ",
                ]).prop_map(<[u8]>::to_vec),
                1 => prop::collection::vec(any::<u8>(), 0..4),
            ],
            0..40,
        )
    ) {
        let text = parts.concat();
        let Ok(file) = parse(&text) else { return Ok(()) };
        let lines = text.split(|byte| *byte == b'\n').count();
        let numbers = file.entries.iter().map(|entry| entry.line);
        for line in numbers.clone().chain(file.bad.iter().map(|bad| bad.line)) {
            prop_assert!((1..=lines).contains(&(line as usize)));
        }
        prop_assert!(numbers.is_sorted());
        prop_assert_eq!(file.bad.len(), file.bad_lines);
        // Written down and read again it is the same.
        let text: String = file.entries.iter().map(|entry| format!("{}\n", entry.prefix)).collect();
        let again = parse(text.as_bytes()).unwrap();
        let prefixes = |file: &ListFile| file.entries.iter().map(|e| e.prefix).collect::<Vec<_>>();
        prop_assert_eq!(prefixes(&again), prefixes(&file));
    }

    /// Disjoint, sorted, and each prefix of a list in exactly one of them.
    #[test]
    fn a_set_is_disjoint(
        lists in prop::collection::vec(prop::collection::vec((address(), 0..=128u8), 0..30), 1..4)
    ) {
        let entry = |(addr, len): (IpAddr, u8)| {
            let prefix = match Prefix::new(addr, len.min(Family::of(addr).bits())) {
                Ok(prefix) => prefix,
                Err(PrefixError::HostBits { network, .. }) => network,
                Err(_) => return None,
            };
            Some(Entry { prefix, line: 1 })
        };
        let lists: Vec<Vec<Entry>> =
            lists.into_iter().map(|list| list.into_iter().filter_map(entry).collect()).collect();
        let set = PrefixSet::new((0u8..).zip(lists.iter().map(Vec::as_slice))).unwrap();
        let all: Vec<_> = [Family::V4, Family::V6].into_iter().flat_map(|f| set.of(f)).collect();
        prop_assert!(all.windows(2).all(|pair| pair[0].prefix < pair[1].prefix));
        for (list, entry) in lists.iter().zip(0u8..).flat_map(|(l, n)| l.iter().map(move |e| (n, e))) {
            let covering: Vec<_> =
                all.iter().filter(|listed| listed.prefix.covers(&entry.prefix)).collect();
            prop_assert_eq!(covering.len(), 1);
            prop_assert!(covering[0].prefix != entry.prefix || covering[0].list <= list);
        }
        for listed in &all {
            let own = &lists[usize::from(listed.list)];
            prop_assert!(own.iter().any(|entry| entry.prefix == listed.prefix));
        }
    }
}
