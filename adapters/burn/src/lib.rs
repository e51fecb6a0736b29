//! Pipeline stages of burn modules, differentiated by burn.
//!
//! [`Burn`] is a device of burn in f32 or f64, as the engine wants it. A [`Piece`] is a module together with how it runs,
//! and [`stage`](stage()) makes a stage of it.

mod device;
mod stage;

pub use device::{Array, Burn};
pub use stage::{BurnStage, Differentiated, Graph, Piece, Ran, stage};
