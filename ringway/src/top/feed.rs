//! Readings for `ringway top`, asked of the node again and again.

use std::time::Instant;

use ringway_api::client::node_selector::{self, NodeSelector};
use ringway_api::client::{shield, status_query};
use ringway_api::documents::shield::ShieldStatus;
use ringway_api::documents::status::Status;
use ringway_api::error::Error;
use ringway_daemon::monitor::rates::{Meter, Sample};
use ringway_inspect::flows::filter::Filter;
use ringway_inspect::flows::{self, FlowNames};
use serde::Serialize;

use crate::cli::NodeArgs;

/// Flows that are shown at most.
const FLOWS: usize = 500;

/// One look at a node.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The node, with rates since the look before.
    pub status: Status,
    /// Flows, where they were asked for.
    pub flows: Option<Flows>,
    /// The shield, where it was asked for.
    pub shield: Option<ShieldStatus>,
}

/// What a view needs beside the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum More {
    #[default]
    Nothing,
    /// Flows that this filter lets through.
    Flows(String),
    Shield,
}

/// The first flows that a filter lets through.
#[derive(Clone, Debug, Default)]
pub struct Flows {
    pub rows: Vec<FlowRow>,
    /// Those that the filter lets through.
    pub matched: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct FlowRow {
    pub service: String,
    pub protocol: &'static str,
    pub client: String,
    pub backend: String,
    pub state: &'static str,
    pub idle_s: u32,
}

pub struct Feed {
    node: NodeArgs,
    meter: Meter,
}

impl Feed {
    pub fn new(node: &NodeArgs) -> Feed {
        Feed { node: node.clone(), meter: Meter::default() }
    }

    /// The node as it is now, and more where that is asked for.
    ///
    /// # Errors
    /// The node cannot be asked, or the filter makes no sense.
    pub fn sample(&mut self, more: &More) -> Result<Reading, Error> {
        let mut status = status_query::status(&self.selector())?;
        let mut shield = match more {
            More::Shield => Some(shield::status(&self.selector())?),
            _ => None,
        };
        let now = Instant::now();
        let sample = Sample::of_status(now, &status);
        self.meter.note(match &mut shield {
            Some(shield) => sample.with_shield(shield),
            None => sample,
        });
        self.meter.fill(&mut status, now);
        if let Some(shield) = &mut shield {
            self.meter.fill_shield(shield, now);
        }
        let flows = match more {
            More::Flows(filter) => Some(read_flows(&status.node, filter)?),
            _ => None,
        };
        Ok(Reading { status, flows, shield })
    }

    fn selector(&self) -> NodeSelector<'_> {
        self.node.selector()
    }
}

fn read_flows(node: &str, filter: &str) -> Result<Flows, Error> {
    let view = node_selector::view(node)?;
    let names = FlowNames::read(&view)?;
    let filter = Filter::parse(filter, &names)?;
    let mut rows = Vec::new();
    let totals = flows::list::<Error>(
        &view,
        &filter,
        &names,
        |_| (),
        |flow| {
            if rows.len() < FLOWS {
                let row = names.row(flow);
                let text = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
                rows.push(FlowRow {
                    service: text(row.service.map(str::to_owned)),
                    protocol: row.protocol,
                    client: text(row.client),
                    backend: text(row.backend),
                    state: row.state,
                    idle_s: row.idle_s,
                });
            }
            Ok(())
        },
    )?;
    Ok(Flows { rows, matched: totals.matched_flows })
}
