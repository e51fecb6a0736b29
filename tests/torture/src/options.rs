//! Pairs and triples of options of every command, with normal and odd values.

use anyhow::{Context, Result};

use super::Attempt;
use super::files::{ALL, TINY};
use super::process::{Under, words};
use super::random::Random;
use super::table::{CommandRow, OptionRow, Takes};

/// Sound command lines, by the words of a command. A drawn option replaces the same one here.
/// `NAME` is drawn.
const SOUND: [(&str, &str); 27] = [
    ("train", "TINY --data=text --steps=2 --search-time=0.2 --transport=threads --out=out"),
    ("config show", "TINY --data=text"),
    ("config check", "run.toml"),
    ("simulate", "NAME --search-time=0.2"),
    ("schedule show", "NAME --search-time=0.2"),
    ("schedule check", "schedule.json"),
    ("schedule import", "schedule.csv --format=json"),
    ("schedule export", "NAME --search-time=0.2 --format=json"),
    ("schedule compare", "NAME NAME"),
    ("schedule gallery", "--out=out"),
    ("schedule explore", "--page=missing"),
    ("plan", "MODEL --data=text --ranks=2 --batch=8 --memory=1GiB --flops=1e10 --search-time=1"),
    ("generate", "--model=model --tokens=3 --prompt=ab"),
    ("eval", "--model=model --data=text"),
    ("export", "model --out=out"),
    ("prepare", "text --out=out.bin"),
    ("trace compare", "run/planned.trace.json run/measured.trace.json"),
    ("checkpoint ls", "run"),
    ("checkpoint verify", "run/checkpoints/step-00000004"),
    ("checkpoint export", "run/checkpoints/step-00000004 --out=out.safetensors"),
    ("top", "run --once"),
    ("report", "run --out=out.html"),
    ("slurm", "slurm.toml"),
    ("relay", "--listen=missing"), // one that listens does not end
    ("selftest", "--time=1"),
    ("profile", "--preset=tiny --out=missing/profile.json"),
    ("comm bench", "--transport=none"),
];
/// Final options for commands that measure for a long time. They are refused, and the last
/// occurrence of an option wins.
const REFUSED: [&str; 2] = ["--out=missing/profile.json", "--transport=none"];
/// Only the sizes of a model, for commands that choose the rest.
const MODEL: &str = "--layers=4 --hidden=16 --heads=2 --context=16";
/// Options that ask for time, steps or large models. A command may take as long as they allow.
const ASKING: [&str; 9] = [
    "--steps", "--tokens", "--max-tokens", "--time", "--search-time", "--execute", "--preset",
    "--timeout", "--start-timeout",
];
/// Values for these: quickly done, or refused.
const MODEST: [&str; 10] = ["", "0", "-1", "nan", "1e-9", "0.001", "1", "2", "tiny", "x"];
/// Files and folders to read or to write.
const PLACES: [&str; 12] = [
    "", "a/b/c", ".", "text", "\u{1b}[31m", "out2", "run", "model", "data.bin", "run.toml",
    "schedule.json", "/dev/null",
];
/// Values that are valid for many options.
const USUAL: [&str; 16] = [
    "1", "2", "3", "4", "6", "8", "0", "0.5", "0.1", "1e-3", "auto", "1,2", "1,1,2,1", "0..2",
    "16", "ab",
];
/// Names of schedules, and one that is not.
const NAMES: [&str; 13] = [
    "chimera", "1f1b", "gpipe", "zb-h1", "zb-v", "interleaved", "hanayo", "dualpipe", "pipedream",
    "auto", "mixpipe", "schedule.json", "nonsense",
];

pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&ALL, &attempt.folder)?;
    let random = &mut attempt.random;
    let commands = &attempt.fixtures.commands;
    // Weighted by the number of options, so that each option is drawn about as often.
    let command = commands[random.weighted(&(0..commands.len()).collect::<Vec<_>>(), |at| {
        commands[*at].options.len() as u64 + 2
    })]
    .clone();
    let sound = SOUND.iter().find(|(name, _)| *name == command.name).map_or("", |(_, rest)| rest);
    let mut rest = words(&sound.replace("TINY", &with_equals(TINY)).replace("MODEL", MODEL));
    rest.iter_mut()
        .filter(|word| *word == "NAME")
        .for_each(|word| *word = random.of(&NAMES).into());
    let n = random.weighted(&[1, 2, 3, 5], |n| [0, 1, 6, 3, 0, 1][*n]);
    let mut drawn = Vec::new();
    for _ in 0..n.min(command.options.len()) {
        let option = random.of(&command.options);
        rest.retain(|word| {
            REFUSED.contains(&word.as_str()) || word.split('=').next() != Some(&option.name)
        });
        drawn.push(given(random, &option));
    }
    let mut line = words(&command.name);
    line.extend(drawn);
    line.extend(rest);
    // A failure there is the device's, and a name is printed as given.
    let codes = if command.name == "selftest" { &[101][..] } else { &[] };
    let is_odd = line.iter().any(|word| word.contains(char::is_control));
    attempt.run_under(&line, &Under { codes, is_odd, ..Under::default() })?;
    Ok(())
}

/// `--name value` as `--name=value`.
fn with_equals(line: &str) -> String {
    words(line).chunks(2).map(|pair| pair.join("=")).collect::<Vec<_>>().join(" ")
}

/// An option with a value, as it stands in a command line.
fn given(random: &mut Random, OptionRow { name, takes }: &OptionRow) -> String {
    if *takes == Takes::Nothing && !random.once_in(12) || random.once_in(40) {
        return name.clone();
    }
    let value = match takes {
        _ if ASKING.contains(&name.as_str()) => random.of(&MODEST).to_owned(),
        Takes::Place => random.of(&PLACES).to_owned(),
        Takes::Words(words) if !words.is_empty() && !random.once_in(4) => random.of(words),
        _ if random.once_in(2) => random.of(&USUAL).to_owned(),
        _ => random.value(),
    };
    format!("{name}={value}")
}

/// Checks that the table has all commands for which there are valid lines.
pub(super) fn check(commands: &[CommandRow]) -> Result<()> {
    for (name, _) in SOUND {
        commands.iter().find(|known| known.name == name).with_context(|| {
            format!("there is no command `{name}`: change SOUND in {}", file!())
        })?;
    }
    Ok(())
}
