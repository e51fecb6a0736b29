//! Pipeline stages of candle modules: ordinary modules built from a `VarBuilder`, cut into pieces,
//! and differentiated by candle itself.
//!
//! [`Candle`] is a candle device for the engine, in any floating-point type. A [`Piece`] builds and
//! runs a piece of the model, and [`stage`](stage()) makes a stage of it.
//! [`regression`](regression()) makes a stage of only a module. Every op of a piece must have a
//! backward in candle, which the fused ones lack: [`Piece::forward`] lists replacements.

mod device;
mod regression;
mod stage;

pub use device::Candle;
pub use regression::{Regression, regression};
pub use stage::{CandleStage, Differentiated, Graph, Piece, Ran, stage};
