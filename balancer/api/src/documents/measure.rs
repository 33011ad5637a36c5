//! What of a service automatic mitigation measures.

/// What of a service is above its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    Packets,
    NewFlows,
}

impl Measure {
    pub const ALL: [Measure; 2] = [Measure::Packets, Measure::NewFlows];

    /// Its name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Measure::Packets => "packets",
            Measure::NewFlows => "new-flows",
        }
    }
}
