//! The models on the reference kernels: their gradients are right, and the same however they are cut,
//! split and ordered; with dropout too.

use std::collections::BTreeMap;

use chimera_core::kernels::Kernels;
use chimera_core::kernels::reference::Reference;
use chimera_core::model::{Architecture, BertStage, Cut, Gpt2Stage, ModelConfig, cut, initial};
use chimera_core::stage::{Init, Micro, Output, Param, Stage};

type Tensor = <Reference as Kernels>::Tensor;
/// Weights or gradients by name, so that one map serves every cut.
type Named = BTreeMap<String, Tensor>;

type Gpt2 = Gpt2Stage<Reference>;
type Bert = BertStage<Reference>;

const SAMPLES: usize = 4;
/// Shorter than the position table.
const SEQUENCE: usize = 4;
/// Of a BERT's sample.
const PREDICTIONS: usize = 1;
const VOCAB: u32 = 11;
const DROPOUT: f64 = 0.3;

/// The stages of a model, and samples for it.
trait Model: Stage<Tensor = Tensor> + Sized {
    const ARCHITECTURE: Architecture;
    /// Numbers of a sample's input and target.
    const EXTENTS: [usize; 2];
    /// Targets of a sample that the loss is the mean over.
    const N_TARGETS: usize;

    fn make(config: &ModelConfig, cut: Cut) -> Self;
    fn with_dropout(self, rate: f64) -> Self;
    fn sample(n: usize) -> (Vec<u32>, Vec<u32>);
}

impl Model for Gpt2 {
    const ARCHITECTURE: Architecture = Architecture::Gpt2;
    const EXTENTS: [usize; 2] = [SEQUENCE; 2];
    const N_TARGETS: usize = SEQUENCE;

    fn make(config: &ModelConfig, cut: Cut) -> Self {
        Gpt2Stage::new(Reference, config, SEQUENCE, cut).unwrap()
    }

    fn with_dropout(self, rate: f64) -> Self {
        self.with_dropout(rate, 5)
    }

    fn sample(n: usize) -> (Vec<u32>, Vec<u32>) {
        (ids(n).collect(), ids(n + 1).collect())
    }
}

impl Model for Bert {
    const ARCHITECTURE: Architecture = Architecture::Bert;
    const EXTENTS: [usize; 2] = [2 + PREDICTIONS + SEQUENCE, PREDICTIONS + 1];
    const N_TARGETS: usize = PREDICTIONS;

    fn make(config: &ModelConfig, cut: Cut) -> Self {
        BertStage::new(Reference, config, SEQUENCE, PREDICTIONS, cut).unwrap()
    }

    fn with_dropout(self, rate: f64) -> Self {
        self.with_dropout(rate, 5)
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

fn config<S: Model>(tied: bool) -> ModelConfig {
    let (architecture, vocab) = (S::ARCHITECTURE, VOCAB as usize);
    ModelConfig { architecture, layers: 3, hidden: 8, heads: 2, context: 5, vocab, tied }
}

/// A model cut into stages, its weights, and one global batch.
struct Chain<S> {
    stages: Vec<S>,
    weights: Named,
    input: Vec<u32>,
    target: Vec<u32>,
}

impl<S: Model> Chain<S> {
    /// `noise` is added to the initial weights: at the start, most gradients are next to zero.
    fn make(config: &ModelConfig, n_stages: usize, noise: f64) -> Self {
        let cuts = cut(config, n_stages).unwrap().into_iter();
        let stages: Vec<S> = cuts.map(|cut| S::make(config, cut)).collect();
        let params = stages.iter().flat_map(|stage| stage.params());
        let weights = params.map(|p| (p.name.clone(), weight(p, noise))).collect();
        let (input, target): (Vec<_>, Vec<_>) = (0..SAMPLES).map(S::sample).unzip();
        Self { stages, weights, input: input.concat(), target: target.concat() }
    }

    fn with_dropout(self, rate: f64) -> Self {
        let stages = self.stages.into_iter().map(|stage| stage.with_dropout(rate)).collect();
        Self { stages, ..self }
    }

    /// The `part`-th of `parts` equal micro-batches.
    fn micro(&self, part: usize, parts: usize) -> Micro<'_> {
        let samples = SAMPLES / parts;
        let [input, target] = S::EXTENTS;
        Micro {
            step: 0,
            sample: (part * samples) as u64,
            input: &self.input[part * samples * input..][..samples * input],
            target: &self.target[part * samples * target..][..samples * target],
            loss_scale: 1.0 / (SAMPLES * S::N_TARGETS) as f64,
            training: true,
        }
    }

    fn weights_of(&self, stage: &S) -> Vec<Tensor> {
        let params = stage.params().iter();
        params.map(|p| self.weights[&p.name].clone()).collect()
    }

    /// The loss, what the last stage begins with, and each stage's residuals.
    fn forward(&self, micro: &Micro<'_>) -> (f64, Tensor, Vec<S::Saved>) {
        let mut x = None;
        let mut residuals = Vec::new();
        for stage in &self.stages {
            let (output, saved) = stage.forward(&self.weights_of(stage), micro, x).unwrap();
            residuals.push(saved);
            match output {
                Output::Activation(y) => x = Some(y),
                Output::Loss { loss, grad } => return (loss.data[0], grad, residuals),
            }
        }
        panic!("the last stage gives a loss")
    }

    fn backward_input(
        &self,
        micro: &Micro<'_>,
        dy: Tensor,
        saved: Vec<S::Saved>,
    ) -> Vec<S::Deferred> {
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

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: Vec<S::Deferred>,
        grads: &mut [Vec<Tensor>],
    ) {
        for ((stage, deferred), into) in self.stages.iter().zip(deferred).zip(grads) {
            stage.backward_weight(micro, deferred, into).unwrap();
        }
    }

    fn zeros(&self) -> Vec<Vec<Tensor>> {
        let zeros = |p: &Param| Reference.zeros(&p.shape).unwrap();
        let stages = self.stages.iter();
        stages.map(|stage| stage.params().iter().map(zeros).collect()).collect()
    }

    /// Gradients by name; those of a tied tensor are summed.
    fn named(&self, grads: Vec<Vec<Tensor>>) -> Named {
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
    fn train(&self) -> (f64, Named) {
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

fn assert_close(a: &Named, b: &Named) {
    assert!(a.keys().eq(b.keys()));
    for (name, x) in a {
        for (x, y) in x.data.iter().zip(&b[name].data) {
            assert!((x - y).abs() < 1e-12, "{name}: {x} and {y}");
        }
    }
}

/// Each of these for each model, without dropout and with it.
macro_rules! laws {
    ($($law:ident),*) => {
        mod gpt2 {
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<super::Gpt2>(rate) } })*
        }
        mod bert {
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<super::Bert>(rate) } })*
        }
    };
}

laws!(
    gradients_are_those_of_finite_differences,
    the_cut_does_not_matter,
    halves_of_a_forward_go_backward_alone,
    micro_batches_go_in_any_order,
    what_is_selected_restores_the_rest
);

fn gradients_are_those_of_finite_differences<S: Model>(dropout: f64) {
    const STEP: f64 = 1e-5;
    for tied in [false, true] {
        let mut chain = Chain::<S>::make(&config::<S>(tied), 1, 0.3).with_dropout(dropout);
        let (_, grads) = chain.train();
        let mut nonzero = 0;
        for (name, grad) in &grads {
            let stride = 1 + grad.data.len() / 24;
            for i in (0..grad.data.len()).step_by(stride) {
                let at = chain.weights[name].data[i];
                let mut loss = |by: f64| {
                    chain.weights.get_mut(name).unwrap().data[i] = at + by;
                    chain.forward(&chain.micro(0, 1)).0
                };
                let slope = (loss(STEP) - loss(-STEP)) / (2.0 * STEP);
                loss(0.0);
                let gradient = grad.data[i];
                let error = (slope - gradient).abs() / (1e-3 + gradient.abs());
                assert!(error < 1e-6, "{name}[{i}]: {gradient}, measured {slope}");
                nonzero += (gradient != 0.0) as usize;
            }
        }
        assert!(nonzero > 500, "only {nonzero} gradients to compare");
    }
}

fn the_cut_does_not_matter<S: Model>(dropout: f64) {
    for tied in [false, true] {
        let chain = |n| Chain::<S>::make(&config::<S>(tied), n, 0.3).with_dropout(dropout);
        let (loss, grads) = chain(1).train();
        for n_stages in 2..=3 {
            let (cut_loss, cut_grads) = chain(n_stages).train();
            assert!((loss - cut_loss).abs() < 1e-12);
            assert_close(&grads, &cut_grads);
        }
    }
}

fn halves_of_a_forward_go_backward_alone<S: Model>(dropout: f64) {
    for n_stages in 1..=3 {
        let chain = Chain::<S>::make(&config::<S>(true), n_stages, 0.3).with_dropout(dropout);
        let (_, dy, saved) = chain.forward(&chain.micro(0, 1));
        let last = &chain.stages[n_stages - 1];
        let mut halves: [Vec<_>; 2] = [Vec::new(), Vec::new()];
        for (stage, saved) in chain.stages.iter().zip(saved) {
            let bytes = stage.saved_bytes(&saved);
            let parts = stage.split_saved(saved, 2).unwrap();
            for (half, part) in halves.iter_mut().zip(parts) {
                assert_eq!(2 * stage.saved_bytes(&part), bytes);
                half.push(part);
            }
        }
        let mut grads = chain.zeros();
        let dy = last.split_tensor(dy, 2).unwrap();
        for (part, (dy, saved)) in dy.into_iter().zip(halves).enumerate() {
            let micro = chain.micro(part, 2);
            let deferred = chain.backward_input(&micro, dy, saved);
            chain.backward_weight(&micro, deferred, &mut grads);
        }
        assert_close(&chain.train().1, &chain.named(grads));
    }
}

fn micro_batches_go_in_any_order<S: Model>(dropout: f64) {
    let chain = Chain::<S>::make(&config::<S>(true), 2, 0.3).with_dropout(dropout);
    let (loss, grads) = chain.train();
    let micros: Vec<_> = (0..4).map(|m| chain.micro(m, 4)).collect();
    for (inputs, weights) in
        [([0, 1, 2, 3], [3, 2, 1, 0]), ([2, 0, 3, 1], [1, 3, 0, 2]), ([3, 2, 1, 0], [3, 2, 1, 0])]
    {
        let mut sum = 0.0;
        let mut forwards = Vec::new();
        for micro in &micros {
            let (loss, dy, saved) = chain.forward(micro);
            sum += loss;
            forwards.push(Some((dy, saved)));
        }
        let mut deferred: Vec<_> = micros.iter().map(|_| None).collect();
        for m in inputs {
            let (dy, saved) = forwards[m].take().unwrap();
            deferred[m] = Some(chain.backward_input(&micros[m], dy, saved));
        }
        let mut shuffled = chain.zeros();
        for m in weights {
            let deferred = deferred[m].take().unwrap();
            chain.backward_weight(&micros[m], deferred, &mut shuffled);
        }
        assert!((loss - sum).abs() < 1e-12);
        assert_close(&grads, &chain.named(shuffled));
    }
}

#[test]
fn a_fresh_model_knows_nothing() {
    for tied in [false, true] {
        let config = config::<Gpt2>(tied);
        let (loss, _) = Chain::<Gpt2>::make(&config, 1, 0.0).train();
        // Logits are dot products of normalised rows with rows of deviation 0.02.
        let deviation = 0.02 * (config.hidden as f64).sqrt();
        let chance = (config.vocab as f64).ln();
        assert!((loss - chance).abs() < deviation, "{loss}");

        let config = ModelConfig { architecture: Architecture::Bert, ..config };
        let (loss, _) = Chain::<Bert>::make(&config, 1, 0.0).train();
        assert!((loss - chance - 2f64.ln()).abs() < deviation, "{loss}");
    }
}

#[test]
fn dropout_changes_the_loss_of_training_alone() {
    fn check<S: Model>() {
        let chain = |rate| Chain::<S>::make(&config::<S>(true), 2, 0.3).with_dropout(rate);
        let loss = |chain: &Chain<S>, change: &dyn Fn(&mut Micro<'_>)| {
            let mut micro = chain.micro(0, 1);
            change(&mut micro);
            chain.forward(&micro).0
        };
        let (with, without) = (chain(DROPOUT), chain(0.0));
        assert_eq!(loss(&with, &|micro| micro.training = false), loss(&without, &|_| ()));
        assert_ne!(loss(&with, &|_| ()), loss(&without, &|_| ()));
        assert_ne!(loss(&with, &|micro| micro.step = 1), loss(&with, &|_| ()));
        assert_ne!(loss(&with, &|micro| micro.sample = 1), loss(&with, &|_| ()));
    }
    check::<Gpt2>();
    check::<Bert>();
}

#[test]
fn padding_has_no_influence() {
    for n_stages in [1, 3] {
        let mut chain = Chain::<Bert>::make(&config::<Bert>(true), n_stages, 0.3);
        let before = chain.train();
        let padding = |sample: usize| (sample + 1) * Bert::EXTENTS[0] - 1;
        chain.input[padding(1)] = (chain.input[padding(1)] + 1) % VOCAB;
        let after = chain.train();
        assert_eq!(before.0, after.0);
        assert_close(&before.1, &after.1);
        // The last row of sample 0 is none.
        chain.input[padding(0)] = (chain.input[padding(0)] + 1) % VOCAB;
        assert_ne!(chain.train().0, after.0);
    }
}

#[test]
fn every_token_of_a_bert_sees_every_other() {
    let config = config::<Bert>(true);
    let stage =
        BertStage::new(Reference, &config, SEQUENCE, SEQUENCE, cut(&config, 1).unwrap().remove(0));
    let stage = stage.unwrap();
    let weights = Chain::<Bert>::make(&config, 1, 0.3);
    let weights = weights.weights_of(&weights.stages[0]);
    let logits = |ids: [u32; SEQUENCE], second: u32| {
        let input = [&[4, second, 0, 1, 2, 3], &ids[..]].concat();
        let micro = Micro {
            step: 0,
            sample: 0,
            input: &input,
            target: &[],
            loss_scale: 1.0,
            training: false,
        };
        match stage.forward(&weights, &micro, None).unwrap().0 {
            Output::Activation(logits) => logits,
            Output::Loss { .. } => panic!("no targets, no loss"),
        }
    };
    let plain = logits([1, 2, 3, 4], 2);
    assert_eq!(plain.shape, [SEQUENCE, VOCAB as usize]);
    for other in [logits([1, 2, 3, 5], 2), logits([0, 2, 3, 4], 2), logits([1, 2, 3, 4], 3)] {
        assert!((0..SEQUENCE).all(|row| other.row(row) != plain.row(row)));
    }
}

#[test]
fn without_targets_the_last_stage_gives_logits() {
    let chain = Chain::<Gpt2>::make(&config::<Gpt2>(true), 1, 0.3);
    let micro = Micro { target: &[], ..chain.micro(0, 2) };
    let stage = &chain.stages[0];
    let (output, _) = stage.forward(&chain.weights_of(stage), &micro, None).unwrap();
    let Output::Activation(logits) = output else { panic!("no targets, no loss") };
    assert_eq!(Reference.shape(&logits), [2 * SEQUENCE, 11]);
}

#[test]
fn residuals_are_counted_in_bytes() {
    let config = config::<Gpt2>(false);
    let chain = Chain::<Gpt2>::make(&config, 1, 0.3);
    let (_, _, saved) = chain.forward(&chain.micro(0, 1));
    // Per row and block: x, two norms, mixed, mid (h each), qkv (3h), fc (4h), two statistics of 2,
    // one log-sum per head; in the head: x and the norm, and one statistic of 2.
    let (hidden, heads) = (config.hidden, config.heads);
    let row = config.layers * (12 * hidden + 4 + heads) + 2 * hidden + 2;
    let whole = cut(&config, 1).unwrap().remove(0);
    assert_eq!(config.residual_elements(&whole, SEQUENCE), SEQUENCE * row);
    let bytes = |per_row: usize| (4 * SAMPLES * SEQUENCE * per_row) as u64;
    let stage = &chain.stages[0];
    assert_eq!(stage.saved_bytes(&saved[0]), bytes(row));
    let (_, grad, mut saved) = chain.forward(&chain.micro(0, 1));
    let selected = stage.select(saved.remove(0));
    let half = config.layers * (6 * hidden + heads) + hidden;
    assert_eq!(config.selected_elements(&whole, SEQUENCE), SEQUENCE * half);
    assert_eq!(stage.selected_bytes(&selected), bytes(half));
    // Input and gradient of four projections (h and 3h, h and h, h and 4h, 4h and h) and of two norms.
    let (_, _, saved) = chain.forward(&chain.micro(0, 1));
    let deferred = chain.backward_input(&chain.micro(0, 1), grad, saved);
    let left = config.layers * (20 * hidden + 4) + (3 * hidden + 2 + config.vocab) + hidden;
    assert_eq!(config.deferred_elements(&whole, SEQUENCE), SEQUENCE * left);
    assert_eq!(stage.deferred_bytes(&deferred[0]), bytes(left));
}

/// The formulas of a configuration are what stages hold, whatever the cut.
#[test]
fn residuals_of_every_stage_are_foreseen() {
    fn check<S: Model>(predictions: usize) {
        for n_stages in 1..=3 {
            let config = config::<S>(true);
            let chain = Chain::<S>::make(&config, n_stages, 0.3);
            let cuts = cut(&config, n_stages).unwrap();
            let bytes = |elements: usize| (4 * SAMPLES * elements) as u64;
            let selected = chain.stages.iter().zip(chain.forward(&chain.micro(0, 1)).2);
            for ((stage, saved), cut) in selected.zip(&cuts) {
                let elements = config.residual_elements(cut, SEQUENCE);
                assert_eq!(stage.saved_bytes(&saved), bytes(elements), "{cut:?}");
                let elements = config.selected_elements(cut, SEQUENCE);
                assert_eq!(stage.selected_bytes(&stage.select(saved)), bytes(elements), "{cut:?}");
            }
            let (_, grad, saved) = chain.forward(&chain.micro(0, 1));
            let deferred = chain.backward_input(&chain.micro(0, 1), grad, saved);
            for ((stage, deferred), cut) in chain.stages.iter().zip(&deferred).zip(&cuts) {
                let elements = config.deferred_elements(cut, SEQUENCE);
                assert_eq!(stage.deferred_bytes(deferred), bytes(elements), "{cut:?}");
            }
            assert_eq!(config.predictions(SEQUENCE), predictions);
        }
    }
    check::<Gpt2>(SEQUENCE);
    check::<Bert>(PREDICTIONS);
}

/// Gradients of residuals that were made again, in whole or in part, have the same bits.
fn what_is_selected_restores_the_rest<S: Model>(dropout: f64) {
    for n_stages in [1, 3] {
        let chain = Chain::<S>::make(&config::<S>(false), n_stages, 0.3).with_dropout(dropout);
        let micro = chain.micro(0, 1);
        let (_, dy, saved) = chain.forward(&micro);
        let restored = saved.into_iter().zip(&chain.stages).map(|(saved, stage)| {
            let selected = stage.select(saved);
            stage.restore(&chain.weights_of(stage), &micro, selected).unwrap()
        });
        let restored = restored.collect();
        let grads = |saved| {
            let zero = |stage: &S| -> Vec<Tensor> {
                let params = stage.params().iter();
                params.map(|p| Reference.zeros(&p.shape).unwrap()).collect()
            };
            let mut grads: Vec<_> = chain.stages.iter().map(zero).collect();
            let deferred = chain.backward_input(&micro, dy.clone(), saved);
            chain.backward_weight(&micro, deferred, &mut grads);
            let bits = grads.into_iter().flatten().flat_map(|grad| grad.data);
            bits.map(f64::to_bits).collect::<Vec<_>>()
        };
        let (_, _, plain) = chain.forward(&micro);
        assert_eq!(grads(restored), grads(plain));
    }
}

#[test]
fn a_sequence_must_fit_the_position_table() {
    let config = config::<Gpt2>(false);
    let whole = || cut(&config, 1).unwrap().remove(0);
    let refusal = |sequence| Gpt2Stage::new(Reference, &config, sequence, whole()).unwrap_err();
    assert_eq!(refusal(0).to_string(), "sequence is 0: choose at least 1");
    assert_eq!(
        refusal(6).to_string(),
        "a sequence of 6 tokens is longer than the context of 5: \
         shorten the sequence or choose context 6"
    );
}
