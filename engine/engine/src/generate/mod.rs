//! Packets that are made to be counted: what they are ([`Recipe`]), when they are sent ([`Pace`]),
//! what each carries ([`Stamp`]), and what its receiver makes of it ([`Checked`]).
//!
//! [`crate::apps::Generator`] sends them, [`crate::apps::Checker`] receives them.

mod addresses;
mod checked;
mod pace;
mod recipe;
mod sequence;
mod stamp;

pub use self::addresses::{Addresses, Numbers, SpanError};
pub use self::checked::{Checked, Latency, StreamChecked};
pub use self::pace::Pace;
pub use self::recipe::{IMIX, Recipe, RecipeError, SIZES, Transport};
pub use self::sequence::{Arrival, Sequence, WINDOW};
pub use self::stamp::{Clock, Stamp};
pub use recipe::template::{Flow, Flows, Template};
