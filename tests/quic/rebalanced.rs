//! Members that become slow, and layouts that are made again. `cargo test -p chimera-pipeline --test
//! quic rebalanced -- --include-ignored --test-threads 1` runs all of them.

use std::fs::read;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::command::{Ran, chimera};
use crate::survives::{Going, Lab};
use crate::{losses, until};

/// Steps of a run, too few for a second layout.
const STEPS: u64 = 125;
/// A model whose steps take long enough that another layout saves more than a new start takes.
const LARGER: &str = "--schedule 1f1b --layers 8 --hidden 64 --context 32 --speeds 1,1";
/// The words of a host that makes the layout again.
const AGAIN: &str = "the run stops and goes on with it";

/// Lets a member compute for a quarter of the time, until the host says something.
fn slow_down(going: &Going<'_>, nth: usize, said: &str) {
    until(&format!("the host does not say `{said}`"), || {
        going.signal(nth, Signal::SIGSTOP);
        sleep(Duration::from_millis(40));
        going.signal(nth, Signal::SIGCONT);
        going.has_said(said)
    });
}

/// Returns the word between two texts, from the last place where they stand.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let found = text.rsplit_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("no `{before} … {after}` in {text}")).0
}

/// Returns the weights that a run has saved.
fn weights(run: &Path) -> Vec<u8> {
    read(run.join("model/model.safetensors")).expect("weights")
}

fn assert_all_ended(host: &Ran, members: &[Ran]) {
    for ran in members.iter().chain([host]) {
        assert_eq!(ran.code, Some(0), "{}\n{}", host.stderr, ran.stderr);
    }
}

/// Until it stops, the run has the bits of an undisturbed one; then those of a run that resumes from its
/// checkpoint with the other layout.
fn assert_bits(lab: &Lab, host: &Ran, out: &Path) {
    let step: u64 = between(&host.stdout, ": step ", " is next").parse().expect("a number");
    let layout = between(&host.stderr, "layout ", " makes a step").to_string();
    let train = |name: &str, more: &str| {
        let line = lab.line_of(name, &format!("--depth 2 --transport threads {more}"));
        let ran = chimera(&format!("train {line}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        lab.folder.path().join(name)
    };
    let checkpoint = out.join(format!("checkpoints/step-{step:08}"));
    let before = train("before", "--layout auto");
    let resume = format!("--resume {} --layout {layout}", checkpoint.display());
    let after = train("after", &resume);
    let struck = losses(out);
    assert_eq!(struck.len() as u64, STEPS);
    let (first, then) = struck.split_at(step as usize);
    assert_eq!(first, &losses(&before)[..step as usize]);
    assert_eq!(then, losses(&after));
    assert!(weights(out) == weights(&after), "other weights");
}

fn rebalances(survive: &str) {
    let lab = Lab::new(&format!("{LARGER} --steps {STEPS}"));
    let going = lab.start(1, &format!("--rebalance {survive}"), "");
    slow_down(&going, 0, AGAIN);
    let (host, members, out) = going.end();
    assert_all_ended(&host, &members);
    assert!(host.stderr.contains("rank 1 ("), "{}", host.stderr);
    assert_eq!(host.stderr.matches(AGAIN).count(), 1, "{}", host.stderr);
    assert_bits(&lab, &host, &out);
}

#[test]
fn a_member_that_became_slow_gets_fewer_layers() {
    rebalances("");
}

#[test]
#[ignore = "takes a minute"]
fn a_run_that_survives_deaths_makes_its_layout_again_too() {
    rebalances("--survive respawn --shadow-every 3");
}

/// Without the option the host says so and keeps the layout.
#[test]
#[ignore = "takes a minute"]
fn a_slow_member_is_only_told() {
    let lab = Lab::new(&format!("{LARGER} --steps {STEPS}"));
    let going = lab.start(1, "--layout auto", "");
    slow_down(&going, 0, "`chimera host --rebalance` takes it");
    let (host, members, out) = going.end();
    assert_all_ended(&host, &members);
    let alone = lab.line_of("alone", "--layout auto --depth 2 --transport threads");
    assert_eq!(chimera(&format!("train {alone}")).code, Some(0));
    assert_eq!(losses(&out), losses(&lab.folder.path().join("alone")));
}
