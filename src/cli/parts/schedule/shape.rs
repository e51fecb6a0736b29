//! Table options of commands about schedules, and their checks.

use anyhow::{Result, bail, ensure};
use chimera_core::lower::Border;
use chimera_core::placement::Placement;
use chimera_core::timetable::Timetable;
use clap::builder::StringValueParser;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches, ValueHint};

use crate::cli::parts::terminal::args::{options_of, settings_of_groups};
use crate::cli::parts::terminal::console::warn;
use crate::cli::parts::terminal::offered::{Offered, offered};
use crate::settings::schedules::{Named, names, unread};
use crate::settings::{Config, Drawn, OPTIONS, Origin, Settings, unread_options};

/// Parses the name of a schedule or file, and offers the known names.
pub(crate) fn schedule_name() -> Offered<StringValueParser> {
    offered(StringValueParser::new(), names)
}

/// The schedule that a command is about: its first word, or `--schedule` as `train` has it.
#[derive(Args)]
pub(crate) struct ScheduleArg {
    /// Schedule by name (see `chimera schedule list`), or a timetable in a `.json` or `.csv` file
    #[arg(value_parser = schedule_name(), hide_possible_values = true, value_hint = ValueHint::AnyPath)]
    name: Option<String>,
    /// Schedule, as an option instead of the first word
    #[arg(short, long, value_name = "NAME", conflicts_with = "name", value_parser = schedule_name())]
    #[arg(hide_possible_values = true, value_hint = ValueHint::AnyPath)]
    schedule: Option<String>,
}

impl ScheduleArg {
    /// Returns the given name, or the default of `simulate`. Other commands require a name.
    pub(crate) fn name(&self) -> &str {
        self.name.as_deref().or(self.schedule.as_deref()).unwrap_or("chimera")
    }
}

/// Makes NAME a required argument unless `--schedule` is given.
pub(crate) fn required(name: Arg) -> Arg {
    name.required_unless_present("schedule")
}

/// Defines arguments for groups of options. Options that were not given have no value, so given
/// options can be distinguished from defaults.
macro_rules! groups {
    ($(#[$doc:meta] $name:ident: $($group:ident),+;)+) => {$(
        #[$doc]
        #[derive(Clone, Default, PartialEq)]
        pub(crate) struct $name(pub(crate) Settings);

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                options_of(command, stringify!($name), &[$(Drawn::$group),+])
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
                Ok($name(settings_of_groups(matches, &[$(Drawn::$group),+])))
            }

            /// New values override earlier ones.
            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
                self.0 = Self::from_arg_matches(matches)?.0.over(&self.0);
                Ok(())
            }
        }
    )+};
}

groups! {
    /// The shape of a schedule and the passes over it.
    ShapeArgs: Shape, Passes;
    /// Only the passes, for a timetable that has its own shape.
    PassArgs: Passes;
    /// The limit on memory.
    MemoryArgs: Memory;
    /// Pipelines side by side, and how they reduce gradients.
    JobArgs: Job;
    /// A profile, and the built-in model for whose stages it has times.
    ProfiledArgs: Profiled;
}

impl ShapeArgs {
    /// Returns only the options of passes.
    pub(crate) fn passes(&self) -> ShapeArgs {
        let others = OPTIONS.iter().filter(|option| option.drawn != Some(Drawn::Passes));
        ShapeArgs(others.fold(self.0.clone(), |left, other| left.without(other.name)))
    }

    /// Returns true if a search chooses the placement of the schedule of this name.
    pub(crate) fn chooses_placement(&self, name: &str) -> bool {
        let (Ok(mut config), Ok(name)) = (self.0.drawn(), name.parse()) else { return false };
        config.schedule.name = name;
        config.schedule.chooses_placement()
    }

    /// Refuses given options that differ from the timetable in a file, which has its own shape.
    pub(crate) fn fit(&self, file: &Named, timetable: &Timetable) -> Result<()> {
        let place = match file.to_string() {
            file if file == "-" => "on standard input".to_string(),
            file => format!("in {file}"),
        };
        let is_free =
            self.0.iter().any(|(key, value)| key == "border" && value.as_str() == Some("free"));
        for (option, given) in self.of_shape().filter(|(option, _)| *option != "window" || !is_free)
        {
            let Some(has) = value_in(timetable, option) else {
                bail!(
                    "`{option}` is {given}, but the order of the timetable {place} is fixed: leave `{option}` out"
                );
            };
            ensure!(
                given == has,
                "`{option}` is {given}, but the timetable {place} has {has}: leave `{option}` out"
            );
        }
        Ok(())
    }

    /// Warns of given options that the schedule does not read. Options given with a file have to
    /// [`fit`](Self::fit) it instead.
    pub(crate) fn warn_of_unread(&self, config: &Config) {
        if !matches!(config.schedule.name, Named::File(_)) {
            self.unread(config).iter().for_each(|(_, told)| warn(told));
        }
    }

    /// Returns the given options that the schedule of `config` does not read, each with a warning.
    pub(crate) fn unread(&self, config: &Config) -> Vec<(&'static str, String)> {
        let given = self.of_shape().map(|(option, _)| option);
        let given = given.chain(self.0.iter().map(|(key, _)| key).filter(|key| *key == "border"));
        let given = given.filter(|option| says_something(config, option));
        let told = |option| {
            let told = unread(&config.schedule.name, config.schedule.placement, [option]).pop()?;
            Some((option, told))
        };
        given.filter_map(told).collect()
    }

    /// Returns the given options of the shape, with their values.
    fn of_shape(&self) -> impl Iterator<Item = (&'static str, String)> {
        let passes = self.passes().0;
        let is_pass = move |key| passes.iter().any(|(pass, _)| pass == key);
        let given = self.0.iter().filter(move |(key, _)| !is_pass(*key));
        given.map(|(key, value)| (key, value.as_str().map_or(value.to_string(), str::to_owned)))
    }
}

/// Returns a timetable's value of an option, if it can be determined.
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

/// Returns true if an option only concerns the schedule: without borders, all schedules have a
/// window.
fn says_something(config: &Config, option: &str) -> bool {
    option != "window" || config.passes.border == Border::Step
}

/// Warns of command-line options that the schedule of a run does not read. A single worker has no
/// schedule.
pub(crate) fn warn_of_unread(config: &Config) {
    let keys = OPTIONS.iter().map(|option| option.name);
    let is_said = |key: &&str| matches!(config.value(key), Some((_, Origin::CommandLine)));
    let given = keys.filter(is_said).filter(|_| config.schedule.depth > 1);
    let given = given.filter(|option| says_something(config, option));
    unread(&config.schedule.name, config.schedule.placement, given)
        .iter()
        .for_each(|told| warn(told));
    unread_options(config).iter().for_each(|told| warn(told));
}
