//! What the translation is tried with: frames, expressions, and programs that no compiler would
//! write. Addresses and ports are few, so that what is asked for is often there.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use ringway_filter::Classic;

/// Expressions as people write them.
pub const REALISTIC: [&str; 45] = [
    "",
    "ip",
    "ip6",
    "arp",
    "tcp",
    "udp port 53",
    "icmp or icmp6",
    "tcp and host 192.0.2.1",
    "tcp and host 192.0.2.1 and port 80",
    "tcp and host 2001:db8::1 and port 443",
    "host 192.0.2.1 and not port 22",
    "src host 192.0.2.1 and dst host 192.0.2.2",
    "host 192.0.2.1 and (192.0.2.2 or 192.0.2.3)",
    "net 192.0.2.0/24 and not net 192.0.2.0/30",
    "src net 2001:db8::/32",
    "dst portrange 50-90",
    "port 53 or port 80 or port 443",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "tcp[((tcp[12:1] & 0xf0) >> 2):4] = 0x47455420",
    "ip[6:2] & 0x1fff != 0",
    "ip[0] & 0xf != 5",
    "ip[8] < 64",
    "udp[4:2] > 100",
    "icmp[icmptype] = icmp-echo",
    "icmp6[icmp6type] == icmp6-neighborsolicit",
    "ether host 02:00:00:00:00:01",
    "ether proto 0x88cc",
    "ether multicast or broadcast",
    "ip multicast or ip6 multicast",
    "vlan",
    "vlan 5 and tcp",
    "vlan and vlan and udp port 53",
    "mpls",
    "pppoes and ip",
    "geneve",
    "not geneve",
    "ip proto 4 or ip6 proto 41",
    "less 100",
    "greater 1000 and tcp",
    "len > 60 and len < 1500",
    "len % 7 = 3",
    "ether[4000] = 5 or ether[3519:4] > 0x80000000",
    "ip and ip[ip[2:2] & 0xff] = 7",
];

/// Rules as people write them against floods.
pub const RULES: [&str; 10] = [
    "udp src port 53 and greater 512",
    "udp src port 123 and greater 100",
    "udp src port 1900",
    "udp src port 11211",
    "udp src port 19",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) == (tcp-syn|tcp-fin)",
    "icmp or icmp6",
    "src net 198.51.100.0/24",
    "ip[6:2] & 0x1fff != 0",
    "udp dst port 443 and less 60",
];

const IPV4: [[u8; 4]; 5] =
    [[192, 0, 2, 1], [192, 0, 2, 2], [192, 0, 2, 3], [203, 0, 113, 1], [224, 0, 0, 5]];
const IPV6: [u16; 4] = [1, 2, 3, 0x100];
const PORTS: [u16; 6] = [22, 53, 80, 443, 6081, 8080];

fn primitive() -> BoxedStrategy<String> {
    let realistic = select(REALISTIC.to_vec()).prop_filter("not empty", |text| !text.is_empty());
    let host = (select(vec!["", "src ", "dst "]), select(IPV4.to_vec()))
        .prop_map(|(direction, [a, b, c, d])| format!("{direction}host {a}.{b}.{c}.{d}"));
    let host6 = (select(vec!["", "src ", "dst "]), select(IPV6.to_vec()))
        .prop_map(|(direction, last)| format!("{direction}host 2001:db8::{last:x}"));
    let port = (
        select(vec!["", "tcp ", "udp "]),
        select(vec!["", "src ", "dst "]),
        select(PORTS.to_vec()),
    )
        .prop_map(|(protocol, direction, port)| format!("{protocol}{direction}port {port}"));
    let base = select(vec!["ether", "ip", "ip6", "tcp", "udp", "icmp"]);
    let read = (base, 0..70u32, select(vec![1, 2, 4]), arithmetic(), comparison(), 0..300u32)
        .prop_map(|(base, at, bytes, arithmetic, comparison, value)| {
            format!("{base}[{at}:{bytes}]{arithmetic} {comparison} {value}")
        });
    prop_oneof![
        3 => realistic.prop_map(|text| format!("({text})")),
        2 => host, 1 => host6, 2 => port, 2 => read
    ]
    .boxed()
}

fn arithmetic() -> impl Strategy<Value = String> {
    let op = select(vec!["+", "-", "*", "/", "%", "&", "|", "^"]);
    let one = (op, 1..2000u32).prop_map(|(op, value)| format!(" {op} {value}"));
    let shift = (select(vec!["<<", ">>"]), 0..32u32).prop_map(|(op, by)| format!(" {op} {by}"));
    let other = select(vec![" - ip[0]", " / ip[1]", " % ether[3]", " << ip[0]", " * len", ""]);
    prop_oneof![one, shift, other.prop_map(str::to_owned)]
}

fn comparison() -> impl Strategy<Value = &'static str> {
    select(vec!["=", "!=", "<", ">", "<=", ">="])
}

pub fn expression() -> impl Strategy<Value = String> {
    primitive().prop_recursive(4, 16, 3, |inner| {
        prop_oneof![
            (inner.clone(), select(vec!["and", "or"]), inner.clone())
                .prop_map(|(one, with, other)| format!("({one} {with} {other})")),
            inner.prop_map(|it| format!("not {it}")),
        ]
    })
}

/// Programs that libpcap's interpreter would run, of any instructions.
pub fn program(most: usize) -> impl Strategy<Value = Vec<Classic>> {
    let constant = prop_oneof![
        select(vec![0, 1, 6, 17, 0x800, 0x86dd, 31, 32, 80, 443, u32::MAX, 0x8000_0000]),
        any::<u32>(),
        0..100u32
    ];
    let instruction = (any::<u32>(), constant, any::<u8>(), any::<u8>());
    vec(instruction, 1..most).prop_map(|drawn| {
        let end = Classic { code: 0x16, jt: 0, jf: 0, k: 0 };
        let last = drawn.len();
        let random = drawn.into_iter().enumerate().map(|(number, (kind, k, jt, jf))| {
            drawn_instruction(kind, k, jt, jf, (last - number - 1) as u32)
        });
        random.chain([end]).collect()
    })
}

/// `left`: how many instructions a jump may skip.
fn drawn_instruction(kind: u32, k: u32, jt: u8, jf: u8, left: u32) -> Classic {
    const LOADS: [u16; 7] = [0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0xb1];
    const OTHERS: [u16; 13] =
        [0x00, 0x01, 0x80, 0x81, 0x07, 0x87, 0x84, 0x06, 0x16, 0x60, 0x61, 0x02, 0x03];
    const ARITHMETIC: [u16; 10] = [0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x94, 0xa4];
    const JUMPS: [u16; 4] = [0x15, 0x25, 0x35, 0x45];
    let pick = |codes: &[u16]| codes[(kind >> 8) as usize % codes.len()];
    let by_x = (kind >> 7 & 1) as u16 * 8;
    let skip = |by: u8| (u32::from(by) % (left + 1).min(12)) as u8;
    let instruction = |code, jt, jf, k| Classic { code, jt, jf, k };
    match kind & 7 {
        // Mostly within a packet, sometimes in none.
        0 | 1 if kind & 0xf00000 != 0 => instruction(pick(&LOADS), 0, 0, k % 70),
        0 | 1 if kind & 0x800000 == 0 => instruction(pick(&LOADS), 0, 0, k % 6000),
        0 | 1 => instruction(pick(&LOADS), 0, 0, k),
        2 | 3 => match pick(&ARITHMETIC) + by_x {
            code @ (0x34 | 0x94) => instruction(code, 0, 0, k.max(1)),
            code @ (0x64 | 0x74) => instruction(code, 0, 0, k % 32),
            code => instruction(code, 0, 0, k),
        },
        4 | 5 => instruction(pick(&JUMPS) + by_x, skip(jt), skip(jf), k),
        6 if kind & 0x70 == 0 => instruction(0x05, 0, 0, u32::from(skip(jt))),
        // A program that ends too early says little.
        _ => match pick(&OTHERS) {
            0x06 | 0x16 if kind & 0x3000000 != 0 => instruction(0x07, 0, 0, 0),
            code @ (0x60 | 0x61 | 0x02 | 0x03) => instruction(code, 0, 0, k % 4),
            code => instruction(code, 0, 0, k),
        },
    }
}

/// Frames of all kinds, whole, cut short and damaged; at least an Ethernet header.
pub fn frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        8 => vec(any::<u8>(), 0..120),
        1 => vec(any::<u8>(), 1000..1500),
        1 => vec(any::<u8>(), 3400..9000)
    ];
    let damage = vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let cut = prop_oneof![3 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    (link(), network(), payload, damage, cut).prop_map(|(link, network, payload, damage, cut)| {
        let mut frame = [link, network, payload].concat();
        for (place, byte) in damage.into_iter().skip(1) {
            let place = place.index(frame.len());
            frame[place] = byte;
        }
        if let Some(cut) = cut {
            frame.truncate(14 + cut.index(frame.len().min(120)));
        }
        frame.resize(frame.len().max(14), 0);
        frame
    })
}

/// Ethernet without its type, and VLAN tags.
fn link() -> impl Strategy<Value = Vec<u8>> {
    let mac =
        select(vec![[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [0xff; 6], [0x33, 0x33, 0, 0, 0, 1]]);
    let tag = select(vec![[0x81, 0, 0, 5], [0x81, 0, 0x20, 6], [0x88, 0xa8, 0, 5]]);
    let tags = prop_oneof![3 => Just(vec![]), 1 => vec(tag, 1..3)];
    (mac.clone(), mac, tags)
        .prop_map(|(to, from, tags)| [to.to_vec(), from.to_vec(), tags.concat()].concat())
}

/// From the Ethernet type on.
fn network() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![0x0806u16, 0x88cc, 0x8847, 0x8864, 0x0040]);
    let other = (kind, vec(any::<u8>(), 28))
        .prop_map(|(kind, rest)| [kind.to_be_bytes().to_vec(), rest].concat());
    prop_oneof![4 => ipv4(), 3 => ipv6(), 1 => other]
}

fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![3 => Just(5u8), 1 => 0..16u8];
    let fragment = prop_oneof![4 => Just(0u16), 1 => select(vec![0x2000, 0x4000, 0x00b9, 0x20b9])];
    let address = select(IPV4.to_vec());
    (words, fragment, any::<u8>(), address.clone(), address, transport()).prop_map(
        |(words, fragment, ttl, from, to, (protocol, transport))| {
            let options = vec![1; 4 * usize::from(words.saturating_sub(5))];
            let length = (20 + options.len() + transport.len()) as u16;
            let head = [0x08, 0x00, 0x40 | words, 0];
            let rest = [ttl, protocol, 0, 0];
            let (length, fragment) = (length.to_be_bytes(), fragment.to_be_bytes());
            [&head[..], &length, &[0, 1], &fragment, &rest, &from, &to, &options, &transport]
                .concat()
        },
    )
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    let extension = prop_oneof![3 => Just(None), 1 => select(vec![0u8, 44, 60]).prop_map(Some)];
    let address = select(IPV6.to_vec());
    (extension, any::<u8>(), address.clone(), address, transport()).prop_map(
        |(extension, hops, from, to, (protocol, transport))| {
            let address = |last: u16| {
                [&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &last.to_be_bytes()]
                    .concat()
            };
            let between =
                extension.map(|_| vec![protocol, 0, 0, 0, 0, 0, 0, 0]).unwrap_or_default();
            let head = [0x86, 0xdd, 0x60, 0, 0, 0];
            let length = ((between.len() + transport.len()) as u16).to_be_bytes();
            let next = [extension.unwrap_or(protocol), hops];
            [&head[..], &length, &next, &address(from), &address(to), &between, &transport].concat()
        },
    )
}

fn transport() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let port = select(PORTS.to_vec());
    let words = prop_oneof![2 => Just(5u8), 1 => 5..16u8];
    let tcp =
        (port.clone(), port.clone(), words, any::<u8>()).prop_map(|(from, to, words, flags)| {
            let options = vec![1; 4 * (usize::from(words) - 5)];
            let middle = [&[0; 8][..], &[words << 4, flags], &[0; 6]].concat();
            (6, [&from.to_be_bytes()[..], &to.to_be_bytes(), &middle, &options, b"GET "].concat())
        });
    let udp = (port.clone(), port, any::<u16>())
        .prop_map(|(from, to, length)| (17, [from, to, length, 0].map(u16::to_be_bytes).concat()));
    let icmp = (select(vec![0, 3, 8, 135]), any::<bool>())
        .prop_map(|(kind, v6)| (if v6 { 58 } else { 1 }, vec![kind, 0, 0, 0, 0, 0, 0, 0]));
    let other = (select(vec![4, 41, 47, 132]), vec![0..=255u8; 20]);
    prop_oneof![4 => tcp, 3 => udp, 1 => icmp, 1 => other]
}
