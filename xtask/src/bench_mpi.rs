//! Messages of the transport over MPI, beside the same ping-pong in plain MPI calls.
//!
//! Both alternate, so that a change of the machine's speed meets both.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::{read, root, run as run_command};
use crate::mpi::{build, launch};

/// How often each is measured; the best counts, since all that disturbs makes it slower.
const N_ROUNDS: usize = 5;

/// Measures and prints the table.
pub(crate) fn run() -> Result<()> {
    let (compiler, launcher, chimera) = build(true)?;
    let folder = tempfile::tempdir()?;
    let plain = folder.path().join("ping_pong");
    let source = root().join("xtask/peers/ping_pong.c");
    run_command(Command::new(compiler).args(["-O2", "-o"]).arg(&plain).arg(source))?;
    let mut ours = BTreeMap::new();
    let mut theirs = BTreeMap::new();
    for _ in 0..N_ROUNDS {
        let text = read(&mut launch(&launcher, "2", &plain))?;
        for line in text.lines() {
            let (bytes, seconds) = line.split_once(' ').context("not bytes and seconds")?;
            best(&mut theirs, bytes.parse()?, seconds.parse()?);
        }
        let mut bench = launch(&launcher, "2", &chimera);
        let report: Value = serde_json::from_str(&read(bench.args(["comm", "bench", "--json"]))?)?;
        for message in report["messages"].as_array().context("no messages")? {
            let bytes = message["bytes"].as_u64().context("no bytes")?;
            best(&mut ours, bytes, message["seconds"].as_f64().context("no seconds")?);
        }
    }
    println!("{:>9} {:>12} {:>12} {:>7}", "bytes", "plain us", "ours us", "ratio");
    for (bytes, plain) in &theirs {
        let ours = ours.get(bytes).context("a size is missing")?;
        println!("{bytes:>9} {:>12.2} {:>12.2} {:>7.2}", plain * 1e6, ours * 1e6, ours / plain);
    }
    Ok(())
}

fn best(times: &mut BTreeMap<u64, f64>, bytes: u64, seconds: f64) {
    let known = times.entry(bytes).or_insert(seconds);
    *known = known.min(seconds);
}
