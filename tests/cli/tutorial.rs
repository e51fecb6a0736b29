//! docs/tutorial.md: its commands run, and their output has the form that the page shows.

use std::fs::write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::command::folder;

const PAGE: &str = include_str!("../../docs/tutorial.md");
const MARK: &str = "$ ";

#[test]
fn the_tutorial_can_be_followed() {
    let folder = folder();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("run");
    symlink(sources, folder.path().join("run")).expect("a link");
    let settings = shortened(blocks("```toml\n").next().expect("settings"));
    write(folder.path().join("run.toml"), settings).expect("settings");
    for block in blocks("```sh\n") {
        let printed = run(&shortened(&script(block)), folder.path());
        let printed: Vec<String> = printed.lines().map(form).collect();
        let shown = block.lines().filter(|line| !line.starts_with(MARK) && !line.starts_with('…'));
        for line in shown {
            assert!(printed.contains(&form(line)), "{line}\nis not in\n{}", printed.join("\n"));
        }
    }
}

/// Settings and commands with a shorter training.
fn shortened(text: &str) -> String {
    let few =
        [("= 1000", "= 60"), ("= 100", "= 20"), ("00000100", "00000020"), ("500..503", "50..53")];
    few.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to))
}

/// The text between each `start` and the end of its block.
fn blocks(start: &str) -> impl Iterator<Item = &'static str> {
    PAGE.split(start).skip(1).map(|rest| rest.split("```").next().unwrap_or_default())
}

/// The commands of a block.
fn script(block: &str) -> String {
    let commands: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix(MARK)).collect();
    assert!(!commands.is_empty(), "{block}");
    commands.join("\n")
}

/// Runs a script, whose every command must succeed. Returns its output.
fn run(script: &str, folder: &Path) -> String {
    let built = Path::new(env!("CARGO_BIN_EXE_chimera")).parent().expect("a folder");
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap_or_default());
    let mut sh = Command::new("sh");
    let ran = sh.arg("-ec").arg(script).current_dir(folder).env("PATH", path).output().expect("sh");
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(ran.status.success(), "{script}\n{}{}", said[0], said[1]);
    said.concat()
}

/// A line without its numbers and blanks, which differ from run to run.
fn form(line: &str) -> String {
    let word = |word: &str| {
        if word.contains(|c: char| c.is_ascii_digit()) {
            "#".to_string()
        } else if word == "min" {
            "s".to_string()
        } else {
            word.to_string()
        }
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}
