//! The records of a run: metrics, logs, traces, and the last operations of its ranks.

mod flight_recorder;
pub(crate) mod history;
mod log;
mod metrics;
mod prometheus;
mod rank_metrics;
mod stragglers;
mod tensorboard;
mod time_left;
mod trace;

pub use flight_recorder::Explain;
pub use history::{Best, Lines};
pub(crate) use log::Log;
#[cfg(feature = "logs")]
pub use log::calendar_time;
pub use metrics::Metrics;
pub use prometheus::Prometheus;
pub use rank_metrics::{PeerMetrics, RankMetrics};
pub use stragglers::Stragglers;
pub(crate) use tensorboard::EventFile;
pub use time_left::TimeLeft;
pub(crate) use trace::{Did, Recorded, Recorder};
