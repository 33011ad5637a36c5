//! The packet path's prefix lists against a model that tries every prefix.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use ringway_abi::raw::{RW_SLOT_LAST, RW_SLOT_NESTED, rw_list_section, rw_list_span};
use ringway_plan::prefix_list::{
    Entry, Family, ListTables, Listed, MAX_ENTRIES, Prefix, PrefixError, PrefixSet,
};

fn entry(addr: IpAddr, length: u8) -> Entry {
    let prefix = match Prefix::new(addr, length) {
        Err(PrefixError::HostBits { network, .. }) => network,
        prefix => prefix.unwrap(),
    };
    Entry { prefix, line: 1 }
}

fn set(entries: &[Entry]) -> PrefixSet {
    PrefixSet::new([(0, entries)]).unwrap()
}

/// Of all prefixes with an address the outermost; of equal ones, of the lowest list.
fn model(lists: &[Vec<Entry>], addr: IpAddr) -> Option<Listed> {
    let of = |(list, entries): (u8, &Vec<Entry>)| -> Vec<Listed> {
        entries.iter().map(|entry| Listed { prefix: entry.prefix, list }).collect()
    };
    let listed = (0u8..).zip(lists).flat_map(of);
    listed.filter(|listed| listed.prefix.contains(addr)).min()
}

/// First and last address of a prefix, and those beside them.
fn boundaries(prefix: Prefix) -> Vec<IpAddr> {
    match prefix.addr() {
        IpAddr::V4(v4) => {
            let first = v4.to_bits();
            let last = first | u32::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            [first.wrapping_sub(1), first, first + (last - first) / 2, last, last.wrapping_add(1)]
                .map(|bits| Ipv4Addr::from_bits(bits).into())
                .into()
        }
        IpAddr::V6(v6) => {
            let first = v6.to_bits();
            let last = first | u128::MAX.checked_shr(prefix.length().into()).unwrap_or(0);
            [first.wrapping_sub(1), first, first + (last - first) / 2, last, last.wrapping_add(1)]
                .map(|bits| Ipv6Addr::from_bits(bits).into())
                .into()
        }
    }
}

/// Addresses of one kind: any, all in 10.16.0.0/12 or 2001:db8::/64, next to each other, the ends
/// of the address space, and one far from all others.
fn addresses() -> impl Strategy<Value = BoxedStrategy<IpAddr>> {
    let v4 = |bits: BoxedStrategy<u32>| bits.prop_map(|b| Ipv4Addr::from_bits(b).into()).boxed();
    let v6 = |bits: BoxedStrategy<u128>| bits.prop_map(|b| Ipv6Addr::from_bits(b).into()).boxed();
    let documentation = 0x2001_0db8_u128 << 96;
    prop::sample::select(vec![
        v4(any::<u32>().boxed()),
        v4((0x0a10_0000..0x0a20_0000u32).boxed()),
        v4((0x0a10_0000..0x0a10_0080u32).boxed()),
        v4((u32::MAX - 40..=u32::MAX).boxed()),
        v4(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()].boxed()),
        v4(prop_oneof![1 => Just(0), 20 => u32::MAX - 1000..=u32::MAX].boxed()),
        v6(any::<u128>().boxed()),
        v6((documentation..documentation + (1 << 64)).boxed()),
        v6((documentation..documentation + 128).boxed()),
        v6(any::<u64>().prop_map(|high| u128::from(high) << 64).boxed()),
        v6((0..20u128).prop_map(move |n| documentation + (n << 60)).boxed()),
        v6((u128::MAX - 40..=u128::MAX).boxed()),
        v6(prop_oneof![Just(0), Just(u128::MAX), any::<u128>()].boxed()),
        v6(prop_oneof![1 => Just(0), 20 => u128::MAX - 1000..=u128::MAX].boxed()),
    ])
}

/// A list: mostly long prefixes, so that they do not all end in one.
fn list() -> impl Strategy<Value = Vec<Entry>> {
    (addresses(), 0..200usize, 0..120u8).prop_flat_map(|(addresses, count, shortest)| {
        let one = (addresses, prop_oneof![20 => shortest..=128, 1 => 0..=128u8]).prop_map(
            |(addr, length)| {
                let most = Family::of(addr).bits();
                entry(addr, if most == 32 { length / 4 } else { length })
            },
        );
        prop::collection::vec(one, count)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_found_is_what_is_listed(
        allow in prop::collection::vec(list(), 0..3),
        block in prop::collection::vec(list(), 0..4),
        any in prop::collection::vec(any::<[u8; 16]>(), 8),
    ) {
        let set = |lists: &[Vec<Entry>]| {
            PrefixSet::new((0u8..).zip(lists.iter().map(Vec::as_slice))).unwrap()
        };
        let tables = ListTables::new(&set(&allow), &set(&block));
        let entries = allow.iter().chain(&block).flatten();
        let edges = [
            IpAddr::from([0; 4]),
            IpAddr::from([255; 4]),
            IpAddr::from([0; 16]),
            IpAddr::from([255; 16]),
        ];
        let v4 = any.iter().map(|[a, b, c, d, ..]| IpAddr::from([*a, *b, *c, *d]));
        let v6 = any.iter().map(|octets| IpAddr::from(*octets));
        let boundaries = entries.flat_map(|entry| boundaries(entry.prefix));
        for addr in boundaries.chain(edges).chain(v4).chain(v6) {
            prop_assert_eq!(tables.allowed(addr), model(&allow, addr), "{}", addr);
            prop_assert_eq!(tables.blocked(addr), model(&block, addr), "{}", addr);
        }
    }
}

/// What the packet path relies on.
fn check(section: &rw_list_section, tables: &ListTables) {
    let slots = |span: &rw_list_span| {
        assert!(span.slots.is_power_of_two() && span.shift < 124);
        assert!(span.slots < 4 * section.leaves.max(1));
        &tables.index[span.index as usize..][..span.slots as usize]
    };
    let number = |word: u64| word as u32 & 0x7f_ffff;
    for slot in slots(&section.span) {
        let own = std::slice::from_ref(slot);
        let nested = slot & u64::from(RW_SLOT_NESTED) != 0;
        let leads = if nested { slots(&tables.spans[number(*slot) as usize]) } else { own };
        for slot in leads {
            let (first, last) = (number(*slot), number(slot >> RW_SLOT_LAST));
            assert!(slot & u64::from(RW_SLOT_NESTED) == 0);
            assert!(first <= last && last < section.leaves);
        }
    }
}

#[test]
fn a_million_prefixes_take_as_much_as_promised() {
    let mixed = |n: u32| n.wrapping_mul(0x9e37_79b1);
    let v4 = |bits: u32, length| entry(Ipv4Addr::from_bits(bits).into(), length);
    let v6 = |bits: u128, length| entry(Ipv6Addr::from_bits(bits).into(), length);
    let wide = |n: u32| u128::from(mixed(n)) << 96 | u128::from(mixed(n)) << 32;
    let far_or_near = |n: u32| if n == 0 { u32::MAX } else { 0x0a10_0000 + n };
    type Nth<'a> = &'a dyn Fn(u32) -> Entry;
    let lists: [(&str, usize, Nth<'_>); 8] = [
        ("any IPv4", 16, &|n| v4(mixed(n), 32)),
        ("in a /12", 16, &|n| v4(0x0a10_0000 + n, 32)),
        ("in a /12, but one", 16, &|n| v4(far_or_near(n), 32)),
        ("IPv4 /24", 16, &|n| v4(n << 8, 24)),
        ("any IPv6", 40, &|n| v6(wide(n), 128)),
        ("in a /64", 40, &|n| v6(0x2001_0db8 << 96 | u128::from(n), 128)),
        ("IPv6 /64", 40, &|n| v6(wide(n), 64)),
        ("IPv6 /48", 40, &|n| v6(0x2a << 120 | u128::from(n) << 80, 48)),
    ];
    for (name, most, nth) in lists {
        let list: Vec<Entry> = (0..MAX_ENTRIES as u32).map(nth).collect();
        let tables = ListTables::new(&PrefixSet::default(), &set(&list));
        assert!(tables.bytes() <= most * MAX_ENTRIES, "{name}: {} bytes", tables.bytes());
        for section in [&tables.block4, &tables.block6].into_iter().filter(|s| s.leaves > 0) {
            check(section, &tables);
        }
        for entry in list.iter().step_by(997) {
            let want = Some(Listed { prefix: entry.prefix, list: 0 });
            assert_eq!(tables.blocked(entry.prefix.addr()), want, "{name}");
            assert_eq!(tables.allowed(entry.prefix.addr()), None, "{name}");
        }
    }
}

#[test]
fn without_lists_nothing_is_taken() {
    let tables = ListTables::new(&PrefixSet::default(), &PrefixSet::default());
    assert_eq!((tables.bytes(), tables.clone()), (0, ListTables::default()));
    assert_eq!(tables.blocked(IpAddr::from([0; 4])), None);
    assert_eq!(tables.allowed(IpAddr::from([255; 16])), None);
}

/// An entry alone takes a leaf and two places of the index.
#[test]
fn sections_share_the_tables() {
    let four = set(&[entry(IpAddr::from([10, 0, 0, 0]), 8)]);
    let both = set(&[entry(IpAddr::from([192, 0, 2, 0]), 24), entry(IpAddr::from([0; 16]), 0)]);
    let tables = ListTables::new(&four, &both);
    for section in [&tables.allow4, &tables.block4, &tables.block6] {
        assert_eq!((section.leaves, section.span.slots, section.span.pad), (1, 2, 0));
        check(section, &tables);
    }
    assert_eq!(tables.allow6, rw_list_section::default());
    assert_eq!((tables.allow4.leaf, tables.block4.leaf, tables.block6.leaf), (0, 1, 0));
    assert_eq!((tables.v4.len(), tables.v6.len(), tables.index.len()), (2, 1, 6));
    assert_eq!((tables.block4.span.base, tables.block4.span.shift), ([0, 0xc000_0200], 3));
    assert_eq!((tables.block6.span.base, tables.block6.span.shift), ([0; 2], 123));
    assert_eq!(tables.spans, []);
    assert_eq!(tables.bytes(), 2 * 64 + 128 + 6 * 8);
}
