//! Times in a simulation.

/// The time at which a value is available, and the event that made it.
#[derive(Clone, Copy, Debug)]
pub(in crate::analyze) struct Ready {
    pub(in crate::analyze) at: f64,
    pub(in crate::analyze) by: Option<u32>,
}

impl Ready {
    pub(in crate::analyze) const START: Ready = Ready { at: 0.0, by: None };

    pub(in crate::analyze) fn later(self, other: Ready) -> Ready {
        if other.at > self.at { other } else { self }
    }
}
