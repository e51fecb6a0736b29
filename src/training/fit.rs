//! Refusing a run that cannot fit into memory before it starts to fill it.

use std::fmt;
use std::path::Path;

use anyhow::{Result, ensure};
use chimera_core::analyze::peak_bytes;
use chimera_core::effects::TokenKind;
use chimera_core::engine::owned_elements;
use chimera_core::ids::WorkerId;
use chimera_core::lower::{Program, Recompute};
use chimera_core::model::{Cut, ModelConfig};
use chimera_core::stage::Param;

use super::free::free_memory;
use crate::settings::Config;

/// What a run needs, in bytes over all workers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Need {
    /// Weights in all their versions, gradients and two moments, four bytes an element each; and the weights
    /// that the run begins with, if they were given.
    pub state: f64,
    /// Weights and two moments, from which a checkpoint is written while training goes on.
    pub copy: f64,
    /// What workers keep for backwards at once: residuals, inputs to recompute from, deferred weight work.
    pub residuals: f64,
}

impl Need {
    /// That of a part of all workers.
    pub(super) fn times(self, part: f64) -> Need {
        let Need { state, copy, residuals } = self;
        Need { state: state * part, copy: copy * part, residuals: residuals * part }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GiB for weights, gradients and moments", gib(self.state))?;
        if self.copy > 0.0 {
            write!(
                f,
                ", {:.1} GiB for the copy that checkpoints are written from",
                gib(self.copy)
            )?;
        }
        write!(f, " and {:.1} GiB for residuals", gib(self.residuals))
    }
}

/// Refuses a run whose weights, gradients, moments and residuals exceed the memory that is free.
pub(super) fn check(config: &Config, need: &Need) -> Result<()> {
    if let Some(free) = free_memory(Path::new("/")) {
        ensure!(
            need.state + need.copy + need.residuals <= free.bytes,
            "the run needs {need} on this host, but {:.1} GiB are free{}: choose {}fewer layers, a smaller preset or \
             width, fewer pipes, or a smaller micro-batch-size",
            gib(free.bytes),
            if free.by_limit { " within the memory limit of its control group" } else { "" },
            if config.recompute == Recompute::None { "recompute full, " } else { "" },
        );
    }
    Ok(())
}

pub(super) fn need(config: &Config, model: &ModelConfig, cuts: &[Cut], program: &Program) -> Need {
    let units = program.units_per_micro() as usize;
    let samples = (config.micro_batch_size / units) as f64;
    let kept = peak_bytes(program, |_, token| {
        let cut = &cuts[token.stage.index()];
        let input = if cut.first { 0 } else { model.hidden * config.context };
        let elements = match token.kind {
            TokenKind::Saved => model.residual_elements(cut, config.context),
            TokenKind::Kept if program.rules().is_selective(token.pipe, token.stage) => {
                model.selected_elements(cut, config.context)
            }
            TokenKind::Kept => input,
            TokenKind::Deferred => model.deferred_elements(cut, config.context),
            TokenKind::Activation | TokenKind::Gradient | TokenKind::Version => 0,
        };
        elements as f64 * samples * 4.0
    });
    let params: Vec<Vec<Param>> = cuts.iter().map(|cut| model.params(cut)).collect();
    let copies_of = |w: WorkerId| {
        let gradients_and_moments = if config.shard_optimizer { 1.0 } else { 3.0 };
        gradients_and_moments + f64::from(program.weight_versions()[w.index()])
    };
    let workers = (0..program.rows().len()).map(|w| WorkerId(w as u16));
    let state_of = |w: WorkerId| {
        let stages = program.placement().stages_of(w).into_iter();
        let params = stages.flat_map(|s| &params[s.index()]);
        params.map(|p| p.n_elements() as f64).sum::<f64>() * copies_of(w)
    };
    let state = workers.map(state_of).sum::<f64>() * 4.0;
    let moments = match config.shard_optimizer {
        true => {
            owned_elements(program, config.width, &params).into_iter().sum::<u64>() as f64 * 8.0
        }
        false => 0.0,
    };
    let residuals = kept.iter().sum::<f64>();
    let width = config.width as f64;
    let n_params = model.n_params() as f64;
    let given = if config.init.is_some() { n_params * 4.0 } else { 0.0 };
    let copy = if config.save_every > 0 { n_params * 12.0 } else { 0.0 };
    Need { state: state * width + moments + given, copy, residuals: residuals * width }
}

fn gib(bytes: f64) -> f64 {
    bytes / f64::from(1u32 << 30)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use chimera_core::model::cut;

    use super::*;
    use crate::settings::{Layers, Settings};
    use crate::training::Run;

    /// What is foreseen is what the engine then measures, to the byte.
    #[test]
    fn the_need_is_what_a_run_takes() {
        for (model, schedule) in [
            ("gpt2", "gpipe"),
            ("gpt2", "dapple"),
            ("gpt2", "interleaved"),
            ("gpt2", "zb-h1"),
            ("gpt2", "dualpipe"),
            ("gpt2", "chimera"),
            ("bert", "dapple"),
            ("bert", "chimera"),
        ] {
            let shard_optimizer = ["dapple", "dualpipe", "chimera"].contains(&schedule);
            for recompute in ["none", "selective", "full"] {
                for (split_backward, scaling) in [(false, "doubling"), (true, "halving")] {
                    let settings = Settings {
                        model: Some(model.into()),
                        schedule: Some(schedule.into()),
                        scaling: Some(scaling.into()),
                        recompute: Some(recompute.into()),
                        split_backward: Some(split_backward),
                        shard_optimizer: Some(shard_optimizer && split_backward),
                        width: Some(if shard_optimizer { 2 } else { 1 }),
                        tied: Some(recompute == "full"),
                        depth: Some(2),
                        layers: Some(5),
                        hidden: Some(8),
                        heads: Some(2),
                        context: Some(12),
                        steps: Some(1),
                        threads: Some(1),
                        ..Settings::default()
                    };
                    let layers = Layers { config: None, settings };
                    let run = Run::prepare(layers.resolve().unwrap()).unwrap();
                    let mut bytes = 0;
                    let observe = |report: &chimera_core::engine::StepReport| {
                        bytes = report.bytes();
                        Ok(())
                    };
                    run.train(&AtomicBool::new(false), observe).unwrap();
                    let n_stages = run.program().placement().n_stages();
                    let cuts = cut(run.model(), n_stages).unwrap();
                    let need = need(run.config(), run.model(), &cuts, run.program());
                    let case = format!("{model} {schedule} {recompute} {split_backward}");
                    assert_eq!((need.state + need.residuals) as u64, bytes, "{case}");
                }
            }
        }
    }
}
