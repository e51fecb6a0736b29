//! Bytes of a rank of Megatron-LM, tensor by tensor. Nothing is fitted.

use chimera_core::costs::StageBytes;

use super::run::{Recompute, Run};

/// Bytes of a statistic of a norm or of a softmax, in f32.
const STATISTIC: f64 = 4.0;
/// A workspace of cuBLAS: the runs set `CUBLAS_WORKSPACE_CONFIG=:4096:8`, eight pieces of 4 MiB. The
/// forward and the thread of the backward have one each, and so has Transformer Engine.
const WORKSPACE: f64 = 8.0 * 4096.0 * 1024.0;

/// The weights of a stage.
pub(super) fn weights(run: &Run, stage: usize) -> f64 {
    let model = &run.model;
    let (first, last) = (stage == 0, stage + 1 == run.n_stages());
    let hidden = model.hidden as f64;
    let norm = model.norm_vectors as f64 * hidden;
    let table = model.words as f64 * hidden;
    let mut weights = run.blocks[stage] as f64 * layer_weights(run);
    if first {
        let segments = if model.is_bert { 2.0 } else { 0.0 };
        weights += table + (model.positions as f64 + segments) * hidden;
    }
    if last {
        let has_table = !(first && model.is_tied);
        weights += norm + if has_table { table } else { 0.0 };
        if model.is_bert {
            // The transform of a masked word, its bias, and the pooler and the classes of a pair.
            let linear = hidden * hidden + hidden;
            weights += 2.0 * linear + norm + model.words as f64 + 2.0 * (hidden + 1.0);
        }
    }
    weights
}

fn layer_weights(run: &Run) -> f64 {
    let model = &run.model;
    let [hidden, ffn, channels] = [model.hidden, model.ffn, model.channels].map(|n| n as f64);
    let (queries, mixed) = (queries(run), mixed(run));
    let gates = model.gates as f64;
    let products = hidden * mixed + queries * hidden + (gates + 1.0) * hidden * ffn;
    let biases = if model.has_bias { mixed + hidden + gates * ffn + hidden } else { 0.0 };
    let of_heads = if model.norms_heads { 2.0 * channels } else { 0.0 };
    products + biases + model.norm_vectors as f64 * (2.0 * hidden + of_heads)
}

/// Features of all queries.
fn queries(run: &Run) -> f64 {
    (run.model.heads * run.model.channels) as f64
}

/// Features of all queries, keys and values.
fn mixed(run: &Run) -> f64 {
    queries(run) + (2 * run.model.kv_heads * run.model.channels) as f64
}

/// Bytes that a rank has at the end of a step: weights, gradients, AdamW's state, workspaces.
pub(super) fn resident(run: &Run, rank: usize) -> f64 {
    let stages = (rank..run.n_stages()).step_by(run.depth);
    let weights: f64 = stages.map(|stage| weights(run, stage)).sum();
    let precision = run.precision;
    let main = if precision.has_main { 4.0 } else { 0.0 };
    let shared = if run.is_sharded { run.width as f64 } else { 1.0 };
    let state = precision.element + precision.gradient + (main + 8.0) / shared;
    let n_workspaces = if run.kernels.is_transformer_engine { 3.0 } else { 2.0 };
    // Megatron's own attention keeps a buffer for its scores.
    let scores =
        if run.kernels.is_transformer_engine { 0.0 } else { precision.element * scores(run) };
    weights * state + n_workspaces * WORKSPACE + scores
}

/// Elements of a layer's attention scores.
fn scores(run: &Run) -> f64 {
    run.model.heads as f64 * run.sequence as f64 * run.tokens()
}

/// Bytes that a layer saves inside attention beyond its queries, keys, values and result.
fn attention(run: &Run) -> f64 {
    if run.kernels.is_flash {
        return STATISTIC * run.model.heads as f64 * run.tokens();
    }
    // Softmax, and if it drops, the mask and what is left.
    let element = run.precision.element;
    scores(run) * if run.model.drops_attention { 2.0 * element + 1.0 } else { element }
}

/// Bytes that a layer saves for its backward, its input among them.
fn layer(run: &Run) -> f64 {
    let model = &run.model;
    let element = run.precision.element;
    let [hidden, ffn] = [model.hidden, model.ffn].map(|n| n as f64);
    let norms = 2.0 * (2.0 * element * hidden + STATISTIC * model.norm_vectors as f64);
    // Queries and keys before their norm.
    let before_norm = if model.norms_heads { (mixed(run) + queries(run)) / 2.0 } else { 0.0 };
    let heads = element * (mixed(run) + queries(run) + before_norm);
    let mlp = element * (model.gates as f64 + 1.0) * ffn;
    let masks = if model.drops_hidden { 2.0 * hidden } else { 0.0 };
    run.tokens() * (norms + heads + mlp + masks) + attention(run)
}

/// Bytes of a stage for a micro-batch.
pub(super) fn stage(run: &Run, stage: usize) -> StageBytes {
    let (first, last) = (stage == 0, stage + 1 == run.n_stages());
    let element = run.precision.element;
    let boundary = element * run.model.hidden as f64 * run.tokens();
    let (layers, all) = (run.blocks[stage], layer(run));
    let n = layers as f64;
    // Saved, and what a backward computes again.
    let (mut saved, again) = match run.recompute {
        Recompute::None => (n * all, 0.0),
        Recompute::Attention => (n * (all - attention(run)), attention(run)),
        Recompute::Uniform(group) => {
            let groups = layers.div_ceil(group) as f64;
            (groups * boundary, group.min(layers) as f64 * all)
        }
        Recompute::Block(few) => {
            let few = few.min(layers) as f64;
            ((n - few) * all + few * boundary, all)
        }
    };
    if first && run.model.drops_hidden {
        saved += run.model.hidden as f64 * run.tokens();
    }
    if last {
        saved += boundary * if run.model.is_bert { 4.0 } else { 1.0 } + boundary;
    }
    let input = if first { 0.0 } else { boundary };
    // Logits, and their softmax in f32, which becomes their gradient and is cast back.
    let loss = if last { Loss::of(run) } else { Loss { logits: boundary, softmax: 0.0 } };
    let cast = if loss.softmax > 0.0 { loss.logits } else { 0.0 };
    StageBytes {
        saved,
        input,
        output: loss.logits.max(loss.softmax),
        gradient: input,
        forward: saved - input + loss.logits + loss.softmax,
        backward: again.max(cast) + input,
        ..StageBytes::default()
    }
}

/// Bytes of a loss.
struct Loss {
    logits: f64,
    softmax: f64,
}

impl Loss {
    fn of(run: &Run) -> Loss {
        let n = run.model.words as f64 * run.tokens();
        let softmax = if run.kernels.is_loss_in_place { 0.0 } else { STATISTIC * n };
        Loss { logits: run.precision.element * n, softmax }
    }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Settings;
    use super::*;

    const SMALL: &str = "num-layers=12 hidden-size=512 num-attention-heads=8 seq-length=1024 \
                         micro-batch-size=4 global-batch-size=32 bf16";

    fn run(more: &str) -> Run {
        let settings = Settings::of_words(&format!("{SMALL} {more}")).unwrap();
        Run::of("gpt/x", &settings).unwrap()
    }

    /// 12 h^2 + 13 h of a layer, two tables, and a norm.
    #[test]
    fn weights_are_those_of_a_gpt() {
        let layers = 12 * (12 * 512 * 512 + 13 * 512);
        let all = layers + (50_304 + 1024) * 512 + 2 * 512;
        assert_eq!(weights(&run(""), 0), f64::from(all));
        let untied = run("untie-embeddings-and-output-weights");
        assert_eq!(weights(&untied, 0), f64::from(all + 50_304 * 512));
        let deep = run("pipeline-model-parallel-size=2");
        let parts = weights(&deep, 0) + weights(&deep, 1);
        assert_eq!(parts, f64::from(all + 50_304 * 512));
    }

    /// Korthikanti et al., 2022, equation 1: 34 s b h + 5 a s^2 b, and the statistics beside.
    #[test]
    fn a_layer_saves_what_the_literature_counts() {
        let statistics = 2.0 * 2.0 * 4.0 * 4096.0;
        let (hidden, scores) = (4096.0 * 512.0, 8.0 * 1024.0 * 4096.0);
        let unfused = layer(&run("attention-backend=unfused"));
        assert_eq!(unfused, 34.0 * hidden + 5.0 * scores + statistics);
        assert_eq!(layer(&run("")), 34.0 * hidden + statistics + 4.0 * 8.0 * 4096.0);
    }

    #[test]
    fn recomputation_saves_inputs_and_computes_one_group_again() {
        let all = stage(&run(""), 0);
        let again = stage(&run("recompute-granularity=full recompute-num-layers=2"), 0);
        let boundary = 2.0 * 4096.0 * 512.0;
        assert_eq!(all.saved - again.saved, 12.0 * layer(&run("")) - 6.0 * boundary);
        assert!(again.backward >= 2.0 * layer(&run("")));
    }

    #[test]
    fn replicas_share_out_the_state_of_the_optimizer() {
        let workspaces = 3.0 * WORKSPACE;
        let whole = resident(&run(""), 0) - workspaces;
        let shared = resident(&run("use-distributed-optimizer"), 0) - workspaces;
        assert_eq!((whole / shared * 7.5).round(), 18.0);
    }
}
