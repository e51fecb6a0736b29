//! Asynchronous schedules train like one worker that reads weights of the same age.

use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{AdamW, Device, Sgd, Updated, WithMomentum};
use chimera_engine::engine::Optimizer;
use chimera_engine::stage::{Data, Micro, Output, Stage, initial};
use chimera_models::model::{DecoderStage, cut};
use chimera_schedule::schedule::Shape;

use crate::training::{CONTEXT, Digits, N_STEPS, Outcome, Run, config, train};

/// The weight version that stage `s` reads for micro-batch `m` of a window, as a number of updates.
type Age<'a> = &'a dyn Fn(usize, u32) -> usize;

/// One stage on the single worker: every version of its weights in this window, oldest first.
struct Piece {
    stage: DecoderStage<Reference>,
    versions: Vec<Vec<Tensor>>,
    moments: Vec<[Tensor; 2]>,
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
        self.grads = vec![sums];
        squared
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
        let moments = zeros.collect();
        Piece { versions, moments, grads: Vec::new(), stage }
    };
    cuts.into_iter().map(piece).collect()
}

/// Runs forward and backward of one micro-batch of one group. Returns its loss.
fn pass(pieces: &mut [Piece], micro: &Micro<'_>, group: usize, versions: &[usize]) -> f64 {
    let (mut x, mut saved, mut loss) = (None, Vec::new(), 0.0);
    for (piece, version) in pieces.iter().zip(versions) {
        let w = &piece.versions[*version];
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
    for (piece, (version, saved)) in pieces.iter_mut().zip(versions.iter().zip(saved)).rev() {
        let (w, dy) = (&piece.versions[*version], x.take().expect("a gradient"));
        let (dx, rest) = piece.stage.backward_input(w, micro, saved, dy).expect("backward");
        piece.stage.backward_weight(micro, rest, &mut piece.grads[group]).expect("backward");
        x = dx;
    }
    loss
}

/// Trains all stages on this thread, with an update after every `per_update` micro-batches.
fn one_worker(run: &Run, per_update: u32, age: Age<'_>) -> Outcome {
    let (n, window) = (run.shape.n_micro_batches, run.shape.window);
    let (training, mut pieces) = (run.training(), pieces(run));
    let n_samples = run.width * per_update as usize * run.micro_batch_size;
    let loss_scale = 1.0 / (n_samples * CONTEXT) as f64;
    let updates_per_step = n / per_update;
    let mut outcome = Outcome::default();
    let mut n_updates = 0;
    for first in (0..N_STEPS).step_by(window as usize) {
        for piece in &mut pieces {
            piece.versions.drain(..piece.versions.len() - 1); // the window before has been flushed
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
            let versions: Vec<usize> = (0..pieces.len()).map(|s| age(s, m)).collect();
            for group in 0..run.width {
                let sample = (group * n as usize + (m % n) as usize) * run.micro_batch_size;
                let (mut input, mut target) = (Vec::new(), Vec::new());
                for s in sample..sample + run.micro_batch_size {
                    Digits.sample(step, s as u64, &mut input, &mut target).expect("digits");
                }
                let (sample, input, target) = (sample as u64, &input[..], &target[..]);
                let training = true;
                let micro = Micro { step, sample, input, target, loss_scale, training };
                let loss = pass(&mut pieces, &micro, group, &versions);
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
    match run.schedule {
        "pipedream" => one_worker(run, 1, &|s, m| (m as usize + 1).saturating_sub(depth - s)),
        _ => one_worker(run, n, &|_, m| (m / n).saturating_sub(1) as usize),
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
    for schedule in ["pipedream", "pipedream-2bw"] {
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
        for schedule in ["pipedream", "pipedream-2bw"] {
            let shape = Shape { window: 2, ..Shape::new(3, 4) };
            let optimizer = optimizer.clone();
            assert_equal_age(&Run { optimizer, width: 2, ..Run::new(schedule, shape) });
        }
    }
}

#[test]
fn late_messages_change_no_bit() {
    for schedule in ["pipedream", "pipedream-2bw"] {
        let run = Run { width: 2, ..Run::new(schedule, Shape { window: 3, ..Shape::new(4, 5) }) };
        let first = train(&run).expect("trains");
        assert_eq!(first, train(&Run { is_delayed: true, ..run }).expect("trains"));
    }
}

/// The oracle distinguishes versions: with weights of another age the result differs.
#[test]
fn other_staleness_is_told_apart() {
    let of = |schedule| Run::new(schedule, Shape { window: 5, ..Shape::new(3, 3) });
    let (one, two) = (of("pipedream"), of("pipedream-2bw"));
    let fresh_one = one_worker(&one, 1, &|_, m| m as usize);
    let early = one_worker(&one, 1, &|s, m| (m as usize).saturating_sub(3 - s));
    let fresh_two = one_worker(&two, 3, &|_, m| (m / 3) as usize);
    for (run, other) in [(&one, fresh_one), (&one, early), (&two, fresh_two)] {
        let off = worst(&train(run).expect("trains").losses, &other.losses);
        assert!(off > 1e-3, "{off:e} in {run:?}");
    }
}
