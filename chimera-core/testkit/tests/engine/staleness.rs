//! Asynchronous schedules train like one worker that reads weights of the same age.

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{AdamW, Device, Sgd, Updated, WithMomentum};
use chimera_engine::engine::Optimizer;
use chimera_engine::stage::{Data, Micro, Output, Stage, initial};
use chimera_models::model::{DecoderStage, cut};
use chimera_schedule::schedule::Shape;

use crate::training::{CONTEXT, Digits, N_STEPS, Outcome, Run, config, train};

/// The weights that a stage reads: those of a version, which is a number of updates of the window,
/// or a prediction from them.
#[derive(Clone, Copy)]
struct Read {
    version: usize,
    ahead: usize,
}

impl From<usize> for Read {
    fn from(version: usize) -> Read {
        Read { version, ahead: 0 }
    }
}

/// The weights that stage `s` reads for micro-batch `m` of a window.
type Age<'a> = &'a dyn Fn(usize, u32) -> Read;

/// The schedules without a flush.
const SCHEDULES: [&str; 4] = ["pipedream", "pipedream-2bw", "timeprest", "pipeoptim"];

/// One stage on the single worker: every version of its weights in this window, oldest first.
struct Piece {
    stage: DecoderStage<Reference>,
    versions: Vec<Vec<Tensor>>,
    moments: Vec<[Tensor; 2]>,
    /// The moments after the updates of each version.
    moments_of: Vec<Vec<[Tensor; 2]>>,
    /// Gradients by group: each group adds up its own before they are summed.
    grads: Vec<Vec<Tensor>>,
}

impl Piece {
    fn zeros(&self) -> Vec<Tensor> {
        self.stage.params().iter().map(|p| Tensor::zeros(&p.shape)).collect()
    }

    /// Makes the next version. Returns the squared norm of the gradient.
    fn update(&mut self, run: &Run, mut by: AdamW) -> f64 {
        let mut groups = std::mem::take(&mut self.grads).into_iter();
        let mut sums = groups.next().expect("a group");
        for group in groups {
            for (sum, grad) in sums.iter_mut().zip(&group) {
                Reference.accumulate(sum, grad).expect("adds");
            }
        }
        let norm = |grad| Reference.download(&Reference.squared_norms(&[grad])?);
        let squared = sums.iter().map(|g| f64::from(norm(g).expect("a norm")[0])).sum::<f64>();
        by.grad_scale = run.clip.map_or(1.0, |clip| (clip / squared.sqrt()).min(1.0));
        let mut weights = self.versions.last().expect("a version").clone();
        for (i, param) in self.stage.params().iter().enumerate() {
            let [m, v] = &mut self.moments[i];
            let weight_decay = if param.decay { run.training().weight_decay } else { 0.0 };
            let by = AdamW { weight_decay, ..by };
            let AdamW { lr, grad_scale, .. } = by;
            let (w, g) = (&mut weights[i], &sums[i]);
            let updated = match run.optimizer.name() {
                "adamw" => Reference.adamw(&mut [Updated { w, g, m, v }], &by),
                "lamb" => Reference.lamb(&mut [Updated { w, g, m, v }], &by),
                "sgd" => {
                    let by = Sgd { lr, momentum: 0.9, weight_decay, grad_scale };
                    Reference.sgd(&mut [WithMomentum { w, g, m }], &by)
                }
                other => panic!("the device has no function of {other}"),
            };
            updated.expect("updates");
        }
        self.versions.push(weights);
        self.moments_of.push(self.moments.clone());
        self.grads = vec![sums];
        squared
    }

    /// The weights of a version, or what `ahead` more updates like the last one would make of them:
    /// W - lr * ahead * dW (PipeOptim). `update` is the number of updates that made the version.
    fn read(
        &self,
        run: &Run,
        Read { version, ahead }: Read,
        step: u64,
        update: u64,
    ) -> Vec<Tensor> {
        let mut weights = self.versions[version].clone();
        if update == 0 || ahead == 0 {
            return weights;
        }
        let lr = run.training().lr_at(step) * ahead as f64;
        let [c1, c2] = [0.9f64, 0.95].map(|beta| 1.0 - beta.powf(update as f64));
        for (at, param) in self.stage.params().iter().enumerate() {
            let weight_decay = if param.decay { run.training().weight_decay } else { 0.0 };
            let [mut m, mut v] = self.moments_of[version][at].clone();
            let (w, g) = (&mut weights[at], &Tensor::zeros(&param.shape));
            let of_adamw = |m: f64, v: f64| m / c1 / ((v / c2).sqrt() + 1e-8);
            let is_sgd = run.optimizer.name() == "sgd";
            let change = |m, v| if is_sgd { m } else { of_adamw(m, v) };
            let each = w.data.iter().zip(m.data.iter().zip(&*v.data));
            let formula = each.map(|(w, (m, v))| w - lr * (change(*m, *v) + weight_decay * w));
            let formula: Vec<f64> = formula.collect();
            // The same by the device's roundings: later updates magnify each last digit of a
            // gradient that should be zero.
            let ran = if is_sgd {
                let by = Sgd { lr, momentum: 1.0, weight_decay, grad_scale: 1.0 };
                Reference.sgd(&mut [WithMomentum { w, g, m: &mut m }], &by)
            } else {
                let [beta1, beta2] = [c1, c2].map(|c| 1.0 / (1.0 + c));
                let (eps, update, grad_scale) = (1e-8, 1, 1.0);
                let by = AdamW { lr, beta1, beta2, eps, weight_decay, update, grad_scale };
                Reference.adamw(&mut [Updated { w, g, m: &mut m, v: &mut v }], &by)
            };
            ran.expect("repeats");
            let off = worst(&weights[at].data, &formula);
            assert!(off <= 1e-12, "{} is off by {off:e} from the formula", param.name);
        }
        weights
    }
}

fn pieces(run: &Run) -> Vec<Piece> {
    let config = config(false);
    let cuts = cut(&config, config.context, run.shape.depth).expect("cut");
    let piece = |cut| {
        let stage = DecoderStage::new(Reference, &config, CONTEXT, cut).expect("stage");
        let seed = run.training().seed;
        let weights = stage.params().iter();
        let weights = weights.map(|p| Reference.upload(&p.shape, &initial(p, seed)).expect("fits"));
        let versions = vec![weights.collect()];
        let zeros = stage.params().iter().map(|p| [(); 2].map(|()| Tensor::zeros(&p.shape)));
        let moments: Vec<_> = zeros.collect();
        let moments_of = vec![moments.clone()];
        Piece { versions, moments, moments_of, grads: Vec::new(), stage }
    };
    cuts.into_iter().map(piece).collect()
}

/// Runs forward and backward of one micro-batch of one group, each with its own version of the
/// weights of each stage. Returns its loss.
fn pass(
    pieces: &mut [Piece],
    micro: &Micro<'_>,
    group: usize,
    [forward, backward]: &[Vec<Vec<Tensor>>; 2],
) -> f64 {
    let (mut x, mut saved, mut loss) = (None, Vec::new(), 0.0);
    for (piece, w) in pieces.iter().zip(forward) {
        let (output, activations) = piece.stage.forward(w, micro, x.take()).expect("forward");
        saved.push(activations);
        x = Some(match output {
            Output::Activation(y) => y,
            Output::Loss { loss: value, grad } => {
                loss = f64::from(Reference.download(&value).expect("a loss")[0]);
                grad
            }
        });
    }
    for (piece, (w, saved)) in pieces.iter_mut().zip(backward.iter().zip(saved)).rev() {
        let dy = x.take().expect("a gradient");
        let (dx, rest) = piece.stage.backward_input(w, micro, saved, dy).expect("backward");
        piece.stage.backward_weight(micro, rest, &mut piece.grads[group]).expect("backward");
        x = dx;
    }
    loss
}

/// Trains all stages on this thread, with an update after every `per_update` micro-batches, and
/// with the weights that forwards and backwards read.
fn one_worker(run: &Run, per_update: u32, ages: [Age<'_>; 2]) -> Outcome {
    let (n, window) = (run.shape.n_micro_batches, run.shape.window);
    let (training, mut pieces) = (run.training(), pieces(run));
    let n_samples = run.width * per_update as usize * run.micro_batch_size;
    let loss_scale = 1.0 / (n_samples * CONTEXT) as f64;
    let updates_per_step = n / per_update;
    let mut outcome = Outcome::default();
    let mut n_updates = 0;
    for first in (0..N_STEPS).step_by(window as usize) {
        for piece in &mut pieces {
            // The window before has been flushed.
            piece.versions.drain(..piece.versions.len() - 1);
            piece.moments_of.drain(..piece.moments_of.len() - 1);
        }
        for m in 0..n * window {
            let step = first + u64::from(m / n);
            if m % n == 0 {
                outcome.losses.push(0.0);
                outcome.norms.push(0.0);
            }
            if m % per_update == 0 {
                for piece in &mut pieces {
                    piece.grads = vec![piece.zeros(); run.width];
                }
            }
            let of_window = n_updates - u64::from(m / per_update);
            let weights = ages.map(|age| {
                let read = |(s, piece): (usize, &Piece)| {
                    let read = age(s, m);
                    piece.read(run, read, step, of_window + read.version as u64)
                };
                pieces.iter().enumerate().map(read).collect()
            });
            for group in 0..run.width {
                let sample = (group * n as usize + (m % n) as usize) * run.micro_batch_size;
                let (mut input, mut target) = (Vec::new(), Vec::new());
                for s in sample..sample + run.micro_batch_size {
                    Digits.sample(step, s as u64, &mut input, &mut target).expect("digits");
                }
                let (sample, input, target) = (sample as u64, &input[..], &target[..]);
                let training = true;
                let micro = Micro { step, sample, input, target, loss_scale, training };
                let loss = pass(&mut pieces, &micro, group, &weights);
                *outcome.losses.last_mut().expect("a step") += loss / f64::from(updates_per_step);
            }
            if (m + 1) % per_update == 0 {
                n_updates += 1;
                let (lr, grad_scale) = (training.lr_at(step), 1.0);
                let (beta1, beta2, eps, weight_decay) = (0.9, 0.95, 1e-8, 0.0);
                let update = n_updates;
                let by = AdamW { lr, beta1, beta2, eps, weight_decay, update, grad_scale };
                let squared = pieces.iter_mut().map(|p| p.update(run, by)).sum::<f64>();
                *outcome.norms.last_mut().expect("a step") += squared / f64::from(updates_per_step);
            }
        }
        let last = first + u64::from(window) - 1;
        for piece in &pieces {
            let weights = piece.versions.last().expect("a version");
            for (i, param) in piece.stage.params().iter().enumerate() {
                let key = (last, param.name.clone());
                outcome.gradients.insert(key.clone(), piece.grads[0][i].data.clone());
                outcome.weights.insert(key, weights[i].data.clone());
            }
        }
    }
    outcome.norms.iter_mut().for_each(|n| *n = n.sqrt());
    outcome
}

/// The one-worker training that a schedule must equal.
fn stale(run: &Run) -> Outcome {
    let Shape { depth, n_micro_batches: n, .. } = run.shape;
    // The newest version when stage `s` begins the forwards of update `u`, with 1F1B's order.
    let newest = |s: usize, u: u32| (u as usize + 1).saturating_sub(depth - s);
    let own = |m: u32| Read::from(m as usize);
    match run.schedule {
        "pipedream" => one_worker(run, 1, [&|s, m| newest(s, m).into(); 2]),
        "timeprest" => one_worker(run, n, [&|s, m| newest(s, m / n).into(), &|_, m| own(m / n)]),
        "pipeoptim" => {
            // In the paper D - 1 - s updates ahead: as many once the window has filled.
            let predicted = |s: usize, m: u32| {
                let version = newest(s, m);
                Read { version, ahead: (depth - 1 - s).min(m as usize) }
            };
            one_worker(run, 1, [&predicted, &|_, m| own(m)])
        }
        _ => one_worker(run, n, [&|_, m| own((m / n).saturating_sub(1)); 2]),
    }
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1e-9, |m: f64, x| m.max(x.abs()));
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max) / size
}

fn assert_equal_age(run: &Run) {
    let (many, one) = (train(run).expect("trains"), stale(run));
    let check = |name: &str, a: &[f64], b: &[f64], tolerance| {
        let off = worst(a, b);
        assert!(off <= tolerance, "{name} off by {off:e} in {run:?}");
    };
    check("losses", &many.losses, &one.losses, 1e-5);
    check("norms", &many.norms, &one.norms, 1e-5);
    for (many, one) in [(&many.gradients, &one.gradients), (&many.weights, &one.weights)] {
        assert!(many.keys().eq(one.keys()));
        for (name, values) in many {
            check(&format!("{name:?}"), values, &one[name], 1e-12);
        }
    }
}

fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for schedule in SCHEDULES {
        for (depth, n, window) in [(1, 2, 2), (2, 2, 5), (2, 3, 2), (3, 3, 3), (4, 4, 1), (4, 5, 6)]
        {
            for width in [1, 2] {
                let shape = Shape { window, ..Shape::new(depth, n) };
                runs.push(Run { width, ..Run::new(schedule, shape) });
            }
        }
    }
    // With an update per micro-batch one is enough; some pipes are deeper than their windows.
    let few = [(4, 1, 5), (3, 2, 1), (8, 1, 3)];
    runs.extend(
        few.map(|(depth, n, window)| {
            Run::new("pipedream", Shape { window, ..Shape::new(depth, n) })
        }),
    );
    runs
}

#[test]
fn asynchronous_schedules_train_as_one_worker_of_the_same_staleness() {
    for run in runs() {
        assert_equal_age(&run);
        assert_equal_age(&Run { clip: None, check_finite: false, ..run });
    }
}

#[test]
fn every_optimizer_takes_old_gradients() {
    for optimizer in [Optimizer::adamw(), Optimizer::lamb(), Optimizer::sgd()] {
        for schedule in SCHEDULES {
            if schedule == "pipeoptim" && optimizer.repeat().is_none() {
                continue;
            }
            let shape = Shape { window: 2, ..Shape::new(3, 4) };
            let optimizer = optimizer.clone();
            assert_equal_age(&Run { optimizer, width: 2, ..Run::new(schedule, shape) });
        }
    }
}

#[test]
fn late_messages_change_no_bit() {
    for schedule in SCHEDULES {
        let run = Run { width: 2, ..Run::new(schedule, Shape { window: 3, ..Shape::new(4, 5) }) };
        let first = train(&run).expect("trains");
        assert_eq!(first, train(&Run { is_delayed: true, ..run }).expect("trains"));
    }
}

/// The oracle distinguishes versions: with weights of another age the result differs.
#[test]
fn other_staleness_is_told_apart() {
    let of = |schedule| Run::new(schedule, Shape { window: 5, ..Shape::new(3, 3) });
    let (one, two, newest) = (of("pipedream"), of("pipedream-2bw"), of("timeprest"));
    let predicted = of("pipeoptim");
    let own = |m: u32| Read::from(m as usize);
    let fresh_one = one_worker(&one, 1, [&|_, m| own(m); 2]);
    let early = |s: usize, m: u32| (m as usize).saturating_sub(3 - s).into();
    let early = one_worker(&one, 1, [&early; 2]);
    let fresh = |run| one_worker(run, 3, [&|_, m| own(m / 3); 2]);
    let stashed = |s: usize, m: u32| ((m / 3) as usize + 1).saturating_sub(3 - s).into();
    let stashed = one_worker(&newest, 3, [&stashed; 2]);
    let old = |s: usize, m: u32| (m as usize + 1).saturating_sub(3 - s).into();
    let unpredicted = one_worker(&predicted, 1, [&old, &|_, m| own(m)]);
    // The weights of a backward alone, or a step of two ahead, change losses less.
    for (run, other, least) in [
        (&one, fresh_one, 1e-3),
        (&one, early, 1e-3),
        (&two, fresh(&two), 1e-3),
        (&newest, fresh(&newest), 1e-3),
        (&newest, stashed, 1e-4),
        (&predicted, unpredicted, 1e-4),
    ] {
        let off = worst(&train(run).expect("trains").losses, &other.losses);
        assert!(off > least, "{off:e} in {run:?}");
    }
}
