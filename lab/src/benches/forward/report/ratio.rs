//! How many times what the kernel's own road does.

use serde::Serialize;

use super::{CellFigures, Round, Spread};
use crate::benches::forward::{Road, Size};
use crate::harness::named_enum::named;

named! {
    /// What is compared.
    pub(super) enum Compared {
        Throughput = "throughput",
        Overload = "overload",
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Ratio {
    pub of: Compared,
    pub road: Road,
    pub beside: Road,
    pub size: Size,
    /// The middle one of what each round found.
    pub ratio: f64,
    /// Compared all rounds; of one, what its bounds or its loads allow.
    pub lower: f64,
    pub upper: f64,
}

impl Compared {
    /// What a round found, and its bounds.
    fn found(self, round: &Round) -> Option<Spread> {
        match self {
            Self::Throughput => {
                let found = round.throughput?;
                let (middle, least) = (found.fps.unwrap_or(0.0), found.lower.unwrap_or(0.0));
                Some(Spread { middle, least, most: found.upper.unwrap_or(f64::INFINITY) })
            }
            Self::Overload => Spread::of(round.through()),
        }
    }
}

impl Ratio {
    /// Rounds of the two roads are near in time. None: nothing to divide by.
    pub(super) fn new(of: Compared, cell: &CellFigures, kernels: &CellFigures) -> Option<Self> {
        let pairs = cell.rounds.iter().zip(&kernels.rounds);
        let pairs: Vec<(Spread, Spread)> = pairs
            .filter_map(|(cell, kernels)| Some((of.found(cell)?, of.found(kernels)?)))
            .filter(|(_, kernels)| kernels.middle > 0.0)
            .collect();
        let all = Spread::of(pairs.iter().map(|(cell, kernels)| cell.middle / kernels.middle))?;
        let (lower, upper) = match pairs[..] {
            [(cell, kernels)] if kernels.least > 0.0 => {
                (cell.least / kernels.most, cell.most / kernels.least)
            }
            _ => (all.least, all.most),
        };
        let CellFigures { road, size, .. } = *cell;
        Some(Self { of, road, beside: kernels.road, size, ratio: all.middle, lower, upper })
    }

    /// All rounds are on the same side of 1.
    pub(super) fn is_shown(&self) -> bool {
        self.lower > 1.0 || self.upper < 1.0
    }
}
