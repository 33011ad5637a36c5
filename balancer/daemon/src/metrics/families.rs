//! Every metric that Prometheus reads: its name, and what of a status it shows. docs/metrics.md
//! lists them; a test holds it to this list.
//!
//! How many series there are is bounded by the configuration: per interface one for each verdict
//! and reason, per service two dozen, and per backend eleven up to `[metrics] backends` of them,
//! none with more; per list of the shield five, per rule two, and per protocol of a
//! service three with limits and two with mitigation.

use std::collections::{BTreeMap, HashMap, HashSet};

use ringway_abi::{Loss, Reason, ShieldMode};
use ringway_api::clock::{self, Timestamp};
use ringway_api::documents::durations;
use ringway_api::documents::limits::{LimitsStatus, PacketCount};
use ringway_api::documents::mitigation::MitigationStatus;
use ringway_api::documents::shield::{ListStatus, RuleStatus, RuntimeCount, ShieldStatus};
use ringway_api::documents::status::{Backend, Counter, Service, Status};
use ringway_api::problem_kind::ProblemKind;
use ringway_kernel::XdpMode;

use super::process;
use super::text::{Family, Kind, Sheet};
use crate::health::{Health, Lack};

macro_rules! families {
    ($($id:ident = $kind:ident $name:literal $labels:tt $help:literal;)+) => {
        $(const $id: Family = Family { name: $name, kind: Kind::$kind, labels: &$labels, help: $help };)+
        /// Every family, in the order in which they are shown.
        pub const ALL: &[Family] = &[$($id,)+];
    };
}

families! {
    BUILD = Gauge "ringway_build_info" ["node", "version", "commit"] "Always 1: name of the node, version and commit of its daemon.";
    HEALTHY = Gauge "ringway_healthy" [] "1 while nothing is wrong.";
    READY = Gauge "ringway_ready" [] "1 while the node should get traffic, as ringway status --ready tells.";
    DEGRADED = Gauge "ringway_degraded" [] "1 while some backend gets no traffic, though every service is served.";
    PROBLEM = Gauge "ringway_problem" ["kind"] "1 while there is a problem of this kind: the node is unhealthy.";
    FINDING = Gauge "ringway_finding" ["kind"] "1 while there is something of this kind worth knowing.";
    START = Gauge "ringway_daemon_start_time_seconds" [] "When the daemon began, seconds since 1970.";
    LOOP_AGE = Gauge "ringway_daemon_loop_age_seconds" [] "Seconds since the last turn of the daemon's loop, which turns twice a second.";
    RELOADS = Counter "ringway_reloads_total" ["result"] "Reloads of the configuration: success or failure.";
    RELOADED = Gauge "ringway_last_reload_successful" [] "0 while the file on the disk could not be put in force.";
    RELOAD_AT = Gauge "ringway_last_reload_timestamp_seconds" [] "When a reload was tried last, seconds since 1970; 0 for never.";
    OVERRIDES = Gauge "ringway_overrides" [] "Weights that were set at runtime and win over the file.";
    ATTACHED = Gauge "ringway_interface_attached" ["interface"] "1 while the program is attached.";
    AGAIN = Counter "ringway_interface_attached_again_total" ["interface"] "Times that the daemon had to attach the program again.";
    MODE = Gauge "ringway_interface_info" ["interface", "mode"] "Always 1: how the program is attached, native or generic.";
    SEEN = Counter "ringway_interface_packets_total" ["interface"] "Packets that came in.";
    SENT = Counter "ringway_interface_sent_packets_total" ["interface"] "Packets that came in by it and were sent on.";
    DIFFERENCE = Gauge "ringway_ledger_difference_packets" ["interface"] "Packets seen less packets with a verdict; 0 when none is on its way.";
    VERDICTS = Counter "ringway_verdict_packets_total" ["interface", "verdict", "reason"] "Packets by verdict and reason; each packet once.";
    LOST = Counter "ringway_lost_packets_total" ["interface", "reason"] "Packets sent on that the kernel dropped afterwards.";
    SERVICE = Gauge "ringway_service_info" ["service", "protocol", "address", "port", "forward"] "Always 1: what the service is; port is a number, a range or *.";
    SERVICE_BACKENDS = Gauge "ringway_service_backends" ["service", "protocol"] "Backends with weight.";
    SERVICE_SERVING = Gauge "ringway_service_serving_backends" ["service", "protocol"] "Backends that get traffic.";
    SERVICE_FLOWS = Counter "ringway_service_flows_total" ["service", "protocol"] "Flows begun.";
    SERVICE_EVICTED = Counter "ringway_service_evicted_flows_total" ["service", "protocol"] "Flows on probation that gave way to new ones, as there was no room; nat.";
    SERVICE_PACKETS = Counter "ringway_service_packets_total" ["service", "protocol", "direction"] "Packets: request is client to backend; reply is 0 under dsr, where answers do not pass by.";
    SERVICE_BYTES = Counter "ringway_service_bytes_total" ["service", "protocol", "direction"] "Bytes of these packets, as they came in.";
    SERVICE_CHECKS = Counter "ringway_service_checks_total" ["service", "result"] "Health checks of all its backends: pass or fail.";
    CHECKS_NOT_MADE = Counter "ringway_checks_not_made_total" ["cause"] "Health checks that this machine could not make, by what it lacked; they count for no backend.";
    CHECK_DURATION = Histogram "ringway_check_duration_seconds" ["service"] "How long health checks took, passed or failed.";
    LEFT_OUT = Gauge "ringway_backend_series_left_out" [] "Backends without series of their own, because there are more than [metrics] backends allows.";
    UP = Gauge "ringway_backend_up" ["service", "protocol", "backend"] "1 while the backend is healthy or has no check.";
    KEPT = Gauge "ringway_backend_kept" ["service", "protocol", "backend"] "1 while its checks fail and its established TCP connections go on.";
    SERVING = Gauge "ringway_backend_serving" ["service", "protocol", "backend"] "1 while the backend gets new flows.";
    WEIGHT = Gauge "ringway_backend_weight" ["service", "protocol", "backend"] "Weight in force; 0 when drained.";
    SINCE = Gauge "ringway_backend_health_since_timestamp_seconds" ["service", "protocol", "backend"] "Time of the last change of its health, seconds since 1970; 0 before the first result.";
    FLOWS = Counter "ringway_backend_flows_total" ["service", "protocol", "backend"] "Flows begun.";
    PACKETS = Counter "ringway_backend_packets_total" ["service", "protocol", "backend", "direction"] "Packets, as ringway_service_packets_total.";
    BYTES = Counter "ringway_backend_bytes_total" ["service", "protocol", "backend", "direction"] "Bytes of these packets, as they came in.";
    CHECKS = Counter "ringway_backend_checks_total" ["service", "protocol", "backend", "result"] "Health checks: pass or fail.";
    FLOWS_CAPACITY = Gauge "ringway_flows_capacity" [] "Flows there is room for in the flow table of nat services.";
    FLOWS_NOW = Gauge "ringway_flows" ["state"] "Flows in the flow table by state, counted every 10 s at most.";
    TRACKED_CAPACITY = Gauge "ringway_tracked_flows_capacity" [] "Records of dsr flows there is room for.";
    TRACKED = Gauge "ringway_tracked_flows" ["part"] "Records of dsr flows, promoted or on probation, counted every 10 s at most.";
    TRACKED_EVENTS = Counter "ringway_tracked_flow_events_total" ["event"] "Changes to records of dsr flows.";
    FORWARD_INTERFACE = Gauge "ringway_forward_interface" ["interface"] "1: what this interface of [forward] receives is forwarded past the kernel; 0: the kernel has it.";
    FORWARD_STATIONS = Gauge "ringway_forward_stations" ["part"] "Stations of the bridge of [forward], known to the packet path or left out.";
    SHIELD_MODE = Gauge "ringway_shield_mode" ["mode"] "1 for the mode of the shield in force; services may have others.";
    SHIELD_OBSERVED = Counter "ringway_shield_observed_packets_total" ["reason"] "Packets that the shield would have dropped, or SYNs that it would have answered, if its mode had been enforce.";
    SHIELD_RUNTIME = Gauge "ringway_shield_runtime_prefixes" ["action"] "Prefixes that ringway block and ringway allow have added.";
    SHIELD_RUNTIME_PACKETS = Counter "ringway_shield_runtime_packets_total" ["action"] "Packets from these prefixes.";
    SHIELD_RUNTIME_BYTES = Counter "ringway_shield_runtime_bytes_total" ["action"] "Bytes of these packets, from the IP header on.";
    SHIELD_LIST = Gauge "ringway_shield_list_prefixes" ["list", "action"] "Prefixes of the list that are in force.";
    SHIELD_LIST_SKIPPED = Gauge "ringway_shield_list_skipped_lines" ["list", "action"] "Lines of the list's file that are no prefixes and were skipped.";
    SHIELD_LIST_WRITTEN = Gauge "ringway_shield_list_timestamp_seconds" ["list", "action"] "When the list's file was written, as it was read last, seconds since 1970; 0 where there was none.";
    SHIELD_LIST_PACKETS = Counter "ringway_shield_list_packets_total" ["list", "action"] "Packets from the list's prefixes.";
    SHIELD_LIST_BYTES = Counter "ringway_shield_list_bytes_total" ["list", "action"] "Bytes of these packets, from the IP header on.";
    SHIELD_RULE_PACKETS = Counter "ringway_shield_rule_packets_total" ["rule", "action"] "Packets that the rule matched.";
    SHIELD_RULE_BYTES = Counter "ringway_shield_rule_bytes_total" ["rule", "action"] "Bytes of these packets, from the IP header on.";
    SHIELD_RULE_OVER = Counter "ringway_shield_rule_over_limit_packets_total" ["rule", "action"] "Packets that the rule matched, over its rate: dropped, or would have been in mode enforce; 0 of rules without a rate.";
    SHIELD_ARRIVED = Counter "ringway_shield_arrived_packets_total" ["service", "protocol"] "Packets that met the limits of the service.";
    SHIELD_NEW_FLOWS = Counter "ringway_shield_arrived_new_flows_total" ["service", "protocol"] "Packets of these that open a flow.";
    SHIELD_OVER = Counter "ringway_shield_over_limit_packets_total" ["service", "protocol"] "Packets of these over a limit: dropped, unless the mode, their flow or their source lets them pass.";
    SHIELD_SYNS_ANSWERED = Counter "ringway_shield_syns_answered_total" ["service", "protocol"] "SYNs that the gateway has answered itself, or would have in mode enforce.";
    SHIELD_ANSWERS_MET = Counter "ringway_shield_answers_met_total" ["service", "protocol"] "Replies to these answers that only who got one can send; absent while backends have the replies.";
    SHIELD_ANSWERS_FAILED = Counter "ringway_shield_answers_failed_total" ["service", "protocol"] "What looks like such a reply, and fits no answer: guessed, late, or of a node with another secret; absent while backends have the replies.";
    SHIELD_SECRET = Gauge "ringway_shield_syn_secret_info" ["fingerprint", "source"] "1 for the secret that answers to SYNs are made with; source: file, or own. Nodes of one service are to have one.";
    SHIELD_ATTACKED = Gauge "ringway_shield_mitigation_active" ["service", "protocol"] "1 while the service is attacked, as [shield.mitigation] has it.";
    SHIELD_ATTACKS = Counter "ringway_shield_mitigations_total" ["service", "protocol"] "Attacks on the service.";
    SHIELD_UNTOLD = Counter "ringway_shield_mitigation_program_failures_total" [] "Runs of the program of [shield.mitigation] that failed.";
    CPU = Counter "process_cpu_seconds_total" [] "CPU time of the daemon.";
    MEMORY = Gauge "process_resident_memory_bytes" [] "Memory of the daemon; maps of the packet path are the kernel's.";
    OPEN_FDS = Gauge "process_open_fds" [] "Open descriptors of the daemon.";
    MAX_FDS = Gauge "process_max_fds" [] "Descriptors that the daemon may open.";
}

/// The whole text. `most_backends`: with more of them, no backend has series of its own.
pub fn render(status: &Status, shield: Option<&ShieldStatus>, most_backends: usize) -> String {
    let mut sheet = Sheet::default();
    node(&mut sheet, status);
    daemon(&mut sheet, status);
    interfaces(&mut sheet, status);
    verdicts(&mut sheet, status);
    services(&mut sheet, status);
    checks(&mut sheet, status);
    let number = status.services.iter().map(|service| service.backends.len()).sum();
    let left_out = if number > most_backends { number } else { 0 };
    sheet.family(&LEFT_OUT).add(&[], left_out);
    if left_out == 0 {
        backends(&mut sheet, status);
    }
    tables(&mut sheet, status);
    if let Some(shield) = shield.filter(|shield| shield.configured) {
        shield_counts(&mut sheet, shield);
    }
    own(&mut sheet);
    sheet.finish()
}

fn node(sheet: &mut Sheet, status: &Status) {
    let version = status.daemon.version.as_deref().unwrap_or_default();
    let commit = status.daemon.commit.as_deref().unwrap_or_default();
    sheet.family(&BUILD).add(&[&status.node, version, commit], 1);
    sheet.family(&HEALTHY).add(&[], u8::from(status.healthy));
    let ready = status.unready.is_empty() && status.daemon.running;
    sheet.family(&READY).add(&[], u8::from(ready));
    sheet.family(&DEGRADED).add(&[], u8::from(status.degraded));
    for (family, there) in [(&PROBLEM, &status.problems), (&FINDING, &status.findings)] {
        let there: HashSet<ProblemKind> = there.iter().map(|problem| problem.kind).collect();
        let mut series = sheet.family(family);
        for kind in ProblemKind::ALL {
            series.add(&[kind.name()], u8::from(there.contains(kind)));
        }
    }
}

fn daemon(sheet: &mut Sheet, status: &Status) {
    sheet.family(&START).add(&[], moment(status.daemon.since));
    let loop_age_ms = status.daemon.loop_age_ms.unwrap_or_default();
    sheet.family(&LOOP_AGE).add(&[], loop_age_ms as f64 / 1000.0);
    let mut reloads = sheet.family(&RELOADS);
    reloads.add(&["success"], status.reloads.succeeded);
    reloads.add(&["failure"], status.reloads.failed);
    let last = status.last_reload.as_ref();
    sheet.family(&RELOADED).add(&[], u8::from(last.is_none_or(|last| last.succeeded)));
    sheet.family(&RELOAD_AT).add(&[], moment(last.map(|last| last.at)));
    sheet.family(&OVERRIDES).add(&[], status.overrides.len());
}

fn moment(at: Option<Timestamp>) -> u64 {
    at.map_or(0, |Timestamp(at)| clock::unix_s(at))
}

fn interfaces(sheet: &mut Sheet, status: &Status) {
    let all = &status.interfaces;
    let mut series = sheet.family(&ATTACHED);
    all.iter().for_each(|i| series.add(&[&i.name], u8::from(i.attached)));
    let mut series = sheet.family(&AGAIN);
    all.iter().for_each(|i| series.add(&[&i.name], i.attached_again));
    let mut series = sheet.family(&MODE);
    all.iter().for_each(|i| series.add(&[&i.name, i.mode.map_or("", XdpMode::name)], 1));
    let mut series = sheet.family(&SEEN);
    all.iter().for_each(|i| series.add(&[&i.name], i.ledger.seen_packets));
    let mut series = sheet.family(&SENT);
    all.iter().for_each(|i| series.add(&[&i.name], i.sent_packets));
    let mut series = sheet.family(&DIFFERENCE);
    all.iter().for_each(|i| series.add(&[&i.name], i.ledger.difference_packets));
}

/// What can occur is there from the beginning, with 0: else its first increase would not be seen.
fn verdicts(sheet: &mut Sheet, status: &Status) {
    // In the order of the names.
    let mut counted: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
    for interface in &status.interfaces {
        for reason in Reason::all() {
            for verdict in reason.verdicts() {
                counted.insert((&interface.name, verdict.name(), reason.name()), 0);
            }
        }
    }
    for counter in &status.counters {
        let Counter { interface, verdict, reason, packets, .. } = counter;
        counted.insert((interface, verdict.name(), reason.name()), *packets);
    }
    let mut series = sheet.family(&VERDICTS);
    for ((interface, verdict, reason), packets) in counted {
        series.add(&[interface, verdict, reason], packets);
    }
    let lost = status.losses.iter().map(|l| ((l.interface.as_str(), l.reason), l.packets));
    let lost: HashMap<(&str, Loss), u64> = lost.collect();
    let mut series = sheet.family(&LOST);
    for interface in &status.interfaces {
        for loss in Loss::all() {
            let packets = lost.get(&(interface.name.as_str(), loss)).copied().unwrap_or(0);
            series.add(&[&interface.name, loss.name()], packets);
        }
    }
}

fn services(sheet: &mut Sheet, status: &Status) {
    let all = &status.services;
    let mut series = sheet.family(&SERVICE);
    for s in all {
        let (address, ports) = (s.address.to_string(), s.key().ports().to_string());
        series.add(&[&s.name, s.protocol.name(), &address, &ports, s.forward.name()], 1);
    }
    let mut series = sheet.family(&SERVICE_BACKENDS);
    for s in all {
        let weighted = s.backends.iter().filter(|backend| backend.weight != Some(0)).count();
        series.add(&[&s.name, s.protocol.name()], weighted);
    }
    let mut series = sheet.family(&SERVICE_SERVING);
    all.iter().for_each(|s| series.add(&[&s.name, s.protocol.name()], s.serving()));
    let mut series = sheet.family(&SERVICE_FLOWS);
    all.iter().for_each(|s| series.add(&[&s.name, s.protocol.name()], traffic(s, 0, |b| b.flows)));
    let mut series = sheet.family(&SERVICE_EVICTED);
    all.iter().for_each(|s| {
        series.add(&[&s.name, s.protocol.name()], traffic(s, 1, |b| b.evicted_flows))
    });
    let mut series = sheet.family(&SERVICE_PACKETS);
    for s in all {
        series.add(&[&s.name, s.protocol.name(), "request"], traffic(s, 2, |b| b.packets));
        series.add(&[&s.name, s.protocol.name(), "reply"], traffic(s, 4, |b| b.reply_packets));
    }
    let mut series = sheet.family(&SERVICE_BYTES);
    for s in all {
        series.add(&[&s.name, s.protocol.name(), "request"], traffic(s, 3, |b| b.bytes));
        series.add(&[&s.name, s.protocol.name(), "reply"], traffic(s, 5, |b| b.reply_bytes));
    }
}

/// Of all backends, and of those that have left: one of
/// [`crate::backends::departed::Sums::traffic`].
fn traffic(service: &Service, of_departed: usize, of: fn(&Backend) -> u64) -> u64 {
    service.departed.traffic[of_departed] + service.backends.iter().map(of).sum::<u64>()
}

/// Both protocols of a service share its backends' checks.
fn checks(sheet: &mut Sheet, status: &Status) {
    let mut named = HashSet::new();
    let checked = |s: &&Service| s.backends.iter().any(|b| b.health != Health::Unchecked);
    let once = status.services.iter().filter(checked).filter(|s| named.insert(s.name.as_str()));
    let once: Vec<&Service> = once.collect();
    let mut series = sheet.family(&SERVICE_CHECKS);
    for s in &once {
        let [passed, failed] = s.departed.checks;
        let here = |of: fn(&Backend) -> u64| s.backends.iter().map(of).sum::<u64>();
        series.add(&[&s.name, "pass"], passed + here(|b| b.checks_passed));
        series.add(&[&s.name, "fail"], failed + here(|b| b.checks_failed));
    }
    let mut series = sheet.family(&CHECKS_NOT_MADE);
    for lack in Lack::ALL {
        let count = status.checks_not_made.get(&lack).copied().unwrap_or_default();
        series.add(&[lack.name()], count);
    }
    let mut series = sheet.family(&CHECK_DURATION);
    for s in &once {
        let mut sum = s.departed.durations.clone();
        s.backends.iter().for_each(|backend| sum.add(&backend.check_durations));
        let buckets: Vec<_> = durations::BOUNDS.into_iter().zip(sum.counts).collect();
        let more = sum.counts[durations::BOUNDS.len()];
        series.histogram(&[&s.name], &buckets, more, sum.sum_us as f64 / 1e6);
    }
}

fn backends(sheet: &mut Sheet, status: &Status) {
    let all: Vec<(&Service, String, &Backend)> = status
        .services
        .iter()
        .flat_map(|service| {
            service.backends.iter().map(move |b| (service, b.endpoint().to_string(), b))
        })
        .collect();
    let mut each = |family: &'static Family, value: fn(&Backend) -> u64| {
        let mut series = sheet.family(family);
        all.iter().for_each(|(s, at, b)| series.add(&[&s.name, s.protocol.name(), at], value(b)));
    };
    each(&UP, |b| b.health.is_up().into());
    each(&KEPT, |b| b.kept.into());
    each(&SERVING, |b| b.serves().into());
    each(&WEIGHT, |b| b.weight.unwrap_or_default().into());
    each(&SINCE, |b| moment(b.since));
    each(&FLOWS, |b| b.flows);
    let mut two = |family: &'static Family, names: [&str; 2], values: fn(&Backend) -> [u64; 2]| {
        let mut series = sheet.family(family);
        for (s, at, b) in &all {
            for (name, value) in names.into_iter().zip(values(b)) {
                series.add(&[&s.name, s.protocol.name(), at, name], value);
            }
        }
    };
    two(&PACKETS, ["request", "reply"], |b| [b.packets, b.reply_packets]);
    two(&BYTES, ["request", "reply"], |b| [b.bytes, b.reply_bytes]);
    two(&CHECKS, ["pass", "fail"], |b| [b.checks_passed, b.checks_failed]);
}

fn tables(sheet: &mut Sheet, status: &Status) {
    if let Some(table) = &status.flow_table {
        sheet.family(&FLOWS_CAPACITY).add(&[], table.capacity_flows);
        let mut series = sheet.family(&FLOWS_NOW);
        let states =
            ringway_abi::FlowState::all().filter(|state| *state != ringway_abi::FlowState::Free);
        for state in states {
            let count = table.current_flows_by_state.get(&state).copied().unwrap_or(0);
            series.add(&[state.name()], count);
        }
    }
    if let Some(forward) = &status.forward {
        let mut series = sheet.family(&FORWARD_INTERFACE);
        for port in &forward.interfaces {
            series.add(&[&port.interface], u8::from(port.forwards));
        }
        let mut series = sheet.family(&FORWARD_STATIONS);
        let parts = [("known", forward.stations), ("left-out", forward.stations_left_out)];
        for (part, stations) in parts.into_iter().filter_map(|(p, n)| Some((p, n?))) {
            series.add(&[part], stations);
        }
    }
    if let Some(tracked) = &status.tracked {
        sheet.family(&TRACKED_CAPACITY).add(&[], tracked.capacity_flows);
        let mut series = sheet.family(&TRACKED);
        series.add(&["promoted"], tracked.promoted_flows);
        series.add(&["probation"], tracked.probation_flows);
        let mut series = sheet.family(&TRACKED_EVENTS);
        for (event, count) in [
            ("opened", tracked.opened_flows),
            ("adopted", tracked.adopted_flows),
            ("evicted", tracked.evicted_flows),
            ("refused-full", tracked.refused_full_flows),
            ("refused-quota", tracked.refused_quota_flows),
        ] {
            series.add(&[event], count);
        }
    }
}

/// Reasons for which the shield drops or answers, beside those with which it alone drops.
const SHARED_REASONS: [Reason; 4] =
    [Reason::Malformed, Reason::MartianSource, Reason::SynChallenged, Reason::SynAnswered];

fn shield_counts(sheet: &mut Sheet, shield: &ShieldStatus) {
    let mut series = sheet.family(&SHIELD_MODE);
    for mode in ShieldMode::all() {
        series.add(&[mode.name()], u8::from(mode == shield.mode));
    }
    let mut series = sheet.family(&SHIELD_OBSERVED);
    let own = Reason::all().filter(|reason| reason.is_shields());
    for reason in SHARED_REASONS.into_iter().chain(own) {
        series.add(&[reason.name()], shield.observed.get(&reason).copied().unwrap_or_default());
    }
    let typed = [("block", shield.blocked), ("allow", shield.allowed)];
    let mut each = |family, value: fn(&RuntimeCount) -> u64| {
        let mut series = sheet.family(family);
        typed.iter().for_each(|(action, count)| series.add(&[action], value(count)));
    };
    each(&SHIELD_RUNTIME, |count| count.prefixes);
    each(&SHIELD_RUNTIME_PACKETS, |count| count.packets);
    each(&SHIELD_RUNTIME_BYTES, |count| count.bytes);
    let mut each = |family, value: fn(&ListStatus) -> u64| {
        let mut series = sheet.family(family);
        shield.lists.iter().for_each(|l| series.add(&[&l.name, l.action.name()], value(l)));
    };
    each(&SHIELD_LIST, |list| list.prefixes.unwrap_or_default());
    each(&SHIELD_LIST_SKIPPED, |list| list.skipped_lines.unwrap_or_default());
    each(&SHIELD_LIST_WRITTEN, |list| moment(list.written));
    each(&SHIELD_LIST_PACKETS, |list| list.packets);
    each(&SHIELD_LIST_BYTES, |list| list.bytes);
    let mut each = |family, value: fn(&RuleStatus) -> u64| {
        let mut series = sheet.family(family);
        shield.rules.iter().for_each(|rule| series.add(&[&rule.name, &rule.action], value(rule)));
    };
    each(&SHIELD_RULE_PACKETS, |rule| rule.packets);
    each(&SHIELD_RULE_BYTES, |rule| rule.bytes);
    each(&SHIELD_RULE_OVER, |rule| rule.over_limit_packets);
    let mut each = |family, value: fn(&LimitsStatus) -> u64| {
        let mut series = sheet.family(family);
        shield.limits.iter().for_each(|l| series.add(&[&l.service, l.protocol.name()], value(l)));
    };
    each(&SHIELD_ARRIVED, |limits| limits.arrived_packets);
    each(&SHIELD_NEW_FLOWS, |limits| limits.arrived_new_flows);
    each(&SHIELD_OVER, |limits| limits.over_limit_packets);
    each(&SHIELD_SYNS_ANSWERED, |limits| limits.syns_answered.packets);
    let mut replies = |family, value: fn(&LimitsStatus) -> Option<PacketCount>| {
        let mut series = sheet.family(family);
        for limits in &shield.limits {
            let labels = [&limits.service, limits.protocol.name()];
            value(limits).iter().for_each(|count| series.add(&labels, count.packets));
        }
    };
    replies(&SHIELD_ANSWERS_MET, |limits| limits.answers_met);
    replies(&SHIELD_ANSWERS_FAILED, |limits| limits.answers_failed);
    let mut series = sheet.family(&SHIELD_SECRET);
    if let Some(secret) = &shield.syn_secret {
        let source = if secret.file.is_some() { "file" } else { "own" };
        series.add(&[&secret.fingerprint, source], 1);
    }
    let mut each = |family, value: fn(&MitigationStatus) -> u64| {
        let mut series = sheet.family(family);
        let all = shield.mitigation.iter();
        all.for_each(|it| series.add(&[&it.service, it.protocol.name()], value(it)));
    };
    each(&SHIELD_ATTACKED, |service| service.attack.is_some().into());
    each(&SHIELD_ATTACKS, |service| service.attacks);
    sheet.family(&SHIELD_UNTOLD).add(&[], shield.program_failures);
}

fn own(sheet: &mut Sheet) {
    let Some(process) = process::read() else { return };
    sheet.family(&CPU).add(&[], process.cpu_seconds);
    sheet.family(&MEMORY).add(&[], process.resident_bytes);
    sheet.family(&OPEN_FDS).add(&[], process.open_fds);
    sheet.family(&MAX_FDS).add(&[], process.max_fds);
}
