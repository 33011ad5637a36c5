//! The rows of each view: what is shown of a status, and what rows are ordered by. Pure.

use std::collections::BTreeMap;

use ringway_abi::{Reason, ShieldMode, Verdict};
use ringway_api::documents::limits::{LimitStatus, LimitsStatus};
use ringway_api::documents::mitigation::MitigationStatus;
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::documents::status::{Backend, Rates, Service, Status};
use ringway_api::text::counted;
use ringway_config::{ListAction, Protect, RuleAction};
use ringway_kernel::XdpMode;

use super::feed::Reading;
use crate::cli::TopView;
use crate::command::shield::{rule_action, rule_name};
use crate::table::Tone;
use crate::units;

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    pub kind: Kind,
    /// Where not all columns fit, those of the highest number go first. 0 stays.
    pub rank: u8,
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    /// The number that says which rows are busy.
    Load,
}

impl Column {
    /// Numbers go to the right.
    pub fn right(&self) -> bool {
        self.kind != Kind::Text
    }
}

const fn text(title: &'static str, rank: u8) -> Column {
    Column { title, kind: Kind::Text, rank }
}

const fn number(title: &'static str, rank: u8) -> Column {
    Column { title, kind: Kind::Number, rank }
}

const fn load(title: &'static str, rank: u8) -> Column {
    Column { title, kind: Kind::Load, rank }
}

const SERVICES: &[Column] = &[
    text("SERVICE", 0),
    text("ADDRESS", 6),
    number("UP", 1),
    number("FLOWS", 3),
    number("NEW/s", 4),
    load("PACKETS/s", 2),
    number("BITS/s", 5),
    number("REPLIES/s", 7),
    number("BITS/s", 8),
    text("MODE", 9),
];
const BACKENDS: &[Column] = &[
    text("BACKEND", 0),
    text("SERVICE", 3),
    text("HEALTH", 1),
    number("WEIGHT", 7),
    number("FLOWS", 4),
    number("NEW/s", 5),
    load("PACKETS/s", 2),
    number("BITS/s", 6),
    number("REPLIES/s", 8),
    text("SINCE", 9),
    text("REASON", 10),
];
const INTERFACES: &[Column] = &[
    text("INTERFACE", 0),
    load("PACKETS/s", 1),
    text("ATTACHED", 2),
    number("DROPS/s", 3),
    text("MODE", 4),
    number("PACKETS", 5),
    number("LOST", 6),
];
const REASONS: &[Column] = &[
    text("REASON", 0),
    load("PER s", 1),
    text("VERDICT", 2),
    number("PACKETS", 3),
    text("MEANING", 4),
];
const FLOWS: &[Column] = &[
    text("CLIENT", 0),
    text("BACKEND", 1),
    text("STATE", 2),
    number("IDLE s", 3),
    text("SERVICE", 4),
    text("PROTOCOL", 5),
];
const SHIELD: &[Column] = &[
    text("SHIELD", 0),
    load("DROPS/s", 1),
    number("IN/s", 2),
    number("NEW/s", 3),
    number("KNOWN/s", 4),
    text("DETAIL", 5),
];

/// The columns of a view.
pub fn columns(view: TopView) -> &'static [Column] {
    match view {
        TopView::Services => SERVICES,
        TopView::Backends => BACKENDS,
        TopView::Interfaces => INTERFACES,
        TopView::Reasons => REASONS,
        TopView::Flows => FLOWS,
        TopView::Shield => SHIELD,
    }
}

/// Sort key of rows: numbers the greatest first, text by the alphabet.
#[derive(Clone, Debug, PartialEq, PartialOrd)]
pub enum Rank {
    Text(String),
    /// A number; what is not known is less than any.
    Number(f64),
}

/// One field of a row.
#[derive(Clone, Debug)]
pub struct Field {
    pub text: String,
    pub tone: Tone,
    /// Its sort key.
    pub rank: Rank,
}

impl Field {
    fn new(text: impl Into<String>) -> Field {
        let text = text.into();
        Field { rank: Rank::Text(text.clone()), text, tone: Tone::Plain }
    }

    fn count(value: Option<u64>) -> Field {
        let rank = Rank::Number(value.map_or(-1.0, |value| value as f64));
        Field { text: units::count(value), tone: Tone::Plain, rank }
    }

    fn rate(value: Option<f64>) -> Field {
        let rank = Rank::Number(value.unwrap_or(-1.0));
        Field { text: units::rate(value), tone: Tone::Plain, rank }
    }

    fn tone(self, tone: Tone) -> Field {
        Field { tone, ..self }
    }
}

/// A row, a field for each column.
pub type Row = Vec<Field>;

/// The rows of a view, in no order.
pub fn rows(view: TopView, reading: &Reading) -> Vec<Row> {
    let Reading { status, flows, shield } = reading;
    match view {
        TopView::Services => status.services.iter().map(service).collect(),
        TopView::Backends => {
            let of = |service: &Service| -> Vec<Row> {
                service.backends.iter().map(|each| backend(service, each)).collect()
            };
            status.services.iter().flat_map(of).collect()
        }
        TopView::Interfaces => interfaces(status),
        TopView::Reasons => reasons(status),
        TopView::Flows => flows.iter().flat_map(|flows| &flows.rows).map(flow).collect(),
        TopView::Shield => {
            let rest = shield.iter().filter(|it| it.configured).map(|it| no_service(it, status));
            shield.iter().flat_map(shield_rows).chain(rest).collect()
        }
    }
}

/// Services with limits, lists, prefixes that were typed, rules, heavy sources.
fn shield_rows(shield: &ShieldStatus) -> Vec<Row> {
    let of_mode = |mode: ShieldMode, name: String, rates: [Option<f64>; 4], what: String| {
        let [drops, arrives, new, known] = rates;
        let tone = match mode {
            _ if drops <= Some(0.0) => Tone::Plain,
            ShieldMode::Enforce => Tone::Bad,
            _ => Tone::Warn,
        };
        vec![
            Field::new(name),
            Field::rate(drops).tone(tone),
            Field::rate(arrives),
            Field::rate(new),
            Field::rate(known),
            Field::new(what),
        ]
    };
    let row = |name, rates, what| of_mode(shield.mode, name, rates, what);
    let none = Some(0.0);
    let mut rows = Vec::new();
    for limits in &shield.limits {
        let known = [limits.established, limits.learnt].map(|it| it.packets_per_second);
        let rates = [
            limits.over_per_second(),
            limits.arrived_packets_per_second,
            limits.arrived_new_flows_per_second,
            known.into_iter().sum(),
        ];
        let name = format!("{} {}", limits.service, limits.protocol);
        let mode = shield.mode_of(&limits.service);
        rows.push(of_mode(mode, name, rates, service_detail(shield, limits)));
    }
    for list in &shield.lists {
        let (rate, action) = (list.packets_per_second, list.action);
        let drops = if action == ListAction::Block { rate } else { none };
        rows.push(row(
            format!("list {}", list.name),
            [drops, rate, None, None],
            action.name().into(),
        ));
    }
    for (action, typed) in
        [(ListAction::Block, shield.blocked), (ListAction::Allow, shield.allowed)]
    {
        if typed.prefixes > 0 {
            let rate = typed.packets_per_second;
            let drops = if action == ListAction::Block { rate } else { none };
            let what = format!("{} at run time", counted(typed.prefixes, "prefix"));
            rows.push(row(format!("ringway {}", action.name()), [drops, rate, None, None], what));
        }
    }
    for rule in &shield.rules {
        let rate = rule.packets_per_second;
        let drops = match rule.rate_pps {
            Some(_) => rule.over_limit_packets_per_second,
            None if rule.action == RuleAction::Drop.name() => rate,
            None => none,
        };
        let what = format!("{}: {}", rule_action(rule), rule.expression);
        rows.push(row(rule_name(&rule.name), [drops, rate, None, None], what));
    }
    for source in &shield.heavy_sources {
        let what =
            format!("to {} {}, last seen {}", source.service, source.protocol, source.last_seen);
        let drops = Some(source.over_limit_pps as f64);
        let (mode, name) = (shield.mode_of(&source.service), format!("source {}", source.prefix));
        rows.push(of_mode(mode, name, [drops, None, None, None], what));
    }
    rows
}

/// What is for no service goes to the kernel. Rows of lists and rules have what is dropped of it.
fn no_service(shield: &ShieldStatus, status: &Status) -> Row {
    let known = status.interfaces.iter().map(|interface| interface.rate_pps).sum::<Option<f64>>();
    let passed = status.counters.iter().filter(|it| it.reason == Reason::NoService);
    let passed = passed.fold(known.map(|_| 0.0), |sum, it| Some(sum? + it.rate_pps?));
    let what = match shield.protect {
        Protect::Services => "to the kernel; lists and rules see what is for a service's address",
        Protect::Host => "to the kernel; lists and rules see what is for this node",
    };
    vec![
        Field::new("no service"),
        Field::rate(None),
        Field::rate(passed),
        Field::rate(None),
        Field::rate(None),
        Field::new(what),
    ]
}

/// Its mode where that is not the node's, whether it is attacked, which limits drop, the most first,
/// and until when it is armed.
fn service_detail(shield: &ShieldStatus, limits: &LimitsStatus) -> String {
    let rate = |it: &LimitStatus| it.over.packets_per_second.unwrap_or(0.0);
    let mut over: Vec<&LimitStatus> = limits.by_limit.iter().filter(|it| rate(it) > 0.0).collect();
    over.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    let over = over.iter().map(|it| format!("{} {}", it.limit.name(), units::decimal(rate(it))));
    let own =
        |it: &&MitigationStatus| (&it.service, it.protocol) == (&limits.service, limits.protocol);
    let attack = shield.mitigation.iter().find(own).and_then(|it| it.attack.as_ref());
    let over = over.collect::<Vec<_>>().join(", ");
    let colon = if over.is_empty() { "" } else { ": " };
    let state = match attack {
        Some(attack) => {
            let was = if attack.ended.is_some() { "was attacked" } else { "attacked" };
            let answered = attack.answered();
            let answered = answered.map_or(String::new(), |answered| format!("; {answered}"));
            format!("{was}{colon}{over}{answered}; {} until {}", attack.armed(), attack.until)
        }
        None => over,
    };
    let own = Some(shield.mode_of(&limits.service)).filter(|mode| *mode != shield.mode);
    let mode = own.map(|mode| format!("mode {}", mode.name()));
    let parts: Vec<String> = mode.into_iter().chain([state]).filter(|it| !it.is_empty()).collect();
    parts.join("; ")
}

fn flow(flow: &super::feed::FlowRow) -> Row {
    vec![
        Field::new(&flow.client),
        Field::new(&flow.backend),
        Field::new(flow.state),
        Field::count(Some(flow.idle_s.into())),
        Field::new(&flow.service),
        Field::new(flow.protocol),
    ]
}

fn service(service: &Service) -> Row {
    let (up, all) = (service.serving(), service.backends.len());
    let tone = match up {
        0 => Tone::Bad,
        up if up < all => Tone::Warn,
        _ => Tone::Good,
    };
    let rates = service.rates.as_ref();
    let of = |of: fn(&Rates) -> f64| Field::rate(rates.map(of));
    vec![
        Field::new(&service.name),
        Field::new(format!("{} {}", service.key().endpoint(), service.protocol)),
        Field { rank: Rank::Number(up as f64), ..Field::new(format!("{up}/{all}")) }.tone(tone),
        Field::count(service.current_flows),
        of(|rates| rates.new_flows_per_s),
        of(|rates| rates.rate_pps),
        of(|rates| rates.rate_bps),
        of(|rates| rates.reply_rate_pps),
        of(|rates| rates.reply_rate_bps),
        Field::new(service.forward.name()),
    ]
}

fn backend(service: &Service, backend: &Backend) -> Row {
    let tone = if backend.serves() { Tone::Good } else { Tone::Bad };
    let health = if backend.drained { "drained".to_owned() } else { backend.health_text() };
    let rates = backend.rates.as_ref();
    let of = |of: fn(&Rates) -> f64| Field::rate(rates.map(of));
    vec![
        Field::new(backend.shown()),
        Field::new(format!("{} {}", service.name, service.protocol)),
        Field::new(health).tone(if backend.drained { Tone::Warn } else { tone }),
        Field::count(backend.weight.map(u64::from)),
        Field::count(backend.current_flows),
        of(|rates| rates.new_flows_per_s),
        of(|rates| rates.rate_pps),
        of(|rates| rates.rate_bps),
        of(|rates| rates.reply_rate_pps),
        Field::new(backend.since.map_or_else(|| "-".into(), |since| since.to_string())),
        Field::new(backend.reason.as_deref().unwrap_or("")).tone(Tone::Dim),
    ]
}

fn interfaces(status: &Status) -> Vec<Row> {
    let shown = status.interfaces.iter().map(|interface| {
        let own = |name: &str| name == interface.name;
        let drops = status.counters.iter().filter(|c| own(&c.interface) && is_drop(c.verdict));
        // No drop at all is known to be none where the interface is.
        let none = interface.rate_pps.map(|_| 0.0);
        let drops = drops.fold(none, |sum, c| sum.zip(c.rate_pps).map(|(a, b)| a + b));
        let lost = status.losses.iter().filter(|loss| own(&loss.interface));
        let lost: u64 = lost.map(|loss| loss.packets).sum();
        let (word, tone) = match interface.attached {
            true => ("yes", Tone::Good),
            false => ("no", Tone::Bad),
        };
        vec![
            Field::new(&interface.name),
            Field::rate(interface.rate_pps),
            Field::new(word).tone(tone),
            Field::rate(drops).tone(if drops > Some(0.0) { Tone::Warn } else { Tone::Plain }),
            Field::new(interface.mode.map_or("", XdpMode::name)),
            Field::count(Some(interface.ledger.seen_packets)),
            Field::count(Some(lost)).tone(if lost > 0 { Tone::Warn } else { Tone::Plain }),
        ]
    });
    shown.collect()
}

fn reasons(status: &Status) -> Vec<Row> {
    let counters = status.counters.iter().map(|c| {
        let about = (verdict_tone(c.verdict), c.reason.meaning());
        ((c.verdict.name(), c.reason.name()), about, c.packets, c.rate_pps)
    });
    let losses = status.losses.iter().map(|l| {
        (("lost", l.reason.name()), (Tone::Bad, l.reason.meaning()), l.packets, l.rate_pps)
    });
    let mut sums = BTreeMap::new();
    for (names, about, packets, rate) in counters.chain(losses) {
        let (_, sum, rates) = sums.entry(names).or_insert((about, 0, Some(0.0)));
        *sum += packets;
        *rates = rates.zip(rate).map(|(a, b)| a + b);
    }
    let shown = sums.into_iter().map(|((verdict, reason), ((tone, meaning), packets, rate))| {
        vec![
            Field::new(reason),
            Field::rate(rate),
            Field::new(verdict).tone(tone),
            Field::count(Some(packets)),
            Field::new(meaning).tone(Tone::Dim),
        ]
    });
    shown.collect()
}

/// How bad a verdict is.
pub fn verdict_tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Aborted => Tone::Bad,
        Verdict::Drop => Tone::Warn,
        Verdict::Pass | Verdict::Tx | Verdict::Redirect => Tone::Plain,
    }
}

/// Whether packets of this verdict come to nothing.
pub fn is_drop(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Drop | Verdict::Aborted)
}
