//! Trains a network by running each worker's row of a program.
//!
//! The engine is the [machine](chimera_schedule::interp::Machine) whose tokens carry tensors. It
//! knows stages, weights, sums over replicas and the optimizer. It never learns the name of a
//! schedule: it only executes the program's rows.
//!
//! One [`Worker`] runs on each rank. Messages are sent as soon as they are made, and received where
//! the row needs them. Reductions run beside compute. Once per program, a small step sync of all
//! ranks carries losses, gradient norms, and whether to go on. A program is one step, or an
//! asynchronous window of several, in which every micro-batch reads the version of the weights that
//! its rule names.

mod fields;
mod optim;
mod rank;
mod ranks;
mod recover;
mod reduce;
mod report;
mod row;
mod startup;
mod state;
mod sync;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

pub use fields::Fields;
pub use optim::kfac::{factor_shapes, kfac_work, unpreconditioned};
pub use optim::optimizer::Optimizer;
pub use optim::param_group::{HostTensor, ParamGroup};
pub use optim::param_rules::{ParamRule, ParamRules};
pub use optim::training::{LrSchedule, NonFinite, Training};
pub use optim::update_rule::{Repeat, UpdateRule};
pub use optim::updating::first_update;
pub use rank::snapshot::{Counts, Snapshot, StateTensor};
pub use rank::worker::{StepReport, Worker};
pub use rank::worker_state::WorkerState;
pub use ranks::run_threads;
pub use recover::recovery::{Recovered, unsurvivable};
pub use reduce::owned::{owned_elements, shard_elements};
pub use report::flight_recorder::{Did, Doing, FlightRecorder};
pub use report::load::{Load, Peer, Waits};
pub use report::timing::StepTimeline;
pub use startup::handshake::{handshake, ungathered};
pub use state::rank_state::StageOn;
pub use state::recoveries::Recoveries;
pub use state::work_piece::{DoPiece, WorkPiece};
pub use sync::validation::WindowHistory;

use chimera_schedule::program::Program;
use chimera_schedule::update::{Reads, Update};

use crate::stage::Data;

/// The parts of a run that all ranks have in common.
pub struct Job<'j, I = u32> {
    /// The instructions of each worker of a pipeline group.
    pub program: &'j Program,
    /// Number of pipeline groups, W.
    pub width: usize,
    /// Samples per micro-batch, B. Divisible by the program's units per micro-batch, unless these
    /// are slices of sequences.
    pub micro_batch_size: usize,
    /// Hyperparameters of the training.
    pub training: &'j Training,
    /// Source of samples.
    pub data: &'j dyn Data<I>,
    /// Timeouts of waits for other ranks.
    pub patience: Patience,
    /// Set from outside to end the run. The current step is discarded if the program has the
    /// barrier and some rank has not reached its step sync; otherwise it is finished.
    pub stop: &'j AtomicBool,
    /// Runs the pieces of work beside the training in the program. Pieces of K-FAC do not need it.
    pub own_work: Option<&'j DoPiece<'j>>,
    /// Origin of times in measured timelines.
    pub epoch: Instant,
}

impl<I> Clone for Job<'_, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I> Copy for Job<'_, I> {}

impl<I> Job<'_, I> {
    /// Returns why the job cannot be trained with any program; `None` if it can.
    pub(crate) fn unfit(&self) -> Option<String> {
        let why = match (self.width, self.micro_batch_size, self.data.n_targets()) {
            (0, ..) => "width is 0: set the number of pipeline groups to 1 or more",
            (_, 0, _) => "micro_batch_size is 0: set the samples of a micro-batch to 1 or more",
            (.., 0) => {
                "Data::n_targets says 0, and the loss is the mean over targets: give each sample one or more"
            }
            _ => return None,
        };
        Some(why.into())
    }

    /// Returns why the parts of the job do not fit each other; `None` if they do.
    fn conflict(&self, n_ranks: u32) -> Option<String> {
        let (program, depth) = (self.program, self.program.placement().n_workers());
        let units = program.sample_shares() as usize;
        if let Some(why) = self.unfit() {
            return Some(why);
        }
        if n_ranks as usize != program.placement().n_ranks(self.width) {
            return Some(format!(
                "{n_ranks} ranks are not width {} times depth {depth}",
                self.width
            ));
        }
        if !self.micro_batch_size.is_multiple_of(units) {
            let size = self.micro_batch_size;
            return Some(format!("{size} samples cannot be cut into {units} equal parts"));
        }
        let update = program.window().update();
        let is_synchronous = update == Update::Flush;
        let is_borderless = update.is_borderless();
        if is_borderless && self.training.validates_windows() && program.bordered().is_none() {
            return Some(
                "without a border between steps, clipping and skipping need a program lowered with the barrier, by which \
                 steps are trained again"
                    .into(),
            );
        }
        if is_synchronous && self.training.needs_barrier() && !program.has_barrier() {
            return Some("clipping and the finite check need a program with a barrier".into());
        }
        if update.is_asynchronous() && self.training.non_finite == NonFinite::Skip {
            let why = "its stages update on their own";
            return Some(format!(
                "a schedule without a flush after each step can skip no step, since {why}"
            ));
        }
        let optimizer = &self.training.optimizer;
        if update.row().forward == Reads::Predicted && optimizer.repeat().is_none() {
            let rule = optimizer.name();
            return Some(format!(
                "the program's forwards read predicted weights, and optimizer {rule} predicts none: choose adamw or sgd"
            ));
        }
        if self.training.non_finite == NonFinite::Skip && !self.training.check_finite {
            return Some("a step can be skipped only if the finite check finds it".into());
        }
        if let Some(why) = unpreconditioned(program, self.training) {
            return Some(why);
        }
        let shards = self.training.shard_weights;
        if shards != program.shards_weights() || shards && !self.training.shard_optimizer {
            return Some(
                "shard_weights needs a program lowered with whole_stages, and shard_optimizer"
                    .into(),
            );
        }
        if self.training.shard_gradients && !self.training.shard_optimizer {
            return Some("shard_gradients leaves each sum to the owner of its moments: set shard_optimizer too".into());
        }
        if !is_synchronous && self.training.shard_optimizer {
            let why = "its stages update while weights are read";
            let what = "a schedule without a flush after each step";
            return Some(format!("{what} cannot shard its optimizer: {why}"));
        }
        None
    }
}

/// Timeouts of a rank that waits for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Timeout in the first step, which includes starting up.
    pub first_step: Duration,
    /// Timeout in later steps.
    pub later: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { first_step: Duration::from_secs(300), later: Duration::from_secs(100) }
    }
}
