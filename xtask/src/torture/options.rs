//! Every option with odd values, alone and together.

use anyhow::Result;

use super::Attempt;
use super::fixtures::TINY;
use super::process::words;

/// Options whose value is a place for files that others might read or write: cases stay in their own folders.
const OF_PLACES: [&str; 8] =
    ["--out", "--save", "--log", "--tensorboard", "--metrics", "--trace", "--data", "--report"];
/// The option whose value is how long a command sleeps.
const OF_TIME: &str = "--execute";
/// Its values: refused or soon over.
const TIMES: [&str; 7] = ["", "0", "-1", "nan", "1e-9", "0.0001", "1e9"];
/// Names of schedules, and what is none.
const NAMES: [&str; 12] = [
    "chimera",
    "1f1b",
    "gpipe",
    "zb-h1",
    "zb-v",
    "interleaved",
    "hanayo",
    "dualpipe",
    "pipedream",
    "auto",
    "schedule.json",
    "nonsense",
];

pub(super) fn attempt(attempt: &mut Attempt<'_>) -> Result<()> {
    attempt.fixtures.copy(&["text", "schedule.json"], &attempt.folder)?;
    let commands: Vec<&str> = attempt.fixtures.options.keys().copied().collect();
    let command = attempt.random.of(&commands);
    let fixtures = attempt.fixtures;
    let Some((options, end)) = fixtures.options.get(command) else { return Ok(()) };
    let mut line = words(command);
    let random = &mut attempt.random;
    match command {
        "train" | "config show" => line.extend(words(TINY)),
        "plan" => line.extend(words(&format!(
            "--ranks {} --batch 8 --memory 1GiB --flops 1e10",
            1 + random.below(4)
        ))),
        "generate" => line.extend([format!("--model={}", fixtures.path("model").display())]),
        "schedule compare" => {}
        _ => line.push(random.of(&NAMES).to_owned()),
    }
    if command == "schedule export" {
        line.extend(words("--format json"));
    }
    for _ in 0..1 + random.below(4) {
        let option = random.of(options);
        if OF_PLACES.contains(&option.as_str()) {
            line.push(format!("{option}={}", random.of(&["", "a/b/c", ".", "text", "\u{1b}[31m"])));
        } else if option == OF_TIME {
            line.push(format!("{option}={}", random.of(&TIMES)));
        } else if random.once_in(12) {
            line.push(option);
        } else {
            line.push(format!("{option}={}", random.value()));
        }
    }
    line.extend(words(end));
    if command == "train" {
        line.push("--out=out".into());
    }
    attempt.run(&line)?;
    Ok(())
}
