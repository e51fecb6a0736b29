//! A run of Megatron-LM: its model, its ranks, and what its ranks keep.

use anyhow::{Result, bail, ensure};
use chimera_core::model::{Partition, UniformSplit};

use super::settings::Settings;

/// Ranks of every run.
const RANKS: usize = 8;
/// Words of GPT-2's vocabulary, and of BERT's.
const VOCABULARIES: [usize; 2] = [50_257, 30_522];

/// A run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) model: Model,
    pub(super) sequence: usize,
    /// Sequences of a micro-batch.
    pub(super) size: usize,
    pub(super) micro_batches: u32,
    pub(super) width: usize,
    pub(super) depth: usize,
    pub(super) chunks: usize,
    /// Micro-batches that go through one chunk before the next.
    pub(super) group: u32,
    /// Layers of each stage; stage s is on rank s modulo the depth.
    pub(super) blocks: Vec<usize>,
    pub(super) precision: Precision,
    pub(super) kernels: Kernels,
    pub(super) recompute: Recompute,
    /// Whether the replicas of a rank share out the optimizer's state.
    pub(super) is_sharded: bool,
}

/// Sizes of a model.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) is_bert: bool,
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Features of a head.
    pub(super) channels: usize,
    pub(super) ffn: usize,
    /// Products into the MLP: 2 if one gates the other.
    pub(super) gates: usize,
    /// Rows of the table of words, padded.
    pub(super) words: usize,
    /// Rows of the table of positions; 0 if they are rotary.
    pub(super) positions: usize,
    pub(super) has_bias: bool,
    /// Vectors of a norm: 2 of a layer norm, 1 of a root mean square.
    pub(super) norm_vectors: usize,
    pub(super) norms_heads: bool,
    pub(super) is_tied: bool,
    pub(super) drops_attention: bool,
    pub(super) drops_hidden: bool,
}

/// Bytes of an element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precision {
    pub(super) element: f64,
    pub(super) gradient: f64,
    /// Whether the optimizer keeps weights of its own in f32.
    pub(super) has_main: bool,
}

/// The code that computes a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kernels {
    pub(super) is_transformer_engine: bool,
    pub(super) is_flash: bool,
    /// Whether the loss writes its gradient over the logits.
    pub(super) is_loss_in_place: bool,
}

/// The part that the backward computes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recompute {
    None,
    Attention,
    /// Groups of `n` layers, each from its input.
    Uniform(usize),
    /// The first layers of each stage, each from its input.
    Block(usize),
}

impl Run {
    /// # Errors
    /// The reason why this run cannot be predicted.
    pub(super) fn of(case: &str, settings: &Settings) -> Result<Run> {
        let number =
            |name: &str| Ok::<_, anyhow::Error>(settings.number::<usize>(name)?.unwrap_or(1));
        for (kind, what) in [("tensor-model", "layers"), ("context", "sequences")] {
            let ranks = number(&format!("{kind}-parallel-size"))?;
            ensure!(ranks == 1, "{kind}-parallel: {what} are not split over ranks here");
        }
        let optimizer = settings.text("optimizer").unwrap_or("adam");
        ensure!(optimizer == "adam", "`--optimizer {optimizer}` is not modelled");
        let model = Model::of(case, settings)?;
        let depth = number("pipeline-model-parallel-size")?;
        let (width, size) = (RANKS / depth, settings.size("micro-batch-size")?);
        let micro_batches = settings.size("global-batch-size")? / (width * size);
        let (chunks, blocks) = blocks(&model, settings, depth)?;
        let group = settings.number("microbatch-group-size-per-virtual-pipeline-stage")?;
        let is_transformer_engine = settings.text("transformer-impl") != Some("local");
        let backend = settings.text("attention-backend").unwrap_or("auto");
        let fuses_loss = settings.has("cross-entropy-loss-fusion");
        Ok(Run {
            sequence: settings.size("seq-length")?,
            size,
            micro_batches: micro_batches as u32,
            width,
            depth,
            chunks,
            group: group.unwrap_or(depth as u32),
            blocks,
            precision: Precision::of(settings),
            kernels: Kernels {
                is_transformer_engine,
                is_flash: is_transformer_engine && !["unfused", "local"].contains(&backend),
                is_loss_in_place: fuses_loss
                    && settings.text("cross-entropy-fusion-impl") == Some("te"),
            },
            recompute: recompute(settings)?,
            is_sharded: settings.has("use-distributed-optimizer"),
            model,
        })
    }

    /// Tokens of a micro-batch.
    pub(super) fn tokens(&self) -> f64 {
        (self.sequence * self.size) as f64
    }

    pub(super) fn n_stages(&self) -> usize {
        self.blocks.len()
    }
}

impl Model {
    fn of(case: &str, settings: &Settings) -> Result<Model> {
        let is_bert = case.starts_with("bert/");
        let (layers, hidden) = (settings.size("num-layers")?, settings.size("hidden-size")?);
        let heads = settings.size("num-attention-heads")?;
        let is_gated = settings.has("swiglu");
        let channels = settings.number("kv-channels")?.unwrap_or(hidden / heads.max(1));
        let usual = if is_gated { 4 * hidden * 2 / 3 / 64 * 64 } else { 4 * hidden };
        let words = settings.number("vocab-size")?.unwrap_or(VOCABULARIES[usize::from(is_bert)]);
        let multiple = settings.number("make-vocab-size-divisible-by")?.unwrap_or(128usize);
        let learns_positions =
            settings.text("position-embedding-type").unwrap_or("learned_absolute")
                == "learned_absolute";
        let positions = match settings.number("max-position-embeddings")? {
            Some(positions) => positions,
            None => settings.size("seq-length")?,
        };
        let drops = |name| Ok::<_, anyhow::Error>(settings.number(name)?.unwrap_or(0.1) > 0.0);
        let is_grouped = settings.has("group-query-attention");
        let kv_heads = if is_grouped { settings.size("num-query-groups")? } else { heads };
        let is_rms = settings.text("normalization") == Some("RMSNorm");
        Ok(Model {
            is_bert,
            layers,
            hidden,
            heads,
            kv_heads,
            channels,
            ffn: settings.number("ffn-hidden-size")?.unwrap_or(usual),
            gates: 1 + usize::from(is_gated),
            words: words.next_multiple_of(multiple),
            positions: if learns_positions { positions } else { 0 },
            has_bias: !settings.has("disable-bias-linear"),
            norm_vectors: if is_rms { 1 } else { 2 },
            norms_heads: settings.has("qk-layernorm"),
            is_tied: !settings.has("untie-embeddings-and-output-weights"),
            drops_attention: drops("attention-dropout")?,
            drops_hidden: drops("hidden-dropout")?,
        })
    }
}

impl Precision {
    /// Megatron sums the gradients of bf16 in f32, and those of fp16 in fp16.
    fn of(settings: &Settings) -> Precision {
        let (is_bf16, is_fp16) = (settings.has("bf16"), settings.has("fp16"));
        let is_narrow = is_bf16 && settings.has("grad-reduce-in-bf16")
            || is_fp16 && !settings.has("accumulate-allreduce-grads-in-fp32");
        Precision {
            element: if is_bf16 || is_fp16 { 2.0 } else { 4.0 },
            gradient: if is_narrow { 2.0 } else { 4.0 },
            has_main: is_bf16 || is_fp16,
        }
    }
}

/// Returns the chunks of a rank, and the layers of each stage.
fn blocks(model: &Model, settings: &Settings, depth: usize) -> Result<(usize, Vec<usize>)> {
    if let Some(layout) = settings.text("pipeline-model-parallel-layout") {
        let partition: Partition = layout.parse()?;
        let n_stages = partition.blocks().len();
        ensure!(n_stages.is_multiple_of(depth), "{n_stages} stages for {depth} ranks");
        return Ok((n_stages / depth, partition.blocks().to_vec()));
    }
    let split = UniformSplit {
        first: settings.number("decoder-first-pipeline-num-layers")?,
        last: settings.number("decoder-last-pipeline-num-layers")?,
        counts_embedding: settings.has("account-for-embedding-in-pipeline-split"),
        counts_loss: settings.has("account-for-loss-in-pipeline-split"),
    };
    let chunks = match settings.number("num-layers-per-virtual-pipeline-stage")? {
        Some(0) => bail!("a virtual stage has no layer"),
        Some(layers) => model.layers / depth / layers,
        None => settings.number("num-virtual-stages-per-pipeline-rank")?.unwrap_or(1),
    };
    Ok((chunks, split.partition(model.layers, depth, chunks)?.blocks().to_vec()))
}

fn recompute(settings: &Settings) -> Result<Recompute> {
    let layers = settings.number("recompute-num-layers")?.unwrap_or(1).max(1);
    Ok(match (settings.text("recompute-granularity"), settings.text("recompute-method")) {
        (None, _) => Recompute::None,
        (Some("selective"), _) => match settings.text("recompute-modules") {
            None | Some("core_attn" | "[core_attn]") => Recompute::Attention,
            Some(modules) => bail!("`--recompute-modules {modules}` is not modelled"),
        },
        (_, Some("block")) => Recompute::Block(layers),
        _ => Recompute::Uniform(layers),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "num-layers=12 hidden-size=512 num-attention-heads=8 seq-length=1024 \
                         micro-batch-size=4 global-batch-size=32 bf16";

    fn run(more: &str) -> Result<Run> {
        Run::of("gpt/x", &Settings::of_words(&format!("{SMALL} {more}"))?)
    }

    #[test]
    fn ranks_and_stages_are_those_of_megatron() {
        let whole = run("").unwrap();
        assert_eq!((whole.width, whole.micro_batches, whole.blocks), (8, 1, vec![12]));
        let deep = run("pipeline-model-parallel-size=4").unwrap();
        assert_eq!((deep.width, deep.micro_batches, &deep.blocks[..]), (2, 4, &[3; 4][..]));
        let layers = "pipeline-model-parallel-size=4 num-layers-per-virtual-pipeline-stage=1";
        assert_eq!(run(layers).unwrap().blocks, [1; 12]);
        let uneven = "pipeline-model-parallel-size=4 decoder-first-pipeline-num-layers=2 \
                      decoder-last-pipeline-num-layers=2";
        assert_eq!(run(uneven).unwrap().blocks, [2, 4, 4, 2]);
    }

    #[test]
    fn sizes_are_those_of_megatron() {
        let model = run("swiglu").unwrap().model;
        assert_eq!((model.words, model.positions, model.ffn, model.gates), (50_304, 1024, 1344, 2));
        let grouped = "group-query-attention num-query-groups=2 position-embedding-type=rope";
        let model = run(grouped).unwrap().model;
        assert_eq!((model.kv_heads, model.positions, model.ffn), (2, 0, 2048));
    }

    #[test]
    fn what_is_split_over_ranks_is_left_out_with_its_reason() {
        let refused = |more: &str| run(more).unwrap_err().to_string();
        assert!(refused("tensor-model-parallel-size=2").contains("tensor-model-parallel"));
        assert!(refused("context-parallel-size=2").contains("context-parallel"));
    }
}
