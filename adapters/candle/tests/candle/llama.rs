//! A small Llama-like model in plain candle: RMS norm, rotary positions, grouped-query attention, gated MLP.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::rotary_emb::rope_slow;
use candle_nn::{
    Embedding, Linear, Module, RmsNorm, VarBuilder, embedding, linear_no_bias, loss, rms_norm,
};
use chimera_candle::{Piece, Ran};
use chimera_core::stage::{Data, Micro};

pub(crate) const VOCAB: usize = 11;
pub(crate) const HIDDEN: usize = 8;
const HEADS: usize = 2;
const GROUPS: usize = 1;
const HEAD: usize = HIDDEN / HEADS;
pub(crate) const SEQUENCE: usize = 6;
/// Layers of a chain: the embedding, the blocks, the head.
pub(crate) const LAYERS: usize = 10;

struct Block {
    norms: [RmsNorm; 2],
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Block> {
        let linear = |from, to, name: &str| linear_no_bias(from, to, vb.pp(name));
        Ok(Block {
            norms: [
                rms_norm(HIDDEN, 1e-5, vb.pp("norm1"))?,
                rms_norm(HIDDEN, 1e-5, vb.pp("norm2"))?,
            ],
            q: linear(HIDDEN, HIDDEN, "q")?,
            k: linear(HIDDEN, GROUPS * HEAD, "k")?,
            v: linear(HIDDEN, GROUPS * HEAD, "v")?,
            o: linear(HIDDEN, HIDDEN, "o")?,
            gate: linear(HIDDEN, 2 * HIDDEN, "gate")?,
            up: linear(HIDDEN, 2 * HIDDEN, "up")?,
            down: linear(2 * HIDDEN, HIDDEN, "down")?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = (x + self.attend(&self.norms[0].forward_diff(x)?)?)?;
        let y = self.norms[1].forward_diff(&x)?;
        let y = (self.gate.forward(&y)?.silu()? * self.up.forward(&y)?)?;
        &x + self.down.forward(&y)?
    }

    fn attend(&self, x: &Tensor) -> Result<Tensor> {
        let (n, length, _) = x.dims3()?;
        let heads = |x: Tensor, n_heads| {
            x.reshape((n, length, n_heads, HEAD))?.transpose(1, 2)?.contiguous()
        };
        let (cos, sin) = angles(length, x.dtype())?;
        let q = rope_slow(&heads(self.q.forward(x)?, HEADS)?, &cos, &sin)?;
        let k = rope_slow(&heads(self.k.forward(x)?, GROUPS)?, &cos, &sin)?;
        let v = heads(self.v.forward(x)?, GROUPS)?;
        let each = |x: Tensor| {
            let shape = (n, GROUPS, HEADS / GROUPS, length, HEAD);
            x.unsqueeze(2)?.broadcast_as(shape)?.reshape((n, HEADS, length, HEAD))
        };
        let scores = (q.matmul(&each(k)?.t()?.contiguous()?)? * (HEAD as f64).powf(-0.5))?;
        let later: Vec<f64> = (0..length * length)
            .map(|at| if at % length > at / length { f64::NEG_INFINITY } else { 0.0 })
            .collect();
        let mask = Tensor::from_vec(later, (length, length), x.device())?.to_dtype(x.dtype())?;
        let weights = candle_nn::ops::softmax(&scores.broadcast_add(&mask)?, 3)?;
        let mixed = weights.matmul(&each(v)?)?.transpose(1, 2)?.reshape((n, length, HIDDEN))?;
        self.o.forward(&mixed)
    }
}

fn angles(length: usize, dtype: DType) -> Result<(Tensor, Tensor)> {
    let angle = |at: usize| (at / (HEAD / 2)) as f64 / 10f64.powi((at % (HEAD / 2)) as i32);
    let angles: Vec<f64> = (0..length * HEAD / 2).map(angle).collect();
    let angles = Tensor::from_vec(angles, (length, HEAD / 2), &Device::Cpu)?;
    Ok((angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?))
}

enum Layer {
    Embedding(Embedding),
    Block(Box<Block>),
    Head(RmsNorm, Linear),
}

/// Some layers of the chain.
pub(crate) struct Llama {
    pub(crate) layers: std::ops::Range<usize>,
}

/// The built layers.
pub(crate) struct Built(Vec<Layer>);

impl Llama {
    /// The piece of a stage.
    pub(crate) fn of_stage(id: usize, n_stages: usize) -> Llama {
        Llama { layers: LAYERS * id / n_stages..LAYERS * (id + 1) / n_stages }
    }
}

impl Piece for Llama {
    type Item = u32;
    type Module = Built;

    fn build(&self, vb: VarBuilder<'_>) -> Result<Built> {
        let layer = |nth: usize| {
            Ok(match nth {
                0 => Layer::Embedding(embedding(VOCAB, HIDDEN, vb.pp("embedding"))?),
                nth if nth + 1 == LAYERS => {
                    let norm = rms_norm(HIDDEN, 1e-5, vb.pp("norm"))?;
                    Layer::Head(norm, linear_no_bias(HIDDEN, VOCAB, vb.pp("head"))?)
                }
                nth => Layer::Block(Box::new(Block::new(vb.pp(format!("block.{nth}")))?)),
            })
        };
        Ok(Built(self.layers.clone().map(layer).collect::<Result<_>>()?))
    }

    fn forward(&self, built: &Built, micro: &Micro<'_, u32>, x: Option<&Tensor>) -> Result<Ran> {
        let n = micro.input.len() / SEQUENCE;
        let mut x = match x {
            Some(x) => x.clone(),
            None => Tensor::from_slice(micro.input, (n, SEQUENCE), &Device::Cpu)?,
        };
        for layer in &built.0 {
            x = match layer {
                Layer::Embedding(embedding) => embedding.forward(&x)?,
                Layer::Block(block) => block.forward(&x)?,
                Layer::Head(norm, head) => head.forward(&norm.forward_diff(&x)?)?,
            };
        }
        if self.layers.end < LAYERS || micro.target.is_empty() {
            return Ok(Ran::Activation(x));
        }
        let target = Tensor::from_slice(micro.target, micro.target.len(), &Device::Cpu)?;
        let mean = loss::cross_entropy(&x.flatten_to(1)?, &target)?;
        Ok(Ran::Loss((mean * (micro.target.len() as f64 * micro.loss_scale))?))
    }
}

/// Sequences in which each id determines the next.
pub(crate) struct Ids;

impl Data for Ids {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<u32>, y: &mut Vec<u32>) -> std::io::Result<()> {
        let id = |at: u64| ((17 * step + 5 * n + at * at + 3 * at) % VOCAB as u64) as u32;
        x.extend((0..SEQUENCE as u64).map(id));
        y.extend((1..=SEQUENCE as u64).map(id));
        Ok(())
    }

    fn n_targets(&self) -> usize {
        SEQUENCE
    }
}
