//! Resolved settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chimera_core::engine::{LrSchedule, Patience};
use chimera_core::ids::StageId;
use chimera_core::lower::{Border, Hoist, Moves, Passes, Recompute};
use chimera_core::model::{Cut, Lora, ModelConfig, Selection, Tuning, UniformSplit, cut};
use chimera_core::schedule::{NUMBERS, Number, Parameter, Scaling as ShapeScaling, Shape};
use chimera_core::search::{Search, Where};
use toml::Value;

use super::{
    Config, Layout, OPTIONS, OWN_MODEL, Origin, RecomputedStages, SettingsError, UnfitStages,
};

use crate::schedules::Named;
use crate::{PassSettings, Scaling, ScheduleSettings};

/// Folder of the trained weights within the folder of their run.
pub const MODEL: &str = "model";

impl ScheduleSettings {
    /// Returns true if a search chooses the placement.
    pub fn chooses_placement(&self) -> bool {
        let has_all = self.placement == Where::Any || self.own_placement.is_some();
        self.name == Named::Auto && has_all
    }
}

impl Config {
    /// Returns the shape of the schedule.
    pub fn shape(&self) -> Shape {
        let n_micro_batches = u32::try_from(self.schedule.micro_batches).unwrap_or(u32::MAX);
        let scaling = self.schedule.scaling.of_shape();
        let shape = Shape { scaling, ..Shape::new(self.schedule.depth, n_micro_batches) };
        let number = |row: &Number| self.parameters.get(row.name).copied();
        NUMBERS.iter().fold(shape, |shape, row| shape.with(row.parameter, number(row)))
    }

    /// Sets a parameter of the schedule; `None` leaves an optional one to the schedule.
    pub fn set(&mut self, parameter: Parameter, number: Option<u32>) {
        match number {
            Some(number) => self.parameters.insert(parameter.name(), number),
            None => self.parameters.remove(parameter.name()),
        };
    }

    /// Marks these settings as those of a caller's model of this name.
    pub fn of_model(self, name: &str) -> Config {
        Config { own_model: Some(name.into()), ..self }
    }

    /// Refuses settings whose file names a program's own model, unless `is_it` returns true for the
    /// name.
    pub fn check_own_model(&self, is_it: impl Fn(&str) -> bool) -> Result<(), SettingsError> {
        let Some(name) = self.own_model.as_deref().filter(|name| !is_it(name)) else {
            return Ok(());
        };
        let place = self.origins.get(OWN_MODEL).map_or(String::new(), Origin::to_string);
        let message = format!(
            "`{OWN_MODEL}` is \"{name}\", the model of another program: train it with that, or leave this line out"
        );
        Err(SettingsError { place, message })
    }

    /// Refuses weights if there are not as many as files.
    pub(super) fn check_weights(&self) -> Result<(), SettingsError> {
        let Some(weights) = &self.data.weights else { return Ok(()) };
        let (n_weights, n_files) = (weights.as_slice().len(), self.data.files.len());
        if n_weights == n_files {
            return Ok(());
        }
        let message = match n_files {
            0 => "`data-weights` weighs the files of `data`, which names none".into(),
            _ => format!(
                "`data-weights` has {n_weights} weight(s), but `data` names {n_files} file(s): give each file its weight"
            ),
        };
        Err(SettingsError { place: self.origins["data-weights"].to_string(), message })
    }

    /// Returns the passes over the schedule.
    pub fn passes(&self) -> Passes {
        let PassSettings { mut recompute, mut hoist, split_backward, .. } = self.passes;
        if let RecomputedStages::These(_) = self.passes.recompute_stages {
            // The recomputation of chosen stages is set before the passes, which no longer move it.
            recompute = Recompute::None;
            hoist = if hoist == Hoist::OnDemand { hoist } else { Hoist::By(0) };
        }
        let free_border = (self.passes.border == Border::Free).then_some(self.shape().window);
        let moves = Moves::of(self.passes.bpipe, self.passes.offload);
        Passes { recompute, hoist, split_backward, free_border, moves }
    }

    /// Returns the relative speed of each worker of a pipeline.
    pub fn worker_speeds(&self) -> Vec<f64> {
        match &self.schedule.speeds {
            Some(speeds) => speeds.of_workers(self.schedule.depth, self.schedule.width),
            None => vec![1.0; self.schedule.depth],
        }
    }

    /// Returns true if the learning rate falls towards `min_lr`.
    pub fn lr_falls(&self) -> bool {
        self.training.lr_schedule != LrSchedule::Constant
    }

    /// Returns the recomputation of a stage.
    pub fn recompute_of(&self, stage: StageId) -> Recompute {
        self.passes.recompute_stages.of(stage, self.passes.recompute)
    }

    /// Returns the limits of the search for `auto`.
    pub fn search(&self) -> Search {
        Search {
            max_peak: self.passes.memory_cap,
            time_limit: Duration::from_secs_f64(self.schedule.search_time),
            seed: self.schedule.search_seed.unwrap_or(self.training.seed),
            weight_copies: self.schedule.weight_copies,
            max_chunks: self.schedule.max_chunks,
            whole_micro_batches: !self.may_halve(),
            ..Search::default()
        }
    }

    /// Returns true if a search may cut micro-batches in two.
    fn may_halve(&self) -> bool {
        let is_allowed = match self.schedule.scaling {
            Scaling::Auto => true,
            Scaling::Is(scaling) => scaling == ShapeScaling::Halving,
        };
        is_allowed && self.schedule.micro_batch_size.is_multiple_of(2)
    }

    /// Returns the timeouts of ranks that wait for each other.
    pub fn patience(&self) -> Patience {
        let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX);
        let later = seconds(self.devices.timeout);
        Patience { first_step: later.max(seconds(self.devices.start_timeout)), later }
    }

    /// Returns true if kernels are timed in the steps of the trace.
    pub fn times_kernels(&self) -> bool {
        self.output.trace_kernels && self.output.trace.is_some()
    }

    /// Returns the folder for the trained weights of the run in `folder`, if they are saved.
    pub fn weights_dir(&self, folder: &Path) -> Option<PathBuf> {
        let own = || folder.join(MODEL);
        (!self.checkpoints.no_save).then(|| self.checkpoints.save.clone().unwrap_or_else(own))
    }

    /// Returns the value of a key if it differs from the option's constant default.
    pub fn unusual(&self, key: &str) -> Option<Value> {
        let usual = OPTIONS.iter().find(|option| option.name == key)?.default_value(false);
        let (value, _) = self.value(key)?;
        (Some(&value) != usual.as_ref()).then_some(value)
    }

    /// Refuses to recompute a number of layers of a stage when nothing is known of its layers.
    pub fn check_whole_stages(&self) -> Result<(), String> {
        if self.passes.recompute_stages.has_layers() {
            Err(format!(
                "recompute-stages {} recomputes a number of layers, but without one of Chimera's \
                models the layers are unknown: name whole stages, or add `selective` to them",
                self.passes.recompute_stages
            ))
        } else {
            Ok(())
        }
    }

    /// Returns the numbers of layers that the layout `uniform` gives the outer ranks.
    fn uniform_split(&self) -> UniformSplit {
        let schedule = &self.schedule;
        UniformSplit {
            first: schedule.first_layers,
            last: schedule.last_layers,
            counts_embedding: schedule.counts_embedding,
            counts_loss: schedule.counts_loss,
        }
    }

    /// Cuts a model into stages. Until its layout `auto` is found, they have equal work.
    ///
    /// # Errors
    /// If the model cannot be cut in this way, or a stage has fewer layers than it is to recompute.
    pub fn cuts(&self, model: &ModelConfig, n_stages: usize) -> anyhow::Result<Vec<Cut>> {
        anyhow::ensure!(
            self.model.lora.is_none() || model.is_causal(),
            "lora adapts models that predict the next token, such as gpt2 and llama: leave it out, or choose one of them"
        );
        let mut cuts = match &self.schedule.layout {
            Layout::Is(partition) => {
                model.check_sequence(self.model.sequence)?;
                partition.cuts(model, n_stages)
            }
            Layout::Uniform => {
                model.check_sequence(self.model.sequence)?;
                let depth = self.schedule.depth;
                let split =
                    self.uniform_split().partition(model.layers, depth, n_stages.div_ceil(depth));
                split?.cuts(model, n_stages)
            }
            Layout::Balanced | Layout::Auto => cut(model, self.model.sequence, n_stages),
        }?;
        for (stage, cut) in (0..).map(StageId).zip(&mut cuts) {
            cut.selection = self.passes.recompute_stages.selection(stage);
            cut.tuning = self.tuning();
            let has = cut.blocks.len();
            if let Selection::InputsOf(n) = cut.selection
                && n > has
                && self.schedule.layout != Layout::Auto
            {
                return Err(UnfitStages::TooManyLayers { stage: stage.0, n, has }.into());
            }
        }
        Ok(cuts)
    }

    /// Returns the part of the model that is trained.
    fn tuning(&self) -> Tuning {
        let freeze = self.model.freeze.clone().unwrap_or_default();
        let frozen_weights = self.model.frozen_weights.unwrap_or_default();
        Tuning { freeze, lora: self.lora(), frozen_weights }
    }

    /// Returns the adapters that are trained, if there are any.
    pub fn lora(&self) -> Option<Lora> {
        let rank = self.model.lora?;
        let alpha = self.model.lora_alpha.unwrap_or(rank);
        let targets = self.model.lora_targets.clone().unwrap_or_default();
        let (dropout, has_magnitudes) = (self.model.lora_dropout, self.model.dora);
        Some(Lora { rank, alpha, targets, dropout, has_magnitudes })
    }

    /// Returns the model. The token that ends documents is 0 until the data determines it.
    pub fn model(&self) -> ModelConfig {
        ModelConfig {
            architecture: self.model.architecture,
            layers: self.model.layers,
            hidden: self.model.hidden,
            heads: self.model.heads,
            context: self.model.context,
            vocab: self.model.vocab,
            tied: self.model.tied,
            llama: self.llama(),
            end_of_text: self.data.document_mask.then_some(0),
        }
    }
}
