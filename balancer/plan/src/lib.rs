//! The tables of the packet path: a pure function of configuration, health and the kernel's
//! routes. [`Planner::plan`] gives [`tables::Tables`]; `ringway-kernel` writes them.
//!
//! What must not change from one plan to the next lives in [`Ids`]: flows in the kernel hold
//! the numbers of services, backends and nat addresses.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod fast_map;
pub mod forward;
mod history;
mod ids;
pub mod maglev;
mod observed;
mod plan;
pub mod prefix_list;
mod rings;
mod slots;
mod sources;
pub mod tables;

pub use fast_map::FastMap;
pub use history::Written;
pub use ids::{BackendKey, Ids};
pub use observed::{Health, Observed, Records};
pub use plan::{PlanError, Planner};
pub use rings::RecordWalk;
