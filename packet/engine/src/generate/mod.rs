//! Packets that are made to be counted: what they are ([`Recipe`]), when they are sent ([`Pace`]), what each carries ([`Stamp`]), and what its
//! receiver makes of it ([`Checked`]).
//!
//! [`crate::apps::Generator`] sends them, [`crate::apps::Checker`] receives them.

mod addresses;
mod checked;
mod clock;
mod pace;
mod recipe;
mod sequence;
mod stamp;
mod template;

pub use self::{
    addresses::{Addresses, Numbers, SpanError},
    checked::{Checked, Latency, StreamChecked},
    clock::Clock,
    pace::{CATCH_UP, Pace},
    recipe::{IMIX, Recipe, RecipeError, SIZES, Transport},
    sequence::{Arrival, Sequence, WINDOW},
    stamp::Stamp,
    template::{Flow, Flows, Template},
};
