//! Messages and sums of the transport over MPI, beside the same in plain MPI calls.
//!
//! Both alternate, so that a change of the machine's speed meets both.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{read, root, run as run_command};
use crate::mpi::{Built, build, launch};

/// How often each is measured; the best counts, since all that disturbs makes it slower.
const N_ROUNDS: usize = 5;

/// Seconds by what takes them and bytes.
type Times = BTreeMap<(&'static str, u64), f64>;

/// Measures and prints the tables.
pub(crate) fn run() -> Result<()> {
    let Built { compiler, launcher, program: chimera } = build(true)?;
    let folder = tempfile::tempdir()?;
    let plain = folder.path().join("plain_mpi");
    let source = root().join("xtask/peers/plain_mpi.c");
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
    Ok(())
}

fn best(times: &mut Times, key: (&'static str, u64), seconds: f64) {
    let known = times.entry(key).or_insert(seconds);
    *known = known.min(seconds);
}
