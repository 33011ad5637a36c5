//! `ringway decap`: open the tunnels that end at this backend.

use ringway_abi::Verdict;
use ringway_inspect::decap::{self, DecapOptions, DecapStatus};

use crate::cli::{DecapArgs, Output};
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone};

/// Runs until told to stop, or shows or ends what runs.
pub fn main(args: &DecapArgs) -> anyhow::Result<Exit> {
    if args.detach {
        let found = decap::detach(&args.interface)?;
        let what = if found { "removed program on" } else { "nothing to remove on" };
        table::print(&format!("{what} {}\n", args.interface))?;
        return Ok(Exit::Done);
    }
    let status = match args.status {
        true => decap::status(&args.interface)?,
        false => decap::run(&options(args), |line| exit::say(line))?,
    };
    match args.output.output {
        Output::Json => table::json(&status)?,
        Output::Table => table::print(&render(&status, table::colour()))?,
    }
    Ok(Exit::Done)
}

fn options(args: &DecapArgs) -> DecapOptions {
    DecapOptions {
        interface: args.interface.clone(),
        addresses: args.address.clone(),
        gue_port: args.gue_port,
        mode: args.mode,
        pin: args.pin,
        allow_default_route: args.allow_default_route,
    }
}

fn render(status: &DecapStatus, colour: bool) -> String {
    let outer: Vec<String> = status.outer_addresses.iter().map(ToString::to_string).collect();
    let mut text = format!(
        "{} ({}{}): IP in IP, and GUE on UDP port {}, sent to {}\n\n",
        status.interface,
        status.mode,
        if status.pinned { ", stays" } else { "" },
        status.gue_port,
        outer.join(", ")
    );
    let mut counters: Vec<_> = status.counters.iter().collect();
    counters.sort_by_key(|counter| std::cmp::Reverse(counter.packets));
    let mut table = Table::new(&["verdict", "reason", "packets"]);
    for counter in counters {
        let tone = if counter.verdict == Verdict::Drop { Tone::Warn } else { Tone::Plain };
        table.row(vec![
            Cell::new(counter.verdict.name()).tone(tone),
            Cell::new(counter.reason.name()),
            Cell::number(counter.packets),
        ]);
    }
    text += &table.render(colour);
    let ledger = status.ledger;
    text += &format!(
        "\nseen {}, sum of verdicts {}, difference {}\n",
        ledger.seen_packets, ledger.sum_packets, ledger.difference_packets
    );
    text
}

#[cfg(test)]
mod tests {
    use ringway_abi::Reason;

    use super::*;
    use ringway_api::documents::status::Ledger;
    use ringway_inspect::decap::Counter;

    #[test]
    fn the_most_frequent_first() {
        let counter = |reason, packets| Counter { verdict: Verdict::Pass, reason, packets };
        let status = DecapStatus {
            schema: "ringway.decap/1",
            interface: "eth0".into(),
            mode: "native".into(),
            pinned: false,
            gue_port: 6080,
            outer_addresses: vec!["10.0.0.2".parse().expect("an address")],
            inner_addresses: Vec::new(),
            counters: vec![counter(Reason::NoTunnel, 2), counter(Reason::DecapGue, 5)],
            ledger: Ledger::new(7, 7),
        };
        let text = render(&status, false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "eth0 (native): IP in IP, and GUE on UDP port 6080, sent to 10.0.0.2");
        assert!(lines[3].contains("decap-gue") && lines[4].contains("no-tunnel"), "{text}");
        assert_eq!(lines[6], "seen 7, sum of verdicts 7, difference 0");
    }
}
