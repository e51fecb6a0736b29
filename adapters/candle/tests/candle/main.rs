//! Candle's modules under pipeline schedules, against plain candle.

mod llama;
mod page;
mod precision;
mod readme;
mod resume;
mod schedules;
mod suites;
