//! Pipeline stages of candle modules: ordinary modules built from a `VarBuilder`, cut into pieces, and differentiated by
//! candle itself.
//!
//! [`Candle`] is a device of candle in any type of floating-point numbers, as the engine wants it. A [`Piece`] says how a
//! piece of the model is built and run, and [`stage`](stage()) makes a stage of it; [`regression`](regression()) makes one of a
//! module alone. Every op of a piece must have a
//! backward in candle, which the fused ones have not: [`Piece::forward`] says what to take in their place.

mod device;
mod regression;
mod stage;

pub use device::Candle;
pub use regression::{Regression, regression};
pub use stage::{CandleStage, Differentiated, Graph, Piece, Ran, stage};
