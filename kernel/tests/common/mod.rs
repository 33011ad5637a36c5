//! What the tests of this crate share. Each test file uses a part of it.
#![allow(dead_code)]

pub mod node;
pub mod tables;

use ringway_kernel::{Gateway, GatewayOptions, Interface};

/// MAC address of the gateway's interface in slot 0; slot n has n in its last byte.
pub const GATEWAY_MAC: [u8; 6] = [0x02, 0, 0, 0, 0xfe, 0];
/// MAC address of the client, or of the router it is behind.
pub const CLIENT_MAC: [u8; 6] = [0x02, 0, 0, 0, 0xc1, 0];

/// A gateway that dies with the test: nothing pinned, nothing attached, two interfaces in slots 0
/// (clients) and 1 (backends), and small flow tables.
pub fn gateway() -> Gateway {
    gateway_with_room(0)
}

/// The same, with room for so many rows of services.
pub fn gateway_with_room(services: u32) -> Gateway {
    let options = GatewayOptions {
        node: "test".into(),
        flows: 4096,
        services,
        pin: false,
        ..GatewayOptions::default()
    };
    let (mut gateway, _) = Gateway::open(&options).expect("the packet path loads");
    for slot in 0..2 {
        let mut mac = GATEWAY_MAC;
        mac[5] = slot as u8;
        let iface = Interface {
            slot,
            name: format!("test{slot}"),
            // Any device that exists: nothing is sent in a test run.
            ifindex: 1,
            mac,
            alt_mac: None,
            redirect: false,
            layer3: false,
            local: false,
            raw: false,
            vlan: None,
            faces: Default::default(),
            mtu: 1500,
        };
        gateway.set_iface(&iface).expect("slots 0 and 1 take an interface");
    }
    gateway
}
