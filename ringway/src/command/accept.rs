//! `ringway accept`: open connections at this backend whose SYNs the gateway has answered.

use ringway_inspect::accept::{self, AcceptOptions, AcceptStatus};

use crate::cli::{AcceptArgs, Output};
use crate::exit::{self, Exit};
use crate::table::{self, Cell, Table, Tone};

/// Runs until told to stop, or shows what runs.
pub fn main(args: &AcceptArgs) -> anyhow::Result<Exit> {
    let status = match &args.secret {
        None => accept::status(&args.interface)?,
        Some(secret) => {
            let options = AcceptOptions {
                interface: args.interface.clone(),
                secret: secret.clone(),
                listeners: args.listen.clone(),
            };
            accept::run(&options, |line| exit::say(format_args!("ringway: {line}")))?
        }
    };
    match args.output.output {
        Output::Json => table::json(&status)?,
        Output::Table => table::print(&render(&status, table::colour()))?,
    }
    Ok(Exit::Done)
}

fn render(status: &AcceptStatus, colour: bool) -> String {
    let accepts = &status.accepts;
    let switch = |on: bool| if on { "on" } else { "off" };
    let former = status.former_fingerprint.as_ref();
    let former = former.map_or(String::new(), |former| format!(", and the one before: {former}"));
    let mut text = format!(
        "{}: cookies of the secret with fingerprint {}{former}; clients with segments of {} bytes or more (IPv6: {}); window scaling {}, selective acknowledgements {}, timestamps {}\n\n",
        status.interface,
        status.fingerprint,
        accepts.min_mss_ipv4,
        accepts.min_mss_ipv6,
        switch(accepts.window_scaling),
        switch(accepts.selective_ack),
        switch(accepts.timestamps),
    );
    let mut table = Table::new(&["listener", "segments", "packets", "meaning"]);
    for listener in &status.listeners {
        for counter in &listener.counters {
            let tone = if counter.dropped { Tone::Warn } else { Tone::Plain };
            table.row(vec![
                Cell::new(listener.address.to_string()),
                Cell::new(counter.end.name()).tone(tone),
                Cell::number(counter.packets),
                Cell::new(counter.end.meaning()),
            ]);
        }
    }
    text += &table.render(colour);
    for listener in &status.listeners {
        if let Some(problem) = &listener.problem {
            text += &format!("\n{}: {problem}\n", listener.address);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use ringway_abi::Accept;
    use ringway_inspect::accept::{Accepts, EndCounter, ListenerStatus};

    use super::*;

    #[test]
    fn what_was_dropped_and_what_is_wrong_is_shown() {
        let counter = |end: Accept, packets| EndCounter { end, dropped: end.is_dropped(), packets };
        let accepts = Accepts {
            min_mss_ipv4: 536,
            min_mss_ipv6: 1220,
            window_scaling: true,
            selective_ack: true,
            timestamps: false,
        };
        let status = AcceptStatus {
            schema: "ringway.accept/1",
            interface: "eth0".into(),
            fingerprint: "0123abcd".into(),
            former_fingerprint: None,
            accepts,
            listeners: vec![ListenerStatus {
                address: "203.0.113.9:80".parse().expect("an address"),
                problem: Some("nobody listens".into()),
                counters: vec![counter(Accept::Opened, 5), counter(Accept::NoCookie, 7)],
            }],
        };
        let text = render(&status, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("eth0: cookies of the secret with fingerprint 0123abcd; ")
                && lines[0].ends_with("timestamps off"),
            "{text}"
        );
        assert!(lines[3].contains("opened") && lines[4].contains("no-cookie"), "{text}");
        assert_eq!(lines.last(), Some(&"203.0.113.9:80: nobody listens"));
    }
}
