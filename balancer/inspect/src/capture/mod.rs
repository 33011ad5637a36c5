//! `ringway capture`: packets as they come and leave, with what was decided about them.

mod lines;
mod names;
mod options;
mod output;
mod packet;
mod pcapng;
mod run;
mod signals;
mod sink;
mod wanted;

pub use lines::Form;
pub use options::{Limits, Options, Target};
pub use run::{Ended, Outcome, SCHEMA, Summary, run};
pub use wanted::Selection;
