//! Work of one's own beside the training.

/// Work that comes in pieces, which workers do in the idle time of a step: factors of a second-order optimizer (Osawa et
/// al., PipeFisher, MLSys 2023), statistics, or another training (PipeFill, FreeRide).
///
/// A piece is an op of [`Kind::Work`](crate::ir::op::Kind::Work). A program gets its pieces by
/// [`fill`](crate::lower::fill), and what one does is said where the program is
/// run: `Job::own_work` of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnWork {
    /// What it is called.
    pub name: String,
    /// Which pieces there are.
    pub pieces: Pieces,
}

/// Which pieces of [`OwnWork`] a step has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// One for each backward of a micro-batch unit through a stage. It reads what the backward
    /// [shows](crate::effects::TokenKind::Shown), and is done before the stage's gradients are summed, so that what it makes
    /// may go with them.
    OnBackward,
    /// As many as the idle time of a worker has room for, up to so many for each stage of a pipe that it holds. They wait for
    /// nothing: what is left to do, later steps do.
    Anytime(u32),
}
