//! `[shield.mitigation]`: what is an attack, and what becomes of a service meanwhile.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::model::{AboveBaseline, Limits, Mitigation, RateLimit};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{command, duration, integer};

use super::rates::{MAX_RATE, rate, shared_limits};

const FACTOR: RangeInclusive<u32> = 2..=1000;
/// Of thresholds that are learnt, where nothing else is said.
const MINIMUM: u32 = 5000;
const LASTING: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);
const USUALLY: Duration = Duration::from_secs(600);
const RUN_AFTER: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(600);
const FLOOD: Duration = Duration::from_secs(10);
const THRESHOLD: &str = "packets = \"300kpps\", new_flows = \"20kpps\" or above_baseline = 8";
const RUN: &str = "run = [\"/usr/local/lib/announce\", \"argument\"]";

/// None where there is no `[shield.mitigation]`.
pub(super) fn read(shield: &mut Section) -> Option<Mitigation> {
    let mut section = shield.table("mitigation", "[shield.mitigation]".into())?;
    let mut threshold = |key| section.optional(key, |v| rate(v, MAX_RATE));
    let (packets, new_flows) = (threshold("packets"), threshold("new_flows"));
    let minimum = threshold("minimum");
    let factor = section.optional("above_baseline", |v| integer(v, FACTOR));
    if !["packets", "new_flows", "above_baseline"].iter().any(|key| section.has(key)) {
        let message = format!("{} has no threshold: add {THRESHOLD}", section.place);
        section.report.error(section.span.clone(), message);
    }
    if let (Some(minimum), false) = (&minimum, section.has("above_baseline")) {
        let message = format!(
            "minimum of {} has no effect without above_baseline: remove it, or write above_baseline = 8",
            section.place
        );
        section.report.error(minimum.span(), message);
    }
    let value = |rate: Located<RateLimit>| rate.packets_per_second;
    let minimum = minimum.map_or(MINIMUM, value);
    let lasting = *section.or("for", USUALLY, |v| duration(v, LASTING));
    let limits = section.table("limits", "limits of [shield.mitigation]".into());
    let limits = limits.map_or_else(Limits::default, |mut table| {
        let limits = shared_limits(&mut table);
        table.finish();
        limits
    });
    let run = section.optional("run", |v| command(v, RUN)).map(Located::into_inner);
    let run_after = section.optional("run_after", |v| duration(v, RUN_AFTER));
    if let (Some(run_after), false) = (&run_after, section.has("run")) {
        let message = format!(
            "run_after of {} has no effect without run: remove it, or write {RUN}",
            section.place
        );
        section.report.error(run_after.span(), message);
    }
    section.finish();
    Some(Mitigation {
        packets: packets.map(value),
        new_flows: new_flows.map(value),
        above_baseline: factor.map(|factor| AboveBaseline { factor: *factor, minimum }),
        lasting,
        limits,
        run: run.unwrap_or_default(),
        run_after: run_after.map_or(FLOOD, Located::into_inner),
    })
}
