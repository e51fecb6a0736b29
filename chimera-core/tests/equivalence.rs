//! Whatever the schedule, a pipeline trains as one worker does.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chimera_core::comm::{Comm, Delayed, Stamped, Tag, Threads};
use chimera_core::engine::{Data, Job, Patience, Training, Worker, run_threads};
use chimera_core::fault::Fault;
use chimera_core::ids::StageId;
use chimera_core::kernels::reference::{Reference, Tensor};
use chimera_core::lower::{Lowering, Sync, lower};
use chimera_core::model::{Gpt2Config, Gpt2Stage, cut};
use chimera_core::schedule::{Scaling, Shape, find};
use proptest::prelude::*;

const N_STEPS: u64 = 5;

/// A run to compare: everything but the model and the size of the global batch.
#[derive(Clone, Debug)]
struct Run {
    schedule: &'static str,
    shape: Shape,
    width: usize,
    micro_batch_size: usize,
    sync: Sync,
    clip: Option<f64>,
    check_finite: bool,
    tied: bool,
    is_delayed: bool,
}

impl Run {
    fn new(schedule: &'static str, shape: Shape) -> Run {
        Run {
            schedule,
            shape,
            width: 1,
            micro_batch_size: 2,
            sync: Sync::EagerOpt,
            clip: Some(0.5),
            check_finite: true,
            tied: false,
            is_delayed: false,
        }
    }

    /// The same training on one worker, with one micro-batch.
    fn alone(&self) -> Run {
        let samples = self.width * self.shape.n_micro_batches as usize * self.micro_batch_size;
        Run {
            micro_batch_size: samples,
            width: 1,
            ..Run {
                schedule: "dapple",
                shape: Shape::new(1, 1),
                ..self.clone()
            }
        }
    }
}

/// What a run leaves: losses and gradient norms by step, and by name the last gradients and weights.
#[derive(PartialEq, Debug, Default)]
struct Outcome {
    losses: Vec<f64>,
    norms: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
    weights: BTreeMap<String, Vec<f64>>,
}

struct Digits;

const CONTEXT: usize = 3;
const VOCAB: u32 = 5;

impl Data for Digits {
    fn sample(&self, step: u64, sample: u64, input: &mut Vec<u32>, target: &mut Vec<u32>) {
        let id = |i: u64| ((step * 31 + sample * 7 + i * i * 3) % u64::from(VOCAB)) as u32;
        input.extend((0..CONTEXT as u64).map(id));
        target.extend((1..=CONTEXT as u64).map(id));
    }

    fn n_targets(&self) -> usize {
        CONTEXT
    }
}

fn config(tied: bool) -> Gpt2Config {
    Gpt2Config {
        layers: 8,
        hidden: 4,
        heads: 2,
        context: CONTEXT,
        vocab: VOCAB as usize,
        tied,
    }
}

fn train(run: &Run) -> Result<Outcome, Fault> {
    let config = config(run.tied);
    let n_stages = run.shape.depth;
    let timetable = find(run.schedule)
        .expect("known")
        .timetable(&run.shape)
        .expect("fits");
    let training = Training {
        seed: 7,
        steps: N_STEPS,
        lr: 1e-2,
        warmup: 2,
        weight_decay: 0.1,
        clip: run.clip,
        check_finite: run.check_finite,
    };
    let is_tied = run.tied && n_stages > 1;
    let how = Lowering {
        sync: run.sync,
        barrier: training.needs_barrier(),
        tied: if is_tied {
            vec![vec![StageId(0), StageId(n_stages as u16 - 1)]]
        } else {
            vec![]
        },
        max_peak: None,
    };
    let program = lower(&timetable, &how).unwrap_or_else(|refusal| panic!("{run:?}: {refusal}"));
    let stop = AtomicBool::new(false);
    let job = Job {
        program: &program,
        width: run.width,
        micro_batch_size: run.micro_batch_size,
        training: &training,
        data: &Digits,
        patience: Patience {
            first_step: Duration::from_secs(60),
            later: Duration::from_secs(60),
        },
        stop: &stop,
        epoch: Instant::now(),
    };
    let cuts = cut(&config, n_stages).expect("cut");
    let stage = |id: StageId| {
        Gpt2Stage::new(Reference, &config, CONTEXT, cuts[id.index()].clone()).expect("stage")
    };
    let n_ranks = (run.width * run.shape.depth) as u32;
    let outcomes = if run.is_delayed {
        run_threads(n_ranks, |comm: &mut Threads<Stamped<Tensor>>| {
            body(job, Delayed::new(comm, jitter), &stage)
        })?
    } else {
        run_threads(n_ranks, |comm: &mut Threads<Tensor>| {
            body(job, comm, &stage)
        })?
    };
    Ok(merge(outcomes))
}

/// One rank: trains, and checks after every step that its replicas have the same bits.
fn body<C: Comm<Tensor>>(
    job: Job<'_>,
    comm: C,
    stage: &(dyn Fn(StageId) -> Gpt2Stage<Reference> + std::marker::Sync),
) -> Result<Outcome, Fault> {
    let mut worker = Worker::new(job, Reference, comm, stage)?;
    let mut outcome = Outcome::default();
    for step in 0..N_STEPS {
        let report = worker.step(step)?;
        outcome.losses.push(report.loss);
        outcome.norms.push(report.grad_norm);
    }
    for s in 0..job.program.placement().n_stages() {
        let Some((params, weights, grads)) = worker.held(StageId(s as u16)) else {
            continue;
        };
        for (i, param) in params.iter().enumerate() {
            outcome
                .gradients
                .insert(param.name.clone(), grads[i].data.clone());
            outcome
                .weights
                .insert(param.name.clone(), weights[i].data.clone());
        }
    }
    Ok(outcome)
}

/// All ranks as one, after checking that they agree to the bit on whatever they share.
fn merge(outcomes: Vec<Outcome>) -> Outcome {
    let mut all = Outcome::default();
    for outcome in outcomes {
        if all.losses.is_empty() {
            (all.losses, all.norms) = (outcome.losses.clone(), outcome.norms.clone());
        }
        assert_eq!(
            (&all.losses, &all.norms),
            (&outcome.losses, &outcome.norms),
            "reports differ"
        );
        for (mine, theirs) in [
            (&mut all.gradients, outcome.gradients),
            (&mut all.weights, outcome.weights),
        ] {
            for (name, values) in theirs {
                let known = mine.entry(name.clone()).or_insert_with(|| values.clone());
                assert_eq!(*known, values, "replicas of {name} differ");
            }
        }
    }
    all
}

/// Delays of up to half a millisecond that let messages of different channels overtake each other.
fn jitter(tag: Tag) -> Duration {
    let text = format!("{tag:?}");
    Duration::from_micros(
        text.bytes()
            .fold(17u64, |h, b| (h * 31 + u64::from(b)) % 509),
    )
}

fn assert_equivalent(run: &Run) {
    let (many, one) = (
        train(run).expect("trains"),
        train(&run.alone()).expect("trains"),
    );
    let close = |name: &str, a: &[f64], b: &[f64], tolerance: f64| {
        assert_eq!(a.len(), b.len(), "{name}");
        let size = b.iter().fold(1e-9, |m: f64, x| m.max(x.abs()));
        let worst = a
            .iter()
            .zip(b)
            .map(|(x, y)| (x - y).abs())
            .fold(0.0, f64::max);
        assert!(
            worst <= tolerance * size,
            "{name}: {worst:e} off {size:e} in {run:?}"
        );
    };
    // Scalars cross the device's f32 boundary; gradients do not.
    close("losses", &many.losses, &one.losses, 1e-5);
    close("norms", &many.norms, &one.norms, 1e-5);
    assert!(many.gradients.keys().eq(one.gradients.keys()));
    for (name, values) in &many.gradients {
        close(name, values, &one.gradients[name], 1e-12);
    }
}

fn shapes(schedule: &'static str, depths: &[usize], n_micro_batches: &[u32]) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for &depth in depths {
        for &n in n_micro_batches {
            let plain = Shape::new(depth, n);
            if schedule != "chimera" {
                shapes.push(plain);
                continue;
            }
            for f in (1..=depth / 2).filter(|f| (depth / 2) % f == 0) {
                for (_, scaling) in Scaling::ALL {
                    shapes.push(Shape {
                        n_pipes: 2 * f,
                        scaling,
                        ..plain
                    });
                }
            }
        }
    }
    shapes
}

#[test]
fn gpipe_dapple_and_gems_train_as_one_worker() {
    for schedule in ["gpipe", "dapple", "gems"] {
        for shape in shapes(schedule, &[1, 2, 3, 4], &[1, 3, 6]) {
            assert_equivalent(&Run::new(schedule, shape));
        }
    }
}

#[test]
fn chimera_trains_as_one_worker() {
    for shape in shapes("chimera", &[2, 4, 8], &[1, 2, 5, 8, 11]) {
        assert_equivalent(&Run::new("chimera", shape));
    }
}

#[test]
fn width_and_sync_policies_do_not_change_the_training() {
    for (_, sync) in Sync::ALL {
        for (clip, check_finite) in [(Some(0.5), true), (None, false)] {
            for n in [1, 4, 7] {
                let four = Shape {
                    n_pipes: 4,
                    ..Shape::new(4, n)
                };
                for (schedule, shape) in [("dapple", Shape::new(3, n)), ("chimera", four)] {
                    let run = Run {
                        sync,
                        clip,
                        check_finite,
                        width: 2,
                        ..Run::new(schedule, shape)
                    };
                    assert_equivalent(&run);
                }
            }
        }
    }
}

#[test]
fn a_tied_head_is_summed_over_both_ends() {
    for (schedule, shape) in [
        ("dapple", Shape::new(3, 4)),
        ("gems", Shape::new(3, 3)),
        ("chimera", Shape::new(2, 4)),
        (
            "chimera",
            Shape {
                n_pipes: 4,
                ..Shape::new(4, 6)
            },
        ),
    ] {
        assert_equivalent(&Run {
            tied: true,
            width: 2,
            ..Run::new(schedule, shape)
        });
    }
}

#[test]
fn the_same_run_gives_the_same_bits_however_messages_arrive() {
    for scaling in [Scaling::Direct, Scaling::Doubling, Scaling::Halving] {
        let run = Run {
            width: 2,
            ..Run::new(
                "chimera",
                Shape {
                    scaling,
                    ..Shape::new(4, 9)
                },
            )
        };
        let first = train(&run).expect("trains");
        assert_eq!(first, train(&run).expect("trains"));
        assert_eq!(
            first,
            train(&Run {
                is_delayed: true,
                ..run
            })
            .expect("trains")
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_trains_as_one_worker(
        schedule in prop::sample::select(vec!["gpipe", "dapple", "gems", "chimera"]),
        half in 1usize..=4,
        f in 1usize..=4,
        n in 1u32..=13,
        width in 1usize..=2,
        scaling in prop::sample::select(Scaling::ALL.map(|(_, s)| s).to_vec()),
        sync in prop::sample::select(Sync::ALL.map(|(_, s)| s).to_vec()),
    ) {
        prop_assume!(half % f == 0);
        let shape = Shape { n_pipes: 2 * f, scaling, ..Shape::new(2 * half, n) };
        assert_equivalent(&Run { width, sync, ..Run::new(schedule, shape) });
    }
}
