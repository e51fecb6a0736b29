//! Candle's modules under pipeline schedules, compared with plain candle.

mod llama;
mod page;
mod precision;
mod readme;
mod refused;
mod resume;
mod runs;
mod schedules;
mod suites;
