//! The gradients that workers hold at once if their sums are sharded (ZeRO stage 2).

use std::fmt::Write;

use anyhow::{Result, ensure};
use chimera_core::analyze::{GradientSizes, peaks_with_gradients};
use chimera_core::costs::StageBytes;
use chimera_core::ids::{BucketId, WorkerId};
use chimera_core::program::{Bucket, Program};
use chimera_core::update::Update;
use serde_json::{Value, json};

use crate::settings::Config;

/// The most gradients that each worker holds at once, in stages; `None` if they are not sharded.
pub(super) struct PeakGradients(Option<Vec<f64>>);

impl PeakGradients {
    /// Returns the peaks of a program. Each replica keeps an equal shard of a sum.
    ///
    /// # Errors
    /// If state is to be sharded and weights are updated while they are read.
    pub(super) fn of(program: &Program, job: &Config) -> Result<PeakGradients> {
        let stage = job.replicas.zero;
        ensure!(
            stage == 0 || program.window().update() == Update::Flush,
            "zero {stage} needs weights that nobody reads while they are updated: choose a synchronous schedule and \
             border step, or leave zero out"
        );
        if stage < 2 {
            return Ok(PeakGradients(None));
        }
        let (placement, width) = (program.placement(), job.schedule.width);
        let buckets = program.buckets_of_update();
        let whole = |bucket: &Bucket| bucket.stages.iter().map(|stage| (*stage, 1.0)).collect();
        let kept = |worker: WorkerId| {
            let shard = |(number, bucket): (u32, &Bucket)| {
                let n_replicas = program.replicas(width, BucketId(number)).len() as f64;
                if bucket.members.contains(&worker) { 1.0 / n_replicas } else { 0.0 }
            };
            (0..).zip(buckets).map(shard).collect()
        };
        let sizes = GradientSizes {
            whole: buckets.iter().map(whole).collect(),
            kept: (0..placement.n_workers()).map(|w| kept(WorkerId(w as u16))).collect(),
            weights: None,
        };
        let nothing = vec![StageBytes::default(); placement.n_stages()];
        Ok(PeakGradients(Some(peaks_with_gradients(program, &nothing, 1.0, &sizes).kept)))
    }

    /// Adds the peaks to the figures of a step.
    pub(super) fn add_to(&self, figures: &mut Value) {
        if let Some(peaks) = &self.0 {
            figures["peak_gradient_stages"] = json!(peaks);
        }
    }

    /// Writes a line about the worker that holds most.
    pub(super) fn write(&self, text: &mut String, program: &Program) -> Result<()> {
        let Some(peaks) = &self.0 else { return Ok(()) };
        let held = |worker| program.placement().stages_of(WorkerId(worker as u16)).len();
        let most = (0..peaks.len()).max_by(|a, b| peaks[*a].total_cmp(&peaks[*b])).unwrap_or(0);
        let (peak, held) = (peaks[most], held(most));
        write!(
            text,
            "\ngradients: those of at most {peak:.2} stages at once, on worker {most}, which has {held}"
        )?;
        Ok(())
    }
}
