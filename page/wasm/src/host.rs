//! The two functions that the page provides: a clock, and a listener for the progress of a search.

use std::time::Duration;

use chimera_schedule::search::{Clock, Progress};

#[cfg(target_arch = "wasm32")]
#[link(wasm_import_module = "page")]
unsafe extern "C" {
    /// Milliseconds since some moment.
    safe fn now() -> f64;
    /// Receives the progress of a search: its shortest makespan, its lower bound, and orders tried.
    safe fn progress(makespan: f64, lower_bound: f64, n_orders: f64);
}

#[cfg(not(target_arch = "wasm32"))]
fn now() -> f64 {
    0.0
}

#[cfg(not(target_arch = "wasm32"))]
fn progress(_makespan: f64, _lower_bound: f64, _n_orders: f64) {}

/// The page's clock.
pub(crate) fn clock() -> Clock {
    Clock::new(|| Duration::try_from_secs_f64(now() / 1e3).unwrap_or_default())
}

/// Tells the page of a search.
pub(crate) fn tell(at: &Progress) {
    progress(at.makespan, at.lower_bound, at.n_orders as f64);
}
