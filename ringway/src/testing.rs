//! Documents for tests.

use ringway_abi::ShieldMode;
use ringway_api::clock::Timestamp;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::shield::HeavySourceStatus;
use ringway_plan::tables::Protocol;

pub fn attack() -> AttackStatus {
    AttackStatus {
        service: "web".into(),
        address: [203, 0, 113, 10].into(),
        port: 80,
        last_port: 80,
        protocol: Protocol::Tcp,
        mode: ShieldMode::Enforce,
        since: Timestamp::default(),
        until: Timestamp::default(),
        ended: None,
        measure: None,
        packets_per_second: 412_000,
        new_flows_per_second: 390_000,
        baseline: None,
        syn: "off".into(),
        syns_answered_per_second: 0,
        lasts: false,
    }
}

pub fn heavy_source(prefix: &str, protocol: Protocol) -> HeavySourceStatus {
    HeavySourceStatus {
        prefix: prefix.parse().expect("a prefix"),
        service: "web".into(),
        protocol,
        learnt: false,
        over_limit_packets: 18_000,
        over_limit_pps: 2000,
        since: Timestamp::default(),
        last_seen: Timestamp::default(),
    }
}
