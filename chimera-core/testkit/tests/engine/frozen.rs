//! Frozen parts of a model: any schedule trains the rest as one worker that freezes them does.

use std::collections::BTreeSet;

use chimera_engine::device::WeightFormat;
use chimera_engine::stage::ParamPatterns;
use chimera_models::model::{Architecture, Lora};
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{Passes, Recompute, freeze};
use chimera_schedule::op::Kind;
use chimera_schedule::schedule::{Shape, find};

use crate::training::{Run, config, cuts, train, train_timetable};

/// Patterns of a GPT-2 of eight layers: a prefix, a layer between trained ones, the end, all
/// matrices but not their biases, and the token table.
const PATTERNS: [&str; 5] = [
    "wte.*; wpe.*; h.0.*; h.1.*; h.2.*; h.3.*",
    "h.4.*; h.5.*",
    "h.6.*; h.7.*; ln_f.*; lm_head.*",
    "h.*.weight",
    "wte.*; h.0.*",
];

/// Compares weights after every step, which follow from gradients, norms and moments.
fn trains_as_one_worker(run: &Run) {
    let (many, one) = (train(run).expect("trains"), train(&run.alone()).expect("trains"));
    assert!(!one.weights.is_empty() && many.weights.keys().eq(one.weights.keys()));
    assert!(many.gradients.keys().eq(one.gradients.keys()));
    let frozen = run.freeze.parse::<ParamPatterns>().unwrap_or_default();
    let (mut begun, mut n_trained) = (BTreeSet::new(), 0);
    for ((step, name), weights) in &many.weights {
        let alone = &one.weights[&(*step, name.clone())];
        let size = alone.iter().fold(1e-9, |most: f64, x| most.max(x.abs()));
        let worst = weights.iter().zip(alone).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= 1e-10 * size, "{name} after step {step}: {worst:e} off in {run:?}");
        let is_base = run.lora.is_some() && !name.contains(".lora_");
        if is_base || frozen.matches(name) {
            assert!(!many.gradients.contains_key(&(*step, name.clone())), "{name} has a gradient");
            begun.insert((name, weights.iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
        } else {
            n_trained += 1;
        }
    }
    let names: BTreeSet<_> = begun.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), begun.len(), "a frozen weight has changed");
    assert!(!names.is_empty() && n_trained > 0);
}

#[test]
fn schedules_train_what_is_not_frozen_as_one_worker() {
    for schedule in ["dapple", "chimera", "zb-v", "zb-h1", "dualpipe", "gems"] {
        for (freeze, depth) in PATTERNS.into_iter().zip([4, 2, 4, 4, 2]) {
            let shape = Shape::new(depth, 2 * depth as u32);
            trains_as_one_worker(&Run { freeze, ..Run::new(schedule, shape) });
        }
    }
}

#[test]
fn replicas_passes_and_slices_freeze_too() {
    let base = Run { freeze: PATTERNS[0], ..Run::new("chimera", Shape::new(4, 4)) };
    for run in [
        Run { width: 2, shard_optimizer: true, ..base.clone() },
        Run { tied: true, freeze: PATTERNS[4], ..base.clone() },
        Run { tied: true, freeze: "h.*", ..base.clone() },
        Run { dropout: 0.2, is_delayed: true, ..base.clone() },
        Run { architecture: Architecture::BERT, freeze: "embeddings.*", ..base.clone() },
        Run {
            architecture: Architecture::LLAMA,
            freeze: "embed_tokens.*; layers.0.*; layers.1.*",
            ..base.clone()
        },
        Run {
            schedule: "seq1f1b",
            shape: Shape { n_slices: 2, ..Shape::new(4, 3) },
            ..base.clone()
        },
        Run {
            passes: Passes { recompute: Recompute::Selective, ..Passes::default() },
            ..base.clone()
        },
        Run { passes: Passes { split_backward: true, ..Passes::default() }, ..base.clone() },
    ] {
        trains_as_one_worker(&run);
    }
}

/// Adapters of rank and scale 2.
fn adapters(targets: &str) -> Lora {
    let targets = targets.parse().unwrap_or_default();
    Lora { rank: 2, alpha: 2, targets, dropout: 0.0, has_magnitudes: false }
}

/// Under any schedule adapters train as on one worker, with any of their layers adapted, and with a
/// scale other than 1.
#[test]
fn adapters_train_as_on_one_worker() {
    let lora = |alpha, targets: &str| Some(Lora { alpha, ..adapters(targets) });
    let plain = |schedule| Run::new(schedule, Shape::new(4, 8));
    for run in [
        Run { lora: lora(2, ""), ..plain("dapple") },
        Run { lora: lora(4, ""), ..plain("chimera") },
        Run { lora: lora(3, "c_attn; mlp.c_fc"), dropout: 0.2, ..plain("zb-v") },
        Run { lora: lora(4, ""), tied: true, width: 2, ..plain("dualpipe") },
        Run { lora: lora(4, ""), freeze: "h.0.*; h.1.*; h.2.*", ..plain("zb-h1") },
    ] {
        trains_as_one_worker(&run);
        let architecture = Architecture::LLAMA;
        let targets = ["", "q_proj; v_proj", "k_proj; up_proj; down_proj"];
        for targets in targets {
            let alpha = run.lora.as_ref().map_or(1, |lora| lora.alpha);
            let freeze = if run.freeze.is_empty() { "" } else { "layers.0.*; layers.1.*" };
            let lora = lora(alpha, targets);
            trains_as_one_worker(&Run { lora, freeze, architecture, ..run.clone() });
        }
    }
}

/// Dropout of adapters' inputs is drawn by the place in the samples of a step, and magnitudes follow
/// from the weights alone: replicas, slices, recomputation and split backwards change neither.
#[test]
fn dropout_and_magnitudes_train_as_on_one_worker() {
    let passes = |recompute| Passes { recompute, ..Passes::default() };
    let plain = |schedule| Run::new(schedule, Shape::new(4, 8));
    let sliced = Shape { n_slices: 2, ..Shape::new(4, 3) };
    let mut ends = BTreeSet::new();
    for (dropout, has_magnitudes) in [(0.0, false), (0.3, false), (0.0, true), (0.3, true)] {
        let lora = |targets| Some(Lora { alpha: 3, dropout, has_magnitudes, ..adapters(targets) });
        for run in [
            plain("zb-v"),
            Run { width: 2, dropout: 0.2, ..plain("chimera") },
            Run { shape: sliced, ..plain("seq1f1b") },
            Run { shape: sliced, passes: passes(Recompute::Full), ..plain("seq1f1b") },
            Run { passes: passes(Recompute::Selective), ..plain("dapple") },
            Run { passes: passes(Recompute::Full), ..plain("chimera") },
            Run { passes: Passes { split_backward: true, ..Passes::default() }, ..plain("dapple") },
        ] {
            trains_as_one_worker(&Run { lora: lora("c_attn; mlp.c_proj"), ..run.clone() });
            let (lora, architecture) = (lora("k_proj; up_proj; o_proj"), Architecture::LLAMA);
            trains_as_one_worker(&Run { lora, architecture, ..run });
        }
        let run = Run { lora: lora(""), ..plain("dapple") };
        let losses = train(&run.alone()).expect("trains").losses;
        assert_eq!(losses, train(&run.alone()).expect("trains").losses);
        ends.insert(losses.last().expect("a loss").to_bits());
    }
    assert_eq!(ends.len(), 4, "each of them changes the training");
}

/// Frozen matrices in fewer bits stand for other weights, which are those of one worker.
#[test]
fn packed_weights_train_as_on_one_worker() {
    let lora = Some(Lora { alpha: 4, ..adapters("") });
    let mut ends = BTreeSet::new();
    for (format, schedule) in [
        (WeightFormat::F32, "dapple"),
        (WeightFormat::Bf16, "dapple"),
        (WeightFormat::Int8, "chimera"),
        (WeightFormat::Nf4, "zb-v"),
        (WeightFormat::Nf4Double, "dualpipe"),
    ] {
        let base = Run { frozen_weights: format, ..Run::new(schedule, Shape::new(4, 8)) };
        let run = Run { lora: lora.clone(), architecture: Architecture::LLAMA, ..base.clone() };
        trains_as_one_worker(&run);
        trains_as_one_worker(&Run { lora: lora.clone(), ..base.clone() });
        let dora = lora.clone().map(|lora| Lora { has_magnitudes: true, ..lora });
        trains_as_one_worker(&Run { lora: dora, ..base.clone() });
        trains_as_one_worker(&Run { freeze: PATTERNS[1], ..base });
        let losses = train(&run.alone()).expect("trains").losses;
        ends.insert(losses.last().expect("a loss").to_bits());
    }
    // The maps of this model have one block each, whose scale is the mean of all.
    assert_eq!(ends.len(), 4, "formats round differently");
}

#[test]
fn a_program_that_freezes_a_trained_stage_is_refused() {
    let run = Run::new("dapple", Shape::new(4, 4));
    let whole = find(run.schedule).expect("known").timetable(&run.shape).expect("fits");
    let frozen = freeze(whole, &[StageId(0)]);
    let refusal = train_timetable(&run, &frozen).expect_err("refused").to_string();
    assert!(
        refusal.contains("the program freezes stage 0, and its parameter wte.weight"),
        "{refusal}"
    );
}

/// A frozen prefix of half of the layers has no backward, and its workers have no sums.
#[test]
fn a_frozen_prefix_only_goes_forward() {
    let run = Run { freeze: PATTERNS[0], ..Run::new("dapple", Shape::new(4, 8)) };
    let config = config(false);
    let stages: Vec<bool> = cuts(&run, &config, 4)
        .iter()
        .map(|cut| config.params(cut).iter().all(|param| param.frozen))
        .collect();
    assert_eq!(stages, [true, true, false, false]);
    let timetable = crate::training::frozen(
        &run,
        find("dapple").expect("known").timetable(&run.shape).expect("fits"),
    );
    assert!(timetable.ops().all(|op| op.stage.0 > 1 || op.kind == Kind::Forward));
}
