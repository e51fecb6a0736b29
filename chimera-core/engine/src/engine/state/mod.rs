//! A rank's state: stages, weights, gradients, optimizer state, and progress in a step.

pub(crate) mod compressed;
pub(crate) mod gradients;
pub(crate) mod held_stage;
pub(crate) mod prediction;
pub(crate) mod program_change;
pub(crate) mod rank_state;
pub(crate) mod recoveries;
pub(crate) mod shadows;
pub(crate) mod stage_shapes;
pub(crate) mod stages;
pub(crate) mod work_piece;
