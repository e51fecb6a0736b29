//! K-FAC: a pipeline preconditions gradients like one worker, and one worker like dense matrices.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use chimera_engine::comm::Threads;
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{Device, Elements};
use chimera_engine::engine::{
    Counts, Job, Optimizer, Patience, Snapshot, Training, Worker, run_threads, unsurvivable,
};
use chimera_engine::fault::{Class, Fault};
use chimera_engine::stage::{Data, Micro, Output, Param, Stage};
use chimera_models::model::{Architecture, DecoderStage, cut};
use chimera_schedule::ids::StageId;
use chimera_schedule::lower::{Lowering, Passes, Recompute, lower};
use chimera_schedule::schedule::{Shape, find};

use crate::training::exact::Exact;
use crate::training::{CONTEXT, Digits, N_STEPS, Run, config, train};

fn kfac(run: Run) -> Run {
    Run { optimizer: Optimizer::kfac(), ..run }
}

/// With any schedule, model and message time, preconditioned gradients and weights equal those of
/// one worker within 1e-10, and replicas are equal to the bit.
#[test]
fn a_pipeline_preconditions_as_one_worker() {
    let selective = Passes { recompute: Recompute::Selective, ..Passes::default() };
    let split = Passes { split_backward: true, ..Passes::default() };
    for architecture in [Architecture::GPT2, Architecture::LLAMA, Architecture::BERT] {
        for (schedule, shape, width, passes, is_delayed) in [
            ("dapple", Shape::new(4, 4), 1, selective, true),
            ("chimera", Shape::new(2, 4), 1, Passes::default(), true),
            ("chimera", Shape::new(4, 4), 2, split, false),
            ("chimera", Shape { n_pipes: 4, ..Shape::new(4, 3) }, 1, Passes::default(), true),
            ("zb-v", Shape::new(2, 4), 1, Passes::default(), true),
        ] {
            let run = kfac(Run { width, passes, is_delayed, ..Run::new(schedule, shape) });
            let run = Run { architecture, is_filled: width == 1, ..run };
            let (many, one) = (train(&run).expect("trains"), train(&run.alone()).expect("trains"));
            for (all, of_one) in [(&many.gradients, &one.gradients), (&many.weights, &one.weights)]
            {
                assert!(all.keys().eq(of_one.keys()));
                for (name, values) in all {
                    let worst = values.iter().zip(&of_one[name]).map(|(a, b)| (a - b).abs());
                    let worst = worst.fold(0.0, f64::max);
                    assert!(worst <= 1e-10, "{name:?}: {worst:e} in {run:?}");
                }
            }
        }
    }
}

/// The result does not depend on the time at which pieces run, or on whether the program contains
/// them.
#[test]
fn no_bit_depends_on_when_pieces_are_done() {
    for (schedule, shape) in
        [("chimera", Shape::new(2, 4)), ("chimera", Shape::new(4, 8)), ("zb-h1", Shape::new(4, 4))]
    {
        let run = kfac(Run::new(schedule, shape));
        let plain = train(&run).expect("trains");
        for is_delayed in [false, true] {
            let filled = Run { is_delayed, is_filled: true, ..run.clone() };
            assert_eq!(train(&filled).expect("trains"), plain, "{schedule}");
        }
    }
}

#[test]
fn what_is_not_supported_is_refused() {
    let refused = |run: Run| {
        let fault = train(&run).expect_err("is refused");
        assert_eq!(fault.class, Class::Usage);
        fault.message
    };
    let run = |schedule| kfac(Run::new(schedule, Shape::new(2, 4)));
    let sharded = refused(Run { shard_optimizer: true, ..run("chimera") });
    assert!(sharded.contains("leave shard-optimizer out"), "{sharded}");
    let window = refused(Run { clip: None, ..run("pipedream") });
    assert!(window.contains("choose a synchronous schedule"), "{window}");
    let timetable = find("chimera").expect("known").timetable(&Shape::new(2, 4)).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("sound");
    let death = unsurvivable(&program, &training()).expect("is refused");
    assert!(death.contains("choose another optimizer"), "{death}");
}

type Worked<'w> = Worker<'w, DecoderStage<Reference>, Exact, &'w mut Threads<Tensor>>;

/// Calls `f` on the worker of each rank of a training of `digits` with K-FAC.
fn work<R: Send>(
    schedule: &str,
    shape: Shape,
    f: impl Fn(&mut Worked<'_>) -> Result<R, Fault> + Sync,
) -> Vec<R> {
    let training = training();
    let timetable = find(schedule).expect("known").timetable(&shape).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("sound");
    let model = config(false);
    let cuts = cut(&model, CONTEXT, timetable.placement.n_stages()).expect("cut");
    let stop = AtomicBool::new(false);
    let job = Job {
        program: &program,
        width: 1,
        micro_batch_size: 8 / shape.n_micro_batches as usize,
        training: &training,
        data: &Digits,
        patience: Patience::default(),
        stop: &stop,
        own_work: None,
        epoch: Instant::now(),
    };
    let stage = |id: StageId| {
        let cut = cuts[id.index()].clone();
        Ok(DecoderStage::new(Reference, &model, CONTEXT, cut).expect("stage"))
    };
    let all = run_threads(shape.depth as u32, |comm: &mut Threads<Tensor>| {
        f(&mut Worker::new(job, Exact, comm, stage)?)
    });
    all.expect("trains")
}

fn training() -> Training {
    Run { optimizer: Optimizer::kfac(), ..Run::new("dapple", Shape::new(1, 1)) }.training()
}

/// A training that stops after any step, and resumes from what it saved, has the same bits.
#[test]
fn a_resumed_training_is_bit_equal() {
    let state = |worker: &mut Worked<'_>| Ok((worker.counts(), worker.snapshot(Vec::new())?));
    // Parts of an f64 may be NaN as f32, which does not equal itself.
    let bits = |(counts, all): (Counts, Vec<Snapshot>)| {
        let of = |elements: Elements| elements.words.into_iter().map(f32::to_bits).collect();
        let tensors = all.into_iter().flat_map(|Snapshot { weights, state, .. }| {
            [weights].into_iter().chain(state.into_iter().map(|kept| kept.elements))
        });
        (counts, tensors.map(of).collect::<Vec<Vec<u32>>>())
    };
    let steps = |worker: &mut Worked<'_>, range: std::ops::Range<u64>| {
        range.into_iter().try_for_each(|step| worker.run(step).map(drop))
    };
    for shape in [Shape::new(2, 4), Shape::new(4, 4)] {
        let whole = work("chimera", shape, |worker| {
            steps(worker, 0..N_STEPS)?;
            state(worker).map(bits)
        });
        for at in 1..N_STEPS {
            let saved = work("chimera", shape, |worker| {
                steps(worker, 0..at)?;
                state(worker)
            });
            let (counts, all): (Vec<Counts>, Vec<Vec<Snapshot>>) = saved.into_iter().unzip();
            let all: Vec<Snapshot> = all.concat();
            let tensor = |param: &Param| {
                let found = all.iter().find(|saved| saved.param.name == param.name);
                Ok(found.expect("every tensor").clone())
            };
            let resumed = work("chimera", shape, |worker| {
                worker.restore(counts[0], tensor)?;
                steps(worker, at..N_STEPS)?;
                state(worker).map(bits)
            });
            assert_eq!(resumed, whole, "{shape:?} from {at}");
        }
    }
}

/// Rows of a matrix.
type Rows = Vec<Vec<f64>>;

/// The factors and the gradient of one linear layer, by plain loops.
#[derive(Clone, Default)]
struct Dense {
    factors: [Rows; 2],
    in_use: [Rows; 2],
}

/// One worker replaces gradients by `(G + γ)⁻¹ M (A + γ)⁻¹`, with factors of the documented age.
/// The expected values solve one dense system, with the length of a step.
#[test]
fn one_worker_preconditions_as_dense_matrices_say() {
    let model = config(false);
    let cut = cut(&model, CONTEXT, 1).expect("cut").remove(0);
    let stage = DecoderStage::new(Reference, &model, CONTEXT, cut).expect("stage");
    let Training { kfac_every: every, kfac_damping: damping, kfac_decay, momentum, .. } =
        training();
    work("dapple", Shape::new(1, 1), |worker| {
        let mut layers: BTreeMap<String, Dense> = BTreeMap::new();
        for step in 0..N_STEPS {
            let (params, weights, _) = worker.held(StageId(0)).expect("held");
            let (params, weights) = (params.to_vec(), weights.to_vec());
            let (operands, gradients) = backward(&stage, &weights, step);
            worker.run(step)?;
            let (_, _, preconditioned) = worker.held(StageId(0)).expect("held");
            let place = |name: &str| params.iter().position(|p| p.name == *name).expect("a param");
            let shown = params.iter().filter(|param| param.shown.is_some());
            for (param, [x, dy]) in shown.zip(&operands) {
                let dense = layers.entry(param.name.clone()).or_default();
                let decay = if step == 0 { 0.0 } else { kfac_decay };
                if step % every == 0 {
                    let last = dense.factors.clone();
                    let n_rows = x.n_rows() as f64;
                    let new = [mean(x, true, 1.0 / n_rows), mean(dy, false, n_rows)];
                    dense.factors = averaged(&last, new, decay);
                    dense.in_use = if step == 0 { dense.factors.clone() } else { last };
                }
                let bias = param.shown.as_ref().and_then(|layer| layer.bias.as_deref());
                let bias = place(bias.expect("a bias"));
                let matrix = place(&param.name);
                let m = joined(&gradients[matrix], &gradients[bias]);
                let found = joined(&preconditioned[matrix], &preconditioned[bias]);
                let n_maps = param.linear_maps.len();
                let mut expected: Rows = Vec::new();
                for (map, rows) in m.chunks(m.len() / n_maps).enumerate() {
                    let [a, g] = &dense.in_use;
                    let own = map * rows.len()..(map + 1) * rows.len();
                    let g: Rows =
                        g[own.clone()].iter().map(|row| row[own.clone()].to_vec()).collect();
                    expected.extend(solved(&damped(a, damping), &damped(&g, damping), rows));
                }
                let n = (expected.len() * expected[0].len()) as f64;
                let square: f64 = expected.iter().flatten().map(|x| x * x).sum();
                let scale = 0.2 * (1.0 - momentum) * (n / square).sqrt();
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    let off = (found - scale * expected).abs();
                    assert!(off < 1e-10, "{} in step {step}: {off:e}", param.name);
                }
            }
        }
        Ok(())
    });
}

/// The operands of linear layers and the gradients of one step, for all its samples at once.
fn backward(
    stage: &DecoderStage<Reference>,
    weights: &[Tensor],
    step: u64,
) -> (Vec<[Tensor; 2]>, Vec<Tensor>) {
    let (mut input, mut target) = (Vec::new(), Vec::new());
    for sample in 0..8 {
        Digits.sample(step, sample, &mut input, &mut target).expect("a sample");
    }
    let loss_scale = 1.0 / target.len() as f64;
    let (input, target) = (&input[..], &target[..]);
    let micro = Micro { step, sample: 0, input, target, loss_scale, training: true };
    let (output, saved) = stage.forward(weights, &micro, None).expect("forward");
    let Output::Loss { grad, .. } = output else { panic!("a loss") };
    let (_, deferred) = stage.backward_input(weights, &micro, saved, grad).expect("backward");
    let operands = stage.operands(&deferred);
    let zeros = stage.params().iter().map(|param| Reference.zeros(&param.shape).expect("zeros"));
    let mut gradients: Vec<Tensor> = zeros.collect();
    stage.backward_weight(&micro, deferred, &mut gradients).expect("gradients");
    (operands, gradients)
}

/// The scaled sum of the products of rows, each with a one appended on request.
fn mean(x: &Tensor, with_ones: bool, scale: f64) -> Rows {
    let ones = if with_ones { vec![1.0] } else { vec![] };
    let rows = (0..x.n_rows()).map(|row| [x.row(row), &ones[..]].concat());
    let rows: Rows = rows.collect();
    let n = rows[0].len();
    let entry = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>() * scale;
    (0..n).map(|i| (0..n).map(|j| entry(i, j)).collect()).collect()
}

fn averaged(last: &[Rows; 2], new: [Rows; 2], decay: f64) -> [Rows; 2] {
    let mut all = new;
    for (new, last) in all.iter_mut().zip(last) {
        for (i, row) in new.iter_mut().enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                let before = last.get(i).map_or(0.0, |row| row[j]);
                *x = decay * before + (1.0 - decay) * *x;
            }
        }
    }
    all
}

fn damped(factor: &Rows, damping: f64) -> Rows {
    let mut factor = factor.clone();
    let trace: f64 = (0..factor.len()).map(|i| factor[i][i]).sum();
    let n = factor.len();
    (0..n).for_each(|i| factor[i][i] += damping * trace / n as f64);
    factor
}

/// `[outputs, inputs + 1]` of a matrix `[inputs, outputs]` and a bias.
fn joined(matrix: &Tensor, bias: &Tensor) -> Rows {
    let column = |output: usize| (0..matrix.n_rows()).map(move |input| matrix.row(input)[output]);
    bias.data.iter().enumerate().map(|(o, bias)| column(o).chain([*bias]).collect()).collect()
}

/// `G⁻¹ M A⁻¹`, by elimination in the system `(G ⊗ A) p = m`.
fn solved(a: &Rows, g: &Rows, m: &[Vec<f64>]) -> Rows {
    let (height, width) = (g.len(), a.len());
    let n = height * width;
    let entry = |i: usize, j: usize| g[i / width][j / width] * a[i % width][j % width];
    let row = |i: usize| {
        let of_row = (0..n).map(move |j| entry(i, j));
        of_row.chain([m[i / width][i % width]]).collect::<Vec<f64>>()
    };
    let mut system: Rows = (0..n).map(row).collect();
    for pivot in 0..n {
        let best =
            (pivot..n).max_by(|i, j| system[*i][pivot].abs().total_cmp(&system[*j][pivot].abs()));
        system.swap(pivot, best.expect("a row"));
        let (above, below) = system.split_at_mut(pivot + 1);
        let of_pivot = &above[pivot];
        for row in below {
            let factor = row[pivot] / of_pivot[pivot];
            (pivot..=n).for_each(|j| row[j] -= factor * of_pivot[j]);
        }
    }
    let mut p = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| system[i][j] * p[j]).sum();
        p[i] = (system[i][n] - known) / system[i][i];
    }
    p.chunks(width).map(<[f64]>::to_vec).collect()
}
