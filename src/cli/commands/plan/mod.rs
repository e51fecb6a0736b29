//! `chimera plan`: chooses configurations for training a model on the available ranks.

mod layers;
mod settings_file;
mod shown;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use chimera_core::notation::size;
use clap::builder::StringValueParser;
use clap::{Arg, Args, ValueHint};
use serde::Serialize;

use self::shown::untried;
use crate::cli::parts::schedule::costs::{may_be_negative, whole_in};
use crate::cli::parts::schedule::network::LinkArgs;
use crate::cli::parts::schedule::quantity::{flops, tokens};
use crate::cli::parts::terminal::args::LayerArgs;
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::terminal::offered::offered;
use crate::cli::parts::terminal::progress::bar;
use crate::device::{Kernels, n_cores};
use crate::plan::choose;
use crate::plan::{
    Candidate, Choice, Cluster, EFFICIENCIES, Effort, Hardware, LayerCosts, RankMemory, Rate,
    Speed, USABLE, times_of,
};
use crate::run::outside::{OnDisk, must_know_vocab};
use crate::settings::{ByteSize, Config, Layers, Origin, ScheduleSettings};

/// Default time limit of the search in seconds, unless `--search-time` is given.
const SECONDS: f64 = 60.0;
/// If a rank has fewer bytes than this, the user probably meant GiB.
const LEAST_MEMORY: u64 = 1000;

/// Finds the fastest training configurations that fit into memory
///
/// Keeps the options of `train` that are given on the command line or in a file.
#[derive(Args, Clone)]
#[command(mut_args(|arg| may_be_negative(arg, &["memory"])))]
#[command(mut_arg("out", out))]
#[command(override_usage = "chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES>
                    --hardware <NAME|FILE>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --profile <FILE>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --flops <FLOPS>
       chimera plan [OPTIONS] --ranks <COUNT> --batch <SAMPLES> --memory <SIZE>
                    --costs <FILE>")]
pub(crate) struct Plan {
    /// Number of ranks, W x D
    #[arg(long, value_name = "COUNT", value_parser = whole_in(1..=8192))]
    ranks: u32,
    /// Samples of a step, W x N x B
    #[arg(long, value_name = "SAMPLES", value_parser = whole_in(1..=1 << 20))]
    batch: u32,
    /// GPU by name, or a TOML file of data sheets: sets --flops, --memory, links, --device and --precision, unless they are
    /// given. Training is assumed to reach 45 % of the peak FLOP/s, and to use 92 % of the memory
    #[arg(long, value_name = "NAME|FILE", value_parser = offered(StringValueParser::new(), Hardware::names), hide_possible_values = true)]
    hardware: Option<String>,
    /// Memory of a rank, e.g. 24GiB, 80GB or 80G; without a unit, bytes. For ranks with different memory a list from rank 0
    /// on, e.g. 80GB,80GB,40GB, repeated for further ranks
    #[arg(long, value_name = "SIZES", value_delimiter = ',')]
    memory: Vec<ByteSize>,
    /// FLOP/s that a rank reaches, below the data sheet's peak, e.g. 120T or 1.2e14
    #[arg(long, value_name = "FLOPS", value_parser = flops)]
    flops: Option<f64>,
    /// JSON file with the layers of your own model, their times and bytes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "flops")]
    costs: Option<PathBuf>,
    #[command(flatten)]
    links: LinkArgs,
    /// Tokens to train on, e.g. 300B or 20M: sets --steps, and adds the days that it takes
    #[arg(long, value_name = "COUNT", value_parser = tokens)]
    tokens: Option<f64>,
    /// Number of configurations to show, fastest step first
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = whole_in(1..=u32::MAX))]
    top: u32,
    #[command(flatten)]
    layers: Box<LayerArgs>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Whether the memory is the part of a data sheet's that can be used.
    #[arg(skip)]
    is_sheet_memory: bool,
    /// As a data sheet says.
    #[arg(skip)]
    half_rate_tokens: f64,
}

/// Describes `--out`, which is the directory of the run in other commands.
fn out(arg: Arg) -> Arg {
    arg.help("File for the settings of the fastest configuration, for `train --config`; or, unless it ends in .toml, the directory of the run")
        .value_name("FILE")
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
    pub(crate) fn run(mut self) -> Result<()> {
        let file = self.take_file();
        self.set_steps()?;
        let asked = self.on_hardware()?;
        asked.links.warn_of_implausible();
        let said = asked.layers.resolve(&OnDisk)?;
        let is_told_speed =
            asked.flops.is_some() || self.costs.is_some() || said.costs.profile.is_some();
        ensure!(
            is_told_speed && !asked.memory.is_empty(),
            "give the speed and memory of a rank: --hardware NAME, or --memory with --flops, --profile or --costs"
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
            return asked.show_layers(&choice?, model, seconds, file.as_deref());
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
        asked.show(&choice, &cluster, seconds, file.as_deref())
    }

    /// Removes the file for settings from the options: an `out` that ends in `.toml`. Any other is
    /// the directory of the run.
    fn take_file(&mut self) -> Option<PathBuf> {
        let settings = &mut self.layers.0.settings;
        let (_, out) = settings.iter().find(|(key, _)| *key == "out")?;
        let file = PathBuf::from(out.as_str()?);
        if file.extension().is_none_or(|ending| ending != "toml") {
            return None;
        }
        *settings = settings.clone().without("out");
        Some(file)
    }

    /// Sets the steps that train on the given tokens, unless steps are given too.
    fn set_steps(&mut self) -> Result<()> {
        let Some(tokens) = self.tokens else { return Ok(()) };
        let said = self.layers.resolve(&OnDisk)?;
        if said.value("steps").is_none_or(|(_, origin)| origin.is_default()) {
            let per_step = f64::from(self.batch) * said.model.sequence as f64;
            let steps = (tokens / per_step).ceil().max(1.0) as i64;
            self.layers.0.settings = self.layers.0.settings.clone().with("steps", steps);
        }
        Ok(())
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
            half_rate_tokens: hardware.half_rate_tokens,
            hardware: self.hardware.clone().filter(|_| self.flops.is_none()),
            links: self.links.or_hardware(&hardware, self.ranks),
            layers: Box::new(layers),
            ..self.clone()
        })
    }

    /// Returns the speed of the profile, if there is one, otherwise that of `--flops`.
    fn speed(&self, said: &Config) -> Result<Speed> {
        let Some(path) = said.costs.profile.as_deref().filter(|_| self.flops.is_none()) else {
            let flops = self.flops.context("--flops is missing")?;
            return Ok(Speed::Flops(Rate::with_half(flops, self.half_rate_tokens)));
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
            topology: self.links.topology(n_ranks),
        })
    }

    /// Returns the shortest and longest time of a step: at the highest and lowest fraction of a
    /// data sheet's peak that training may reach, or at the spread of a profile.
    fn range(&self, way: &Candidate, cluster: &Cluster) -> Result<Option<[f64; 2]>> {
        let [low, middle, high] = EFFICIENCIES;
        let ends = match &cluster.speed {
            Speed::Flops(_) if self.hardware.is_none() => return Ok(None),
            Speed::Flops(rate) => [high, low].map(|part| Speed::Flops(rate.times(part / middle))),
            Speed::Measured(times) => [-1.0, 1.0].map(|n| Speed::Measured(times.spread_by(n))),
            Speed::Own(_) => return Ok(None),
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
