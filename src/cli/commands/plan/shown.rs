//! The report of a plan: the model, named answers with their reasons, a table, and the command.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use chimera_core::notation::size;
use serde_json::{Value, json};

use super::table::{HEADS, seconds, table};
use super::{LinkTimes, Plan};
use crate::cli::parts::schedule::rank_map::{mapping_json, write_mapping};
use crate::cli::parts::terminal::console::{count, duration, print};
use crate::formats::hub::HubName;
use crate::plan::{
    Advice, Answers, Candidate, Choice, Cluster, Need, RankMemory, Speed, StepParts,
};
use crate::settings::{Config, Layers};

/// Seconds of a day.
const DAY: f64 = 86_400.0;

impl Plan {
    /// Prints the chosen configurations.
    pub(super) fn show(
        &self,
        choice: &Choice,
        cluster: &Cluster,
        seconds: f64,
        file: Option<&Path>,
    ) -> Result<()> {
        let Some(answers) = choice.answers() else { return Ok(()) };
        let command = match file {
            Some(file) => self.write_settings(answers.fastest, file)?,
            None => self.command(answers.fastest),
        };
        let ways = choice.distinct().take(self.top as usize);
        let ways =
            ways.map(|way| Ok((way, self.range(way, cluster)?))).collect::<Result<Vec<_>>>()?;
        let is_measured = matches!(cluster.speed, Speed::Measured(_));
        let advice = is_measured.then(|| Advice::on(&answers.fastest.config, cluster));
        let advice = advice.transpose()?.flatten();
        let named = self.named(&answers, cluster)?;
        let mapping = self.links.map.search_for(answers.fastest, cluster)?;
        if self.json {
            let shown = ways.iter().map(|(way, range)| self.way(way, *range)).collect::<Vec<_>>();
            let mut figures = json!({
                "model": model_json(&answers.fastest.config), "answers": self.answers_json(&named),
                "ways": shown, "n_fit": choice.candidates.len(), "n_too_large": choice.n_too_large,
                "n_left_out": choice.n_left_out, "measured": is_measured,
                "network": self.link_times(&cluster.speed), "command": command, "advice": advice,
            });
            if let Some(mapping) = &mapping {
                figures["mapping"] = mapping_json(mapping);
            }
            return print(format!("{figures:#}"));
        }
        let mut text = self.headline(&answers.fastest.config);
        text.push_str(&self.answers_text(choice, &named, cluster));
        text.push_str(&table(HEADS, &ways));
        text.push_str(&self.notes(choice, &ways, cluster));
        text.push_str(&untried(choice, seconds));
        if let Some(mapping) = &mapping {
            write_mapping(&mut text, mapping)?;
        }
        if let Some(advice) = advice {
            let _ =
                write!(text, "\nnot among these, one change to the first: {}", advice.sentence());
        }
        print(format!("{text}\n\n{command}"))
    }

    /// Describes the model, its size and the step.
    fn headline(&self, config: &Config) -> String {
        let (model, sequence) = (config.model(), config.model.sequence);
        let on = self.hardware.as_ref().map_or(String::new(), |name| format!(" of {name}"));
        let tokens = u64::from(self.batch) * sequence as u64;
        format!(
            "{}: {} parameters, {} layers of {}; a step of {} samples of {sequence} tokens ({} tokens) on {} ranks{on}\n\n",
            name(config),
            count(model.n_params()),
            model.layers,
            model.hidden,
            self.batch,
            count(tokens),
            self.ranks,
        )
    }

    /// Returns the answers by name, each with the parts of its step.
    fn named<'c>(&self, answers: &Answers<'c>, cluster: &Cluster) -> Result<Vec<Answer<'c>>> {
        let Answers { fastest, simplest, least_memory, data_parallel } = *answers;
        let all = [
            ("fastest", Some(fastest)),
            ("simplest within 3 %", Some(simplest)),
            ("least memory", Some(least_memory)),
            ("data parallelism", data_parallel),
        ];
        let answer = |(name, way): (&'static str, Option<&'c Candidate>)| {
            let parts = way.map(|way| way.parts_on(cluster)).transpose()?.flatten();
            Ok(Answer { name, way, parts })
        };
        all.into_iter().map(answer).collect()
    }

    /// Prints each answer with the reason for its time.
    fn answers_text(&self, choice: &Choice, answers: &[Answer<'_>], cluster: &Cluster) -> String {
        let widest = answers.iter().map(|answer| answer.name.len()).max().unwrap_or(0);
        let first = answers.first().and_then(|answer| answer.way);
        let mut text = String::new();
        for (nth, Answer { name, way, parts }) in answers.iter().enumerate() {
            let _ = write!(text, "{name:widest$}  ");
            let Some(way) = way else {
                let _ = writeln!(text, "{}", self.no_data_parallelism(choice, cluster));
                continue;
            };
            let same = answers[..nth].iter().find(|other| other.way == Some(way));
            if let Some(same) = same {
                let _ = writeln!(text, "the same as {}", same.name);
                continue;
            }
            let more = first.map_or(1.0, |first| way.step_s / first.step_s);
            let more = if more < 1.0005 {
                String::new()
            } else {
                format!(" ({:+.1} %)", 100.0 * (more - 1.0))
            };
            let days =
                self.days(way).map_or(String::new(), |days| format!(", {}", duration(days * DAY)));
            let _ = writeln!(
                text,
                "{} s a step{more}{days}, {}: {}",
                seconds(way.step_s),
                size(way.need.total()),
                summary(way),
            );
            let _ = writeln!(text, "{:widest$}  = {}", "", reason(way, parts.as_ref()));
        }
        text + "\n"
    }

    /// Says why no configuration without a pipeline is among the candidates.
    fn no_data_parallelism(&self, choice: &Choice, cluster: &Cluster) -> String {
        let is_free = |key: &str| {
            let config = choice.candidates.first().map(|first| &first.config);
            config
                .and_then(|config| config.value(key))
                .is_none_or(|(_, origin)| origin.is_default())
        };
        match () {
            () if !self.batch.is_multiple_of(self.ranks) => {
                format!("not possible: {} samples for {} ranks", self.batch, self.ranks)
            }
            () if !["depth", "width", "schedule"].iter().all(|key| is_free(key)) => {
                "ruled out by your options".to_string()
            }
            () if choice.n_left_out > 0 => "not tried in time, or too large".to_string(),
            () => format!("does not fit into {}", size(cluster.memory.least())),
        }
    }

    /// Returns the days that a configuration takes for the tokens that were asked for.
    fn days(&self, way: &Candidate) -> Option<f64> {
        self.tokens.map(|tokens| tokens / way.tokens_per_s() / DAY)
    }

    /// The answers as JSON.
    fn answers_json(&self, answers: &[Answer<'_>]) -> Value {
        let keys = ["fastest", "simplest", "least_memory", "data_parallel"];
        let of = |answer: &Answer<'_>| {
            answer.way.map(|way| {
                let mut figures = self.way(way, None);
                figures["parts"] = json!(answer.parts);
                figures["days"] = json!(self.days(way));
                figures
            })
        };
        keys.into_iter().zip(answers).map(|(key, answer)| (key, json!(of(answer)))).collect()
    }

    /// Explains the numbers below the table.
    fn notes(
        &self,
        choice: &Choice,
        ways: &[(&Candidate, Option<[f64; 2]>)],
        cluster: &Cluster,
    ) -> String {
        let is_measured = matches!(cluster.speed, Speed::Measured(_));
        let is_foreseen = ways.iter().any(|(way, _)| !way.is_simulated);
        let mut text = format!(
            "\n{} into {} a rank{}, {} do not; times are {} the optimizer's update{}",
            fitting(choice.candidates.len()),
            asked_memory(&cluster.memory),
            self.part_of_sheet(),
            choice.n_too_large,
            if is_measured { "with" } else { "without" },
            if is_foreseen { "; with ~ they are estimated from shorter steps" } else { "" },
        );
        text.push_str(match self.hardware {
            _ if is_measured => {
                "\nmeasured: the range is of layers that are all faster or slower by the spread of the profile"
            }
            Some(_) => {
                "\nnot measured: assumes 45 % of the data sheet's peak FLOP/s; the range is from 60 % to 30 %"
            }
            None => "\nnot measured: times follow from --flops alone, whatever the sizes of products",
        });
        if self.link_times(&cluster.speed) == LinkTimes::Profile {
            text.push_str(
                "\nmessages and gradient reductions take as long as between threads of the profile's machine",
            );
        }
        match choice.candidates.len() - choice.distinct().count() {
            0 => {}
            n => {
                let _ = write!(
                    text,
                    "\n{n} are omitted: a simpler configuration is as fast and needs no more memory"
                );
            }
        }
        text
    }

    /// A configuration as JSON.
    fn way(&self, way: &Candidate, range: Option<[f64; 2]>) -> Value {
        let Candidate { config, need, step_s, bubble_ratio, is_simulated } = way;
        let schedule = &config.schedule;
        json!({
            "step_s": step_s, "step_s_range": range, "tokens_per_s": way.tokens_per_s(),
            "bubble_ratio": bubble_ratio, "bytes": bytes(need),
            "width": schedule.width, "depth": schedule.depth, "schedule": schedule.name.to_string(),
            "scaling": way.scaling(), "parameters": parameters(way), "sync": way.sync(),
            "micro_batch_size": schedule.micro_batch_size, "micro_batches": schedule.micro_batches,
            "recompute": way.recompute(),
            "recompute_stages": config.passes.recompute_stages.to_string(),
            "shard_optimizer": config.replicas.shard_optimizer,
            "layout": schedule.layout.to_string(), "simulated": is_simulated,
            "command": self.command(way),
        })
    }
}

/// A named answer, and the reason for its time.
struct Answer<'c> {
    name: &'static str,
    way: Option<&'c Candidate>,
    parts: Option<StepParts>,
}

/// Names the model.
fn name(config: &Config) -> String {
    let init = config.model.init.as_deref();
    if let Some(name) = init.and_then(HubName::of_snapshot) {
        return name.repository().to_string();
    }
    init.and_then(Path::file_name)
        .map_or(config.model.preset.clone(), |folder| folder.to_string_lossy().into_owned())
}

fn model_json(config: &Config) -> Value {
    let model = config.model();
    json!({
        "name": name(config), "parameters": model.n_params(), "layers": model.layers,
        "hidden": model.hidden, "sequence": config.model.sequence,
    })
}

/// Describes a configuration in a few words.
fn summary(way: &Candidate) -> String {
    let schedule = &way.config.schedule;
    let mut text = super::table::schedule(way);
    let _ = write!(text, ", W {}, D {}", schedule.width, schedule.depth);
    let _ = write!(text, ", B {}, N {}", schedule.micro_batch_size, schedule.micro_batches);
    if way.recompute() != "none" {
        let _ = write!(text, ", recompute {}", way.recomputed());
    }
    if way.config.replicas.shard_optimizer {
        text.push_str(", sharded optimizer");
    }
    text
}

/// Says in a line why a step takes its time.
fn reason(way: &Candidate, parts: Option<&StepParts>) -> String {
    let Some(parts) = parts else {
        let bubble = 100.0 * way.bubble_ratio;
        return format!("{:.0} % ideal + {bubble:.0} % idle (estimated)", 100.0 - bubble);
    };
    let percent = |(name, seconds): &(&str, f64)| {
        let share = 100.0 * seconds / way.step_s;
        (share >= 0.05).then(|| format!("{share:.1} % {name}"))
    };
    parts.named().iter().filter_map(percent).collect::<Vec<_>>().join(" + ")
}

/// Describes the number of configurations that fit.
pub(super) fn fitting(n: usize) -> String {
    match n {
        1 => "1 configuration fits".to_string(),
        n => format!("{n} configurations fit"),
    }
}

/// Describes the memory of the ranks.
fn asked_memory(memory: &RankMemory) -> String {
    let (least, most) = (memory.least(), memory.most());
    if least == most { size(least) } else { format!("{} to {}", size(least), size(most)) }
}

/// The memory that a rank needs, as JSON.
pub(super) fn bytes(need: &Need) -> Value {
    let Need { state, copy, activations, working } = need;
    json!({
        "state": state, "copy": copy, "activations": activations, "working": working, "total": need.total(),
    })
}

/// The schedule's parameters that differ from their defaults.
pub(super) fn parameters(way: &Candidate) -> Value {
    way.parameters().map(|(name, value)| (name, json!(value))).collect()
}

/// Describes what was left out when the time was over.
pub(super) fn untried(choice: &Choice, seconds: f64) -> String {
    match choice.n_left_out {
        0 => String::new(),
        n => format!(
            "\nstopped after {seconds} s with {n} configurations not tried to the end: this is the best found so far, and a \
             larger --search-time may find better"
        ),
    }
}

impl Plan {
    /// Writes the settings of a configuration to a file. Returns the command that trains with it.
    fn write_settings(&self, way: &Candidate, file: &Path) -> Result<String> {
        let Layers { config, settings } = &self.layers.0;
        let settings = way.settings(settings).without("search-time");
        let command = format!(
            "{}chimera train --config {}",
            self.launcher(),
            crate::settings::quoted(file.display())
        );
        super::settings_file::write(file, &command, config.as_deref(), &settings)?;
        Ok(command)
    }
}
