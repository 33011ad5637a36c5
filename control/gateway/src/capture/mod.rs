//! `ringway capture`: packets as they come and leave, with what was decided about them.

mod lines;
mod names;
mod outlet;
mod packet;
mod pcapng;
mod run;
mod signals;
mod sink;
mod wanted;

pub use lines::Form;
pub use run::{Ended, Limits, Options, Outcome, SCHEMA, Summary, Target, run};
pub use wanted::Selection;
