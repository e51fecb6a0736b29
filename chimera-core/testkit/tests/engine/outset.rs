//! Stages, data and optimizers that do not fit are refused with their place and never trained.

mod ties;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chimera_engine::comm::{Endpoint, Threads, threads};
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::device::{DeviceError, Result};
use chimera_engine::engine::{
    Job, Optimizer, ParamGroup, Patience, Training, UpdateRule, Worker, run_threads,
};
use chimera_engine::fault::{Class, Fault};
use chimera_engine::stage::{Data, Init, LinearLayer, Micro, Output, Param, Stage};
use chimera_engine::trainer::{Trained, Trainer};
use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::lower::{Lowering, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, find};
use chimera_testkit::simulated::{self, Plan};

/// The mistake of a stage, its data or its optimizer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wrong {
    Nothing,
    Gradient,
    LetsGoOfGradient,
    Loss,
    InputGradient,
    Panics,
    MoreTargets,
    NoTargets,
    SaysNoTargets,
}

/// `tanh(w x + b)` of rows of one number.
struct Bend {
    params: Vec<Param>,
    is_last: bool,
    wrong: Wrong,
}

fn bend(id: StageId, wrong: Wrong) -> Bend {
    let n = id.index();
    let params = vec![
        Param::new(format!("bend.{n}.w"), [1], Init::Ones),
        Param::new(format!("bend.{n}.b"), [1], Init::Normal(0.1)),
    ];
    Bend { params, is_last: n == 3, wrong }
}

impl Stage for Bend {
    type Tensor = Tensor;
    type Item = f64;
    /// Input and output.
    type Saved = [Tensor; 2];
    type Deferred = [Tensor; 2];

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f64>,
        x: Option<Tensor>,
    ) -> Result<(Output<Tensor>, [Tensor; 2])> {
        let (w, b) = (w[0].data[0], w[1].data[0]);
        let x = x.unwrap_or_else(|| Tensor::new(&[micro.input.len(), 1], micro.input.to_vec()));
        let y = Tensor::new(&x.shape, x.data.iter().map(|x| (w * x + b).tanh()).collect());
        let saved = [x, y.clone()];
        if !self.is_last {
            return Ok((Output::Activation(y), saved));
        }
        let errors = y.data.iter().zip(micro.target).map(|(y, t)| y - t);
        let mut loss = vec![micro.loss_scale * errors.clone().map(|e| e * e).sum::<f64>()];
        if self.wrong == Wrong::Loss {
            loss.push(0.0);
        }
        let loss = Tensor::new(&[loss.len()], loss);
        let grad = errors.map(|e| 2.0 * micro.loss_scale * e).collect();
        Ok((Output::Loss { loss, grad: Tensor::new(&y.shape, grad) }, saved))
    }

    fn backward_input(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f64>,
        [x, y]: [Tensor; 2],
        dy: Tensor,
    ) -> Result<(Option<Tensor>, [Tensor; 2])> {
        if self.wrong == Wrong::Panics && micro.step == 1 {
            panic!("on purpose");
        }
        let slopes = dy.data.iter().zip(&y.data).map(|(dy, y)| dy * (1.0 - y * y)).collect();
        let dz = Tensor::new(&y.shape, slopes);
        let shape = match self.wrong {
            Wrong::InputGradient => vec![x.data.len()],
            _ => x.shape.clone(),
        };
        let dx = dz.data.iter().map(|dz| w[0].data[0] * dz).collect();
        Ok((Some(Tensor::new(&shape, dx)), [x, dz]))
    }

    fn backward_weight(
        &self,
        _: &Micro<'_, f64>,
        [x, dz]: [Tensor; 2],
        into: &mut [Tensor],
    ) -> Result<()> {
        match self.wrong {
            Wrong::Gradient => into[0] = Tensor::zeros(&[2]),
            Wrong::LetsGoOfGradient => into[0] = Tensor::zeros(&[0]),
            _ => into[0].data[0] += x.data.iter().zip(&dz.data).map(|(x, dz)| x * dz).sum::<f64>(),
        }
        into[1].data[0] += dz.data.iter().sum::<f64>();
        Ok(())
    }
}

struct Curve(Wrong);

impl Data<f64> for Curve {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<f64>, y: &mut Vec<f64>) -> std::io::Result<()> {
        x.push((0.1 * (16 * step + n) as f64).sin());
        match self.0 {
            Wrong::NoTargets => {}
            Wrong::MoreTargets if step == 1 => y.extend([0.1, 0.2]),
            _ => y.push(0.2 * x[x.len() - 1]),
        }
        Ok(())
    }

    fn n_targets(&self) -> usize {
        usize::from(self.0 != Wrong::SaysNoTargets)
    }
}

/// A step of gradient descent on the host, with unnecessary state.
struct Rule {
    state: &'static [&'static str],
    shape: Vec<usize>,
}

impl UpdateRule for Rule {
    fn name(&self) -> &str {
        "rule"
    }

    fn state(&self, _: &Param) -> &[&'static str] {
        self.state
    }

    fn state_shape(&self, _: &Param, _: usize) -> Vec<usize> {
        self.shape.clone()
    }

    fn update(&self, group: ParamGroup<'_>) -> Result<()> {
        let lr = group.lr;
        group.on_host(|tensor| {
            let each = tensor.weights.iter_mut().zip(tensor.gradient);
            each.for_each(|(w, g)| *w -= lr * g);
            Ok(())
        })
    }
}

/// Four stages, with two on each of four workers.
fn program(tied: Vec<Vec<StageId>>) -> Program {
    let timetable = find("chimera").expect("known").timetable(&Shape::new(4, 4)).expect("fits");
    lower(&timetable, &Lowering { barrier: true, tied, ..Lowering::default() }).expect("proven")
}

fn training() -> Training {
    Training { steps: 3, lr: 0.05, ..Training::default() }
}

/// Trains the stages of `stage`, which gets the number of stages made before.
fn train(
    wrong: Wrong,
    training: Training,
    tied: Vec<Vec<StageId>>,
    stage: impl Fn(Rank, StageId) -> std::result::Result<Bend, Fault> + Sync,
) -> std::result::Result<Trained<Tensor>, Fault> {
    let (program, data) = (program(tied), Curve(wrong));
    let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(2);
    run_threads(4, |comm: &mut Threads<Tensor>| {
        let rank = comm.rank();
        trainer.on_rank(comm, Reference, |id| stage(rank, id))
    })
    .map(|mut all| all.remove(0))
}

/// The fault of a training whose stages, data or settings are wrong.
fn fault(wrong: Wrong, training: Training) -> Fault {
    train(wrong, training, Vec::new(), |_, id| Ok(bend(id, wrong))).expect_err("refused")
}

/// The fault of a training with a changed parameter.
fn fault_of_params(tied: Vec<Vec<StageId>>, change: fn(Rank, StageId, &mut Vec<Param>)) -> Fault {
    let stage = |rank, id| {
        let mut stage = bend(id, Wrong::Nothing);
        change(rank, id, &mut stage.params);
        Ok(stage)
    };
    train(Wrong::Nothing, training(), tied, stage).expect_err("refused")
}

fn says(fault: &Fault, class: Class, parts: &[&str]) {
    assert_eq!(fault.class, class, "{fault}");
    parts.iter().for_each(|part| assert!(fault.message.contains(part), "{part}: {fault}"));
}

#[test]
fn stages_that_fit_are_trained() {
    let trained =
        train(Wrong::Nothing, training(), Vec::new(), |_, id| Ok(bend(id, Wrong::Nothing)));
    assert_eq!(trained.expect("trained").reports.len(), 3);
}

#[test]
fn a_gradient_of_another_shape_is_no_zero() {
    for (wrong, shape) in [(Wrong::Gradient, "[2]"), (Wrong::LetsGoOfGradient, "[0]")] {
        let fault = fault(wrong, training());
        let gradient = format!("left a gradient of shape {shape} for its parameter `bend.");
        says(&fault, Class::Usage, &["stage ", &gradient, "which has [1]"]);
        assert_eq!((fault.step, fault.op.is_some()), (Some(0), true), "{fault}");
    }
}

#[test]
fn losses_and_input_gradients_have_their_shapes() {
    let loss = fault(Wrong::Loss, training());
    says(&loss, Class::Usage, &["stage 3 gave a loss of shape [2], which has 2 elements"]);
    let input = fault(Wrong::InputGradient, training());
    says(
        &input,
        Class::Usage,
        &["gave an input gradient of shape [2] for an input of shape [2, 1]"],
    );
}

#[test]
fn data_keeps_to_its_number_of_targets() {
    let more = fault(Wrong::MoreTargets, training());
    says(&more, Class::Usage, &["of step 1 has 2 targets, and Data::n_targets says 1"]);
    let none = fault(Wrong::NoTargets, training());
    says(&none, Class::Usage, &["of step 0 has 0 targets, and Data::n_targets says 1"]);
    says(&fault(Wrong::SaysNoTargets, training()), Class::Usage, &["Data::n_targets says 0"]);
}

#[test]
fn a_panic_of_a_stage_says_where() {
    let fault = fault(Wrong::Panics, training());
    says(
        &fault,
        Class::Internal,
        &["panicked: on purpose. This is a bug in the stage, the device"],
    );
    assert_eq!(fault.step, Some(1), "{fault}");
    assert!(fault.op.as_deref().is_some_and(|op| op.starts_with('B')), "{fault}");
}

#[test]
fn ranks_that_train_another_thing_are_named() {
    let program = program(Vec::new());
    let data = Curve(Wrong::Nothing);
    let ended = run_threads(4, |comm: &mut Threads<Tensor>| {
        let is_other = comm.rank() == Rank(2);
        let lr = if is_other { 0.1 } else { 0.05 };
        let clip = is_other.then_some(1.0);
        let training = Training { lr, clip, ..training() };
        let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(2);
        trainer.on_rank(comm, Reference, |id| Ok(bend(id, Wrong::Nothing)))
    });
    let fault = ended.expect_err("refused");
    let lr = "lr: ranks 0-1, 3 = 0.05, rank 2 = 0.1";
    says(&fault, Class::Mismatch, &[lr, "clip: ranks 0-1, 3 = none, rank 2 = 1"]);
    assert!(!fault.message.contains("seed"), "{fault}");
}

#[test]
fn replicas_of_a_stage_are_compared() {
    let name = fault_of_params(Vec::new(), |rank, id, params| {
        if (rank, id) == (Rank(3), StageId(0)) {
            params[1].name += ".x";
        }
    });
    let other = "stage 0 has `bend.0.b` of [1] on rank 0 and `bend.0.b.x` of [1] on rank 3";
    says(&name, Class::Mismatch, &[other]);
    let init = fault_of_params(Vec::new(), |rank, id, params| {
        if (rank, id) == (Rank(3), StageId(0)) {
            params[1].init = Init::Ones;
        }
    });
    says(&init, Class::Mismatch, &["`bend.0.b` begins with other weights in stage 0 on rank 3"]);
}

#[test]
fn names_and_initial_values_fit() {
    let twice = fault_of_params(Vec::new(), |_, id, params| {
        if id == StageId(1) {
            params[1].name = params[0].name.clone();
        }
    });
    says(&twice, Class::Usage, &["two parameters of stage 1 are both `bend.1.w`"]);
    let nameless = fault_of_params(Vec::new(), |_, _, params| params[0].name.clear());
    says(&nameless, Class::Usage, &["a parameter of stage 0 has no name"]);
    let values = fault_of_params(Vec::new(), |_, _, params| {
        params[0].init = Init::Values([1.0, 2.0, 3.0].into());
    });
    says(&values, Class::Usage, &["Init::Values gives 3 values to `bend.", "has 1 elements"]);
}

#[test]
fn a_linear_layer_has_a_matrix_and_its_bias() {
    let fault = |shape: &'static [usize], bias: &'static str| {
        let stage = |_, id: StageId| {
            let mut stage = bend(id, Wrong::Nothing);
            let layer = LinearLayer { bias: Some(bias.into()), inputs_first: false };
            stage.params[0] = Param::new("w", shape, Init::Ones).shown(layer);
            stage.params[1].name = "b".into();
            Ok(stage)
        };
        train(Wrong::Nothing, training(), Vec::new(), stage).expect_err("refused")
    };
    says(&fault(&[1], "b"), Class::Usage, &["`w` of stage", "its shape [1] is that of none"]);
    says(&fault(&[1, 1], "bais"), Class::Usage, &["its bias is `bais`, which is not a parameter"]);
    says(&fault(&[2, 1], "b"), Class::Usage, &["`b` of stage", "the bias of `w`, which has 2"]);
}

#[test]
fn an_optimizer_keeps_what_fits() {
    let by = |state, shape: &[usize]| {
        let optimizer = Optimizer::new(Rule { state, shape: shape.to_vec() });
        fault(Wrong::Nothing, Training { optimizer, ..training() })
    };
    let twice = by(&["m", "m"], &[1]);
    says(&twice, Class::Usage, &["optimizer rule keeps two state tensors `m` of `bend."]);
    let shape = by(&["m"], &[2]);
    says(&shape, Class::Internal, &["a state tensor of shape [2] of `bend.", "which has [1]"]);
}

/// The fault of four ranks that train `width` groups.
fn trainer_of_width(program: &Program, data: &Curve, width: usize) -> Fault {
    let trainer = Trainer::new(program, data).training(training()).micro_batch_size(2);
    let trainer = trainer.width(width);
    let trained = run_threads(4, |comm: &mut Threads<Tensor>| {
        trainer.on_rank(comm, Reference, |id| Ok(bend(id, Wrong::Nothing)))
    });
    trained.map(|_| ()).expect_err("refused")
}

#[test]
fn settings_that_cannot_be_trained_with_are_refused() {
    let program = program(Vec::new());
    let data = Curve(Wrong::Nothing);
    let refusal = |set: fn(Trainer<'_, f64>) -> Trainer<'_, f64>| {
        let trainer = set(Trainer::new(&program, &data).training(training()).micro_batch_size(2));
        let trained = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id, Wrong::Nothing)));
        trained.map(|_| ()).expect_err("refused")
    };
    says(&refusal(|trainer| trainer.width(0)), Class::Usage, &["width is 0"]);
    let size = refusal(|trainer| trainer.micro_batch_size(0));
    says(&size, Class::Usage, &["micro_batch_size is 0"]);
    // With 64-bit ranks, this many groups of four ranks would wrap around to four ranks.
    let many = trainer_of_width(&program, &data, usize::MAX / 4 + 2);
    says(&many, Class::Usage, &["4 ranks are not width"]);
    let clip = |trainer: Trainer<'_, f64>| -> Fault {
        let training = Training { clip: Some(f64::NAN), ..training() };
        let trainer = trainer.training(training);
        let trained = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id, Wrong::Nothing)));
        trained.map(|_| ()).expect_err("refused")
    };
    says(&clip(Trainer::new(&program, &data)), Class::Usage, &["clip is NaN"]);
}

#[test]
fn the_fault_of_a_stage_has_the_rank_that_made_it() {
    let (program, data) = (program(Vec::new()), Curve(Wrong::Nothing));
    let trainer = Trainer::new(&program, &data).training(training()).micro_batch_size(2);
    // Workers 2 and 1 hold stage 2.
    let held_by = |id| program.placement().holders(1, id);
    for is_device in [false, true] {
        let trained = trainer.on_threads(
            |_| Ok(Reference),
            |_, id| {
                if id == StageId(2) {
                    if is_device {
                        Err(DeviceError::other("cannot make it"))?
                    } else {
                        Err("cannot make it")?
                    }
                }
                Ok(bend(id, Wrong::Nothing))
            },
        );
        let fault = trained.map(|_| ()).expect_err("refused");
        says(&fault, if is_device { Class::Internal } else { Class::Usage }, &["cannot make it"]);
        assert!(held_by(StageId(2)).contains(&fault.rank), "{fault}");
    }
}

/// Only the rank that fails informs the others.
#[test]
fn a_rank_that_fails_tells_the_others() {
    let (program, data) = (program(Vec::new()), Curve(Wrong::Nothing));
    let trainer = Trainer::new(&program, &data).training(training()).micro_batch_size(2);
    let began = Instant::now();
    let faults: Vec<Fault> = std::thread::scope(|scope| {
        let rank = |comm: Threads<Tensor>| {
            let rank = comm.rank();
            let stage = |id| {
                if rank == Rank(2) {
                    Err("no weights".into())
                } else {
                    Ok(bend(id, Wrong::Nothing))
                }
            };
            trainer.on_rank(comm, Reference, stage).map(|_| ()).expect_err("refused")
        };
        let ranks: Vec<_> =
            threads(4).into_iter().map(|comm| scope.spawn(move || rank(comm))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    assert!(faults.iter().all(|fault| fault.rank == Rank(2)), "{faults:?}");
    assert!(faults.iter().all(|fault| fault.message == "no weights"), "{faults:?}");
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// The failure is not a death: after a death the others would meet again.
#[test]
fn a_rank_that_fails_at_a_meeting_tells_the_others() {
    let (program, data) = (program(Vec::new()), Curve(Wrong::Nothing));
    let trainer = Trainer::new(&program, &data).training(training()).micro_batch_size(2);
    let ran = simulated::run(4, &Plan::default(), |berth| {
        let rank = berth.rank();
        let stage = |id| {
            if rank == Rank(2) { Err("no weights".into()) } else { Ok(bend(id, Wrong::Nothing)) }
        };
        trainer.on_rendezvous(berth, Reference, stage).map(|_| ())
    });
    assert_eq!(ran.n_meetings, 1);
    for outcome in ran.outcomes {
        let fault = outcome.expect_err("refused");
        assert_eq!((fault.rank, fault.message.as_str()), (Rank(2), "no weights"));
    }
}

/// The timeout is longer than a clock can represent.
#[test]
fn a_patience_may_have_no_end() {
    let (program, data) = (program(Vec::new()), Curve(Wrong::Nothing));
    let for_ever = Patience { first_step: Duration::MAX, later: Duration::MAX };
    let trainer = Trainer::new(&program, &data).training(training()).micro_batch_size(2);
    let trained = trainer
        .patience(for_ever)
        .on_threads(|_| Ok(Reference), |_, id| Ok(bend(id, Wrong::Nothing)));
    assert_eq!(trained.expect("trained").reports.len(), 3);
}

#[test]
fn no_samples_have_no_mean_loss() {
    let (program, data) = (program(Vec::new()), Curve(Wrong::Nothing));
    let ended = run_threads(4, |comm: &mut Threads<Tensor>| {
        let job = Job {
            program: &program,
            width: 1,
            micro_batch_size: 2,
            training: &training(),
            data: &data,
            patience: Patience::default(),
            stop: &AtomicBool::new(false),
            own_work: None,
            epoch: Instant::now(),
        };
        let mut worker = Worker::new(job, Reference, comm, |id| Ok(bend(id, Wrong::Nothing)))?;
        worker.evaluate(0, &data, 0)
    });
    says(&ended.expect_err("refused"), Class::Usage, &["there is no sample to evaluate on"]);
}
