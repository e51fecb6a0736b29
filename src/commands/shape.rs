//! The shape of a schedule and what is done to it, on the command line.

use anyhow::{Result, bail, ensure};
use chimera::auto::Where;
use chimera::core::lower::{Hoist, Passes, Recompute};
use chimera::core::placement::Placement;
use chimera::core::schedule::{Scaling, Shape};
use chimera::core::timetable::Timetable;
use chimera::schedules::unread;
use chimera::settings::{Config, Origin, Settings};
use chimera::timetable::is_file;
use clap::{ArgAction, Args};

use super::{costs, warn};

/// Workers where nothing is said.
const DEPTH: usize = 4;

/// The shape of a schedule and what is done to it, as every subcommand about schedules spells it. What is not
/// given is `None`, so that what was given can be told from what holds anyway.
#[derive(Args, Clone, Copy, PartialEq)]
#[command(mut_args(|arg| arg.allow_negative_numbers(true)))]
pub(super) struct ShapeArgs {
    /// Workers of the pipeline group, D [default: 4]
    #[arg(long, value_name = "D")]
    depth: Option<usize>,
    /// Micro-batches of a step, N [default: D]
    #[arg(long, value_name = "N")]
    micro_batches: Option<u32>,
    /// Pipes of Chimera, or of `auto` on mirrored ones, 2f [default: 2]
    #[arg(long, value_name = "2f")]
    pipes: Option<usize>,
    /// Stages per worker of an interleaved schedule, or of `auto` on interleaved ones, v [default: 2]
    #[arg(long, value_name = "v")]
    chunks: Option<usize>,
    /// Chimera with more micro-batches than workers: direct, doubling or halving; `auto` reads whether they
    /// are halved [default: direct]
    #[arg(long, value_name = "MODE")]
    scaling: Option<Scaling>,
    /// Forwards, and then backwards, in turn of 1F1B, k (kFkB) [default: 1]
    #[arg(long, value_name = "k")]
    in_turn: Option<u32>,
    /// Waves of Hanayo, or of `auto` on waves [default: 2]
    #[arg(long, value_name = "WAVES")]
    waves: Option<usize>,
    /// The most micro-batches on their way in each direction of MixPipe, K [default: from the depth]
    #[arg(long, value_name = "K")]
    in_flight: Option<u32>,
    /// Steps between the flushes of an asynchronous schedule, T [default: 2]
    #[arg(long, value_name = "T")]
    window: Option<u32>,
    /// Where `auto` searches: line, interleaved, v, wave or mirrored [default: mirrored]
    #[arg(long, value_name = "NAME")]
    placement: Option<Where>,
    /// Seconds that `auto` may take [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = costs::number)]
    search_time: Option<f64>,
    /// Key of the random draws of `auto` [default: 1]
    #[arg(long, value_name = "SEED")]
    search_seed: Option<u64>,
    #[command(flatten)]
    pub(super) passes: PassArgs,
}

impl ShapeArgs {
    /// The shape, with what holds where nothing is said.
    pub(super) fn shape(self) -> Shape {
        let depth = self.depth.unwrap_or(DEPTH);
        let as_many = u32::try_from(depth).unwrap_or(u32::MAX);
        let plain = Shape::new(depth, self.micro_batches.unwrap_or(as_many));
        Shape {
            n_pipes: self.pipes.unwrap_or(plain.n_pipes),
            n_chunks: self.chunks.unwrap_or(plain.n_chunks),
            scaling: self.scaling.unwrap_or(plain.scaling),
            n_in_turn: self.in_turn.unwrap_or(plain.n_in_turn),
            n_waves: self.waves.unwrap_or(plain.n_waves),
            in_flight: self.in_flight.or(plain.in_flight),
            window: self.window.unwrap_or(plain.window),
            ..plain
        }
    }

    /// Where `auto` searches.
    pub(super) fn placement(self) -> Where {
        self.placement.unwrap_or(Where::Mirrored)
    }

    /// Seconds that it may take.
    pub(super) fn search_time(self) -> f64 {
        self.search_time.unwrap_or(10.0)
    }

    /// Key of its draws.
    pub(super) fn search_seed(self) -> u64 {
        self.search_seed.unwrap_or(1)
    }

    /// Refuses what was given beside a file but is not so in its timetable, which has its shape.
    pub(super) fn fit(self, file: &str, timetable: &Timetable) -> Result<()> {
        let place = if file == "-" { "on standard input" } else { &format!("in {file}") };
        for (option, given) in self.given() {
            let Some(has) = value_in(timetable, option) else {
                bail!(
                    "`{option}` is {given}, but the order of the timetable {place} is made: leave `{option}` out"
                );
            };
            ensure!(
                given == has,
                "`{option}` is {given}, but the timetable {place} has {has}: leave `{option}` out"
            );
        }
        Ok(())
    }

    /// Warns of options that were given and that `schedule` does not read; those beside a file have to [`fit`](Self::fit).
    pub(super) fn warn_of_unread(self, schedule: &str) {
        if is_file(schedule) {
            return;
        }
        let given = self.given().into_iter().map(|(option, _)| option);
        unread(schedule, self.placement(), given).iter().for_each(|told| warn(told));
    }

    /// The options that were given, with their values.
    fn given(self) -> Vec<(&'static str, String)> {
        fn text<T: ToString>(value: Option<T>) -> Option<String> {
            value.map(|value| value.to_string())
        }
        let scaling = Scaling::ALL.into_iter().find(|(_, scaling)| Some(*scaling) == self.scaling);
        let options = [
            ("depth", text(self.depth)),
            ("micro-batches", text(self.micro_batches)),
            ("pipes", text(self.pipes)),
            ("chunks", text(self.chunks)),
            ("scaling", text(scaling.map(|(name, _)| name))),
            ("in-turn", text(self.in_turn)),
            ("waves", text(self.waves)),
            ("in-flight", text(self.in_flight)),
            ("window", text(self.window)),
            ("placement", text(self.placement)),
            ("search-time", text(self.search_time)),
            ("search-seed", text(self.search_seed)),
        ];
        options.into_iter().filter_map(|(option, value)| Some((option, value?))).collect()
    }
}

/// What a timetable has for an option, if it can be told.
fn value_in(timetable: &Timetable, option: &str) -> Option<String> {
    let placement = &timetable.placement;
    let depth = placement.n_workers();
    let chunks = placement.n_stages() / depth;
    let has = match option {
        "depth" => depth,
        "micro-batches" => timetable.micro_batches_per_step() as usize,
        "pipes" => placement.n_pipes(),
        "chunks" => chunks,
        "waves" if chunks > 0 && *placement == Placement::wave(depth, chunks) => chunks / 2,
        "window" => timetable.update.n_steps() as usize,
        _ => return None,
    };
    Some(has.to_string())
}

/// Warns of options of the command line that the schedule of a run does not read. One worker has no schedule.
pub(super) fn warn_of_unread(config: &Config) {
    let keys = Settings::keys();
    let is_said = |key: &&str| matches!(config.value(key), Some((_, Origin::CommandLine)));
    let given = keys.iter().map(String::as_str).filter(is_said).filter(|_| config.depth > 1);
    unread(&config.schedule, config.placement, given).iter().for_each(|told| warn(told));
}

/// What is done to a schedule.
#[derive(Args, Clone, Copy, PartialEq)]
pub(super) struct PassArgs {
    /// What forwards keep: none (all residuals, nothing is recomputed), full (recompute all from the
    /// input) or selective (recompute what is cheap)
    #[arg(long, value_name = "MODE", default_value = "none")]
    recompute: Recompute,
    /// Cells by which recomputations run before their backwards, auto for the shortest step within
    /// `--memory-cap`, or on-demand to wait for the gradient first
    #[arg(long, value_name = "CELLS", default_value = "0")]
    hoist: Hoist,
    /// Splits backwards; weight halves go into idle time
    #[arg(
        long,
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        default_value = "false",
        action = ArgAction::Set
    )]
    split_backward: bool,
}

impl PassArgs {
    /// The passes, unless they contradict each other.
    pub(super) fn passes(self) -> Result<Passes> {
        let PassArgs { recompute, hoist, split_backward } = self;
        let passes = Passes { recompute, hoist, split_backward };
        ensure!(
            !passes.move_nothing(),
            "--hoist {hoist} moves recomputations: say --recompute full or selective too"
        );
        Ok(passes)
    }
}
