//! Choices of the planner on the machine of the paper, with the fitted constants.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use chimera_core::model::Cut;
use serde_json::Value;

use super::job::ROUND_S;
use super::products::products;
use super::readings::Figure;
use super::study::{Fitted, Outcome, Study};
use xtask::command::{chimera, read};

const HEADING: &str = "\n## What a free search chooses\n";
/// Figures whose workload is planned.
const PLANNED: [&str; 4] = ["1", "13, GPT-2", "13, Bert-48", "14"];
/// Seconds of a search.
const SECONDS: &str = "60";

/// The planner's section of an existing page.
pub(super) fn section_of(page: &str) -> &str {
    page.find(HEADING).map_or("", |at| &page[at..])
}

/// Builds the command, plans and writes the section.
pub(super) fn section(study: &Study<'_>) -> Result<String> {
    let program = chimera()?;
    let mut section = format!(
        "{HEADING}\n\
         `chimera plan` searches all widths, depths, sizes of micro-batches and recomputation for the same machine at the fitted\n\
         constants, in 92 % of 16 GB: of Chimera first, then of all synchronous schedules. It gives the head's stage fewer layers,\n\
         where the paper gives every stage as many, and counts the memory of its own kernels. Throughputs are simulated, in\n\
         sequences per second; the last column is what is gained over the paper's best synchronous bar.\n\n\
         | figure | the paper's best | simulated | chosen | simulated | |\n|---|---|--:|---|--:|--:|\n"
    );
    for number in PLANNED {
        let simulated = study.figures.iter().find(|simulated| simulated.figure.figure == number);
        let simulated = simulated.with_context(|| format!("there is no Fig. {number}"))?;
        let figure = simulated.figure;
        let best = simulated.bars.iter().filter(|outcome| !outcome.bar.is_asynchronous());
        let best = best.max_by(|a, b| a.throughput.total_cmp(&b.throughput));
        let best = best.with_context(|| format!("Fig. {number} has no bars"))?;
        let machine = study.machines.iter().find(|m| m.machine.name == figure.machine);
        let machine = machine.with_context(|| format!("there is no {}", figure.machine))?;
        for among in [&["--schedule", "chimera"][..], &[]] {
            let chosen = choose(&program, figure, machine, among)?;
            let throughput = figure.batch as f64 / chosen["step_s"].as_f64().context("step_s")?;
            let _ = writeln!(
                section,
                "| {number} | {} | {:.0} | {} | {throughput:.0} | {:+.0} % |",
                shape(best),
                best.throughput,
                way(&chosen),
                (throughput / best.throughput - 1.0) * 100.0
            );
        }
    }
    Ok(section)
}

/// The planner's first choice for everything that these options leave open.
fn choose(
    program: &Path,
    figure: &Figure,
    machine: &Fitted<'_>,
    options: &[&str],
) -> Result<Value> {
    let sheet = tempfile::NamedTempFile::new()?;
    std::fs::write(sheet.path(), data_sheet(figure, machine)?)?;
    let [ranks, batch, sequence, layers] =
        [figure.nodes, figure.batch, figure.sequence, figure.model()?.layers]
            .map(|n| n.to_string());
    let flops = machine.constants.flops.to_string();
    let mut plan = Command::new(program);
    plan.args(["plan", "--ranks", &ranks, "--batch", &batch, "--preset", figure.preset()])
        .args(["--sequence", &sequence, "--layers", &layers, "--flops", &flops, "--hardware"])
        .arg(sheet.path())
        .args(["--search-time", SECONDS, "--top", "1", "--json"])
        .args(options);
    let plan: Value = serde_json::from_str(&read(&mut plan)?)?;
    Ok(plan["ways"][0].clone())
}

/// A machine as a hardware file that the command reads.
fn data_sheet(figure: &Figure, machine: &Fitted<'_>) -> Result<String> {
    let (model, sequence) = (figure.model()?, figure.sequence);
    let whole = Cut::whole(&model);
    let of_token = model.forward_flops(&whole, sequence) / sequence as f64;
    // Products that take longer by themselves are as many tokens more in each micro-batch.
    let half = products(&whole) * machine.constants.half / of_token;
    let (link, bytes) = (machine.constants.link, machine.machine.memory_gb * 1e9);
    let wire = format!("latency-s = {:e}\nbytes-per-s = {:e}\n", link.alpha, 1.0 / link.beta);
    Ok(format!(
        "sources = []\ndevice = \"cuda\"\nprecision = \"f32\"\nmemory-bytes = {bytes:e}\nranks-per-node = 1\n\
         blocking = true\nreductions = \"doubling\"\nround-latency-s = {ROUND_S:e}\nhalf-rate-tokens = {half:e}\n\
         [peak-flops]\nf32 = {:e}\n[inside]\n{wire}[between]\n{wire}",
        machine.constants.flops
    ))
}

fn shape(outcome: &Outcome<'_>) -> String {
    let (bar, job) = (outcome.bar, &outcome.job);
    let recompute = if bar.recompute { ", R" } else { "" };
    format!("{}, W={}, D={}, B={}{recompute}", bar.schedule, job.width, bar.depth, job.size)
}

fn way(chosen: &Value) -> String {
    let text = |key: &str| chosen[key].as_str().unwrap_or_default();
    let recompute = match text("recompute") {
        "none" => String::new(),
        other => format!(", recompute {other}"),
    };
    let is_sharded = chosen["shard_optimizer"].as_bool().unwrap_or_default();
    format!(
        "{}, W={}, D={}, B={}{recompute}{}",
        text("schedule"),
        chosen["width"],
        chosen["depth"],
        chosen["micro_batch_size"],
        if is_sharded { ", sharded optimizer" } else { "" }
    )
}
