//! The models on the reference kernels: their gradients are right, and do not depend on cuts,
//! splits and order, also with dropout.

#[path = "model/chain.rs"]
mod chain;

use chain::{
    Bert, Chain, Gpt2, Llama, Model, PREDICTIONS, Packed, SAMPLES, SEQUENCE, VOCAB, assert_close,
    config,
};
use chimera_engine::device::Device;
use chimera_engine::device::reference::Reference;
use chimera_engine::stage::{Micro, Output, Selective, Sizes, Splittable, Stage};
use chimera_models::model::{
    Architecture, BertStage, Cut, DecoderStage, ModelConfig, Selection, cut, memory,
};
use chimera_schedule::costs::StageBytes;

const DROPOUT: f64 = 0.3;

/// Runs each of these tests for each model, with and without dropout.
macro_rules! laws {
    ($($law:ident),*) => {
        mod gpt2 {
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<super::Gpt2>(rate) } })*
        }
        mod llama {
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<super::Llama>(rate) } })*
        }
        mod packed_gpt2 {
            use super::{Gpt2, Packed};
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<Packed<Gpt2>>(rate) } })*
        }
        mod packed_llama {
            use super::{Llama, Packed};
            $(#[test] fn $law() { for rate in [0.0, super::DROPOUT] { super::$law::<Packed<Llama>>(rate) } })*
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

fn gradients_are_those_of_finite_differences<M: Model>(dropout: f64) {
    const STEP: f64 = 1e-5;
    for tied in [false, true] {
        let mut chain = Chain::<M>::with_dropout(&config::<M>(tied), 1, 0.3, dropout);
        let (_, grads) = chain.train();
        let mut nonzero = 0;
        for (name, grad) in &grads {
            let stride = 1 + grad.data.len() / 40;
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

fn the_cut_does_not_matter<M: Model>(dropout: f64) {
    for tied in [false, true] {
        let chain = |n| Chain::<M>::with_dropout(&config::<M>(tied), n, 0.3, dropout);
        let (loss, grads) = chain(1).train();
        for n_stages in 2..=3 {
            let (cut_loss, cut_grads) = chain(n_stages).train();
            assert!((loss - cut_loss).abs() < 1e-12);
            assert_close(&grads, &cut_grads);
        }
    }
}

fn halves_of_a_forward_go_backward_alone<M: Model>(dropout: f64) {
    for n_stages in 1..=3 {
        let chain = Chain::<M>::with_dropout(&config::<M>(true), n_stages, 0.3, dropout);
        let (_, dy, saved) = chain.forward(&chain.micro(0, 1));
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
        let rows = Reference.shape(&dy)[0];
        for (part, saved) in halves.into_iter().enumerate() {
            let dy = Reference.rows(&dy, part * rows / 2, rows / 2).unwrap();
            let micro = chain.micro(part, 2);
            let deferred = chain.backward_input(&micro, dy, saved);
            chain.backward_weight(&micro, deferred, &mut grads);
        }
        assert_close(&chain.train().1, &chain.named(grads));
    }
}

fn micro_batches_go_in_any_order<M: Model>(dropout: f64) {
    let chain = Chain::<M>::with_dropout(&config::<M>(true), 2, 0.3, dropout);
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
        // Logits are dot products of normalised rows with rows of standard deviation 0.02.
        let deviation = 0.02 * (config.hidden as f64).sqrt();
        let chance = (config.vocab as f64).ln();
        assert!((loss - chance).abs() < deviation, "{loss}");

        let config = ModelConfig { architecture: Architecture::BERT, ..config };
        let (loss, _) = Chain::<Bert>::make(&config, 1, 0.0).train();
        assert!((loss - chance - 2f64.ln()).abs() < deviation, "{loss}");
    }
}

#[test]
fn dropout_changes_the_loss_of_training_alone() {
    fn check<M: Model>() {
        let chain = |rate| Chain::<M>::with_dropout(&config::<M>(true), 2, 0.3, rate);
        let loss = |chain: &Chain<M>, change: &dyn Fn(&mut Micro<'_>)| {
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
    check::<Llama>();
    check::<Bert>();
}

/// Positions of a table are counted within the document. Rotary ones are relative, to the precision
/// of cosines in f32.
#[test]
fn documents_side_by_side_have_the_logits_that_each_has_alone() {
    fn logits<M: Model>(ids: &[u32]) -> Vec<f64> {
        let config = config::<M>(true);
        let stage = DecoderStage::new(Reference, &config, ids.len(), Cut::whole(&config)).unwrap();
        let weights = Chain::<M>::make(&config, 1, 0.3).weights;
        let w: Vec<_> = stage.params().iter().map(|p| weights[&p.name].clone()).collect();
        let micro =
            Micro { step: 0, sample: 0, input: ids, target: &[], loss_scale: 1.0, training: false };
        match stage.forward(&w, &micro, None).unwrap().0 {
            Output::Activation(logits) => logits.data,
            Output::Loss { .. } => panic!("there are no targets"),
        }
    }
    fn check<M: Model>(tolerance: f64) {
        let documents: [&[u32]; 3] = [&[3, 5], &[5], &[7, 8]];
        let together = logits::<Packed<M>>(&documents.concat());
        let alone = documents.map(logits::<M>).concat();
        assert_eq!(together.len(), alone.len());
        for (together, alone) in together.iter().zip(&alone) {
            assert!((together - alone).abs() < tolerance, "{together} and {alone}");
        }
    }
    check::<Gpt2>(1e-12);
    check::<Llama>(1e-6);
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
        // The last row of sample 0 is padding.
        chain.input[padding(0)] = (chain.input[padding(0)] + 1) % VOCAB;
        assert_ne!(chain.train().0, after.0);
    }
}

#[test]
fn every_token_of_a_bert_sees_every_other() {
    let config = config::<Bert>(true);
    let stage = BertStage::new(Reference, &config, SEQUENCE, SEQUENCE, Cut::whole(&config));
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
fn activations_are_counted_in_bytes() {
    let config = config::<Gpt2>(false);
    let chain = Chain::<Gpt2>::make(&config, 1, 0.3);
    let (_, _, saved) = chain.forward(&chain.micro(0, 1));
    // Per row and block: x, two norms, mixed, mid (h each), qkv (3h), fc (4h), two statistics of 2,
    // one log-sum per head; in the head: x and the norm, and one statistic of 2.
    let (hidden, heads) = (config.hidden, config.heads);
    let row = config.layers * (12 * hidden + 4 + heads) + 2 * hidden + 2;
    let bytes = |per_row: usize| (4 * SAMPLES * SEQUENCE * per_row) as u64;
    let stage = &chain.stages[0];
    assert_eq!(stage.saved_bytes(&saved[0]), bytes(row));
    let (_, grad, mut saved) = chain.forward(&chain.micro(0, 1));
    let selected = stage.select(saved.remove(0));
    let half = config.layers * (6 * hidden + heads) + hidden;
    assert_eq!(stage.saved_bytes(&selected), bytes(half));
    // Input and gradient of four projections (h and 3h, h and h, h and 4h, 4h and h) and of two norms.
    let (_, _, saved) = chain.forward(&chain.micro(0, 1));
    let deferred = chain.backward_input(&chain.micro(0, 1), grad, saved);
    let left = config.layers * (20 * hidden + 4) + (3 * hidden + 2 + config.vocab) + hidden;
    assert_eq!(stage.deferred_bytes(&deferred[0]), bytes(left));
}

/// The predicted activation memory is what stages hold, however the model is cut.
#[test]
fn activations_of_every_stage_are_foreseen() {
    fn check<M: Model>(predictions: usize) {
        for n_stages in 1..=3 {
            let config = config::<M>(true);
            let mut cuts = cut(&config, config.context, n_stages).unwrap();
            // One stage keeps the expensive values, the others the inputs of some blocks, or of
            // more than they have.
            let others = [Selection::InputsOf(1), Selection::InputsOf(2)].into_iter();
            for (cut, selection) in cuts.iter_mut().skip(1).zip(others) {
                cut.selection = selection;
            }
            let chain = Chain::<M>::with_cuts(&config, cuts.clone(), 0.3, 0.0);
            let sample = |cut| memory(&config, cut, SEQUENCE, false, 4).unwrap().sample;
            let bytes = |of_sample: f64| SAMPLES as u64 * of_sample as u64;
            let selected = chain.stages.iter().zip(chain.forward(&chain.micro(0, 1)).2);
            for ((stage, saved), cut) in selected.zip(&cuts) {
                let StageBytes { saved: whole, selected, .. } = sample(cut);
                assert_eq!(stage.saved_bytes(&saved), bytes(whole), "{cut:?}");
                assert_eq!(stage.saved_bytes(&stage.select(saved)), bytes(selected), "{cut:?}");
            }
            let (_, grad, saved) = chain.forward(&chain.micro(0, 1));
            let deferred = chain.backward_input(&chain.micro(0, 1), grad, saved);
            for ((stage, deferred), cut) in chain.stages.iter().zip(&deferred).zip(&cuts) {
                let bytes = bytes(sample(cut).deferred);
                assert_eq!(stage.deferred_bytes(deferred), bytes, "{cut:?}");
            }
            assert_eq!(config.predictions(SEQUENCE), predictions);
        }
    }
    check::<Gpt2>(SEQUENCE);
    check::<Llama>(SEQUENCE);
    check::<Bert>(PREDICTIONS);
}

/// Gradients from saved activations that were recomputed, in whole or in part, have the same bits.
fn what_is_selected_restores_the_rest<M: Model>(dropout: f64) {
    let keeping =
        [Selection::Dear, Selection::InputsOf(1), Selection::InputsOf(2), Selection::InputsOf(9)];
    for (n_stages, selection) in keeping.into_iter().flat_map(|keeps| [(1, keeps), (3, keeps)]) {
        let config = config::<M>(false);
        let cuts = cut(&config, config.context, n_stages).unwrap().into_iter();
        let cuts = cuts.map(|cut| Cut { selection, ..cut }).collect();
        let chain = Chain::<M>::with_cuts(&config, cuts, 0.3, dropout);
        let micro = chain.micro(0, 1);
        let (_, dy, saved) = chain.forward(&micro);
        let restored = saved.into_iter().zip(&chain.stages).map(|(saved, stage)| {
            let selected = stage.select(saved);
            stage.restore(&chain.weights_of(stage), &micro, selected).unwrap()
        });
        let restored = restored.collect();
        let grads = |saved| {
            let mut grads = chain.zeros();
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
    let whole = || Cut::whole(&config);
    let refusal = |sequence| DecoderStage::new(Reference, &config, sequence, whole()).unwrap_err();
    assert_eq!(refusal(0).to_string(), "sequence is 0: choose at least 1");
    assert_eq!(
        refusal(6).to_string(),
        "a sequence of 6 tokens is longer than the context of 5: \
         shorten the sequence or choose context 6"
    );
}
