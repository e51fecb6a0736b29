//! Models cut into stages, run by hand.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use chimera_engine::device::Device;
use chimera_engine::device::reference::Reference;
use chimera_engine::layers::IGNORED;
use chimera_engine::stage::{
    Init, Micro, Output, Param, Selective, Sizes, Splittable, Stage, initial,
};
use chimera_models::model::{Architecture, BertStage, Cut, DecoderStage, ModelConfig, cut};
use chimera_models::model::{Llama as Choices, RopeScaling};

pub(crate) type Tensor = <Reference as Device>::Tensor;
/// Weights or gradients by name, so that one map serves every cut.
pub(crate) type Named = BTreeMap<String, Tensor>;

/// A model whose samples are several documents.
pub(crate) struct Packed<M>(PhantomData<M>);
pub(crate) struct Gpt2;
pub(crate) struct Llama;
pub(crate) struct Bert;

pub(crate) const SAMPLES: usize = 4;
/// Shorter than the position table.
pub(crate) const SEQUENCE: usize = 4;
/// Predictions per sample of a BERT.
pub(crate) const PREDICTIONS: usize = 1;
pub(crate) const VOCAB: u32 = 11;

/// The stages of a model, and samples for it.
pub(crate) trait Model {
    type Stage: Selective<Tensor = Tensor, Item = u32> + Splittable + Sizes;
    const ARCHITECTURE: Architecture;
    /// Numbers of a sample's input and target.
    const EXTENTS: [usize; 2];
    /// Number of a sample's targets, over which the loss is the mean.
    const N_TARGETS: usize;
    /// The token that ends each document.
    const END_OF_TEXT: Option<u32> = None;

    fn make(config: &ModelConfig, cut: Cut, dropout: f64) -> Self::Stage;
    fn sample(n: usize) -> (Vec<u32>, Vec<u32>);
}

impl Model for Gpt2 {
    type Stage = DecoderStage<Reference>;
    const ARCHITECTURE: Architecture = Architecture::GPT2;
    const EXTENTS: [usize; 2] = [SEQUENCE; 2];
    const N_TARGETS: usize = SEQUENCE;

    fn make(config: &ModelConfig, cut: Cut, dropout: f64) -> Self::Stage {
        let stage = DecoderStage::new(Reference, config, SEQUENCE, cut).unwrap();
        stage.with_dropout(dropout, 5)
    }

    fn sample(n: usize) -> (Vec<u32>, Vec<u32>) {
        (ids(n).collect(), ids(n + 1).collect())
    }
}

impl Model for Llama {
    type Stage = DecoderStage<Reference>;
    const ARCHITECTURE: Architecture = Architecture::LLAMA;
    const EXTENTS: [usize; 2] = [SEQUENCE; 2];
    const N_TARGETS: usize = SEQUENCE;

    fn make(config: &ModelConfig, cut: Cut, dropout: f64) -> Self::Stage {
        let stage = DecoderStage::new(Reference, config, SEQUENCE, cut).unwrap();
        stage.with_dropout(dropout, 5)
    }

    fn sample(n: usize) -> (Vec<u32>, Vec<u32>) {
        Gpt2::sample(n)
    }
}

impl<M: Model> Model for Packed<M> {
    type Stage = M::Stage;
    const ARCHITECTURE: Architecture = M::ARCHITECTURE;
    const EXTENTS: [usize; 2] = M::EXTENTS;
    const N_TARGETS: usize = M::N_TARGETS;
    /// The token ends the first, the middle, the last or no document of a sample.
    const END_OF_TEXT: Option<u32> = Some(5);

    fn make(config: &ModelConfig, cut: Cut, dropout: f64) -> Self::Stage {
        M::make(config, cut, dropout)
    }

    fn sample(n: usize) -> (Vec<u32>, Vec<u32>) {
        let (input, mut target) = M::sample(n);
        let ends = input.iter().map(|id| Some(*id) == Self::END_OF_TEXT);
        let behind = target.iter_mut().zip(ends).filter(|(_, ends)| *ends);
        behind.for_each(|(target, _)| *target = IGNORED);
        (input, target)
    }
}

impl Model for Bert {
    type Stage = BertStage<Reference>;
    const ARCHITECTURE: Architecture = Architecture::BERT;
    const EXTENTS: [usize; 2] = [2 + PREDICTIONS + SEQUENCE, PREDICTIONS + 1];
    const N_TARGETS: usize = PREDICTIONS;

    fn make(config: &ModelConfig, cut: Cut, dropout: f64) -> Self::Stage {
        let stage = BertStage::new(Reference, config, SEQUENCE, PREDICTIONS, cut).unwrap();
        stage.with_dropout(dropout, 5)
    }

    /// One padding row in every other sample; the second segment begins at row 2.
    fn sample(n: usize) -> (Vec<u32>, Vec<u32>) {
        let (length, place) = ([4, 3][n % 2], 1 + n as u32 % 2);
        let input = [length, 2].into_iter().chain([place]).chain(ids(n)).collect();
        (input, ids(n + 1).take(PREDICTIONS).chain([n as u32 % 2]).collect())
    }
}

fn ids(n: usize) -> impl Iterator<Item = u32> {
    (n * SEQUENCE..(n + 1) * SEQUENCE).map(|i| (i * i + 3 * i + 1) as u32 % VOCAB)
}

pub(crate) fn config<M: Model>(tied: bool) -> ModelConfig {
    let (architecture, vocab) = (M::ARCHITECTURE, VOCAB as usize);
    // Grouped heads with more features than the hidden size divided by the heads, biases, a window
    // and scaled frequencies.
    let llama = Choices {
        kv_heads: 1,
        head_dim: Some(6),
        mlp_hidden: 12,
        qkv_bias: true,
        window: Some(3),
        rope_scaling: RopeScaling::Linear { factor: 2.0 },
        ..Choices::usual(8, 2)
    };
    let llama = (architecture == Architecture::LLAMA).then_some(llama);
    ModelConfig {
        architecture,
        layers: 3,
        hidden: 8,
        heads: 2,
        context: 5,
        vocab,
        tied,
        llama,
        end_of_text: M::END_OF_TEXT,
    }
}

/// A model cut into stages, its weights, and one global batch.
pub(crate) struct Chain<M: Model> {
    pub(crate) stages: Vec<M::Stage>,
    pub(crate) weights: Named,
    pub(crate) input: Vec<u32>,
    target: Vec<u32>,
}

impl<M: Model> Chain<M> {
    /// Adds `noise` to the initial weights, since most gradients are almost zero at the start.
    pub(crate) fn make(config: &ModelConfig, n_stages: usize, noise: f64) -> Self {
        Self::with_dropout(config, n_stages, noise, 0.0)
    }

    pub(crate) fn with_dropout(
        config: &ModelConfig,
        n_stages: usize,
        noise: f64,
        dropout: f64,
    ) -> Self {
        let cuts = cut(config, config.context, n_stages).unwrap();
        Self::with_cuts(config, cuts, noise, dropout)
    }

    pub(crate) fn with_cuts(
        config: &ModelConfig,
        cuts: Vec<Cut>,
        noise: f64,
        dropout: f64,
    ) -> Self {
        let cuts = cuts.into_iter();
        let stages: Vec<_> = cuts.map(|cut| M::make(config, cut, dropout)).collect();
        let params = stages.iter().flat_map(|stage| stage.params());
        let weights = params.map(|p| (p.name.clone(), weight(p, noise))).collect();
        let (input, target): (Vec<_>, Vec<_>) = (0..SAMPLES).map(M::sample).unzip();
        Self { stages, weights, input: input.concat(), target: target.concat() }
    }

    /// The `part`-th of `parts` equal micro-batches.
    pub(crate) fn micro(&self, part: usize, parts: usize) -> Micro<'_> {
        let samples = SAMPLES / parts;
        let [input, target] = M::EXTENTS;
        Micro {
            step: 0,
            sample: (part * samples) as u64,
            input: &self.input[part * samples * input..][..samples * input],
            target: &self.target[part * samples * target..][..samples * target],
            loss_scale: 1.0 / (SAMPLES * M::N_TARGETS) as f64,
            training: true,
        }
    }

    pub(crate) fn weights_of(&self, stage: &M::Stage) -> Vec<Tensor> {
        let params = stage.params().iter();
        params.map(|p| self.weights[&p.name].clone()).collect()
    }

    /// Returns the loss, its gradient, and each stage's saved activations.
    pub(crate) fn forward(
        &self,
        micro: &Micro<'_>,
    ) -> (f64, Tensor, Vec<<M::Stage as Stage>::Saved>) {
        let mut x = None;
        let mut activations = Vec::new();
        for stage in &self.stages {
            let (output, saved) = stage.forward(&self.weights_of(stage), micro, x).unwrap();
            activations.push(saved);
            match output {
                Output::Activation(y) => x = Some(y),
                Output::Loss { loss, grad } => return (loss.data[0], grad, activations),
            }
        }
        panic!("the last stage gives a loss")
    }

    pub(crate) fn backward_input(
        &self,
        micro: &Micro<'_>,
        dy: Tensor,
        saved: Vec<<M::Stage as Stage>::Saved>,
    ) -> Vec<<M::Stage as Stage>::Deferred> {
        let mut dy = Some(dy);
        let mut all = Vec::new();
        for (stage, saved) in self.stages.iter().zip(saved).rev() {
            let w = self.weights_of(stage);
            let (dx, deferred) = stage.backward_input(&w, micro, saved, dy.unwrap()).unwrap();
            dy = dx;
            all.push(deferred);
        }
        assert!(dy.is_none());
        all.reverse();
        all
    }

    pub(crate) fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: Vec<<M::Stage as Stage>::Deferred>,
        grads: &mut [Vec<Tensor>],
    ) {
        for ((stage, deferred), into) in self.stages.iter().zip(deferred).zip(grads) {
            stage.backward_weight(micro, deferred, into).unwrap();
        }
    }

    pub(crate) fn zeros(&self) -> Vec<Vec<Tensor>> {
        let zeros = |p: &Param| Reference.zeros(&p.shape).unwrap();
        let stages = self.stages.iter();
        stages.map(|stage| stage.params().iter().map(zeros).collect()).collect()
    }

    /// Gradients by name; those of a tied tensor are summed.
    pub(crate) fn named(&self, grads: Vec<Vec<Tensor>>) -> Named {
        let mut named = Named::new();
        for (stage, grads) in self.stages.iter().zip(grads) {
            for (param, grad) in stage.params().iter().zip(grads) {
                match named.get_mut(&param.name) {
                    Some(sum) => {
                        assert!(param.tied);
                        Reference.accumulate(sum, &grad).unwrap();
                    }
                    None => {
                        named.insert(param.name.clone(), grad);
                    }
                }
            }
        }
        named
    }

    /// Loss and gradients of the batch as one micro-batch.
    pub(crate) fn train(&self) -> (f64, Named) {
        let micro = self.micro(0, 1);
        let (loss, dy, saved) = self.forward(&micro);
        let mut grads = self.zeros();
        let deferred = self.backward_input(&micro, dy, saved);
        self.backward_weight(&micro, deferred, &mut grads);
        (loss, self.named(grads))
    }
}

fn weight(param: &Param, noise: f64) -> Tensor {
    let drawn = Param { init: Init::Normal(noise), ..param.clone() };
    let values: Vec<f32> =
        std::iter::zip(initial(param, 1), initial(&drawn, 2)).map(|(x, noise)| x + noise).collect();
    Reference.upload(&param.shape, &values).unwrap()
}

pub(crate) fn assert_close(a: &Named, b: &Named) {
    assert!(a.keys().eq(b.keys()));
    for (name, x) in a {
        let y = &b[name];
        assert_eq!(x.shape, y.shape, "{name}");
        for (x, y) in x.data.iter().zip(&y.data) {
            assert!((x - y).abs() < 1e-12, "{name}: {x} and {y}");
        }
    }
}
