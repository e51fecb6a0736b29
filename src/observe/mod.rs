//! What a run tells of itself: metrics, logs, traces, and what its ranks did last.

pub(crate) mod history;
mod log;
mod metrics;
mod prometheus;
mod recent;
mod slow;
mod tensorboard;
mod trace;

pub use history::Lines;
pub(crate) use log::Log;
pub use metrics::{Metrics, RankMetrics};
pub use prometheus::Prometheus;
pub use recent::Explain;
pub use slow::Slow;
pub(crate) use tensorboard::EventFile;
pub(crate) use trace::{Did, Recorder};
