//! `ringway flows`: the flows of a node, by the thousand or by the million.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::time::Duration;

use ringway_api::client::node_selector;
use ringway_api::error::Error;
use ringway_api::text::counted;
use ringway_inspect::flows::filter::Filter;
use ringway_inspect::flows::order::{First, Key, MOST};
use ringway_inspect::flows::{self, Flow, FlowNames, Progress, Row, SCHEMA, Totals};
use serde::Serialize;

use crate::cli::{FlowsArgs, Output, SortKey};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};

/// A look that takes longer says how far it is.
const QUIET: Duration = Duration::from_secs(2);
/// Rows that are aligned with each other.
const BLOCK: usize = 1000;

/// Reads the tables, and prints what the filter lets through.
pub fn main(args: &FlowsArgs) -> anyhow::Result<Exit> {
    let limit = limit(args)?;
    let node = args.node.selector().find()?.node;
    let view = node_selector::view(&node)?;
    let names = FlowNames::read(&view)?;
    let filter = Filter::parse(&args.filter.join(" "), &names)?;
    let mut sheet = sheet(args, &node)?;
    let mut shown = 0;
    let mut progress = Reporter::default();
    let mut show = |sheet: &mut dyn Sheet, flow: &Flow| {
        shown += 1;
        sheet.row(&names.row(flow))
    };
    let totals = match args.sort {
        Some(key) => {
            let mut first = First::new(key.into(), args.reverse, limit);
            let totals = flows::list::<anyhow::Error>(
                &view,
                &filter,
                &names,
                |at| progress.tell(at),
                |flow| {
                    first.take(flow, &names);
                    Ok(())
                },
            )?;
            for flow in first.flows() {
                show(&mut *sheet, &flow)?;
            }
            totals
        }
        None => {
            let mut left = limit;
            flows::list::<anyhow::Error>(
                &view,
                &filter,
                &names,
                |at| progress.tell(at),
                |flow| {
                    if left > 0 {
                        left -= 1;
                        show(&mut *sheet, flow)?;
                    }
                    Ok(())
                },
            )?
        }
    };
    progress.end();
    sheet.end(&End { shown_flows: shown, totals }, &filter)?;
    Ok(Exit::Done)
}

fn limit(args: &FlowsArgs) -> Result<usize, Error> {
    match (args.limit, args.sort) {
        (0, None) => Ok(usize::MAX),
        (limit, Some(_)) if limit == 0 || limit > MOST => Err(Error::configuration(
            format!("-n {limit} with --sort would hold too many flows in memory"),
            format!("write -n {MOST} or less; or leave --sort out and pipe them into sort(1)"),
        )),
        (limit, _) => Ok(limit),
    }
}

impl From<SortKey> for Key {
    fn from(key: SortKey) -> Key {
        match key {
            SortKey::Client => Key::Client,
            SortKey::Service => Key::Service,
            SortKey::Backend => Key::Backend,
            SortKey::State => Key::State,
            SortKey::Idle => Key::Idle,
        }
    }
}

#[derive(Serialize)]
struct End {
    shown_flows: u64,
    #[serde(flatten)]
    totals: Totals,
}

/// Where flows are written, one at a time.
trait Sheet {
    fn row(&mut self, row: &Row<'_>) -> anyhow::Result<()>;
    fn end(&mut self, end: &End, filter: &Filter) -> anyhow::Result<()>;
}

fn sheet(args: &FlowsArgs, node: &str) -> anyhow::Result<Box<dyn Sheet>> {
    let out = BufWriter::with_capacity(1 << 16, io::stdout());
    Ok(match args.output.output {
        Output::Json => Box::new(Json::begin(out, node, &args.filter.join(" "))?),
        Output::Table => {
            Box::new(Text { out, table: Table::new(&HEADING), colour: table::colour() })
        }
    })
}

/// One document, a flow to a line, so that it need not be held in memory by anybody.
struct Json<W: Write> {
    out: W,
    rows: u64,
}

impl<W: Write> Json<W> {
    fn begin(mut out: W, node: &str, filter: &str) -> anyhow::Result<Json<W>> {
        #[derive(Serialize)]
        struct Head<'a> {
            schema: &'a str,
            node: &'a str,
            filter: &'a str,
        }
        let head = serde_json::to_string(&Head { schema: SCHEMA, node, filter })?;
        write!(out, "{},\"flows\":[", head.trim_end_matches('}'))?;
        Ok(Json { out, rows: 0 })
    }
}

impl<W: Write> Sheet for Json<W> {
    fn row(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        self.out.write_all(if self.rows == 0 { b"\n" } else { b",\n" })?;
        self.rows += 1;
        serde_json::to_writer(&mut self.out, row).map_err(io::Error::from)?;
        Ok(())
    }

    fn end(&mut self, end: &End, _: &Filter) -> anyhow::Result<()> {
        let end = serde_json::to_string(end)?;
        writeln!(self.out, "],\n{}", end.trim_start_matches('{'))?;
        Ok(self.out.flush()?)
    }
}

const HEADING: [&str; 8] =
    ["service", "protocol", "client", "to", "backend", "backend sees", "state", "idle"];

/// Aligned rows; a block of them at a time, so that their number does not matter.
struct Text<W: Write> {
    out: W,
    table: Table,
    colour: bool,
}

impl<W: Write> Sheet for Text<W> {
    fn row(&mut self, row: &Row<'_>) -> anyhow::Result<()> {
        let text = |text: Option<&str>| Cell::new(text.unwrap_or("-"));
        let backend = text(row.backend.as_deref());
        self.table.row(vec![
            text(row.service),
            Cell::new(row.protocol),
            text(row.client.as_deref()),
            text(row.destination.as_deref()),
            if row.backend.is_none() { backend.tone(Tone::Bad) } else { backend },
            text(row.source.as_deref()),
            Cell::new(row.state).tone(if row.on_probation { Tone::Dim } else { Tone::Plain }),
            Cell::number(format!("{} s", row.idle_s)),
        ]);
        if self.table.len() == BLOCK {
            self.out.write_all(self.table.take(self.colour).as_bytes())?;
        }
        Ok(())
    }

    fn end(&mut self, end: &End, filter: &Filter) -> anyhow::Result<()> {
        if !self.table.is_empty() {
            self.out.write_all(self.table.take(self.colour).as_bytes())?;
        }
        writeln!(self.out, "{}", summary(end, filter))?;
        Ok(self.out.flush()?)
    }
}

fn summary(end: &End, filter: &Filter) -> String {
    let Totals { total_flows, dsr_flows, matched_flows, changing_flows, elapsed_ms } = end.totals;
    let mut text = format!(
        "{}, {matched_flows} of them match, {} shown; read in {}.{:03} s",
        counted(total_flows, "flow"),
        end.shown_flows,
        elapsed_ms / 1000,
        elapsed_ms % 1000
    );
    if changing_flows > 0 {
        text += &format!("; {changing_flows} left out: they changed while they were read");
    }
    if end.shown_flows < matched_flows {
        text += "\n-n LIMIT shows more, -n 0 all";
    }
    if dsr_flows > 0 {
        text += &format!(
            "\n{dsr_flows} are of dsr services, which have records only where a ring has changed \
             lately, and only of who the backend is"
        );
        if filter.asks_for_clients() {
            text += ": this filter lets none of them through";
        }
    }
    text
}

/// Tells on stderr how far a long look is.
#[derive(Default)]
struct Reporter {
    told: Option<Duration>,
}

impl Reporter {
    fn tell(&mut self, at: Progress) {
        let due = self.told.map_or(QUIET, |told| told + Duration::from_secs(1));
        if at.elapsed < due {
            return;
        }
        self.told = Some(at.elapsed);
        let (begin, end) = if io::stderr().is_terminal() { ("\r", "") } else { ("", "\n") };
        let Progress { percent, flows, .. } = at;
        // If stderr is closed, the flows are written all the same.
        let line = format!("{begin}read {percent} % of the flow table, {flows} flows so far{end}");
        let _ = io::stderr().write_all(line.as_bytes());
    }

    fn end(&self) {
        if self.told.is_some() && io::stderr().is_terminal() {
            let _ = io::stderr().write_all(b"\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row<'static> {
        Row {
            service: Some("web"),
            forward: Some("nat"),
            protocol: "tcp",
            client: Some("192.0.2.7:4711".into()),
            destination: Some("203.0.113.10:80".into()),
            source: None,
            backend: None,
            state: "syn",
            idle_s: 3,
            on_probation: true,
            interface: None,
        }
    }

    fn end(totals: Totals) -> End {
        End { shown_flows: 1, totals }
    }

    #[test]
    fn json_is_one_document_however_many_rows() -> anyhow::Result<()> {
        for rows in 0..3 {
            let mut json = Json::begin(Vec::new(), "gw1", "state \"x\"}")?;
            for _ in 0..rows {
                json.row(&row())?;
            }
            json.end(&end(Totals::default()), &Filter::default())?;
            let said: serde_json::Value = serde_json::from_slice(&json.out)?;
            assert_eq!(said["flows"].as_array().map(Vec::len), Some(rows));
            assert_eq!(said["filter"], "state \"x\"}");
            assert_eq!((&said["schema"], &said["shown_flows"]), (&SCHEMA.into(), &1.into()));
        }
        Ok(())
    }

    #[test]
    fn text_says_what_is_not_shown() -> anyhow::Result<()> {
        let mut text = Text { out: Vec::new(), table: Table::new(&HEADING), colour: false };
        (0..=BLOCK).try_for_each(|_| text.row(&row()))?;
        let totals = Totals {
            total_flows: 5000,
            dsr_flows: 2,
            matched_flows: 1001,
            changing_flows: 1,
            elapsed_ms: 1042,
        };
        text.end(&end(totals), &Filter::default())?;
        let said = String::from_utf8(text.out)?;
        assert_eq!(said.matches("backend sees").count(), 1, "one heading");
        assert_eq!(said.matches("192.0.2.7:4711").count(), BLOCK + 1);
        for words in [
            "5000 flows, 1001 of them match, 1 shown; read in 1.042 s",
            "-n 0 all",
            "1 left out",
            "2 are of dsr services",
        ] {
            assert!(said.contains(words), "no {words:?} in {said}");
        }
        Ok(())
    }
}
