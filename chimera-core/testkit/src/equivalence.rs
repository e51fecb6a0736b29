//! Small and large trainings on random tokens, whose results on every device must match the
//! [`Reference`](chimera_engine::device::reference): tests of the whole stack.
//!
//! Losses are compared between devices, between schedules, and with a single worker. Random tokens
//! teach a model little, but the losses depend on every weight and gradient.

use chimera_engine::comm::{Comm, CommError, Endpoint, Threads};
use chimera_engine::device::DeviceError;
use chimera_engine::engine::{Training, run_threads};
use chimera_engine::fault::{Class, Fault};
use chimera_engine::layers::Layers;
use chimera_engine::stage::{Data, Param};
use chimera_engine::trainer::Trainer;
use chimera_models::model::{DropoutRate, Memory, ModelConfig, ModelError, cut, memory, stage};
use chimera_schedule::analyze::{Refusal, peak_working_bytes};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::{Rank, StageId, WorkerId};
use chimera_schedule::lower::{Lowering, Passes, Recompute, lower};
use chimera_schedule::program::Program;
use chimera_schedule::schedule::{Shape, Unfit, UnknownSchedule, find};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A training to try.
#[derive(Clone, Debug)]
pub struct TrialRun {
    /// Name of a built-in schedule.
    pub schedule: &'static str,
    /// Its shape.
    pub shape: Shape,
    /// The model.
    pub model: ModelConfig,
    /// Recomputation of forwards before their backwards.
    pub recompute: Recompute,
    /// Whether backwards are split.
    pub split_backward: bool,
    /// Samples per micro-batch.
    pub micro_batch_size: usize,
    /// Number of updates of the weights.
    pub steps: u64,
}

/// The results of every step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrialResult {
    /// Mean loss of each step, in nats.
    pub losses: Vec<f64>,
    /// Norm of each step's gradient.
    pub norms: Vec<f64>,
    /// Duration of each step in seconds, as reported.
    pub seconds: Vec<f64>,
    /// By rank: bytes of weights, gradients, moments and saved activations, by the memory model.
    pub bytes: Vec<u64>,
}

/// The reason that there was no training.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no schedule with that name.
    #[error(transparent)]
    Unknown(#[from] UnknownSchedule),
    /// The schedule does not support that shape.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// The timetable is not sound.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The model cannot be cut into that many stages.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A rank failed.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl TrialRun {
    /// Trains with one thread per worker; `open` opens the device of each.
    ///
    /// # Errors
    /// If the schedule or the model does not fit, or a rank fails.
    pub fn train<D: Layers>(
        &self,
        open: impl Fn(Rank) -> Result<D, DeviceError> + Sync,
    ) -> Result<TrialResult, RunError> {
        let n_ranks = self.shape.depth as u32;
        let on_rank = |error: RunError, rank| match error {
            RunError::Fault(fault) => fault,
            other => Fault::new(Class::Usage, rank, other.to_string()),
        };
        self.program()?; // not the fault of one rank
        let ranks = run_threads(n_ranks, |comm: &mut Threads<D::Tensor>| {
            let rank = comm.rank();
            let device = open(rank).map_err(|e| CommError::from(e).into_fault(rank))?;
            self.train_as(device, comm).map_err(|error| on_rank(error, rank))
        })?;
        Ok(ranks.into_iter().next().unwrap_or_default())
    }

    /// Predicts the peak bytes of each rank by the memory model: weights, gradients, moments, and
    /// what is kept or used by ops. Activations have `activation_bytes` bytes per element.
    ///
    /// # Errors
    /// If the schedule or the model does not fit.
    pub fn foreseen(&self, activation_bytes: u64) -> Result<Vec<f64>, RunError> {
        let (_, program) = self.program()?;
        let cuts = cut(&self.model, self.model.context, program.placement().n_stages())?;
        let of = |cut| memory(&self.model, cut, self.model.context, false, activation_bytes);
        let stages = cuts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        let samples = self.micro_batch_size as f64 / f64::from(program.units_per_micro());
        let by_sample: Vec<_> = stages.iter().map(|stage| stage.sample).collect();
        let peaks = peak_working_bytes(&program, &by_sample, samples);
        let state = |stage: StageId| {
            let params = self.model.params(&cuts[stage.index()]);
            let elements: usize = params.iter().map(Param::n_elements).sum();
            let Memory { operands, own, .. } = stages[stage.index()];
            16.0 * elements as f64 + operands + own
        };
        let of_worker = |(worker, peak)| {
            let stages = program.placement().stages_of(worker);
            stages.into_iter().map(state).sum::<f64>() + peak
        };
        Ok((0..).map(WorkerId).zip(peaks).map(of_worker).collect())
    }

    /// Trains as the rank of `comm`.
    ///
    /// # Errors
    /// If the schedule or the model does not fit, or a rank fails.
    pub fn train_as<D: Layers>(
        &self,
        device: D,
        comm: &mut impl Comm<D::Tensor>,
    ) -> Result<TrialResult, RunError> {
        let (training, program) = self.program()?;
        let tokens = TokensByPlace(&self.model);
        let (model, rank) = (&self.model, comm.rank());
        let cuts = cut(model, model.context, program.placement().n_stages())?;
        let make = |id: StageId| {
            let cut = cuts[id.index()].clone();
            let made = stage(device.clone(), model, model.context, DropoutRate::default(), cut);
            made.map_err(|e| Fault::new(Class::Usage, rank, e.to_string()))
        };
        let trainer = Trainer::new(&program, &tokens).training(training);
        let trainer = trainer.micro_batch_size(self.micro_batch_size);
        let mut trained = TrialResult::default();
        for report in trainer.on_rank(comm, device.clone(), make)?.reports {
            trained.losses.push(report.loss);
            trained.norms.push(report.grad_norm);
            trained.seconds.push(report.step_s);
            trained.bytes = report.ranks.iter().map(|rank| rank.bytes).collect();
        }
        Ok(trained)
    }

    fn program(&self) -> Result<(Training, Program), RunError> {
        let training = Training { seed: 1, steps: self.steps, lr: 1e-2, ..Training::default() };
        let timetable = find(self.schedule)?.timetable(&self.shape)?;
        let how = Lowering { barrier: training.needs_barrier(), ..Lowering::default() };
        let TrialRun { recompute, split_backward, .. } = *self;
        let passes = Passes { recompute, split_backward, ..Passes::default() };
        let costs = UniformCosts::new(1.0, 2.0, 0.0).per_units(timetable.units_per_micro);
        let timetable = passes.apply(timetable, &how, &costs)?;
        Ok((training, lower(&timetable, &how)?))
    }
}

/// Tokens that depend only on their position.
pub(crate) struct TokensByPlace<'m>(pub(crate) &'m ModelConfig);

impl Data for TokensByPlace<'_> {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let ModelConfig { vocab, context, .. } = *self.0;
        let mut rng = ChaCha8Rng::seed_from_u64(step << 32 | sample);
        let mut token = || rng.random_range(0..vocab as u32);
        let tokens: Vec<u32> = (0..context).map(|_| token()).collect();
        let (inputs, targets) = self.0.sample(&tokens, token());
        input.extend(inputs);
        target.extend(targets);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        self.0.predictions(self.0.context)
    }

    fn target_len(&self) -> usize {
        self.0.sample(&vec![0; self.0.context], 0).1.len()
    }
}

#[cfg(test)]
mod tests {
    use chimera_engine::device::reference::Reference;
    use chimera_models::model::Architecture;

    use super::*;

    #[test]
    fn a_pipeline_trains_as_one_worker() {
        let model = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 4,
            hidden: 8,
            heads: 2,
            context: 4,
            vocab: 11,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let run = |schedule, shape| TrialRun {
            schedule,
            shape,
            model: model.clone(),
            recompute: Recompute::None,
            split_backward: false,
            micro_batch_size: 1,
            steps: 3,
        };
        let trained = |run: TrialRun| run.train(|_| Ok(Reference)).expect("trains");
        let alone = trained(run("dapple", Shape::new(1, 4)));
        let many = trained(run("chimera", Shape::new(2, 4)));
        assert_eq!(alone.losses.len(), 3);
        for (a, b) in alone.losses.iter().zip(&many.losses) {
            assert!((a - b).abs() < 1e-5 * a.abs(), "{a} {b}");
        }
    }
}
