//! The records of tracked flows, read where they lie.

use std::collections::HashMap;

use libbpf_rs::MapCore;
use ringway_abi::raw::{FlowState, rw_settings, rw_track, rw_tracking};
use ringway_abi::{TrackedFlow, track_capacity};
use ringway_plan::{Planner, Records};

use crate::maps::Maps;
use crate::maps::table_view::TableView;
use crate::{Result, View};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackedCounts {
    /// Flows there is room for.
    pub capacity: u64,
    /// Live records of flows that no new flow can evict.
    pub promoted: u64,
    /// Live records of flows on probation.
    pub on_probation: u64,
}

impl View {
    /// Seconds since boot by the packet path's clock, as records have them.
    pub fn now_seconds(&self) -> u32 {
        self.maps().sources.clock.now_seconds()
    }

    pub fn tracked(&self, mut visit: impl FnMut(&TrackedFlow)) -> Result<()> {
        let (settings, now) = (self.settings()?, self.now_seconds());
        let table = Table::of(self.maps())?;
        for track in table.tracks() {
            let Some(flow) = TrackedFlow::unpack(&track) else { continue };
            if flow.age(now) <= timeout(&settings, &flow).cast_signed() {
                visit(&flow);
            }
        }
        Ok(())
    }

    pub fn tracked_counts(&self) -> Result<TrackedCounts> {
        let capacity = track_capacity(self.maps().tracked.max_entries());
        let mut counts = TrackedCounts { capacity, ..Default::default() };
        self.tracked(|flow| match flow.promoted {
            true => counts.promoted += 1,
            false => counts.on_probation += 1,
        })?;
        Ok(counts)
    }

    /// The fate of tracked flows, all CPUs added up.
    pub fn tracking(&self) -> Result<rw_tracking> {
        self.maps().tracking.sum(&0, rw_tracking::add)
    }

    /// Looks through the records for a planner. `None`: it need not know.
    pub fn read_records(&self, planner: &Planner) -> Result<Option<Records>> {
        let mut failed = HashMap::new();
        self.maps().untracked.for_each(|service, second| {
            if second != 0 {
                failed.insert(service as u16, second);
            }
        })?;
        let mut read_records = planner.observe(self.now_seconds(), failed);
        if read_records.is_needed() {
            self.tracked(|flow| read_records.record(flow.slot, flow.backend))?;
        }
        Ok(planner.is_changing().then(|| read_records.end()))
    }
}

/// The state whose timeout a tracked flow has, as track.bpf.h has it.
pub fn tracked_state(flow: &TrackedFlow) -> FlowState {
    match flow {
        TrackedFlow { udp: true, .. } => FlowState::Udp,
        TrackedFlow { closing: true, .. } => FlowState::FinClient,
        TrackedFlow { syn: true, .. } => FlowState::Syn,
        _ => FlowState::Established,
    }
}

fn timeout(settings: &rw_settings, flow: &TrackedFlow) -> u32 {
    settings.timeout[tracked_state(flow) as usize]
}

/// The table in this process's memory.
struct Table(TableView);

impl Table {
    fn of(maps: &Maps) -> Result<Self> {
        TableView::of(&maps.tracked, "map tracked flows").map(Table)
    }

    /// Every record as it is at some moment; the packet path writes them meanwhile. One that
    /// changes faster than it can be read is left out.
    fn tracks(&self) -> impl Iterator<Item = rw_track> {
        const WORDS: usize = size_of::<rw_track>() / size_of::<u64>();
        let read =
            |at: usize| self.0.consistent(at, |who| rw_track { who, what: self.0.word(at + 1) });
        (0..self.0.words() / WORDS).filter_map(move |number| read(WORDS * number))
    }
}
