//! The model in candle: modules of candle-nn, differentiated by candle. If a fused layer of
//! candle-nn has no gradient, the model uses one of several operations that has.

use std::error::Error;

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::{layer_norm_slow, rms_norm_slow, silu, softmax};
use candle_nn::rotary_emb::rope_slow;
use candle_nn::{
    AdamW, Embedding, Init, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding,
    linear, linear_no_bias, loss::cross_entropy,
};
use clap::Parser;
use training_peers::{Args, Kind, Precision, Samples, run};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const EPS: f32 = 1e-5;

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let weights = VarMap::new();
    let dtype = if args.precision == Precision::Bf16 { DType::BF16 } else { DType::F32 };
    let model = Model::new(&args, VarBuilder::from_varmap(&weights, dtype, &Device::Cpu))?;
    let n_parameters = weights.all_vars().iter().map(|var| var.elem_count()).sum();
    let how = ParamsAdamW { lr: args.lr, beta2: 0.95, weight_decay: 0.1, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(weights.all_vars(), how)?;
    run(&args, "candle 0.11.1", n_parameters, |batch| {
        let mut loss = 0.0;
        let mut sum: Option<GradStore> = None;
        for samples in batch {
            let mean = (model.loss(&args, samples)? / batch.len() as f64)?;
            let gradients = mean.backward()?;
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => add(sum, gradients, &weights)?,
            }
            loss += f64::from(mean.to_dtype(DType::F32)?.to_scalar::<f32>()?);
        }
        optimizer.step(&sum.ok_or("a step has micro-batches")?)?;
        Ok(loss)
    })
}

/// Adds the gradients of the weights; those of activations are dropped.
fn add(sum: &mut GradStore, mut more: GradStore, weights: &VarMap) -> Result<()> {
    for var in weights.all_vars() {
        if let (Some(old), Some(new)) = (sum.remove(&var), more.remove(&var)) {
            sum.insert(&var, (old + new)?);
        }
    }
    Ok(())
}

struct Model {
    tokens: Embedding,
    /// The position table, or cosines and sines of the rotary positions.
    positions: std::result::Result<Embedding, [Tensor; 2]>,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
    /// 0 where a query sees a key, otherwise minus infinity.
    mask: Tensor,
}

impl Model {
    fn new(args: &Args, vb: VarBuilder) -> Result<Model> {
        let (t, h) = (args.context, args.hidden);
        let positions = match args.model {
            Kind::Gpt2 => Ok(embedding(t, h, vb.pp("positions"))?),
            Kind::Llama => Err(rotary(t, h / args.heads, vb.dtype())?),
        };
        let mask: Vec<f32> =
            (0..t * t).map(|i| if i % t > i / t { f32::NEG_INFINITY } else { 0.0 }).collect();
        Ok(Model {
            tokens: embedding(args.vocab, h, vb.pp("tokens"))?,
            positions,
            blocks: (0..args.layers).map(|i| Block::new(args, vb.pp(i))).collect::<Result<_>>()?,
            norm: Norm::new(args, vb.pp("norm"))?,
            head: linear_no_bias(h, args.vocab, vb.pp("head"))?,
            mask: Tensor::from_vec(mask, (t, t), &Device::Cpu)?.to_dtype(vb.dtype())?,
        })
    }

    fn loss(&self, args: &Args, samples: &Samples) -> Result<Tensor> {
        let (b, t) = (args.micro_batch_size, args.context);
        let ids = |ids: &[u32]| Tensor::new(ids, &Device::Cpu);
        let mut x = self.tokens.forward(&ids(&samples.input)?.reshape((b, t))?)?;
        if let Ok(table) = &self.positions {
            x = x.broadcast_add(&table.forward(&Tensor::arange(0, t as u32, &Device::Cpu)?)?)?;
        }
        for block in &self.blocks {
            x = block.forward(args, x, &self.mask, self.positions.as_ref().err())?;
        }
        let logits = self.head.forward(&self.norm.forward(&x)?)?.reshape((b * t, args.vocab))?;
        cross_entropy(&logits.to_dtype(DType::F32)?, &ids(&samples.target)?)
    }
}

/// Cosines and sines of the rotary positions.
fn rotary(context: usize, dim: usize, dtype: DType) -> Result<[Tensor; 2]> {
    let frequency = |i: usize| 1e4f32.powf(-2.0 * i as f32 / dim as f32);
    let angles: Vec<f32> =
        (0..context).flat_map(|at| (0..dim / 2).map(move |i| at as f32 * frequency(i))).collect();
    let angles = Tensor::from_vec(angles, (context, dim / 2), &Device::Cpu)?;
    Ok([angles.cos()?.to_dtype(dtype)?, angles.sin()?.to_dtype(dtype)?])
}

struct Norm {
    gain: Tensor,
    /// The bias of a layer norm.
    bias: Option<Tensor>,
}

impl Norm {
    fn new(args: &Args, vb: VarBuilder) -> Result<Norm> {
        let gain = vb.get_with_hints(args.hidden, "weight", Init::Const(1.0))?;
        let bias = || vb.get_with_hints(args.hidden, "bias", Init::Const(0.0));
        Ok(Norm { gain, bias: (args.model == Kind::Gpt2).then(bias).transpose()? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match &self.bias {
            Some(bias) => layer_norm_slow(x, &self.gain, bias, EPS),
            None => rms_norm_slow(x, &self.gain, EPS),
        }
    }
}

struct Block {
    norms: [Norm; 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(args: &Args, vb: VarBuilder) -> Result<Block> {
        let (h, dim) = (args.hidden, args.hidden / args.heads);
        // The gate of a Llama's MLP is stored beside the values that it gates, as in Chimera.
        let (layer, kv_heads, up, inner): (
            fn(usize, usize, VarBuilder) -> Result<Linear>,
            _,
            _,
            _,
        ) = match args.model {
            Kind::Gpt2 => (linear, args.heads, 4 * h, 4 * h),
            Kind::Llama => (linear_no_bias, args.kv_heads, 2 * args.mlp_hidden, args.mlp_hidden),
        };
        Ok(Block {
            norms: [Norm::new(args, vb.pp("norm1"))?, Norm::new(args, vb.pp("norm2"))?],
            qkv: layer(h, h + 2 * kv_heads * dim, vb.pp("qkv"))?,
            out: layer(h, h, vb.pp("out"))?,
            up: layer(h, up, vb.pp("up"))?,
            down: layer(inner, h, vb.pp("down"))?,
        })
    }

    fn forward(
        &self,
        args: &Args,
        x: Tensor,
        mask: &Tensor,
        rotary: Option<&[Tensor; 2]>,
    ) -> Result<Tensor> {
        let mixed = self.attention(args, &self.norms[0].forward(&x)?, mask, rotary)?;
        let x = (x + self.out.forward(&mixed)?)?;
        let up = self.up.forward(&self.norms[1].forward(&x)?)?;
        let inner = match args.model {
            Kind::Gpt2 => up.gelu()?,
            Kind::Llama => {
                let halves = up.chunk(2, D::Minus1)?;
                (silu(&halves[0])? * &halves[1])?
            }
        };
        x + self.down.forward(&inner)?
    }

    fn attention(
        &self,
        args: &Args,
        x: &Tensor,
        mask: &Tensor,
        rotary: Option<&[Tensor; 2]>,
    ) -> Result<Tensor> {
        let (b, t, h) = x.dims3()?;
        let dim = h / args.heads;
        let kv_heads = if args.model == Kind::Llama { args.kv_heads } else { args.heads };
        let qkv = self.qkv.forward(x)?;
        let part = |first: usize, heads: usize| {
            let part = qkv.narrow(D::Minus1, first * dim, heads * dim)?;
            part.reshape((b, t, heads, dim))?.transpose(1, 2)?.contiguous()
        };
        let mut q = part(0, args.heads)?;
        let [mut k, mut v] = [part(args.heads, kv_heads)?, part(args.heads + kv_heads, kv_heads)?];
        if let Some([cos, sin]) = rotary {
            (q, k) = (rope_slow(&q, cos, sin)?, rope_slow(&k, cos, sin)?);
        }
        if kv_heads < args.heads {
            let group = args.heads / kv_heads;
            let repeated = |x: &Tensor| {
                x.unsqueeze(2)?
                    .expand((b, kv_heads, group, t, dim))?
                    .reshape((b, args.heads, t, dim))
            };
            (k, v) = (repeated(&k)?, repeated(&v)?);
        }
        let scores = (q.matmul(&k.t()?)? / (dim as f64).sqrt())?.broadcast_add(mask)?;
        let mixed = softmax(&scores, D::Minus1)?.matmul(&v)?;
        mixed.transpose(1, 2)?.reshape((b, t, h))
    }
}
