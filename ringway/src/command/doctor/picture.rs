//! The path picture for people.

use std::fmt::Write as _;

use ringway_doctor::path::{Loss, Path, Processor, Scope, Step};

use crate::table::{Cell, Table, Tone, paint};
use crate::units;

/// Queues, processors, steps, sums, the way out, and what to mind.
pub fn draw(path: &Path, colour: bool) -> String {
    let mut text = String::new();
    if let Some(below) = &path.below {
        text += &draw(below, colour);
        let _ = writeln!(text, "\n{} lies upon {}:\n", path.interface, below.interface);
    }
    text += &format!(
        "{}, received in {:.1} s{}\n\n",
        path.interface,
        path.interval_seconds,
        if path.traced { "; losses by the kernel's reasons" } else { "" },
    );
    let tables =
        [queues(path), processors(path), steps(path), uppers(path), balance(path), sent(path)];
    // The processors of what lies upon another device are those of that.
    let skipped = if path.below.is_some() { 2 } else { 0 };
    for table in tables.iter().skip(skipped).filter(|table| !table.is_empty()) {
        text += &table.render(colour);
        text += "\n";
    }
    text += "*: of all interfaces of this network namespace; **: of the whole machine\n";
    for note in &path.notes {
        let _ = writeln!(text, "{}: {note}", paint("note", Tone::Dim, colour));
    }
    text
}

fn rate(path: &Path, packets: u64) -> Cell {
    Cell::number(units::decimal(packets as f64 / path.interval_seconds.max(1e-9)))
}

fn maybe(path: &Path, packets: Option<u64>) -> Cell {
    packets.map_or_else(|| Cell::number("-"), |packets| rate(path, packets))
}

fn queues(path: &Path) -> Table {
    let mut table =
        Table::new(&["queue", "packets/s", "dropped", "NAPI", "IRQ", "interrupts/s by CPU", "RPS"]);
    for queue in &path.queues {
        let by_cpu = |(cpu, n): (&u32, &u64)| {
            format!("{cpu}: {}", units::decimal(*n as f64 / path.interval_seconds.max(1e-9)))
        };
        let by_cpu: Vec<String> = queue.interrupts.iter().map(by_cpu).collect();
        let none = || "-".to_owned();
        table.row(vec![
            Cell::new(format!("rx-{}", queue.queue)),
            maybe(path, queue.packets),
            Cell::number(units::count(queue.dropped)),
            Cell::number(queue.napi.map_or_else(none, |napi| napi.to_string())),
            Cell::number(queue.irq.map_or_else(none, |irq| irq.to_string())),
            Cell::new(if by_cpu.is_empty() { none() } else { by_cpu.join(", ") }),
            Cell::new(queue.rps_cpus.clone().unwrap_or_else(none)),
        ]);
    }
    table
}

fn processors(path: &Path) -> Table {
    let heading = [
        "CPU",
        "from it/s",
        "NET_RX/s **",
        "polled/s **",
        "by RPS/s **",
        "backlog full **",
        "squeezed **",
        "softirq",
    ];
    let mut table = Table::new(&heading);
    let at_work = |one: &&Processor| one.net_rx + one.interrupts + one.polled > 0;
    for one in path.processors.iter().filter(at_work) {
        let bad = |n: u64| Cell::number(n).tone(if n > 0 { Tone::Bad } else { Tone::Plain });
        table.row(vec![
            Cell::number(one.cpu),
            maybe(path, one.received),
            rate(path, one.net_rx),
            rate(path, one.polled),
            rate(path, one.asked_by_rps),
            bad(one.backlog_dropped),
            Cell::number(one.squeezed),
            Cell::number(
                one.softirq_percent.map_or("-".into(), |percent| format!("{percent:.0} %")),
            ),
        ]);
    }
    table
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Ring => "1 ring",
        Step::Xdp => "3 softirq, XDP",
        Step::Upon => "5 from below",
        Step::Stack => "5 stack",
        Step::Ip => "6 IP",
        Step::Protocol => "7 protocol",
        Step::Socket => "8 socket's queue",
        Step::Copy => "copies for taps",
        Step::Out => "out",
    }
}

fn star(scope: Scope) -> &'static str {
    match scope {
        Scope::Interface => "",
        Scope::Namespace => " *",
        Scope::Machine => " **",
    }
}

fn why(loss: &Loss) -> String {
    let of = if loss.counted { "" } else { "of these: " };
    match &loss.function {
        Some(function) => format!("{of}{}{} in {function}", loss.what, star(loss.scope)),
        None => format!("{of}{}{}", loss.what, star(loss.scope)),
    }
}

fn steps(path: &Path) -> Table {
    let mut table = Table::new(&["step", "packets/s", "lost", "why"]);
    for one in &path.steps {
        let packets = one.packets.map_or_else(
            || Cell::number("-"),
            |n| {
                let rate = units::decimal(n as f64 / path.interval_seconds.max(1e-9));
                Cell::number(format!("{rate}{}", star(one.scope)))
            },
        );
        let none = Cell::number(0).tone(Tone::Dim);
        let first = one.losses.is_empty().then(|| vec![none, Cell::new("")]);
        let losses = one.losses.iter().map(|loss| {
            let tone = if loss.counted && one.step != Step::Xdp { Tone::Bad } else { Tone::Dim };
            vec![Cell::number(loss.packets).tone(tone), Cell::new(why(loss))]
        });
        for (at, cells) in first.into_iter().chain(losses).enumerate() {
            let head = if at == 0 {
                vec![Cell::new(name(one.step)), packets.clone()]
            } else {
                vec![Cell::new(""), Cell::number("")]
            };
            table.row([head, cells].concat());
        }
    }
    table
}

/// Where packets go on to.
fn uppers(path: &Path) -> Table {
    let mut table = Table::new(&["goes on to", "kind", "packets/s", "its path"]);
    for upper in &path.uppers {
        let kind = match upper.vlan {
            Some(id) => format!("{} {id}", upper.kind),
            None => upper.kind.clone(),
        };
        let command = format!("ringway doctor --path {}", upper.interface);
        let rate = rate(path, upper.packets);
        table.row(vec![Cell::new(&upper.interface), Cell::new(kind), rate, Cell::new(command)]);
    }
    table
}

fn balance(path: &Path) -> Table {
    let balance = &path.balance;
    let mut table = Table::new(&["the sum", "packets", ""]);
    let came = (balance.received + balance.others.unwrap_or(0)).max(1);
    let mut row = |what: &str, n: Option<i64>, tone: Tone| {
        let part = n.map(|n| format!("{:.1} %", n as f64 * 100.0 / came as f64));
        let number = n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let part = Cell::number(part.unwrap_or_default());
        table.row(vec![Cell::new(what), Cell::number(number).tone(tone), part]);
    };
    let some = |n: u64| Some(n as i64);
    let all = |n: Option<u64>| n.map(|n| n as i64);
    row("received", some(balance.received), Tone::Plain);
    if balance.others.is_some() {
        row("and by other interfaces *", all(balance.others), Tone::Plain);
    }
    row("- lost", some(balance.lost), if balance.lost > 0 { Tone::Bad } else { Tone::Plain });
    row("- taken by XDP", some(balance.taken_by_xdp), Tone::Plain);
    row("- joined by GRO", some(balance.joined), Tone::Plain);
    row("- passed on", all(balance.passed_on), Tone::Plain);
    if balance.handed_up.is_some() {
        row("- handed up", all(balance.handed_up), Tone::Plain);
    }
    // A port hands everything up.
    if balance.handed_up.is_none() || balance.delivered.is_some() {
        row("- delivered", all(balance.delivered), Tone::Good);
    }
    row("= not accounted for", balance.rest, Tone::Plain);
    table
}

fn sent(path: &Path) -> Table {
    let sent = &path.sent;
    let mut table = Table::new(&["sending", "packets/s", "lost", "why"]);
    let losses: Vec<&Loss> = sent.losses.iter().collect();
    let qdisc = sent.qdisc.as_deref().unwrap_or("none");
    let queue = format!("6 qdisc {qdisc}, {} waiting", sent.waiting);
    table.row(vec![Cell::new(queue), maybe(path, sent.queued), Cell::number(""), Cell::new("")]);
    let lost = Cell::number(losses.iter().map(|loss| loss.packets).sum::<u64>());
    table.row(vec![Cell::new("8 sent"), rate(path, sent.packets), lost, Cell::new("")]);
    for loss in losses {
        let number = Cell::number(loss.packets).tone(Tone::Bad);
        table.row(vec![Cell::new(""), Cell::number(""), number, Cell::new(why(loss))]);
    }
    table
}
