//! A caller's own work in the idle time of a step.

/// Work in pieces that workers do in the idle time of a step: factors of a second-order optimizer
/// (Osawa et al., PipeFisher, MLSys 2023), statistics, or another training (PipeFill, FreeRide).
///
/// A piece is an op of [`Kind::Work`](crate::ir::op::Kind::Work). [`fill`](crate::lower::fill) adds
/// the pieces to a program. The code that a piece runs is given to the engine, as `Job::own_work`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnWork {
    /// Name of the work.
    pub name: String,
    /// The pieces per step.
    pub pieces: Pieces,
}

/// The pieces of [`OwnWork`] in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pieces {
    /// One for each backward of a micro-batch unit through a stage. It reads the operands that the
    /// backward [hands over](crate::effects::TokenKind::Shown), and is done before the stage's
    /// gradients are summed, so that its results can go with them.
    OnBackward,
    /// As many as fit into the idle time of a worker, up to this number for each stage of a pipe
    /// that it holds. They wait for nothing; the remaining ones run in later steps.
    Anytime(u32),
}
