//! The metrics of every step.

use chimera_core::engine::StepReport;
use chimera_core::ids::Rank;
use serde::{Deserialize, Deserializer, Serialize};

use super::rank_metrics::RankMetrics;

/// The metrics of one step. Floats are written so that they read back to the same bits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Metrics {
    /// Number of the step, from 0.
    pub step: u64,
    /// Mean loss over all targets of the global batch, in nats, before the update; `None` if the
    /// batch has no targets.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Norm of the whole gradient before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    /// Learning rate.
    #[serde(deserialize_with = "number")]
    pub lr: f64,
    /// Tokens of the global batch.
    pub tokens: u64,
    /// Tokens of this and all earlier steps.
    #[serde(default)]
    pub tokens_seen: u64,
    /// Seconds that the step took.
    #[serde(deserialize_with = "number")]
    pub step_s: f64,
    /// The part of `step_s` for which training paused while its state was copied for a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_s: Option<f64>,
    /// Tokens per second.
    #[serde(deserialize_with = "number")]
    pub tokens_per_s: f64,
    /// Idle time divided by the time of all ranks.
    #[serde(deserialize_with = "number")]
    pub bubble_ratio: f64,
    /// Peak bytes of weights, gradients, moments and saved activations, summed over all ranks.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of the rank that holds the most.
    #[serde(default)]
    pub max_rank_bytes: u64,
    /// Model FLOPs utilization: model FLOPs over what the workers' devices can do in that time, if
    /// that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Steps so far whose gradient was not finite and was discarded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// Windows so far that ran without borders and whose steps were trained again with borders.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
    /// Deaths of ranks that the run has recovered from so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recoveries: u64,
    /// Seconds that the recoveries took: from the last finished step until training resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_s: Option<f64>,
    /// Ranks that were replaced since the previous step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Rank>,
    /// Mean loss on validation text, after the update, in nats; every `eval-every` steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// `exp(validation_loss)`, the perplexity of a model that predicts every token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Bubble, bytes and waits of each rank.
    #[serde(default)]
    pub ranks: Vec<RankMetrics>,
}

/// Reads a number that may be missing.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    number(from).map(Some)
}

/// Reads a number; JSON has `null` for NaN and infinity.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

impl Metrics {
    /// Returns the metrics of a step of `tokens` tokens; `full_tokens_per_s` is the throughput of
    /// the devices at their peak.
    pub fn of(report: &StepReport, tokens: u64, full_tokens_per_s: Option<f64>) -> Metrics {
        let StepReport { step, grad_norm, lr, step_s, .. } = *report;
        let tokens_per_s = tokens as f64 / step_s;
        Metrics {
            step,
            loss: report.has_targets.then_some(report.loss),
            grad_norm,
            lr,
            tokens,
            tokens_seen: step.saturating_add(1).saturating_mul(tokens),
            step_s,
            copy_s: (report.copy_s > 0.0).then_some(report.copy_s),
            tokens_per_s,
            bubble_ratio: report.bubble_ratio(),
            bytes: report.bytes(),
            max_rank_bytes: report.ranks.iter().map(|rank| rank.bytes).max().unwrap_or(0),
            mfu: full_tokens_per_s.map(|full| tokens_per_s / full),
            skipped: report.n_skipped,
            repeated: report.n_repeated,
            recoveries: report.recoveries.n,
            recovery_s: (report.recoveries.n > 0).then_some(report.recoveries.lost_s),
            replaced: report.recoveries.replaced.clone(),
            validation_loss: report.validation_loss,
            perplexity: report.validation_loss.map(f64::exp),
            ranks: report.ranks.iter().map(RankMetrics::of).collect(),
        }
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
