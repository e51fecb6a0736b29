//! The table of options as arguments of the command line.

use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};

use clap::builder::{PossibleValue, TypedValueParser, ValueHint};
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, value_parser,
};
use toml::Value;

use crate::settings::{Drawn, Kind, Layers, OPTIONS, Opt, Settings, meant};

/// Letters for the options that are used most.
const SHORT: [(&str, char); 6] = [
    ("data", 'd'),
    ("schedule", 's'),
    ("depth", 'D'),
    ("micro-batches", 'N'),
    ("steps", 'n'),
    ("out", 'o'),
];

/// The command-line arguments of every command that trains.
#[derive(Clone)]
pub(crate) struct LayerArgs(pub(crate) Layers);

impl Deref for LayerArgs {
    type Target = Layers;

    fn deref(&self) -> &Layers {
        &self.0
    }
}

impl DerefMut for LayerArgs {
    fn deref_mut(&mut self) -> &mut Layers {
        &mut self.0
    }
}

/// Makes a command-line argument of an option. For commands that draw schedules it only checks the
/// type of a value, because the schedules check their shapes themselves. Their flags only take
/// values after `=`, since a name may follow.
fn arg(option: &'static Opt, is_drawn: bool) -> Arg {
    let help = format!("{} [default: {}]", option.about(), option.default(is_drawn));
    let arg = Arg::new(option.name)
        .long(option.name)
        .aliases(option.other_names())
        .value_name(option.value)
        .help(help)
        .help_heading(option.heading)
        .hide_possible_values(option.name != "preset") // help lists the others in words
        .value_hint(hint(option))
        .allow_negative_numbers(true)
        .value_parser(Word { option, is_drawn });
    let short = SHORT.iter().find(|(name, _)| *name == option.name);
    let arg = arg.short(short.map(|(_, letter)| *letter));
    match option.kind {
        Kind::Flag => arg.num_args(0..=1).default_missing_value("true").require_equals(is_drawn),
        Kind::Paths => arg.num_args(1..).action(ArgAction::Append),
        // A list that begins with a negative number is not a number.
        Kind::Weights | Kind::Speeds => arg.allow_hyphen_values(true),
        _ => arg,
    }
}

fn hint(option: &Opt) -> ValueHint {
    match option.kind {
        Kind::Path | Kind::Paths | Kind::Schedule => ValueHint::AnyPath,
        _ => ValueHint::Other,
    }
}

/// Parses a word of the command line as the value of an option.
#[derive(Clone)]
struct Word {
    option: &'static Opt,
    is_drawn: bool,
}

impl TypedValueParser for Word {
    type Value = Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        word: &OsStr,
    ) -> Result<Value, Error> {
        let Word { option, is_drawn } = self.clone();
        let parse = move |word: &str| -> Result<Value, String> {
            let meant = meant(option.name, word).filter(|_| is_drawn);
            if let Some(meant) = meant {
                return Err(format!("`{word}`: {meant}"));
            }
            let refuse = || format!("`{word}` is not {}", option.kind_where(is_drawn));
            let value = option.kind.parse(word).ok_or_else(refuse)?;
            match option.kind {
                _ if !is_drawn => Ok(value),
                Kind::Real(..) if !option.kind.holds(&value) => Err(refuse()),
                Kind::Whole(..) => option.read(&value).map(|()| value).map_err(|_| refuse()),
                _ => option.read(&value).map(|()| value),
            }
        };
        parse.parse_ref(command, arg, word)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let examples = self.option.kind.examples();
        if examples.is_empty() {
            None
        } else {
            Some(Box::new(examples.into_iter().map(PossibleValue::new)))
        }
    }
}

/// Collects the given options for which `is_one` is true.
fn settings_of(matches: &ArgMatches, is_one: impl Fn(&Opt) -> bool) -> Settings {
    let mut settings = Settings::of_command_line();
    for option in OPTIONS.iter().filter(|option| is_one(option)) {
        let Some(values) = matches.get_many::<Value>(option.name) else { continue };
        let mut values: Vec<Value> = values.cloned().collect();
        let value = match option.kind {
            Kind::Paths => Some(Value::Array(values)),
            _ => values.pop(),
        };
        if let Some(value) = value {
            settings = settings.with(option.name, value);
        }
    }
    settings
}

/// Collects the given options of these groups, which [`options_of`] added to a command.
pub(crate) fn settings_of_groups(matches: &ArgMatches, groups: &[Drawn]) -> Settings {
    settings_of(matches, |option| option.drawn.is_some_and(|group| groups.contains(&group)))
}

/// Adds the options of these groups to a command, as members of the argument group `name`.
pub(crate) fn options_of(command: Command, name: &'static str, groups: &[Drawn]) -> Command {
    let is_one = |option: &&Opt| option.drawn.is_some_and(|group| groups.contains(&group));
    let options = || OPTIONS.iter().filter(is_one);
    let group = ArgGroup::new(name).multiple(true).args(options().map(|option| option.name));
    command.args(options().map(|option| arg(option, true))).group(group)
}

impl Args for LayerArgs {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(std::path::PathBuf))
            .help("TOML file of settings, with the names of these options as keys; `extends = \"base.toml\"` inherits from another file");
        let options = OPTIONS.iter().map(|option| arg(option, false));
        command.arg(config).args(options)
    }

    fn augment_args_for_update(command: Command) -> Command {
        LayerArgs::augment_args(command)
    }
}

impl FromArgMatches for LayerArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<LayerArgs, Error> {
        let config = matches.get_one("config").cloned();
        Ok(LayerArgs(Layers { config, settings: settings_of(matches, |_| true) }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let LayerArgs(Layers { config, settings }) = LayerArgs::from_arg_matches(matches)?;
        self.config = config.or(self.config.take());
        self.settings = settings.over(&self.settings);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the words of a command line.
    fn parsed(words: &str) -> Result<Layers, Error> {
        let command = Command::new("train").no_binary_name(true).args_override_self(true);
        let matches = LayerArgs::augment_args(command).try_get_matches_from(words.split(' '));
        LayerArgs::from_arg_matches(&matches?).map(|layers| layers.0)
    }

    #[test]
    fn the_words_of_a_line_mean_what_they_mean_to_the_command() {
        for words in [
            "--depth 2 --tied --lr=1e-3 --data a b --config run.toml",
            "--data a --depth 3 --data b --depth 2 --tied false",
            "--data-weights -0.5,1.5 --min-lr -1 --speeds 1,0.5",
            "--pp 8 --seq-len 4 --activation-checkpoint full --memory-cap 3",
            "--layout E3T|4T --recompute-stages 0,2-3 --tied=true --trace-steps 1..4",
        ] {
            assert_eq!(Layers::parse(words).unwrap(), parsed(words).unwrap(), "{words}");
        }
    }
}
