//! Primus' table of schedules: throughput and memory relative to 1F1B.

use anyhow::{Context, Result};
use chimera_core::analyze::{peak_working_bytes, simulate};
use chimera_core::costs::{StageBytes, StageCosts, UniformCosts};
use chimera_core::ids::WorkerId;
use chimera_core::lower::{Lowering, lower};
use chimera_core::program::Program;
use chimera_core::schedule::{Shape, find};
use chimera_device::Precision;
use chimera_plan::plan::{EFFICIENCIES, Hardware};

use super::megatron::Pair;
use super::table::Table;

const ROWS: &str = include_str!("../../blind/primus_mi300.csv");
/// The row to which the number of micro-batches and the bytes of a weight are fitted.
const FITTED: &str = "1f1b-interleaved";
/// Primus' names of schedules, and ours.
const SCHEDULES: [(&str, &str); 6] = [
    ("1f1b", "1f1b"),
    (FITTED, "interleaved"),
    ("zbb", "zb-h1"),
    ("zbv", "zb-v"),
    ("v-half", "v-half"),
    ("v-min", "v-min"),
];
const DEPTH: usize = 8;

/// Llama2-7B, in Primus' own configuration.
const LAYERS: usize = 32;
const HIDDEN: f64 = 4096.0;
const FFN: f64 = 11_008.0;
const WORDS: f64 = 32_000.0;
const TOKENS: f64 = 4096.0;
const BF16: f64 = 2.0;

/// AMD's profile of a Llama 3.1 70B on MI3xx: the parts of its time in matrix products, in attention and
/// in all else; and how many times faster Primus' own attention is, forward and backward. That model has
/// as many tokens for each feature as this one, so attention has about the same part.
const PROFILE: [f64; 3] = [0.6743, 0.2695, 0.0562];
const ATTENTION_SPEEDUP: [f64; 2] = [1.47, 1.75];
/// Operations of attention's backward over those of its forward (Dao, 2023).
const ATTENTION_BACKWARD: f64 = 2.5;

/// The table, predicted.
pub(super) struct Primus {
    pub(super) predicted: Vec<Predicted>,
    pub(super) micro_batches: u32,
    /// Bytes of a weight with its gradient and state, if the published memory of 1F1B is all of it.
    pub(super) weight_bytes: f64,
    /// Tokens of a micro-batch, in the same way.
    pub(super) implied_tokens: f64,
    /// Times of the passes of a layer: forward, input half and weight half, in products of a forward.
    pub(super) passes: [f64; 3],
    /// The time of a message, in the same unit.
    pub(super) message: f64,
}

/// A schedule, relative to 1F1B.
pub(super) struct Predicted {
    pub(super) schedule: String,
    pub(super) is_fitted: bool,
    pub(super) throughput: Pair,
    pub(super) memory: Pair,
    /// Throughput relative to 1F1B if all passes took as long and messages nothing.
    pub(super) even_passes: f64,
}

impl Primus {
    pub(super) fn published() -> Result<Primus> {
        let table = Table::of(ROWS)?;
        let column = |name| table.rows().map(|row| row.number(name)).collect::<Result<Vec<_>>>();
        let (rates, memory) = (column("tokens_per_s_per_gpu")?, column("max_memory_gb")?);
        let names: Vec<&str> =
            table.rows().map(|row| row.text("schedule")).collect::<Result<_>>()?;
        let fitted = names.iter().position(|name| *name == FITTED);
        let fitted = fitted.context("the fitted row is not in the table")?;
        let message = message()?;
        let passes = passes();
        let micro_batches = micro_batches(passes, message, rates[fitted] / rates[0])?;
        let weight = weight(micro_batches, memory[fitted] / memory[0])?;
        let base = Simulated::of("1f1b", micro_batches)?;
        let even = [1.0; 3];
        let predicted = names.iter().enumerate().map(|(row, name)| {
            let own = Simulated::of(name, micro_batches)?;
            let relative = |passes, message| base.step(passes, message) / own.step(passes, message);
            Ok(Predicted {
                schedule: (*name).to_string(),
                is_fitted: row == fitted,
                throughput: Pair {
                    predicted: relative(passes, message),
                    published: rates[row] / rates[0],
                },
                memory: Pair {
                    predicted: own.memory(weight) / base.memory(weight),
                    published: memory[row] / memory[0],
                },
                even_passes: relative(even, 0.0),
            })
        });
        let predicted = predicted.collect::<Result<_>>()?;
        // The memory of 1F1B is this many times what a layer keeps of a micro-batch.
        let layer = memory[0] * 1e9 / base.memory(weight);
        Ok(Primus {
            predicted,
            micro_batches,
            weight_bytes: weight * layer,
            implied_tokens: layer / layer_bytes(1.0),
            passes,
            message,
        })
    }
}

/// Returns what the passes of a layer take, where the products of its forward take 1.
fn passes() -> [f64; 3] {
    let [products, attention, other] = PROFILE.map(|part| part / (PROFILE[0] / 3.0));
    let forward = attention / (1.0 + ATTENTION_BACKWARD);
    let [fast_forward, fast_backward] = ATTENTION_SPEEDUP;
    let product = products / 3.0;
    [
        product + forward / fast_forward + other / 3.0,
        product + ATTENTION_BACKWARD * forward / fast_backward + other * 2.0 / 3.0,
        product,
    ]
}

/// Weights of a layer: four maps of attention, three of the MLP, two norms.
fn layer_weights() -> f64 {
    4.0 * HIDDEN * HIDDEN + 3.0 * HIDDEN * FFN + 2.0 * HIDDEN
}

/// Bytes that a layer keeps of its tokens: two norms in and out, queries, keys and values, the
/// result of attention, and three times the MLP. A weight half needs the inputs of products and the
/// gradients of their outputs, which are exactly as many.
fn layer_bytes(tokens: f64) -> f64 {
    tokens * BF16 * (8.0 * HIDDEN + 3.0 * FFN)
}

/// Returns the time of a message, where the products of a layer's forward take 1.
fn message() -> Result<f64> {
    let sheet = Hardware::find("mi300x")?;
    let [_, middle, _] = EFFICIENCIES;
    let product = 2.0 * layer_weights() * TOKENS / (sheet.peak_flops(Precision::Bf16)? * middle);
    let [link, _] = sheet.links();
    Ok((link.alpha + link.beta * BF16 * HIDDEN * TOKENS) / product)
}

/// A schedule's program, with as many layers in each stage.
struct Simulated {
    program: Program,
    layers: f64,
}

impl Simulated {
    fn of(name: &str, micro_batches: u32) -> Result<Simulated> {
        let ours = SCHEDULES.iter().find(|(theirs, _)| *theirs == name);
        let (_, ours) = ours.with_context(|| format!("no schedule is `{name}`"))?;
        let shape = Shape::new(DEPTH, micro_batches);
        let program = lower(&find(ours)?.timetable(&shape)?, &Lowering::default())?;
        let layers = (LAYERS / program.placement().n_stages()) as f64;
        Ok(Simulated { program, layers })
    }

    fn n_stages(&self) -> usize {
        self.program.placement().n_stages()
    }

    fn step(&self, [forward, input, weight]: [f64; 3], message: f64) -> f64 {
        let costs = |stage| {
            let is_last = stage + 1 == self.n_stages();
            let head = if is_last { HIDDEN * WORDS / layer_weights() } else { 0.0 };
            let of = |pass: f64| self.layers * pass + head;
            UniformCosts {
                input: of(input),
                weight: of(weight),
                ..UniformCosts::new(of(forward), 0.0, message)
            }
        };
        let costs = StageCosts::new((0..self.n_stages()).map(costs).collect());
        simulate(&self.program, &costs).makespan()
    }

    /// Returns the most that a worker holds, where a layer keeps 1 of a micro-batch and a weight
    /// takes `weight` with its gradient and state.
    fn memory(&self, weight: f64) -> f64 {
        let last = self.n_stages() - 1;
        let bytes = |stage| {
            // Logits in bf16, and their softmax in f32.
            let of_logits = |bytes: f64| bytes * WORDS * TOKENS / layer_bytes(TOKENS);
            let logits = if stage == last { of_logits(BF16 + 4.0) } else { 0.0 };
            StageBytes {
                saved: self.layers,
                deferred: self.layers,
                output: if stage == last { of_logits(4.0) } else { 0.0 },
                forward: self.layers + logits,
                backward: if stage == last { of_logits(BF16) } else { 0.0 },
                backward_input: if stage == last { of_logits(BF16) } else { 0.0 },
                ..StageBytes::default()
            }
        };
        let stages: Vec<_> = (0..=last).map(bytes).collect();
        let peaks = peak_working_bytes(&self.program, &stages, 1.0);
        let held = |worker: usize| {
            let stages = self.program.placement().stages_of(WorkerId(worker as u16));
            let tables = stages.iter().map(|stage| [0, last].contains(&stage.index()));
            let tables = tables.filter(|has_table| *has_table).count() as f64;
            let layers = stages.len() as f64 * self.layers;
            weight * (layers * layer_weights() + tables * HIDDEN * WORDS)
        };
        peaks.iter().enumerate().map(|(worker, peak)| peak + held(worker)).fold(0.0, f64::max)
    }
}

/// Returns the micro-batches, whole rounds of the depth, at which the fitted row comes closest.
fn micro_batches(passes: [f64; 3], message: f64, published: f64) -> Result<u32> {
    let mut best = (f64::INFINITY, 0);
    for micro_batches in (1..=32).map(|round| round * DEPTH as u32) {
        let step = |name| {
            Ok::<_, anyhow::Error>(Simulated::of(name, micro_batches)?.step(passes, message))
        };
        let error = (step("1f1b")? / step(FITTED)? / published - 1.0).abs();
        if error < best.0 {
            best = (error, micro_batches);
        }
    }
    Ok(best.1)
}

/// Returns what a weight takes, in what a layer keeps of a micro-batch, so that the fitted row has
/// its published memory.
fn weight(micro_batches: u32, published: f64) -> Result<f64> {
    let [base, fitted] = ["1f1b", FITTED].map(|name| Simulated::of(name, micro_batches));
    let (base, fitted) = (base?, fitted?);
    let (mut low, mut high) = (0.0, 1e-6);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        // The heavier the weights, the less the schedules differ.
        if fitted.memory(middle) / base.memory(middle) > published {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_in_the_forward_and_the_input_half() {
        let [forward, input, weight] = passes();
        assert_eq!(weight, 1.0);
        assert!(1.0 < forward && forward < input && input < 2.0);
    }

    /// Llama2-7B has 6.74 billion parameters.
    #[test]
    fn layers_and_tables_are_those_of_llama() {
        let all = LAYERS as f64 * layer_weights() + 2.0 * HIDDEN * WORDS + HIDDEN;
        assert_eq!(all, 6_738_415_616.0);
    }
}
