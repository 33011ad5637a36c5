//! Screens of three sizes, each view, as people see them. What is wanted lies in `screens/`; after
//! a change that is meant, `RINGWAY_SCREENS=write cargo test -p ringway top` writes it anew.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ringway_abi::{Forward, Reason, ShieldMode, Verdict};
use ringway_api::clock::Timestamp;
use ringway_api::documents::health::Health;
use ringway_api::documents::mitigation::AttackStatus;
use ringway_api::documents::shield::{HeavySourceStatus, ServiceMode, ShieldStatus};
use ringway_api::documents::status::{
    Backend, Counter, Daemon, FlowTable, Interface, Ledger, Loss, NextHop, Observed, Rates,
    Service, Status,
};
use ringway_api::error::Error;
use ringway_api::shield::RuntimeShield;
use ringway_kernel::XdpMode;
use ringway_plan::tables::{Protocol, ServiceKey};

use super::super::feed::{FlowRow, Flows, More, Reading};
use super::super::model::KeyRequest;
use super::super::sheet;
use super::*;
use crate::table::Tone;
use crate::testing::{attack, heavy_source};

fn backend(n: u8, health: Health) -> Backend {
    Backend {
        weight: Some(1),
        health,
        since: Some(Timestamp(UNIX_EPOCH + Duration::from_secs(1_769_860_800))),
        reason: (health == Health::Down).then(|| "connection refused".to_owned()),
        next_hop: Some(NextHop::default()),
        current_flows: Some(100 * u64::from(n)),
        rates: Some(Rates {
            rate_pps: 1000.0 * f64::from(n),
            rate_bps: 1e6 * f64::from(n),
            reply_rate_pps: 2000.0,
            reply_rate_bps: 2.5e7,
            new_flows_per_s: 12.5,
        }),
        ..Backend::new(SocketAddr::from(([10, 0, 0, n], 80)))
    }
}

fn service(name: &str, backends: Vec<Backend>) -> Service {
    let mut rates = Rates::default();
    backends.iter().flat_map(|backend| &backend.rates).for_each(|one| rates.add(one));
    let key = ServiceKey::new([203, 0, 113, 10].into(), 80, Protocol::Tcp);
    Service {
        current_flows: backends.iter().map(|backend| backend.current_flows).sum(),
        rates: Some(rates),
        backends,
        ..Service::new(name, key, Forward::Nat)
    }
}

fn sample() -> Reading {
    let counter = |verdict, reason, packets, rate| Counter {
        interface: "eth0".into(),
        verdict,
        reason,
        packets,
        rate_pps: Some(rate),
    };
    let interface = |name: &str, attached| Interface {
        name: name.into(),
        attached,
        mode: Some(XdpMode::Native),
        ledger: Ledger::new(123_456_789, 123_456_789),
        rate_pps: Some(6012.0),
        ..Interface::default()
    };
    let flow = |n: u8| FlowRow {
        service: "web".into(),
        protocol: "tcp",
        client: format!("192.0.2.{n}:40000"),
        backend: "10.0.0.2:80".into(),
        state: "established",
        idle_s: n.into(),
    };
    let status = Status {
        node: "gw1".into(),
        healthy: true,
        degraded: true,
        daemon: Daemon { running: true, ..Daemon::default() },
        interfaces: vec![interface("eth0", true), interface("eth1", false)],
        services: vec![
            service("web", vec![backend(2, Health::Up), backend(3, Health::Down)]),
            service("a-service-with-a-long-name", vec![backend(4, Health::Up)]),
        ],
        counters: vec![
            counter(Verdict::Redirect, Reason::NatForward, 1_000_000, 6000.0),
            counter(Verdict::Pass, Reason::NoService, 5000, 40.0),
            counter(Verdict::Drop, Reason::Malformed, 7, 0.5),
            counter(Verdict::Drop, Reason::Blocked, 70_000, 20_000.0),
        ],
        shield_observed: vec![Observed { reason: Reason::Rule, packets: 9, rate_pps: Some(1.5) }],
        losses: vec![Loss {
            interface: "eth0".into(),
            reason: ringway_abi::Loss::TooBig,
            packets: 3,
            rate_pps: Some(0.0),
        }],
        flow_table: Some(FlowTable { current_flows: 900, ..FlowTable::default() }),
        ..Status::default()
    };
    let flows = Flows { rows: (1..=30).map(flow).collect(), matched: 10_000_000 };
    Reading { status, flows: Some(flows), shield: Some(shield()) }
}

/// A service is attacked.
fn shield() -> ShieldStatus {
    let text = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[shield]\nlist = [\
        { name = \"drop\", file = \"/drop.txt\", action = \"block\" }]\n\
        rule = [{ match = \"udp\", action = \"limit\", rate = \"10kpps\" },\
        { preset = \"dns-amplification\", action = \"drop\" }]\n\
        limits = { source = \"1kpps\", new_flows = \"2kpps\" }\n\
        mitigation = { packets = \"300kpps\" }\n[[service]]\nname = \"web\"\n\
        address = \"203.0.113.10\"\nport = 80\nprotocol = [\"tcp\", \"udp\"]\n\
        backends = [{ address = \"10.0.0.2\" }]\n";
    let config = ringway_config::parse(text, "gw.toml").expect("valid");
    let mut shield = ShieldStatus::new(&config, &RuntimeShield::default());
    shield.counters().for_each(|(_, _, rate)| *rate = Some(0.0));
    let until = Timestamp(UNIX_EPOCH + Duration::from_secs(1_769_860_800));
    shield.mitigation[0].attack = Some(AttackStatus { until, ..attack() });
    let web = &mut shield.limits[0];
    web.arrived_packets_per_second = Some(412_000.0);
    web.arrived_new_flows_per_second = Some(390_000.0);
    web.learnt.packets_per_second = Some(120.0);
    web.by_limit[2].over.packets_per_second = Some(388_000.0);
    web.by_limit[3].over.packets_per_second = Some(2000.0);
    shield.lists[0].packets_per_second = Some(20_000.0);
    shield.rules[0].packets_per_second = Some(14_000.0);
    shield.rules[0].over_limit_packets_per_second = Some(4000.0);
    shield.blocked.prefixes = 2;
    let source = heavy_source("192.0.2.7/32", Protocol::Tcp);
    shield.heavy_sources.push(HeavySourceStatus { last_seen: until, ..source });
    shield
}

fn model(view: TopView) -> Model {
    let mut model = Model::new(view, Duration::from_secs(1));
    model.take(Ok(sample()));
    model
}

fn screen(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| draw(model, frame, false)).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

#[test]
fn each_view_at_three_sizes() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/screens");
    let write = std::env::var_os("RINGWAY_SCREENS").is_some_and(|value| value == "write");
    for view in TopView::value_variants() {
        for (width, height) in [(40, 12), (80, 24), (160, 36)] {
            let name = format!("{view:?}-{width}x{height}.txt").to_lowercase();
            let (path, found) = (directory.join(&name), screen(&model(*view), width, height));
            if write {
                std::fs::write(&path, &found).expect("written");
            }
            let wanted = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(found == wanted, "{name} is\n{found}\nand should be\n{wanted}");
        }
    }
}

#[test]
fn no_size_is_too_small() {
    for view in TopView::value_variants() {
        let mut model = model(*view);
        for help in [false, true] {
            model.help = help;
            for width in 1..50 {
                (1..14).for_each(|height| drop(screen(&model, width, height)));
            }
        }
    }
    let low = screen(&model(TopView::Services), 40, 3);
    assert!(low.starts_with("SERVICE") && low.lines().count() == 3, "{low}");
}

fn press(model: &mut Model, codes: &[KeyCode]) -> KeyRequest {
    codes
        .iter()
        .map(|code| model.key(KeyEvent::from(*code), 5))
        .last()
        .unwrap_or(KeyRequest::Nothing)
}

fn first(model: &Model) -> String {
    model.rows().first().map(|row| row[0].text.clone()).unwrap_or_default()
}

#[test]
fn no_rows_are_explained() {
    let mut model = model(TopView::Flows);
    model.take(Ok(Reading { flows: Some(Flows::default()), ..sample() }));
    assert!(screen(&model, 80, 24).contains("nothing yet"));
    model.filter = "port 1".into();
    assert!(screen(&model, 80, 24).contains("nothing matches \"port 1\""));
    let wrong = "the filter, column 5: \"udp\" where and belongs\n  tcp udp\n      ^";
    model.take(Err(Error::configuration(wrong, "")));
    let shown = screen(&model, 80, 24);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].ends_with("\"udp\" where and belongs"), "{shown}");
    let at = lines.iter().position(|line| *line == "  tcp udp").expect("the filter");
    assert_eq!(lines[at + 1], "      ^");
}

#[test]
fn a_node_without_a_shield_says_so() {
    let mut model = model(TopView::Shield);
    let text = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\n\
                address = \"203.0.113.10\"\nport = 80\nbackends = [{ address = \"10.0.0.2\" }]\n";
    let config = ringway_config::parse(text, "gw.toml").expect("valid");
    let shield = Some(ShieldStatus::new(&config, &RuntimeShield::default()));
    model.take(Ok(Reading { shield, ..sample() }));
    let words = "the configuration has no [shield]";
    assert!(screen(&model, 80, 24).contains(words));
    assert!(super::super::printed(&model, 80, false).contains(words));
}

#[test]
fn a_mode_of_a_service_is_shown_in_its_rows() {
    let shown = |node, web| {
        let mut shield = ShieldStatus { mode: node, ..shield() };
        shield.services.push(ServiceMode { service: "web".into(), mode: web });
        let rows = sheet::rows(TopView::Shield, &Reading { shield: Some(shield), ..sample() });
        let row = |name: &str| rows.iter().find(|row| row[0].text == name).expect("a row").clone();
        let [web, list, source] = ["web tcp", "list drop", "source 192.0.2.7/32"].map(row);
        ([web[1].tone, source[1].tone, list[1].tone], web[5].text.clone())
    };
    let (tones, text) = shown(ShieldMode::Enforce, ShieldMode::Observe);
    assert_eq!(tones, [Tone::Warn, Tone::Warn, Tone::Bad]);
    assert!(text.starts_with("mode observe; attacked: "), "{text}");
    let (tones, text) = shown(ShieldMode::Observe, ShieldMode::Enforce);
    assert_eq!(tones, [Tone::Bad, Tone::Bad, Tone::Warn]);
    assert!(text.starts_with("mode enforce; attacked: "), "{text}");
    let (_, text) = shown(ShieldMode::Enforce, ShieldMode::Enforce);
    assert!(text.starts_with("attacked: "), "{text}");
}

#[test]
fn keys_sort_filter_scroll_and_pause() {
    let mut model = model(TopView::Backends);
    assert_eq!(first(&model), "10.0.0.4:80", "the busiest first");
    press(&mut model, &[KeyCode::Char('I')]);
    assert_eq!(first(&model), "10.0.0.2:80");
    press(&mut model, &[KeyCode::Char('I')]);
    let sort = model.sort;
    press(&mut model, &[KeyCode::Char('<'), KeyCode::F(6)]);
    assert_eq!(model.sort, sort);

    press(&mut model, &[KeyCode::Char('/'), KeyCode::Char('D'), KeyCode::Char('o')]);
    assert!(screen(&model, 80, 24).contains("filter: Do_"));
    assert_eq!(model.rows().len(), 3, "not before Enter");
    assert_eq!(press(&mut model, &[KeyCode::Enter]), KeyRequest::Sample);
    assert_eq!((model.rows().len(), first(&model)), (1, "10.0.0.3:80".to_owned()));
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!(model.rows().len(), 3);

    press(&mut model, &[KeyCode::End]);
    assert_eq!(model.scroll, 2);
    press(&mut model, &[KeyCode::Down, KeyCode::Up, KeyCode::PageUp]);
    assert_eq!(model.scroll, 0);

    press(&mut model, &[KeyCode::Char(' ')]);
    model.take(Ok(Reading::default()));
    assert_eq!(model.rows().len(), 3, "paused");
    assert!(model.heading().health.contains("[paused]"));
    assert_eq!(press(&mut model, &[KeyCode::Char(' ')]), KeyRequest::Sample);

    assert_eq!(press(&mut model, &[KeyCode::Tab]), KeyRequest::Sample);
    assert_eq!((model.view, model.more_wanted()), (TopView::Interfaces, More::Nothing));
    press(&mut model, &[KeyCode::Char('t'), KeyCode::Char('t')]);
    assert_eq!(model.more_wanted(), More::Flows(String::new()));
    press(&mut model, &[KeyCode::F(1)]);
    assert!(screen(&model, 80, 24).contains("column to sort by"));
    press(&mut model, &[KeyCode::Char('x')]);
    assert!(!model.help);
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), KeyRequest::End);
}

#[test]
fn a_sample_that_failed_is_shown_beside_the_one_before() {
    let mut model = model(TopView::Services);
    model.take(Err(Error::failed("the daemon hangs\u{1b}[2J", "")));
    let shown = screen(&model, 160, 24);
    assert!(shown.contains("the daemon hangs?[2J") && shown.contains("web"), "{shown}");
    model.take(Ok(sample()));
    assert!(!screen(&model, 160, 24).contains("hangs"));
}

#[test]
fn one_look_fits_its_terminal() {
    for view in TopView::value_variants() {
        let model = model(*view);
        let text = super::super::printed(&model, 80, false);
        // What is wrong is said in full.
        for line in text.lines().skip(1) {
            assert!(line.chars().count() <= 80, "{line:?}");
        }
        assert!(text.lines().nth(1).is_some_and(|line| line.ends_with("  over 1 s")), "{text}");
        let all = super::super::printed(&model, u16::MAX, false);
        assert!(model.columns().iter().all(|column| all.contains(column.title)), "{all}");
    }
}

/// What has been observed stays counted; a rate of 0 is no figure.
#[test]
fn what_the_shield_would_do_is_shown_while_it_would() {
    let figures = |rates: [f64; 2]| {
        let mut model = model(TopView::Services);
        let reasons = [Reason::Rule, Reason::SynAnswered].into_iter().zip(rates);
        let observed =
            reasons.map(|(reason, rate)| Observed { reason, packets: 9, rate_pps: Some(rate) });
        let mut sample = sample();
        sample.status.shield_observed = observed.collect();
        model.take(Ok(sample));
        let figures = model.heading().figures;
        figures.into_iter().filter(|it| it.starts_with("shield would")).collect::<Vec<_>>()
    };
    assert_eq!(figures([1.5, 491.0]), ["shield would drop 1.5/s", "shield would answer 491/s"]);
    assert_eq!(figures([0.0, 0.0]), Vec::<String>::new());
}

#[test]
fn figures_are_never_cut() {
    let figures = ["in 294/s", "dropped 0/s", "lost 0/s", "flows 59", "every 2 s"];
    let fitting = |width| super::fitting(&figures.map(str::to_owned), width);
    assert_eq!(fitting(60), "in 294/s  dropped 0/s  lost 0/s  flows 59  every 2 s");
    assert_eq!(fitting(40), "in 294/s dropped 0/s lost 0/s flows 59");
    assert_eq!(fitting(35), "in 294/s dropped 0/s lost 0/s");
    assert_eq!(fitting(3), "");
}
