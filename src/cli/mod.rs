//! The `chimera` command: `commands` has a file for each subcommand, and `parts` the code that
//! several of them share.

mod commands;
mod examples;
mod help;
mod most_used;
mod parts;
mod tips;

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::error::ErrorKind;
use clap::{FromArgMatches, Parser, Subcommand};
use commands::{
    checkpoint, comm, completions, config, devices, eval, export_model, generate, man, plan,
    prepare, profile, report, schedule, selftest, simulate, slurm, top, trace, train,
};
#[cfg(feature = "quic")]
use commands::{host, join, relay};

use crate::cli::parts::terminal::console::tell;
use crate::cli::parts::terminal::message::shown;

/// The most threads that one pool may have, as for the setting `threads`.
const MAX_THREADS: u64 = 1 << 10;

/// Runs the command line of this process. Prints an error, and returns its exit code.
pub fn main() -> ExitCode {
    match Cli::read().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => parts::terminal::exit::report(&error),
    }
}

/// Trains networks too large for one device by pipelining them over many: Chimera's bidirectional
/// pipelines and other schedules, proven, simulated, drawn and run.
#[derive(Parser)]
#[command(name = "chimera", version, about, args_override_self = true)] // a user's options override a script's
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(train::Train),
    #[cfg(feature = "quic")]
    Host(host::Host),
    #[cfg(feature = "quic")]
    Join(join::Join),
    #[cfg(feature = "quic")]
    Relay(relay::Relay),
    Top(top::Top),
    Report(report::Report),
    Generate(generate::Generate),
    Eval(eval::Eval),
    Export(export_model::Export),
    Prepare(prepare::Prepare),
    Schedule(schedule::Schedule),
    Simulate(Box<simulate::Simulate>),
    Plan(plan::Plan),
    Profile(profile::Profile),
    #[command(subcommand)]
    Trace(trace::TraceCommand),
    Config(config::Config),
    #[command(subcommand)]
    Checkpoint(checkpoint::CheckpointCommand),
    #[command(subcommand)]
    Comm(comm::CommCommand),
    Slurm(slurm::Slurm),
    Devices(devices::Devices),
    Selftest(selftest::Selftest),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Cli {
    /// Parses the command line; exits if it is invalid, or asks for help.
    pub(crate) fn read() -> Cli {
        let words: Vec<OsString> = std::env::args_os().map(with_dashes).collect();
        let matches = help::command().try_get_matches_from(&words);
        let cli = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
        let text =
            || words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>();
        cli.unwrap_or_else(|error| refuse(&tips::explained(error, &text())))
    }

    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        for variable in ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"] {
            check_threads(variable, std::env::var_os(variable))?;
        }
        parts::terminal::downloads::draw();
        match self.command {
            Command::Train(train) => train.run(),
            #[cfg(feature = "quic")]
            Command::Host(host) => host.run(),
            #[cfg(feature = "quic")]
            Command::Join(join) => join.run(),
            #[cfg(feature = "quic")]
            Command::Relay(relay) => relay.run(),
            Command::Top(top) => top.run(),
            Command::Report(report) => report.run(),
            Command::Generate(generate) => generate.run(),
            Command::Eval(eval) => eval.run(),
            Command::Export(export) => export.run(),
            Command::Prepare(prepare) => prepare.run(),
            Command::Schedule(schedule) => schedule.run(),
            Command::Simulate(simulate) => simulate.run(),
            Command::Plan(plan) => plan.run(),
            Command::Profile(profile) => profile.run(),
            Command::Trace(trace) => trace.run(),
            Command::Config(config) => config.run(),
            Command::Checkpoint(checkpoint) => checkpoint.run(),
            Command::Comm(comm) => comm.run(),
            Command::Slurm(slurm) => slurm.run(),
            Command::Devices(devices) => devices.run(),
            Command::Selftest(selftest) => selftest.run(),
            Command::Completions(completions) => completions.run(),
            Command::Man(man) => man.run(),
        }
    }
}

/// Ends the process with the error in a command line, or with the help that it asks for. The
/// message keeps its colours if it can be printed unchanged.
fn refuse(error: &clap::Error) -> ! {
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(text) = not_utf8(&std::env::args_os().collect::<Vec<_>>())
    {
        tell(format_args!("error: {text}"));
        std::process::exit(error.exit_code());
    }
    let text = error.to_string();
    // Ranks may share a standard error that is not a terminal: clap would write the text in pieces
    // that mix.
    if !error.use_stderr() || stderr().is_terminal() && shown(&text) == text {
        error.exit();
    }
    tell(text.trim_end());
    std::process::exit(error.exit_code())
}

/// Names the first word that is not UTF-8, and its option, if there is such a word.
fn not_utf8(words: &[OsString]) -> Option<String> {
    let nth = words.iter().position(|word| word.to_str().is_none())?;
    let is_option = |word: &&str| word.starts_with("--");
    let option = words[..nth].iter().rev().filter_map(|word| word.to_str()).find(is_option);
    let of_option = option.map_or_else(String::new, |option| format!(" of {option}"));
    Some(format!(
        "the value {:?}{of_option} is not UTF-8: rename it, or name a link to it",
        words[nth]
    ))
}

/// Refuses a number of threads that could exhaust the system.
fn check_threads(variable: &str, value: Option<OsString>) -> Result<()> {
    let n = value.and_then(|value| value.to_str()?.parse::<u64>().ok()).unwrap_or(0);
    ensure!(
        n <= MAX_THREADS,
        "{variable} is {n}, but at most {MAX_THREADS} threads compute: unset it, or take the number of cores"
    );
    Ok(())
}

/// Replaces `_` with `-` in the name of an option.
fn with_dashes(word: OsString) -> OsString {
    let Some(option) = word.to_str().filter(|word| word.starts_with("--")) else { return word };
    let (name, value) = option.split_at(option.find('=').unwrap_or(option.len()));
    if name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)) {
        format!("{}{value}", name.replace('_', "-")).into()
    } else {
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absurd_number_of_threads_is_refused() {
        let check = |value: &str| check_threads("RAYON_NUM_THREADS", Some(value.into()));
        for sound in ["", "0", "1", "1024", "x"] {
            assert!(check(sound).is_ok(), "{sound}");
        }
        let refusal = check("20000").unwrap_err().to_string();
        assert!(refusal.starts_with("RAYON_NUM_THREADS is 20000, but at most 1024 "), "{refusal}");
        assert!(check_threads("RAYON_NUM_THREADS", None).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn a_word_that_is_not_utf8_is_named_with_its_option() {
        use std::os::unix::ffi::OsStringExt;
        let words = ["train", "--data", "a.txt"].map(OsString::from).to_vec();
        assert_eq!(not_utf8(&words), None);
        let words = [words, vec![OsString::from_vec(b"b\xff.txt".to_vec())]].concat();
        assert_eq!(
            not_utf8(&words).as_deref(),
            Some(
                "the value \"b\\xFF.txt\" of --data is not UTF-8: rename it, or name a link to it"
            )
        );
    }
}
