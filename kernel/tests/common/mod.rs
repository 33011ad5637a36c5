//! What the tests of this crate share. Each test file uses a part of it.
#![allow(dead_code)]

pub mod node;
pub mod tables;

use ringway_kernel::{Gateway, GatewayOptions, Interface};
use ringway_testnet::root_or_skip;

/// MAC address of the gateway's interface in slot 0; slot n has n in its last byte.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0xfe, 0];
/// MAC address of the client, or of the router it is behind.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0xc1, 0];

/// A gateway that dies with the test, without pins and with small flow tables.
pub fn options() -> GatewayOptions {
    GatewayOptions { node: "test".into(), flows: 4096, pin: false, ..GatewayOptions::default() }
}

pub fn interface(slot: u32, name: &str, ifindex: u32) -> Interface {
    let mut mac = GATEWAY_MAC;
    mac[5] = slot as u8;
    Interface {
        slot,
        name: name.into(),
        ifindex,
        mac,
        alt_mac: None,
        redirect: false,
        layer3: false,
        local: false,
        raw: false,
        vlan: None,
        faces: Default::default(),
        mtu: 1500,
    }
}

/// Nothing is attached to its interfaces in slots 0 (clients) and 1 (backends). Needs root.
pub fn gateway(test: &str) -> Option<Gateway> {
    root_or_skip(test).then(|| open(&options()))
}

pub fn open(options: &GatewayOptions) -> Gateway {
    let (mut gateway, _) = Gateway::open(options).expect("the packet path loads");
    for slot in 0..2 {
        // Any device that exists: nothing is sent in a test run.
        let iface = interface(slot, &format!("test{slot}"), 1);
        gateway.set_iface(&iface).expect("slots 0 and 1 take an interface");
    }
    gateway
}
