//! The inputs of a cell, and the events that made them.

use crate::effects::Token;

/// The event that made a token.
#[derive(Clone, Copy)]
pub(in crate::analyze) struct Maker {
    /// Index of the event in the timeline.
    pub(in crate::analyze) event: u32,
    /// End of the event.
    pub(in crate::analyze) end: f64,
}

/// An input of a cell whose maker has an event.
#[derive(Clone, Copy)]
pub(in crate::analyze) struct Input {
    pub(in crate::analyze) token: Token,
    pub(in crate::analyze) maker: Maker,
    /// Whether the worker of the cell made it.
    pub(in crate::analyze) is_own: bool,
}
