//! What `ringway check --upgrade` would say of pins that other versions, or others, have made.
#![allow(clippy::unwrap_used)] // tests

mod common;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use ringway_abi::raw::RW_LAYOUT;
use ringway_kernel::{Error, Fate, Gateway, GatewayOptions, Upgrade, upgrade};

use common::node::Node;

/// A node that a daemon of this version has left; skips the test without root.
fn pinned(test: &str) -> Option<Node> {
    let node = Node::of(test)?;
    drop(Gateway::open(&node.options()).unwrap());
    Some(node)
}

fn fate(found: &Upgrade, name: &str) -> Fate {
    found.tables.iter().find(|table| table.name == name).unwrap().fate
}

/// Puts another map in the place of one.
fn replace(node: &Node, name: &str, kind: MapType, value: u32) {
    let pin = node.pins().map(name);
    let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let mut map = MapHandle::create(kind, Some("other"), 4, value, 8, &options).unwrap();
    if pin.exists() {
        std::fs::remove_file(&pin).unwrap();
    }
    map.pin(pin).unwrap();
}

#[test]
fn own_pins_are_kept() {
    let Some(node) = Node::of("own_pins_are_kept") else { return };
    let nothing = upgrade(&node.options()).unwrap();
    assert_eq!((nothing.layout, nothing.takes_over()), (None, true));
    assert!(!node.pins().dir().exists(), "looking has made something");

    let gateway = Gateway::open(&node.options()).unwrap();
    assert!(upgrade(&node.options()).unwrap().held);
    drop(gateway);
    let found = upgrade(&node.options()).unwrap();
    assert_eq!((found.layout, found.takes_over(), found.held), (Some(RW_LAYOUT), true, false));
    let stays = |fate| matches!(fate, Fate::Kept | Fate::Rebuilt);
    assert!(found.tables.iter().all(|table| stays(table.fate)), "{:#?}", found.tables);

    let larger = GatewayOptions { flows: 1 << 16, ..node.options() };
    let found = upgrade(&larger).unwrap();
    assert_eq!((fate(&found, "flows"), found.takes_over()), (Fate::KeptAtSize, true));
    assert_eq!(fate(&found, "services"), Fate::Rebuilt);
}

/// What a version has left is found again where it is kept, and mended where it is rebuilt.
#[test]
fn what_is_said_to_be_rebuilt_is() {
    let Some(node) = Node::of("what_is_said_to_be_rebuilt_is") else { return };
    let tables = common::tables::web(&["10.0.0.2:80"]);
    Gateway::open(&node.options()).unwrap().0.apply(&tables).unwrap();

    const TABLES: [&str; 6] =
        ["flows", "fragments", "track_quotas", "service_info", "labels", "nat_addrs"];
    let first = |name: &str| {
        let map = node.map(name);
        let value = map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        (map, value)
    };
    let before = TABLES.map(|name| {
        let (map, value) = first(name);
        let spoilt: Vec<u8> = value.iter().map(|byte| byte ^ 0x55).collect();
        map.update(&[0; 4], &spoilt, MapFlags::ANY).unwrap();
        (value, spoilt)
    });
    let found = upgrade(&node.options()).unwrap();
    let (mut gateway, _) = Gateway::open(&node.options()).unwrap();
    gateway.existing().unwrap();
    gateway.apply(&tables).unwrap();
    for (name, (value, spoilt)) in TABLES.into_iter().zip(before) {
        let want = match fate(&found, name) {
            Fate::Kept => spoilt,
            Fate::Rebuilt => value,
            other => panic!("{name} is {other:?}"),
        };
        assert_eq!(first(name).1, want, "{name}");
    }
}

#[test]
fn a_table_that_came_or_went_is_no_obstacle() {
    let Some(node) = pinned("a_table_that_came_or_went_is_no_obstacle") else { return };
    std::fs::remove_file(node.pins().map("fragments")).unwrap();
    replace(&node, "of_an_earlier_version", MapType::Hash, 4);
    let found = upgrade(&node.options()).unwrap();
    assert_eq!(fate(&found, "fragments"), Fate::Added);
    assert_eq!(fate(&found, "of_an_earlier_version"), Fate::Unused);
    assert!(found.takes_over());
    let (_gateway, opened) = Gateway::open(&node.options()).unwrap();
    assert!(opened.taken_over.is_some());
}

#[test]
fn another_layout_is_lost() {
    let Some(node) = pinned("another_layout_is_lost") else { return };
    node.change_settings(|settings| settings.layout = RW_LAYOUT + 1);
    let found = upgrade(&node.options()).unwrap();
    assert_eq!((found.layout, found.takes_over()), (Some(RW_LAYOUT + 1), false));
    assert!(found.tables.iter().all(|table| table.fate == Fate::Lost));
    assert!(matches!(Gateway::open(&node.options()), Err(Error::Layout { .. })));
}

#[test]
fn another_shape_is_lost() {
    let Some(node) = pinned("another_shape_is_lost") else { return };
    replace(&node, "labels", MapType::Array, 4);
    let found = upgrade(&node.options()).unwrap();
    assert_eq!((fate(&found, "labels"), found.takes_over()), (Fate::Lost, false));
    assert_eq!(fate(&found, "flows"), Fate::Kept);
    assert!(matches!(Gateway::open(&node.options()), Err(Error::PinnedMap { .. })));
}

#[test]
fn somebody_elses_pins_are_named() {
    // A program where a table should be.
    let Some(node) = pinned("somebody_elses_pins_are_named") else { return };
    let path = node.pins().map("labels");
    std::fs::remove_file(&path).unwrap();
    let mut gateway = common::open(&common::options());
    pin_program(gateway.root_program(0).unwrap(), &path);
    let found = upgrade(&node.options()).unwrap();
    assert_eq!((fate(&found, "labels"), found.takes_over()), (Fate::Lost, false));
    for (kind, value) in [(MapType::Hash, 8), (MapType::Array, 8)] {
        let node = Node::new();
        std::fs::create_dir_all(node.pins().maps()).unwrap();
        replace(&node, "settings", kind, value);
        let found = upgrade(&node.options()).unwrap();
        assert!(!found.takes_over() && found.tables.is_empty());
        assert!(found.refused.unwrap().contains("somebody else's"), "{kind:?}");
        assert!(Gateway::open(&node.options()).is_err());
    }
}

fn pin_program(program: std::os::fd::BorrowedFd<'_>, path: &std::path::Path) {
    use std::os::fd::AsRawFd;
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: an open descriptor and a NUL-terminated string that outlives the call.
    let ret = unsafe { libbpf_rs::libbpf_sys::bpf_obj_pin(program.as_raw_fd(), path.as_ptr()) };
    assert_eq!(ret, 0);
}
