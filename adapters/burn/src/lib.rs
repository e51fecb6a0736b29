//! Pipeline stages of burn modules, differentiated by burn.
//!
//! [`Burn`] is a burn device in f32 or f64 for the engine. A [`Piece`] is a module together with
//! the code that runs it, and [`stage`](stage()) makes a stage of it.

mod device;
mod stage;

pub use device::{Array, Burn};
pub use stage::{BurnStage, Differentiated, Graph, Piece, Ran, stage};
