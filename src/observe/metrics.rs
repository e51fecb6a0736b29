//! What is kept of every step.

use chimera_core::engine::{Load, StepReport};
use chimera_core::ids::Rank;
use serde::{Deserialize, Deserializer, Serialize};

/// One step. Floats are written so that they read back to the same bits.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub struct Metrics {
    /// Number of the step, from 0.
    pub step: u64,
    /// Mean loss over all targets of the global batch, in nats, before the update; none where no token of it is a target.
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
    /// Seconds.
    #[serde(deserialize_with = "number")]
    pub step_s: f64,
    /// Of these, those for which training stood still while its state was copied for a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_s: Option<f64>,
    /// Tokens over seconds.
    #[serde(deserialize_with = "number")]
    pub tokens_per_s: f64,
    /// Idle time over time times ranks.
    #[serde(deserialize_with = "number")]
    pub bubble_ratio: f64,
    /// Bytes of weights, gradients, moments and saved activations at their peak, over all ranks.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of the rank that holds the most.
    #[serde(default)]
    pub max_rank_bytes: u64,
    /// Model FLOPs over what the workers' devices can do in that time, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Steps so far whose gradient was not finite and was thrown away.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped: u64,
    /// Windows without a border so far whose steps were trained again with one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repeated: u64,
    /// Deaths of ranks that the run has survived so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recoveries: u64,
    /// Seconds that these took: from the last finished step until training went on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_s: Option<f64>,
    /// Ranks that were replaced since the step before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Rank>,
    /// Mean loss on text that is not trained on, after the update, in nats; every `eval-every` steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// `exp(validation_loss)`, of a model that foresees every token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
    /// Bubble and bytes of each rank.
    #[serde(default)]
    pub ranks: Vec<RankMetrics>,
}

/// A number that need not be there.
fn known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    number(from).map(Some)
}

/// JSON writes what is no number as `null`.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// What a step was to one rank.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct RankMetrics {
    /// Idle time over time.
    pub bubble_ratio: f64,
    /// Bytes of weights, gradients, moments and saved activations at their peak.
    pub bytes: u64,
}

impl RankMetrics {
    fn of(load: &Load) -> RankMetrics {
        RankMetrics { bubble_ratio: load.bubble_ratio, bytes: load.bytes }
    }
}

impl Metrics {
    /// Of a step of `tokens` tokens; `full_tokens_per_s` is how many the devices could train at their peak.
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
