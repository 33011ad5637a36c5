//! Metrics in Prometheus' text form, and /healthz and /readyz beside them.
//!
//! - `/healthz`: 200 while the daemon's loop turns.
//! - `/readyz`: 200 while the node should get traffic, as `ringway status --ready` tells: the loop
//!   turns, attached to every interface, the last tables written, some service with a backend that
//!   gets traffic. Otherwise 503 and the causes, one per line.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::board::Board;
use crate::health::Health;
use crate::problem::Error;
use crate::status::{Backend, Service, Status};

/// Takes the address.
///
/// # Errors
/// When it cannot be had.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        Error::failed(
            format!("metrics address {address}: {error}"),
            "choose another [metrics] listen, or \"off\"",
        )
    })
}

/// Answers until cancelled.
///
/// # Errors
/// When the socket breaks.
pub async fn serve(listener: TcpListener, board: Arc<Board>) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .with_state(board);
    axum::serve(listener, router).await
}

async fn metrics(State(board): State<Arc<Board>>) -> Response {
    match Board::read(&board).await.map(|status| render(&status)) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn healthz(State(board): State<Arc<Board>>) -> Response {
    match board.stalled() {
        None => "ok\n".into_response(),
        Some(age) => {
            let text = format!("the daemon's loop has not turned for {} s\n", age.as_secs());
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

async fn readyz(State(board): State<Arc<Board>>) -> Response {
    let readiness = board.readiness(None);
    if readiness.ready {
        return "ready\n".into_response();
    }
    let lines: String = readiness.reasons.iter().map(|reason| format!("{reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

/// A set of labels with their values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Labels(Vec<(&'static str, String)>);

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }
}

/// One registry per scrape: every value comes from `status`, none is kept.
struct Sheet(Registry);

impl Sheet {
    fn counter(&mut self, name: &str, help: &str, unit: Option<Unit>) -> Family<Labels, Counter> {
        let family = Family::<Labels, Counter>::default();
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, family.clone()),
            None => self.0.register(name, help, family.clone()),
        }
        family
    }

    fn gauge(&mut self, name: &str, help: &str) -> Family<Labels, Gauge> {
        let family = Family::<Labels, Gauge>::default();
        self.0.register(name, help, family.clone());
        family
    }
}

/// The metrics of `status` as text (OpenMetrics 1.0).
pub fn render(status: &Status) -> String {
    let mut sheet = Sheet(Registry::with_prefix("ringway"));
    node(&mut sheet, status);
    interfaces(&mut sheet, status);
    backends(&mut sheet, status);
    flows(&mut sheet, status);
    tracked(&mut sheet, status);
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &sheet.0);
    text
}

fn node(sheet: &mut Sheet, status: &Status) {
    let name = || Labels(vec![("node", status.node.clone())]);
    sheet
        .gauge("healthy", "1 while nothing is wrong")
        .get_or_create(&name())
        .set(i64::from(status.healthy));
    sheet
        .gauge("degraded", "1 while some backend gets no traffic, though every service is served")
        .get_or_create(&name())
        .set(i64::from(status.degraded));
    let version = status.daemon.version.clone().unwrap_or_default();
    sheet
        .gauge("daemon_info", "Version of the daemon")
        .get_or_create(&Labels(vec![("node", status.node.clone()), ("version", version)]))
        .set(1);
    let failed = status.last_reload.as_ref().is_some_and(|last| !last.succeeded);
    sheet
        .gauge("last_reload_successful", "0 while the file on the disk could not be put in force")
        .get_or_create(&name())
        .set(i64::from(!failed));
    sheet
        .gauge("overrides", "Weights that were set at runtime and win over the file")
        .get_or_create(&name())
        .set(status.overrides.len() as i64);
    sheet
        .gauge("daemon_uptime_seconds", "Since the daemon began")
        .get_or_create(&name())
        .set(status.daemon.uptime_s.cast_signed());
}

fn interfaces(sheet: &mut Sheet, status: &Status) {
    let attached = sheet.gauge("interface_attached", "1 while the program is attached");
    let seen = sheet.counter("interface_packets", "Packets that came in", None);
    let difference = sheet.gauge(
        "ledger_difference_packets",
        "Packets seen less packets with a verdict; 0 when none is on its way",
    );
    for interface in &status.interfaces {
        let labels = Labels(vec![("interface", interface.name.clone())]);
        attached.get_or_create(&labels).set(i64::from(interface.attached));
        seen.get_or_create(&labels).inc_by(interface.ledger.seen_packets);
        difference.get_or_create(&labels).set(interface.ledger.difference_packets);
    }
    let verdicts = sheet.counter("verdict_packets", "Packets by verdict and reason", None);
    for counter in &status.counters {
        verdicts
            .get_or_create(&Labels(vec![
                ("interface", counter.interface.clone()),
                ("verdict", counter.verdict.clone()),
                ("reason", counter.reason.clone()),
            ]))
            .inc_by(counter.packets);
    }
    let lost = sheet.counter("lost_packets", "Packets sent on that the kernel dropped then", None);
    for loss in &status.losses {
        let labels = vec![("interface", loss.interface.clone()), ("reason", loss.reason.clone())];
        lost.get_or_create(&Labels(labels)).inc_by(loss.packets);
    }
}

fn backends(sheet: &mut Sheet, status: &Status) {
    let up = sheet.gauge("backend_up", "1 while the backend is healthy or has no check");
    let passed = sheet.counter("backend_checks_passed", "Health checks passed", None);
    let failed = sheet.counter("backend_checks_failed", "Health checks failed", None);
    let flows = sheet.counter("backend_flows", "Flows begun", None);
    let packets = sheet.counter("backend_packets", "Packets by direction", None);
    let bytes = sheet.counter("backend_traffic", "Bytes by direction", Some(Unit::Bytes));
    for (service, backend) in pairs(status) {
        let labels = labels(service, backend, None);
        up.get_or_create(&labels).set(i64::from(backend.health.is_up()));
        flows.get_or_create(&labels).inc_by(backend.flows);
        if backend.health != Health::Unchecked {
            passed.get_or_create(&labels).inc_by(backend.checks_passed);
            failed.get_or_create(&labels).inc_by(backend.checks_failed);
        }
        for (direction, packet_count, byte_count) in [
            ("request", backend.packets, backend.bytes),
            ("reply", backend.reply_packets, backend.reply_bytes),
        ] {
            let labels = self::labels(service, backend, Some(direction));
            packets.get_or_create(&labels).inc_by(packet_count);
            bytes.get_or_create(&labels).inc_by(byte_count);
        }
    }
}

fn flows(sheet: &mut Sheet, status: &Status) {
    let Some(table) = &status.flow_table else { return };
    let node = || ("node", status.node.clone());
    sheet
        .gauge("flows_capacity", "Flows there is room for in the flow table")
        .get_or_create(&Labels(vec![node()]))
        .set(table.capacity_flows.cast_signed());
    let current =
        sheet.gauge("flows", "Flows in the flow table by state, counted every 10 s at most");
    for (state, count) in &table.current_flows_by_state {
        let labels = Labels(vec![node(), ("state", state.clone())]);
        current.get_or_create(&labels).set(count.cast_signed());
    }
}

fn tracked(sheet: &mut Sheet, status: &Status) {
    let Some(tracked) = &status.tracked else { return };
    let node = || ("node", status.node.clone());
    sheet
        .gauge("tracked_flows_capacity", "Records of dsr flows there is room for")
        .get_or_create(&Labels(vec![node()]))
        .set(tracked.capacity_flows.cast_signed());
    let current =
        sheet.gauge("tracked_flows", "dsr flows with a record, counted every 10 s at most");
    for (part, count) in
        [("promoted", tracked.promoted_flows), ("probation", tracked.probation_flows)]
    {
        let labels = Labels(vec![node(), ("part", part.into())]);
        current.get_or_create(&labels).set(count.cast_signed());
    }
    let events = sheet.counter("tracked_flow_events", "What became of records of dsr flows", None);
    for (event, count) in [
        ("opened", tracked.opened_flows),
        ("adopted", tracked.adopted_flows),
        ("evicted", tracked.evicted_flows),
        ("refused-full", tracked.refused_full_flows),
        ("refused-quota", tracked.refused_quota_flows),
    ] {
        events.get_or_create(&Labels(vec![node(), ("event", event.into())])).inc_by(count);
    }
}

fn pairs(status: &Status) -> impl Iterator<Item = (&Service, &Backend)> {
    status
        .services
        .iter()
        .flat_map(|service| service.backends.iter().map(move |backend| (service, backend)))
}

fn labels(service: &Service, backend: &Backend, direction: Option<&str>) -> Labels {
    let mut labels = vec![
        ("service", service.name.clone()),
        ("protocol", service.protocol.clone()),
        ("backend", backend.endpoint()),
    ];
    labels.extend(direction.map(|direction| ("direction", direction.to_owned())));
    Labels(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Counter, FlowTable, Interface, Ledger, Loss};

    #[test]
    fn every_line_has_its_labels() {
        let backend = Backend {
            address: "fd00::2".into(),
            port: 80,
            health: Health::Up,
            packets: 7,
            bytes: 700,
            ..Backend::default()
        };
        let text = render(&Status {
            node: "gw1".into(),
            healthy: true,
            interfaces: vec![Interface {
                name: "eth0".into(),
                attached: true,
                ledger: Ledger::new(9, 9),
                ..Interface::default()
            }],
            services: vec![Service {
                name: "web".into(),
                protocol: "tcp".into(),
                backends: vec![backend],
                ..Service::default()
            }],
            flow_table: Some(FlowTable {
                capacity_flows: 64,
                current_flows: 3,
                current_flows_by_state: [("established".into(), 3)].into(),
            }),
            counters: vec![Counter {
                interface: "eth0".into(),
                verdict: "pass".into(),
                reason: "not-ip".into(),
                packets: 2,
            }],
            losses: vec![Loss {
                interface: "eth0".into(),
                reason: "lost-too-big".into(),
                packets: 4,
            }],
            ..Status::default()
        });
        for line in [
            "ringway_lost_packets_total{interface=\"eth0\",reason=\"lost-too-big\"} 4",
            "ringway_flows_capacity{node=\"gw1\"} 64",
            "ringway_flows{node=\"gw1\",state=\"established\"} 3",
            "ringway_healthy{node=\"gw1\"} 1",
            "ringway_interface_attached{interface=\"eth0\"} 1",
            "ringway_interface_packets_total{interface=\"eth0\"} 9",
            "ringway_ledger_difference_packets{interface=\"eth0\"} 0",
            "ringway_verdict_packets_total{interface=\"eth0\",verdict=\"pass\",reason=\"not-ip\"} 2",
            "ringway_backend_up{service=\"web\",protocol=\"tcp\",backend=\"[fd00::2]:80\"} 1",
            "ringway_backend_packets_total{service=\"web\",protocol=\"tcp\",\
             backend=\"[fd00::2]:80\",direction=\"request\"} 7",
            "ringway_backend_traffic_bytes_total{service=\"web\",protocol=\"tcp\",\
             backend=\"[fd00::2]:80\",direction=\"request\"} 700",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}
