//! Messages and sums of the MPI transport, compared with plain MPI calls, and steps of a training,
//! compared with the time of their ops.
//!
//! Both alternate, so that changes of the machine's speed affect both.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use xtask::command::{read, root, run as run_command};
use xtask::measure::{METRICS, median, metrics, number, sources};
use xtask::mpi_library::{Built, build, launch};

/// Measurements of each. The fastest counts, since any disturbance makes it slower.
const N_ROUNDS: usize = 5;

/// Two ranks whose ops take a hundred times as long as their messages.
const MODEL: &str = "--layers 8 --hidden 256 --heads 8 --context 256 --micro-batches 8 --micro-batch-size 4 --depth 2 \
     --threads 1 --steps 12";
/// Schedules, and the start of their reductions.
const STEPS: [(&str, &str); 4] =
    [("chimera", "at-end"), ("chimera", "eager"), ("chimera", "eager-opt"), ("1f1b", "eager-opt")];
/// Steps that are not measured.
const N_WARM_UP: usize = 2;

/// Seconds by operation and bytes.
type Times = BTreeMap<(&'static str, u64), f64>;

/// Measures and prints the tables.
pub(crate) fn run() -> Result<()> {
    let Built { compiler, launcher, program: chimera } = build(true)?;
    let folder = tempfile::tempdir()?;
    let plain = folder.path().join("plain_mpi");
    let source = root().join("research/peers/plain_mpi.c");
    run_command(Command::new(compiler).args(["-O2", "-o"]).arg(&plain).arg(source))?;
    let (mut ours, mut theirs) = (Times::new(), Times::new());
    for _ in 0..N_ROUNDS {
        for line in read(&mut launch(&launcher, "2", &plain))?.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [bytes, message, sum] = words[..] else {
                anyhow::bail!("not three numbers: {line}")
            };
            best(&mut theirs, ("message", bytes.parse()?), message.parse()?);
            best(&mut theirs, ("sum", bytes.parse()?), sum.parse()?);
        }
        let mut bench = launch(&launcher, "2", &chimera);
        let report: Value = serde_json::from_str(&read(bench.args(["comm", "bench", "--json"]))?)?;
        for (what, list) in [("message", "messages"), ("sum", "sums")] {
            for timed in report[list].as_array().context("nothing measured")? {
                let bytes = timed["bytes"].as_u64().context("no bytes")?;
                best(&mut ours, (what, bytes), timed["seconds"].as_f64().context("no seconds")?);
            }
        }
    }
    println!("{:>7} {:>9} {:>12} {:>12} {:>7}", "", "bytes", "plain us", "ours us", "ratio");
    for (key, plain) in &theirs {
        let ours = ours.get(key).context("a size is missing")?;
        let ((what, bytes), ratio) = (key, ours / plain);
        println!("{what:>7} {bytes:>9} {:>12.2} {:>12.2} {ratio:>7.2}", plain * 1e6, ours * 1e6);
    }
    steps(&launcher, &chimera)
}

/// Prints the time of a step, and its ratio to the time of the ops if messages and sums took no
/// time.
fn steps(launcher: &str, chimera: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = sources(folder.path())?;
    println!("\n{:>8} {:>10} {:>7} {:>18}", "schedule", "sync", "step s", "over its ops alone");
    for (nth, (schedule, sync)) in STEPS.into_iter().enumerate() {
        let out = folder.path().join(nth.to_string());
        let mut train = launch(launcher, "2", chimera);
        train.arg("train").args(MODEL.split_whitespace()).arg("--data").arg(&data);
        train.args(["--json", "--schedule", schedule, "--sync", sync]).arg("--out").arg(&out);
        let report: Value = serde_json::from_str(&read(&mut train)?)?;
        let over = report["measured_over_simulated"].as_f64().context("nothing is compared")?;
        let steps = metrics(&out.join(METRICS))?;
        let seconds = steps.iter().skip(N_WARM_UP).map(|step| number(step, "step_s"));
        let step = median(seconds.collect::<Result<_>>()?);
        println!("{schedule:>8} {sync:>10} {step:>7.3} {over:>18.3}");
    }
    Ok(())
}

fn best(times: &mut Times, key: (&'static str, u64), seconds: f64) {
    let known = times.entry(key).or_insert(seconds);
    *known = known.min(seconds);
}
