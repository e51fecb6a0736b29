//! The weights that workers hold at once if replicas share them (ZeRO stage 3), and the time that
//! gathering them takes.

use std::fmt::Write;

use anyhow::Result;
use chimera_core::analyze::{
    FreeShards, GradientSizes, Timeline, WeightSizes, peaks_with_gradients, simulate,
};
use chimera_core::costs::{Costs, StageBytes};
use chimera_core::ids::{BucketId, StageId, WorkerId};
use chimera_core::program::{Instr, Program, ShardOp};
use serde_json::{Value, json};

use crate::cli::parts::terminal::console::figure;

/// The whole weights of a step whose replicas share them.
pub(super) struct WholeWeights {
    /// The most weights that each worker holds at once, in stages.
    peaks: Vec<f64>,
    n_gatherings: usize,
    /// The time by which the step is longer than with free messages of weights.
    exposed: f64,
}

impl WholeWeights {
    /// Returns the figures of a simulated program; `None` if its weights are not sharded. Each
    /// replica keeps an equal shard.
    pub(super) fn of<C: Costs>(
        program: &Program,
        (width, timeline): (usize, &Timeline),
        costs: &C,
    ) -> Option<WholeWeights> {
        if !program.shards_weights() {
            return None;
        }
        let n_stages = program.placement().n_stages();
        let share = |worker, stage: u16| {
            let holds = program.placement().stages_of(worker).contains(&StageId(stage));
            let n_replicas = program.replicas(width, BucketId(stage.into())).len() as f64;
            if holds { 1.0 / n_replicas } else { 0.0 }
        };
        let workers = (0..program.rows().len() as u16).map(WorkerId);
        let kept: Vec<Vec<f64>> =
            workers.map(|w| (0..n_stages as u16).map(|stage| share(w, stage)).collect()).collect();
        let own: Vec<f64> = kept.iter().map(|shares| shares.iter().sum()).collect();
        let n_buckets = program.buckets_of_update().len();
        let sizes = GradientSizes {
            whole: vec![Vec::new(); n_buckets],
            kept: vec![vec![0.0; n_buckets]; kept.len()],
            weights: Some(WeightSizes { whole: vec![1.0; n_stages], kept }),
        };
        let nothing = vec![StageBytes::default(); n_stages];
        let gathered = peaks_with_gradients(program, &nothing, 1.0, &sizes).kept;
        let is_gathering = |instr: &&Instr| matches!(instr, Instr::Shard(ShardOp::Gather(_)));
        Some(WholeWeights {
            peaks: gathered.iter().zip(&own).map(|(more, own)| own + more).collect(),
            n_gatherings: program.rows().iter().flatten().filter(is_gathering).count(),
            exposed: timeline.makespan() - simulate(program, &FreeShards(costs)).makespan(),
        })
    }

    /// Adds the figures to those of a step.
    pub(super) fn add_to(&self, figures: &mut Value) {
        figures["peak_weight_stages"] = json!(self.peaks);
        figures["gatherings"] = json!(self.n_gatherings);
        figures["gatherings_exposed"] = json!(self.exposed);
    }

    /// Writes a line about the worker that holds most, and about the time.
    pub(super) fn write(&self, text: &mut String, program: &Program) -> Result<()> {
        let WholeWeights { peaks, n_gatherings, exposed } = self;
        let held = |worker| program.placement().stages_of(WorkerId(worker as u16)).len();
        let most = (0..peaks.len()).max_by(|a, b| peaks[*a].total_cmp(&peaks[*b])).unwrap_or(0);
        let (peak, held, exposed) = (peaks[most], held(most), figure(*exposed));
        write!(
            text,
            "\nweights: those of at most {peak:.2} stages at once, on worker {most}, which has {held}; {n_gatherings} \
             gatherings make the step {exposed} longer"
        )?;
        Ok(())
    }
}
