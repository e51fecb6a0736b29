//! Plans for models that are not built in, whose layers a file describes.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use chimera_core::notation::size;
use serde_json::{Value, json};

use super::Plan;
use super::shown::{bytes, fitting, parameters, untried};
use super::table::{HEADS, laid_out, lines};
use crate::cli::parts::terminal::console::{counted, print};
use crate::plan::{Candidate, Choice, Effort, LayerCosts, Ranks, choose_for};
use crate::settings::schedules::{ALONE, Named};
use crate::settings::{Config, RecomputedStages, ScheduleSettings, quoted};

impl Plan {
    /// Chooses configurations for such a model.
    pub(super) fn choose_for(
        &self,
        model: &LayerCosts,
        said: &Config,
        effort: &Effort<'_>,
    ) -> Result<Choice> {
        let n_ranks = self.ranks as usize;
        ensure!(
            self.links.topology(n_ranks).is_none(),
            "--topology is for the models here, and --costs names another: leave it out"
        );
        let memory = self.memory()?.least();
        let ranks = Ranks { n_ranks, memory, network: self.links.network(1, n_ranks)? };
        let choice =
            choose_for(model, said, self.batch as usize, &ranks, self.top as usize, effort)?;
        if choice.candidates.is_empty() {
            bail!("{}", self.no_layers_fit(&choice, memory))
        }
        Ok(choice)
    }

    /// Prints the chosen configurations.
    pub(super) fn show_layers(
        &self,
        choice: &Choice,
        model: &LayerCosts,
        seconds: f64,
        file: Option<&Path>,
    ) -> Result<()> {
        ensure!(
            file.is_none(),
            "--out is for models that `train` has: the command below the table writes the timetable of yours"
        );
        ensure!(
            self.tokens.is_none(),
            "--tokens is for models that `train` has, whose samples have tokens"
        );
        self.warn_of_free_links();
        let Some(answers) = choice.answers() else { return Ok(()) };
        let ways: Vec<_> =
            choice.distinct().take(self.top as usize).map(|way| (way, None)).collect();
        if self.json {
            let named = [
                ("fastest", Some(answers.fastest)),
                ("simplest", Some(answers.simplest)),
                ("least_memory", Some(answers.least_memory)),
                ("data_parallel", answers.data_parallel),
            ];
            let named: Value =
                named.into_iter().map(|(key, way)| (key, json!(way.map(figures)))).collect();
            let figures = json!({
                "answers": named, "ways": ways.iter().map(|(way, _)| figures(way)).collect::<Vec<_>>(),
                "n_fit": choice.candidates.len(), "n_too_large": choice.n_too_large,
                "n_left_out": choice.n_left_out, "layers": model.n_layers(),
                "network": if self.links.is_free() { "none" } else { "described" },
                "command": command(answers.fastest),
            });
            return print(format!("{figures:#}"));
        }
        let mut heads = HEADS;
        heads[2] = "samples/s";
        let mut lines = lines(&ways, samples_per_s);
        // The caller decides whether to shard the optimizer.
        lines.iter_mut().for_each(|cells| cells[HEADS.len() - 2].clear());
        let layers = counted(model.n_layers() as f64, "layer", "s");
        let mut text = format!(
            "a model of {layers}; a step of {} samples on {} ranks\n\n{}",
            self.batch,
            self.ranks,
            laid_out(heads, &lines)
        );
        let _ = write!(
            text,
            "\n{} into {} a rank{}, {} do not; times are of the {layers} in the file, without the optimizer's update",
            fitting(choice.candidates.len()),
            size(self.memory()?.least()),
            self.part_of_sheet(),
            choice.n_too_large,
        );
        text.push_str(&untried(choice, seconds));
        print(format!("{text}\n\n{}", command(answers.fastest)))
    }

    /// Explains why no configuration fits.
    fn no_layers_fit(&self, choice: &Choice, memory: f64) -> String {
        let memory = size(memory) + " a rank" + &self.part_of_sheet();
        let Some((config, need)) = &choice.smallest else {
            return format!("no configuration fits into {memory}");
        };
        format!(
            "none of {} configurations fits into {memory}: the smallest, {} with width {} and depth {}, needs {} on \
             its peak rank ({} for weights, gradients and the optimizer's state, {} for saved activations and {} for \
             results of the running op); choose more ranks, or measure the layers with a smaller micro-batch",
            choice.n_too_large,
            config.schedule.name,
            config.schedule.width,
            config.schedule.depth,
            size(need.total()),
            size(need.state),
            size(need.activations),
            size(need.working),
        )
    }
}

fn samples_per_s(way: &Candidate) -> f64 {
    let ScheduleSettings { width, micro_batches, micro_batch_size, .. } = way.config.schedule;
    [width, micro_batches, micro_batch_size].map(|n| n as f64).iter().product::<f64>() / way.step_s
}

fn figures(way: &Candidate) -> Value {
    let Candidate { config, need, step_s, bubble_ratio, .. } = way;
    json!({
        "step_s": step_s, "samples_per_s": samples_per_s(way), "bubble_ratio": bubble_ratio,
        "bytes": bytes(need),
        "width": config.schedule.width, "depth": config.schedule.depth, "schedule": config.schedule.name.to_string(),
        "scaling": way.scaling(), "parameters": parameters(way), "micro_batch_size": config.schedule.micro_batch_size,
        "micro_batches": config.schedule.micro_batches, "recompute": way.recompute(), "command": command(way),
    })
}

/// The command that writes the timetable of a configuration, for the program that trains the model.
fn command(way: &Candidate) -> String {
    let ScheduleSettings { depth, micro_batches, .. } = way.config.schedule;
    // A single worker has no order to choose, unless a file gives one.
    let is_alone = depth == 1 && matches!(way.config.schedule.name, Named::Schedule(_));
    let schedule = if is_alone { ALONE.to_string() } else { quoted(&way.config.schedule.name) };
    let mut command = format!(
        "chimera schedule export {schedule} --depth {depth} --micro-batches {micro_batches}"
    );
    // An export chooses the shorter scaling by its own costs.
    if way.reads_scaling() && (micro_batches > depth || way.scaling() != "direct") {
        let _ = write!(command, " --scaling {}", way.scaling());
    }
    if way.recompute() != "none" {
        let _ = write!(command, " --recompute {}", way.recompute());
    }
    for (name, value) in way.parameters() {
        let _ = write!(command, " --{name} {value}");
    }
    let has_stages = matches!(way.config.passes.recompute_stages, RecomputedStages::These(_));
    for (key, is_told) in [
        ("in-turn", is_alone),
        ("split-backward", true),
        ("bpipe", true),
        ("offload", true),
        ("memory-cap", true),
        ("hoist", true),
        ("border", true),
        // The choice for memory has been made: all stages recompute, or none.
        ("recompute-stages", has_stages),
    ] {
        match way.config.unusual(key).filter(|_| is_told) {
            Some(toml::Value::Boolean(true)) => _ = write!(command, " --{key}"),
            Some(toml::Value::String(text)) => _ = write!(command, " --{key} {text}"),
            Some(value) => _ = write!(command, " --{key} {value}"),
            None => {}
        }
    }
    command + " --format json"
}
