//! The model in burn: modules of burn's `nn`, differentiated by burn, on its CPU backend `flex`.

use std::error::Error;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, RmsNorm,
    RmsNormConfig, RotaryEncoding, RotaryEncodingConfig, SwiGlu, SwiGluConfig,
};
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::activation::gelu_approximate;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use clap::Parser;
use training_peers::{Args, Kind, Precision, Samples, run};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const EPS: f64 = 1e-5;

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    let mut device = Device::flex();
    if args.precision == Precision::Bf16 {
        device.configure(FloatDType::BF16)?;
    }
    let device = device.autodiff();
    device.seed(1);
    let mut model = Model::new(&args, &device);
    let mut optimizer =
        AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.1).init();
    let n_parameters = model.num_params();
    run(&args, "burn 0.22.1", n_parameters, |batch| {
        let mut gradients = GradientsAccumulator::new();
        let mut loss = 0.0;
        for samples in batch {
            let mean = model.loss(&args, samples, &device).div_scalar(batch.len() as f32);
            loss += mean.clone().into_scalar::<f64>();
            gradients.accumulate(&model, GradientsParams::from_grads(mean.backward(), &model));
        }
        model = optimizer.step(args.lr, model.clone(), gradients.grads());
        Ok(loss)
    })
}

#[derive(Module, Debug)]
struct Model {
    tokens: Embedding,
    /// The position table of a GPT-2.
    positions: Option<Embedding>,
    /// The rotary positions of a Llama.
    rotary: Option<RotaryEncoding>,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
}

impl Model {
    fn new(args: &Args, device: &Device) -> Model {
        let (h, is_gpt) = (args.hidden, args.model == Kind::Gpt2);
        Model {
            tokens: EmbeddingConfig::new(args.vocab, h).init(device),
            positions: is_gpt.then(|| EmbeddingConfig::new(args.context, h).init(device)),
            rotary: (!is_gpt)
                .then(|| RotaryEncodingConfig::new(args.context, h / args.heads).init(device)),
            blocks: (0..args.layers).map(|_| Block::new(args, device)).collect(),
            norm: Norm::new(args, device),
            head: LinearConfig::new(h, args.vocab).with_bias(false).init(device),
        }
    }

    fn loss(&self, args: &Args, samples: &Samples, device: &Device) -> Tensor<1> {
        let (b, t) = (args.micro_batch_size, args.context);
        let ids = |ids: &[u32]| {
            let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
            Tensor::<1, Int>::from_data(TensorData::new(ids, [b * t]), device)
        };
        let mut x = self.tokens.forward(ids(&samples.input).reshape([b, t]));
        if let Some(table) = &self.positions {
            x = x + table.forward(Tensor::<1, Int>::arange(0..t as i64, device).reshape([1, t]));
        }
        for block in &self.blocks {
            x = block.forward(args, x, self.rotary.as_ref());
        }
        let logits = self.head.forward(self.norm.forward(x)).reshape([b * t, args.vocab]);
        CrossEntropyLossConfig::new().init(device).forward(logits, ids(&samples.target))
    }
}

#[derive(Module, Debug)]
enum Norm {
    Layer(LayerNorm),
    Rms(RmsNorm),
}

impl Norm {
    fn new(args: &Args, device: &Device) -> Norm {
        match args.model {
            Kind::Gpt2 => {
                Norm::Layer(LayerNormConfig::new(args.hidden).with_epsilon(EPS).init(device))
            }
            Kind::Llama => {
                Norm::Rms(RmsNormConfig::new(args.hidden).with_epsilon(EPS).init(device))
            }
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Norm::Layer(norm) => norm.forward(x),
            Norm::Rms(norm) => norm.forward(x),
        }
    }
}

#[derive(Module, Debug)]
enum Up {
    Plain(Linear),
    Gated(SwiGlu),
}

#[derive(Module, Debug)]
struct Block {
    norms: Vec<Norm>,
    qkv: Linear,
    out: Linear,
    up: Up,
    down: Linear,
}

impl Block {
    fn new(args: &Args, device: &Device) -> Block {
        let (h, dim) = (args.hidden, args.hidden / args.heads);
        let is_gpt = args.model == Kind::Gpt2;
        let linear = |from, to| LinearConfig::new(from, to).with_bias(is_gpt).init(device);
        let (kv_heads, inner) =
            if is_gpt { (args.heads, 4 * h) } else { (args.kv_heads, args.mlp_hidden) };
        Block {
            norms: (0..2).map(|_| Norm::new(args, device)).collect(),
            qkv: linear(h, h + 2 * kv_heads * dim),
            out: linear(h, h),
            up: if is_gpt {
                Up::Plain(linear(h, inner))
            } else {
                Up::Gated(SwiGluConfig::new(h, inner).init(device))
            },
            down: linear(inner, h),
        }
    }

    fn forward(&self, args: &Args, x: Tensor<3>, rotary: Option<&RotaryEncoding>) -> Tensor<3> {
        let mixed = self.attention(args, self.norms[0].forward(x.clone()), rotary);
        let x = x + self.out.forward(mixed);
        let normed = self.norms[1].forward(x.clone());
        let inner = match &self.up {
            Up::Plain(up) => gelu_approximate(up.forward(normed)),
            Up::Gated(up) => up.forward(normed),
        };
        x + self.down.forward(inner)
    }

    fn attention(&self, args: &Args, x: Tensor<3>, rotary: Option<&RotaryEncoding>) -> Tensor<3> {
        let [b, t, h] = x.dims();
        let dim = h / args.heads;
        let kv_heads = if args.model == Kind::Llama { args.kv_heads } else { args.heads };
        let qkv = self.qkv.forward(x);
        let part = |first: usize, heads: usize| {
            qkv.clone()
                .narrow(2, first * dim, heads * dim)
                .reshape([b, t, heads, dim])
                .swap_dims(1, 2)
        };
        let mut q = part(0, args.heads);
        let [mut k, mut v] = [part(args.heads, kv_heads), part(args.heads + kv_heads, kv_heads)];
        if let Some(rotary) = rotary {
            (q, k) = (rotary.forward(q), rotary.forward(k));
        }
        if kv_heads < args.heads {
            let group = args.heads / kv_heads;
            let repeated = |x: Tensor<4>| {
                x.unsqueeze_dim::<5>(2)
                    .expand([b, kv_heads, group, t, dim])
                    .reshape([b, args.heads, t, dim])
            };
            (k, v) = (repeated(k), repeated(v));
        }
        let how = AttentionModuleOptions { is_causal: true, ..Default::default() };
        attention(q, k, v, None, None, how).swap_dims(1, 2).reshape([b, t, h])
    }
}
