//! What a scrape shows, and docs/metrics.md of it.

use std::time::Instant;

use ringway_abi::raw::rw_shield_count;
use ringway_abi::{FlowState, Forward, Reason, Verdict};
use ringway_api::clock::{Timestamp, from_unix_s};
use ringway_api::documents::forward::{ForwardInterface, ForwardStatus};
use ringway_api::documents::limits::PacketCount;
use ringway_api::documents::shield::{ShieldStatus, SynSecretStatus};
use ringway_api::documents::status::{
    Backend, Counter, Daemon, FlowTable, Interface, Ledger, Loss, Service, Status, Tracked,
};

use ringway_api::problem_kind::ProblemKind;
use ringway_api::shield::RuntimeShield;
use ringway_kernel::ShieldCounts;
use ringway_plan::tables::{Protocol, ServiceKey};

use super::families::{ALL, render};
use super::text::{Family, Kind};
use crate::health::Health;
use crate::testing::gateway;

const DOCUMENT: &str = include_str!("../../../../docs/metrics.md");
const PLENTY: usize = 1_000_000;

fn status() -> Status {
    let backend = Backend {
        health: Health::Up,
        packets: 7,
        bytes: 700,
        ..Backend::new("[fd00::2]:80".parse().expect("an address"))
    };
    let service = |protocol| Service {
        last_port: 90,
        backends: vec![backend.clone(), backend.clone()],
        ..Service::new("web", ServiceKey::new(backend.address, 80, protocol), Forward::Nat)
    };
    Status {
        node: "gw1".into(),
        daemon: Daemon { commit: Some("0123456789ab".into()), ..Daemon::default() },
        healthy: true,
        findings: vec![ProblemKind::TableFull.problem("", "")],
        interfaces: vec![Interface {
            name: "eth0".into(),
            attached: true,
            ledger: Ledger::new(9, 9),
            ..Interface::default()
        }],
        services: vec![service(Protocol::Tcp), service(Protocol::Udp)],
        flow_table: Some(FlowTable {
            capacity_flows: 64,
            current_flows: 3,
            current_flows_by_state: [(FlowState::Established, 3)].into(),
            ..FlowTable::default()
        }),
        tracked: Some(Tracked::default()),
        forward: Some(ForwardStatus {
            stations: Some(7),
            stations_left_out: Some(1),
            interfaces: vec![ForwardInterface {
                interface: "eth0".into(),
                forwards: true,
                reason: String::new(),
            }],
            ..ForwardStatus::default()
        }),
        counters: vec![Counter {
            interface: "eth0".into(),
            verdict: Verdict::Pass,
            reason: Reason::NotIp,
            packets: 2,
            rate_pps: None,
        }],
        losses: vec![Loss {
            interface: "eth0".into(),
            reason: ringway_abi::Loss::TooBig,
            packets: 4,
            rate_pps: None,
        }],
        ..Status::default()
    }
}

/// With two lists and a rule.
fn shield() -> ShieldStatus {
    let shield = "[shield]\nlist = [\
        { name = \"junk\", file = \"/junk\", action = \"block\" }, \
        { name = \"friends\", file = \"/friends\", action = \"allow\" }]\n\
        rule = [{ match = \"udp\", action = \"drop\" }]\nlimits = { source = \"1kpps\" }\n\
        mitigation = { packets = \"1Mpps\" }";
    let mut shield = ShieldStatus::new(&gateway(shield, ""), &RuntimeShield::default());
    let count = |packets| rw_shield_count { packets, bytes: 100 * packets, over: packets / 2 };
    shield.count(ShieldCounts {
        rules: [("rule 1".into(), count(2))].into(),
        lists: [("junk".into(), count(3))].into(),
        runtime_allow: count(4),
        runtime_block: count(5),
        observed: [(Reason::Malformed, 6), (Reason::SynAnswered, 741)].into(),
    });
    (shield.lists[0].prefixes, shield.lists[0].skipped_lines) = (Some(8), Some(9));
    let limits = &mut shield.limits[0];
    (limits.arrived_packets, limits.arrived_new_flows, limits.over_limit_packets) = (12, 11, 10);
    limits.syns_answered.packets = 15;
    let replies = |packets| Some(PacketCount { packets, packets_per_second: None });
    (limits.answers_met, limits.answers_failed) = (replies(16), replies(17));
    shield.syn_secret = Some(SynSecretStatus {
        fingerprint: "0123abcd".into(),
        former_fingerprint: None,
        file: Some("/etc/ringway/syn.secret".into()),
        since: Timestamp::default(),
    });
    shield.mitigation[0].attacks = 13;
    shield.program_failures = 14;
    shield.lists[0].written = Some(Timestamp(from_unix_s(1_800_000_000)));
    shield
}

#[test]
fn every_line_has_its_labels() {
    let text = render(&status(), Some(&shield()), PLENTY);
    for line in [
        "ringway_build_info{node=\"gw1\",version=\"\",commit=\"0123456789ab\"} 1",
        "ringway_healthy 1",
        "ringway_finding{kind=\"table-full\"} 1",
        "ringway_problem{kind=\"table-full\"} 0",
        "ringway_lost_packets_total{interface=\"eth0\",reason=\"lost-too-big\"} 4",
        "ringway_lost_packets_total{interface=\"eth0\",reason=\"lost-other\"} 0",
        "ringway_flows_capacity 64",
        "ringway_flows{state=\"established\"} 3",
        "ringway_interface_attached{interface=\"eth0\"} 1",
        "ringway_interface_packets_total{interface=\"eth0\"} 9",
        "ringway_verdict_packets_total{interface=\"eth0\",verdict=\"pass\",reason=\"not-ip\"} 2",
        "ringway_verdict_packets_total{interface=\"eth0\",verdict=\"drop\",reason=\"nat-exhausted\"} 0",
        "ringway_service_packets_total{service=\"web\",protocol=\"tcp\",direction=\"request\"} 14",
        "ringway_service_info{service=\"web\",protocol=\"tcp\",address=\"fd00::2\",port=\"80-90\",forward=\"nat\"} 1",
        "ringway_backend_up{service=\"web\",protocol=\"tcp\",backend=\"[fd00::2]:80\"} 1",
        "ringway_backend_bytes_total{service=\"web\",protocol=\"udp\",backend=\"[fd00::2]:80\",\
         direction=\"request\"} 700",
        "ringway_forward_interface{interface=\"eth0\"} 1",
        "ringway_forward_stations{part=\"left-out\"} 1",
        "ringway_shield_mode{mode=\"enforce\"} 1",
        "ringway_shield_observed_packets_total{reason=\"syn-answered\"} 741",
        "ringway_shield_observed_packets_total{reason=\"syn-challenged\"} 0",
        "ringway_shield_mode{mode=\"off\"} 0",
        "ringway_shield_observed_packets_total{reason=\"malformed\"} 6",
        "ringway_shield_observed_packets_total{reason=\"blocked\"} 0",
        "ringway_shield_runtime_packets_total{action=\"block\"} 5",
        "ringway_shield_runtime_bytes_total{action=\"allow\"} 400",
        "ringway_shield_list_prefixes{list=\"junk\",action=\"block\"} 8",
        "ringway_shield_list_skipped_lines{list=\"junk\",action=\"block\"} 9",
        "ringway_shield_list_timestamp_seconds{list=\"junk\",action=\"block\"} 1800000000",
        "ringway_shield_list_timestamp_seconds{list=\"friends\",action=\"allow\"} 0",
        "ringway_shield_list_bytes_total{list=\"junk\",action=\"block\"} 300",
        "ringway_shield_rule_packets_total{rule=\"rule 1\",action=\"drop\"} 2",
        "ringway_shield_rule_over_limit_packets_total{rule=\"rule 1\",action=\"drop\"} 1",
        "ringway_shield_arrived_packets_total{service=\"web\",protocol=\"tcp\"} 12",
        "ringway_shield_arrived_new_flows_total{service=\"web\",protocol=\"tcp\"} 11",
        "ringway_shield_over_limit_packets_total{service=\"web\",protocol=\"tcp\"} 10",
        "ringway_shield_syns_answered_total{service=\"web\",protocol=\"tcp\"} 15",
        "ringway_shield_answers_met_total{service=\"web\",protocol=\"tcp\"} 16",
        "ringway_shield_answers_failed_total{service=\"web\",protocol=\"tcp\"} 17",
        "ringway_shield_syn_secret_info{fingerprint=\"0123abcd\",source=\"file\"} 1",
        "ringway_shield_mitigation_active{service=\"web\",protocol=\"tcp\"} 0",
        "ringway_shield_mitigations_total{service=\"web\",protocol=\"tcp\"} 13",
        "ringway_shield_mitigation_program_failures_total 14",
        "ringway_check_duration_seconds_bucket{service=\"web\",le=\"+Inf\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
    }
}

#[test]
fn every_family_is_shown_once() {
    let text = render(&status(), Some(&shield()), PLENTY);
    for family in ALL {
        let help = format!("# HELP {} {}", family.name, family.help);
        assert_eq!(text.lines().filter(|line| *line == help).count(), 1, "{help}");
    }
    let shown = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(shown, ALL.len());
}

#[test]
fn names_are_as_prometheus_wants_them() {
    for Family { name, kind, .. } in ALL {
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
    }
}

#[test]
fn with_too_many_backends_their_services_remain() {
    let text = render(&status(), None, 3);
    assert!(!text.contains("ringway_backend_up"), "{text}");
    assert!(text.contains("\nringway_backend_series_left_out 4\n"));
    assert!(text.contains("\nringway_service_backends{service=\"web\",protocol=\"udp\"} 2\n"));
}

#[test]
fn the_document_lists_them() {
    // Those of `ringway engine` are held to the document where they are made.
    let ours = |line: &&str| line.starts_with("| `") && !line.starts_with("| `ringway_engine_");
    let rows: Vec<&str> = DOCUMENT.lines().filter(ours).collect();
    let want: Vec<String> = ALL.iter().map(row).collect();
    assert_eq!(rows, want, "the table of docs/metrics.md should be:\n{}", want.join("\n"));
}

fn row(family: &Family) -> String {
    let Family { name, kind, labels, help } = family;
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "))
}

/// Another interface, service or backend adds so many lines, whatever has happened; docs/metrics.md
/// tells them.
#[test]
fn series_are_bounded_as_the_document_says() {
    let series = |status: &Status| {
        render(status, None, PLENTY).lines().filter(|line| !line.starts_with('#')).count()
    };
    let bare = Status {
        flow_table: Some(FlowTable::default()),
        tracked: Some(Tracked::default()),
        ..Status::default()
    };
    let mut more = bare.clone();
    let node = series(&bare);
    more.interfaces = status().interfaces;
    let interface = series(&more) - node;
    more.services = vec![Service { backends: Vec::new(), ..status().services.remove(0) }];
    let service = series(&more) - node - interface;
    more.services[0].backends = vec![status().services[0].backends[0].clone()];
    // The first one that is checked brings its service's checks along.
    let first = series(&more);
    let checks = 17;
    let second = Backend { port: 81, ..more.services[0].backends[0].clone() };
    more.services[0].backends.push(second);
    let backend = series(&more) - first;
    assert_eq!(first, node + interface + service + checks + backend);
    let with = |shield: &ShieldStatus| {
        let text = render(&bare, Some(shield), PLENTY);
        text.lines().filter(|line| line.starts_with("ringway_shield")).count()
    };
    let mut parts = shield();
    let all = with(&parts);
    parts.rules.clear();
    let rule = all - with(&parts);
    parts.lists.pop();
    let list = all - rule - with(&parts);
    parts.lists.clear();
    let before = with(&parts);
    parts.limits.clear();
    let limits = before - with(&parts);
    parts.mitigation.clear();
    let alone = with(&parts);
    let mitigation = before - limits - alone;
    for row in [
        format!("| node | {node}, of these"),
        format!("| interface | {interface}, of these"),
        format!("| service | {service} for each protocol; {checks} for its checks |"),
        format!("| backend of a service and protocol | {backend}, up to"),
        format!(
            "| shield | {alone}; {list} for each list, {rule} for each rule; for each protocol of a service {limits} with limits, {mitigation} with mitigation |"
        ),
    ] {
        assert!(DOCUMENT.contains(&row), "docs/metrics.md should say {row:?}");
    }
}

/// A thousand services with a hundred backends each:
/// `cargo test --release -- --ignored --nocapture as_large`.
#[test]
#[ignore = "measures, judges nothing"]
fn as_large_as_it_gets() {
    let mut status = status();
    let service = status.services.remove(0);
    let backend = |n: usize| Backend {
        address: [10, 0, (n / 250) as u8, (n % 250) as u8].into(),
        port: 8080,
        packets: 1_000_000_007 * (n as u64 + 1),
        bytes: 1_000_000_000_007 * (n as u64 + 1),
        ..service.backends[0].clone()
    };
    let backends: Vec<Backend> = (0..100).map(backend).collect();
    let services = (0..1000).map(|n| Service {
        name: format!("service-{n}"),
        backends: backends.clone(),
        ..service.clone()
    });
    status.services = services.collect();
    for most in [2000, PLENTY] {
        let began = Instant::now();
        let text = render(&status, None, most);
        let (lines, mib) = (text.lines().count(), text.len() as f64 / 1048576.0);
        println!("backends = {most}: {lines} lines, {mib:.1} MiB, {:?}", began.elapsed());
    }
}
