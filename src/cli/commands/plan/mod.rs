//! `chimera plan`: chooses configurations for training a model on the available ranks.

mod layers;
mod table;

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::notation::size;
use clap::builder::StringValueParser;
use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::{Value, json};

use self::table::{HEADS, cells, table};
use crate::cli::parts::schedule::costs::{may_be_negative, whole_in};
use crate::cli::parts::schedule::network::LinkArgs;
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::console::{print, warn};
use crate::cli::parts::terminal::offered::offered;
use crate::cli::parts::terminal::progress::bar;
use crate::device::{Kernels, n_cores};
use crate::plan::choose;
use crate::plan::{
    Advice, Candidate, Choice, Cluster, EFFICIENCIES, Effort, Hardware, LayerCosts, Need,
    RankMemory, Speed, USABLE, times_of,
};
use crate::run::outside::{OnDisk, must_know_vocab};
use crate::settings::{ByteSize, Config, Layers, Origin, ScheduleSettings};

/// Default time limit of the search in seconds, unless `--search-time` is given.
const SECONDS: f64 = 60.0;
/// If a rank has fewer bytes than this, the user probably meant GiB.
const LEAST_MEMORY: u64 = 1000;

/// Finds the fastest configurations that fit into memory on every rank; options of `train` that are given, or that a
/// file has, are kept
#[derive(Args, Clone)]
#[command(mut_args(|arg| may_be_negative(arg, &["memory"])))]
#[command(override_usage = "chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES>
                    --hardware <NAME|FILE>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --profile <FILE>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --flops <FLOPS>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --costs <FILE>")]
pub(crate) struct Plan {
    /// Ranks there are, W x D
    #[arg(long, value_name = "COUNT", value_parser = whole_in(1..=8192))]
    ranks: u32,
    /// Samples of a step, W x N x B
    #[arg(long, value_name = "SAMPLES", value_parser = whole_in(1..=1 << 20))]
    batch: u32,
    /// Data sheets of devices and links, by name or as a TOML file: for --flops, --memory, links, --device and
    /// --precision, unless they are given. Training is taken to reach 45 % of the peak, and to have 92 % of the memory
    #[arg(long, value_name = "NAME|FILE", value_parser = offered(StringValueParser::new(), Hardware::names), hide_possible_values = true)]
    hardware: Option<String>,
    /// Memory of a rank, such as 24GiB or 80GB; without a unit, bytes. Of ranks that have not all as much, a list such as
    /// 80GB,80GB,40GB from rank 0 on, which further ranks repeat
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    memory: Vec<ByteSize>,
    /// Achievable FLOP/s of a rank, not the data sheet's peak
    #[arg(long, value_name = "FLOPS", value_parser = positive)]
    flops: Option<f64>,
    /// JSON file of the layers of a model that is not ours, with their times and bytes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "flops")]
    costs: Option<PathBuf>,
    #[command(flatten)]
    links: LinkArgs,
    /// How many configurations to show, fastest simulated step first, without the optimizer's update
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = whole_in(1..=u32::MAX))]
    top: u32,
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
    /// Whether the memory is the part of a data sheet's that can be used.
    #[arg(skip)]
    is_sheet_memory: bool,
}

/// The source of the times of messages and gradient reductions.
#[derive(Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum LinkTimes {
    /// Messages are free.
    None,
    /// Links given by the user.
    Described,
    /// Measurements between threads of the profile's machine.
    Profile,
}

impl Plan {
    pub(crate) fn run(self) -> Result<()> {
        let asked = self.on_hardware()?;
        let said = asked.layers.resolve(&OnDisk)?;
        let is_told_speed =
            asked.flops.is_some() || self.costs.is_some() || said.costs.profile.is_some();
        ensure!(
            is_told_speed && !asked.memory.is_empty(),
            "say what a rank can do: --hardware NAME, or --memory with --flops, --profile or --costs"
        );
        let model = self.costs.as_deref().map(LayerCosts::read).transpose();
        let model = model.context("--costs")?;
        let seconds = match said.value("search-time") {
            Some((_, origin)) if *origin != Origin::Default => said.schedule.search_time,
            _ => SECONDS,
        };
        let bar = bar("groups of configurations tried");
        let observe = |n_tried: usize, n_groups: usize| {
            bar.set_length(n_groups as u64);
            bar.set_position(n_tried as u64);
        };
        let effort = Effort { time_limit: Duration::from_secs_f64(seconds), observe: &observe };
        if let Some(model) = &model {
            let choice = asked.choose_for(model, &said, &effort);
            bar.finish_and_clear();
            return asked.show_layers(&choice?, model, seconds);
        }
        must_know_vocab(&said)?;
        let cluster = asked.cluster(&said)?;
        let choice = choose(&said, self.batch as usize, &cluster, self.top as usize, &effort);
        bar.finish_and_clear();
        let choice = choice?;
        if choice.candidates.is_empty() {
            let memory = cluster.memory.least();
            bail!("{}{}", asked.too_large(&choice, memory), untried(&choice, seconds))
        }
        asked.warn_of_network(&cluster.speed);
        asked.show(&choice, &cluster, seconds)
    }

    /// Returns the source of the times of messages, on ranks of this speed.
    fn link_times(&self, speed: &Speed) -> LinkTimes {
        match speed {
            _ if !self.links.is_free() => LinkTimes::Described,
            Speed::Measured(times) if times.reduction(2, 1).is_some() => LinkTimes::Profile,
            _ => LinkTimes::None,
        }
    }

    /// Warns if messages are assumed to be faster than they are.
    fn warn_of_network(&self, speed: &Speed) {
        match self.link_times(speed) {
            LinkTimes::None => self.warn_of_free_links(),
            LinkTimes::Profile if self.ranks_of_node().is_some() => warn(
                "no link is given, so messages and gradient reductions between nodes are assumed to take as long as between \
                 threads of one machine, and data parallelism looks better than it is: describe the links with --inside and \
                 --between",
            ),
            LinkTimes::Profile | LinkTimes::Described => {}
        }
    }

    /// Warns if messages are assumed to be free.
    fn warn_of_free_links(&self) {
        if self.ranks > 1 && self.links.is_free() {
            warn(
                "no link is given, so messages and gradient reductions are assumed to take no \
                 time, and data parallelism looks better than it is: describe the links with \
                 --inside and --between, or with --hardware",
            );
        }
    }

    /// Prints the chosen configurations.
    fn show(&self, choice: &Choice, cluster: &Cluster, seconds: f64) -> Result<()> {
        let Some(best) = choice.candidates.first() else { return Ok(()) };
        let command = self.command(best);
        let n_distinct = choice.distinct().count();
        let ways = choice.distinct().take(self.top as usize);
        let ways =
            ways.map(|way| Ok((way, self.range(way, cluster)?))).collect::<Result<Vec<_>>>()?;
        let is_measured = matches!(cluster.speed, Speed::Measured(_));
        let link_times = self.link_times(&cluster.speed);
        let advice = is_measured.then(|| Advice::on(&best.config, cluster)).transpose()?.flatten();
        if self.json {
            let shown = ways.iter().map(|(way, range)| self.way(way, *range)).collect::<Vec<_>>();
            let figures = json!({
                "ways": shown, "n_fit": choice.candidates.len(), "n_too_large": choice.n_too_large,
                "n_left_out": choice.n_left_out, "measured": is_measured,
                "network": link_times, "command": command, "advice": advice,
            });
            return print(format!("{figures:#}"));
        }
        let is_foreseen = ways.iter().any(|(way, _)| !way.is_simulated);
        let mut heads = HEADS;
        if is_measured {
            heads[1] = "range";
        }
        let mut text = table(heads, ways.iter().map(|(way, range)| cells(way, *range)));
        let _ = write!(
            text,
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
                "\nby the profile: the range is of layers that are all faster or slower by the spread of their measurements"
            }
            Some(_) => {
                "\nnot measured: times are of training that reaches 45 % of the data sheet's peak, and of 60 % to 30 %"
            }
            None => "\nnot measured: times follow from --flops alone, whatever the sizes of products",
        });
        if link_times == LinkTimes::Profile {
            text.push_str(
                "\nmessages and gradient reductions take what they do between threads of the profile's machine",
            );
        }
        match choice.candidates.len() - n_distinct {
            0 => {}
            n => {
                let _ = write!(
                    text,
                    "\n{n} are omitted: a simpler configuration is as fast and needs no more memory"
                );
            }
        }
        text.push_str(&untried(choice, seconds));
        if let Some(advice) = advice {
            let _ =
                write!(text, "\nnot among these, one change to the first: {}", advice.sentence());
        }
        print(format!("{text}\n\n{command}"))
    }

    /// Fills in what was not given from the data sheets of the hardware.
    fn on_hardware(&self) -> Result<Plan> {
        let Some(name) = &self.hardware else { return Ok(self.clone()) };
        let hardware = Hardware::find(name)?;
        let said = self.layers.resolve(&OnDisk)?;
        let mut layers = (*self.layers).clone();
        for (key, value) in [("device", &hardware.device), ("precision", &hardware.precision)] {
            if said.value(key).is_none_or(|(_, origin)| origin.is_default()) {
                layers.0.settings = layers.0.settings.with(key, value.as_str());
            }
        }
        let precision = layers.resolve(&OnDisk)?.devices.precision;
        let flops = match self.flops {
            Some(flops) => Some(flops),
            None if said.costs.profile.is_some() || self.costs.is_some() => None,
            None => Some(hardware.peak_flops(precision)? * EFFICIENCIES[1]),
        };
        Ok(Plan {
            memory: match &self.memory[..] {
                [] => vec![ByteSize::from(hardware.memory() as u64)],
                said => said.to_vec(),
            },
            flops,
            is_sheet_memory: self.memory.is_empty(),
            hardware: self.hardware.clone().filter(|_| self.flops.is_none()),
            links: self.links.or_hardware(&hardware, self.ranks),
            layers: Box::new(layers),
            ..self.clone()
        })
    }

    /// Returns the speed of the profile, if there is one, otherwise that of `--flops`.
    fn speed(&self, said: &Config) -> Result<Speed> {
        let Some(path) = said.costs.profile.as_deref().filter(|_| self.flops.is_none()) else {
            return Ok(Speed::Flops(self.flops.context("--flops is missing")?));
        };
        // Use the threads of a `train` worker when all ranks of a node share one machine.
        let beside = self.links.ranks_per_node().unwrap_or(self.ranks).min(self.ranks) as usize;
        let mut said = said.clone();
        if said.value("threads").is_none_or(|(_, origin)| origin.is_default()) {
            said.devices.threads = (n_cores() / beside).max(1);
        }
        let times = times_of::<Kernels>(&said, path, beside)?;
        if let Some(doubt) = times.doubt() {
            warn(doubt);
        }
        Ok(Speed::Measured(times))
    }

    /// Returns the memory of the ranks.
    fn memory(&self) -> Result<RankMemory> {
        let (n_said, n_ranks) = (self.memory.len(), self.ranks as usize);
        ensure!(
            n_said <= n_ranks,
            "--memory has values for {n_said} ranks, but there are {n_ranks}: leave out the others"
        );
        if let Some(few) = self.memory.iter().find(|size| size.bytes() < LEAST_MEMORY) {
            bail!(
                "--memory {few} is {} byte(s) a rank: give it with its unit, such as 24GiB",
                few.bytes()
            );
        }
        let bytes = self.memory.iter().map(|size| size.bytes() as f64).collect();
        RankMemory::new(bytes).context("--memory is missing")
    }

    fn cluster(&self, said: &Config) -> Result<Cluster> {
        let n_ranks = self.ranks as usize;
        Ok(Cluster {
            n_ranks,
            memory: self.memory()?,
            speed: self.speed(said)?,
            network: self.links.network(1, n_ranks)?,
        })
    }

    /// Returns the shortest and longest time of a step: at the highest and lowest fraction of a
    /// data sheet's peak that training may reach, or at the spread of a profile.
    fn range(&self, way: &Candidate, cluster: &Cluster) -> Result<Option<[f64; 2]>> {
        let [low, middle, high] = EFFICIENCIES;
        let ends = match &cluster.speed {
            Speed::Flops(_) if self.hardware.is_none() => return Ok(None),
            Speed::Flops(flops) => [high, low].map(|part| Speed::Flops(flops * part / middle)),
            Speed::Measured(times) => [-1.0, 1.0].map(|n| Speed::Measured(times.spread_by(n))),
        };
        let at = |speed| way.step_on(&Cluster { speed, ..cluster.clone() });
        let [fast, slow] = ends.map(at);
        Ok(fast?.zip(slow?).map(|(fast, slow)| [fast, slow]))
    }

    /// The command that trains with this configuration.
    fn command(&self, way: &Candidate) -> String {
        let Layers { config, settings } = &self.layers.0;
        // The time limit was for this search.
        let settings = way.settings(settings).without("search-time");
        let layers = Layers { config: config.clone(), settings };
        format!("{}chimera train {}", self.launcher(), layers.options())
    }

    /// The launcher of the ranks on several nodes; on a single node workers are threads.
    fn launcher(&self) -> String {
        self.ranks_of_node()
            .map_or(String::new(), |n| format!("mpirun -n {} --map-by ppr:{n}:node ", self.ranks))
    }

    /// Number of ranks per node, if there are several nodes.
    fn ranks_of_node(&self) -> Option<u32> {
        self.links.ranks_per_node().filter(|n| *n < self.ranks)
    }

    fn way(&self, way: &Candidate, range: Option<[f64; 2]>) -> Value {
        let Candidate { config, need, step_s, bubble_ratio, is_simulated } = way;
        json!({
            "step_s": step_s, "step_s_range": range, "tokens_per_s": way.tokens_per_s(), "bubble_ratio": bubble_ratio,
            "bytes": bytes(need),
            "width": config.schedule.width, "depth": config.schedule.depth, "schedule": config.schedule.name.to_string(), "scaling": way.scaling(),
            "parameters": parameters(way), "sync": way.sync(),
            "micro_batch_size": config.schedule.micro_batch_size, "micro_batches": config.schedule.micro_batches,
            "recompute": way.recompute(), "recompute_stages": config.passes.recompute_stages.to_string(), "shard_optimizer": config.replicas.shard_optimizer, "layout": config.schedule.layout.to_string(), "simulated": is_simulated,
            "command": self.command(way),
        })
    }

    /// The usable percentage of a data sheet's memory, if the memory comes from one.
    fn part_of_sheet(&self) -> String {
        if self.is_sheet_memory {
            format!(" ({:.0} % of the data sheet's memory)", 100.0 * USABLE)
        } else {
            String::new()
        }
    }

    /// Explains why no configuration fits.
    fn too_large(&self, choice: &Choice, memory: f64) -> String {
        let memory = size(memory) + " a rank" + &self.part_of_sheet();
        let Some((config, need)) = &choice.smallest else {
            return format!("no configuration fits into {memory}");
        };
        let ScheduleSettings { width, depth, name: schedule, micro_batch_size, .. } =
            &config.schedule;
        format!(
            "none of {} configurations fits into {memory}: the smallest, {schedule} with width {width}, depth \
             {depth} and micro-batch-size {micro_batch_size}, needs {} on its peak rank ({need}); choose more ranks, \
             a shorter sequence, a smaller model, on GPUs precision bf16, or leave some of the given settings open",
            choice.n_too_large,
            size(need.total()),
        )
    }
}

/// Describes the number of configurations that fit.
fn fitting(n: usize) -> String {
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
fn bytes(need: &Need) -> Value {
    let Need { state, copy, activations, working } = need;
    json!({
        "state": state, "copy": copy, "activations": activations, "working": working, "total": need.total(),
    })
}

/// The schedule's parameters that differ from their defaults.
fn parameters(way: &Candidate) -> Value {
    way.parameters().map(|(name, value)| (name, json!(value))).collect()
}

/// Describes what was left out when the time was over.
fn untried(choice: &Choice, seconds: f64) -> String {
    match choice.n_left_out {
        0 => String::new(),
        n => format!(
            "\nstopped after {seconds} s with {n} configurations not tried to the end: this is the best found so far, and a \
             larger --search-time may find better"
        ),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(x) if (1.0..=1e30).contains(&x) => Ok(x),
        _ => Err(format!("`{text}` is not a number from 1 to 1e30")),
    }
}
