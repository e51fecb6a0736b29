//! The page: each published value with the simulated one and the signed error.

use std::fmt::Write as _;

use anyhow::Result;

use super::closed_forms::{Figures, SHAPE, rows};
use super::readings::{Bar, Inputs, Readings};
use super::study::{Kind, Outcome, Simulated, Study};
use super::tuning::Tuned;

/// The assumptions, which come before any number.
const ASSUMPTIONS: &str = include_str!("assumptions.md");
/// Results that differ from the published ones, with their reasons.
const DEVIATIONS: &str = include_str!("deviations.md");
/// Bars that differ by less count as equal.
const TIE: f64 = 0.01;

/// The whole page except for the planner's choices.
pub(super) fn page(readings: &Readings, study: &Study<'_>) -> Result<String> {
    let mut page = String::from(ASSUMPTIONS);
    constants(&mut page, study);
    page.push_str("\n## What the paper shows, and what comes out\n");
    claims(&mut page, study);
    errors(&mut page, study);
    page.push_str(DEVIATIONS);
    held(&mut page, study);
    table_2(&mut page)?;
    for simulated in &study.figures {
        figure(&mut page, simulated);
    }
    tuning(&mut page, study);
    others(&mut page, readings, study);
    Ok(page)
}

/// Each bar that was read, as published and as predicted.
pub(super) fn bars(study: &Study<'_>) -> String {
    let mut text = String::new();
    for (simulated, outcome) in outcomes(study) {
        let Some((reading, error)) = outcome.bar.reading.zip(outcome.error()) else { continue };
        let name = format!("{}: {}", simulated.figure.figure, outcome.bar.name);
        let predicted = rate(outcome.throughput);
        let _ = writeln!(text, "{name:32} {reading:>6} {predicted:>6} {:>7}", percent(error));
    }
    errors(&mut text, study);
    text
}

fn constants(page: &mut String, study: &Study<'_>) {
    page.push_str(
        "\n| machine | | fitted to | FLOP/s | latency | bytes/s |\n|---|---|---|--:|--:|--:|\n",
    );
    for fitted in &study.machines {
        let link = fitted.constants.link;
        let _ = writeln!(
            page,
            "| {} | {} | {} bars | {:.2} T | {:.2} ms | {:.2} G |",
            fitted.machine.name,
            fitted.machine.about,
            fitted.n_bars,
            fitted.constants.flops / 1e12,
            link.alpha * 1e3,
            1.0 / link.beta / 1e9
        );
    }
}

/// Claims of the paper, each with its outcome here.
fn claims(page: &mut String, study: &Study<'_>) {
    page.push_str(
        "\n| figure | highest in the paper | highest here | above the next by | comes out |\n|---|---|---|--:|---|\n",
    );
    for simulated in &study.figures {
        let Some((best, (highest, margin))) = simulated.figure.best().zip(simulated.highest())
        else {
            continue;
        };
        let verdict = match best == highest {
            true if margin < TIE => "a tie",
            true => "yes",
            false => "**no**",
        };
        let _ = writeln!(
            page,
            "| {} | {best} | {highest} | {:.1} % | {verdict} |",
            simulated.figure.figure,
            margin * 100.0
        );
    }
}

/// Every bar with its figure.
fn outcomes<'s>(
    study: &'s Study<'_>,
) -> impl Iterator<Item = (&'s Simulated<'s>, &'s Outcome<'s>)> {
    study
        .figures
        .iter()
        .flat_map(|simulated| simulated.bars.iter().map(move |bar| (simulated, bar)))
}

/// Errors of fitted bars, of other synchronous ones, and of asynchronous ones, each separately.
fn errors(page: &mut String, study: &Study<'_>) {
    page.push_str(
        "\n| bars | number | mean error | mean of absolute errors | largest |\n|---|--:|--:|--:|---|\n",
    );
    let names = ["fitted", "synchronous, not fitted", "asynchronous, not fitted"];
    for (name, kind) in names.into_iter().zip(Kind::ALL) {
        let of_kind = outcomes(study).filter(|(_, outcome)| Kind::of(outcome.bar) == kind);
        let errors: Vec<_> =
            of_kind.filter_map(|(s, outcome)| Some((s, outcome, outcome.error()?))).collect();
        let n = errors.len() as f64;
        let mean = errors.iter().map(|(_, _, error)| error).sum::<f64>() / n;
        let absolute = kind.mean_error(&study.figures);
        let largest = errors.iter().max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()));
        let largest = largest.map_or(String::new(), |(simulated, outcome, error)| {
            format!("{}, Fig. {}: {}", outcome.bar.name, simulated.figure.figure, percent(*error))
        });
        let _ = writeln!(
            page,
            "| {name} | {} | {} | {:.0} % | {largest} |",
            errors.len(),
            percent(mean),
            absolute * 100.0
        );
    }
}

/// Writes the errors at rates near the fitted one.
fn held(page: &mut String, study: &Study<'_>) {
    page.push_str(
        "\n## How far the fit decides\n\n\
         Piz Daint's rate is held here, and its link fitted again: means of absolute errors. At a higher rate the fitted bars\n\
         are as close, and the others closer, but nothing is fitted to those.\n\n\
         | FLOP/s | latency | bytes/s | fitted | synchronous | asynchronous |\n|--:|--:|--:|--:|--:|--:|\n",
    );
    for (constants, [fitted, synchronous, asynchronous]) in &study.held {
        let _ = writeln!(
            page,
            "| {:.2} T | {:.2} ms | {:.2} G | {:.1} % | {:.1} % | {:.1} % |",
            constants.flops / 1e12,
            constants.link.alpha * 1e3,
            1.0 / constants.link.beta / 1e9,
            fitted * 100.0,
            synchronous * 100.0,
            asynchronous * 100.0
        );
    }
}

fn table_2(page: &mut String) -> Result<()> {
    let _ = write!(
        page,
        "\n## Table 2\n\n\
         The paper's formulas for D = N = {SHAPE}, beside simulated programs with equal forwards and backwards. Weights are in\n\
         those of a stage, activations in those of a micro-batch there; least and most of any worker. Schedules without a\n\
         flush run for 32 steps.\n\n\
         | scheme | bubble | here | weights | here | activations | here |\n\
         |---|---|--:|---|--:|---|--:|\n"
    );
    for row in rows()? {
        let [bubble, weights, activations] = row.formulas;
        let Figures { bubble: published, weights: w, activations: a } = row.published;
        let ours = row.ours;
        let _ = writeln!(
            page,
            "| {} | {bubble} = {published:.3} | {:.3} | {weights} = {} | {} | {activations} = {} | {} |",
            row.name,
            ours.bubble,
            range(w),
            range(ours.weights),
            range(a),
            range(ours.activations)
        );
    }
    Ok(())
}

fn range([least, most]: [f64; 2]) -> String {
    if least == most { format!("{least}") } else { format!("{least} to {most}") }
}

fn figure(page: &mut String, simulated: &Simulated<'_>) {
    let figure = simulated.figure;
    let _ = write!(
        page,
        "\n## Fig. {}: {}\n\n\
         {}, B^ = {}.\n\n\
         | | D | N | B | published | simulated | error | closed form | |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|---|\n",
        figure.figure, figure.title, figure.machine, figure.batch
    );
    for outcome in &simulated.bars {
        let (bar, job) = (outcome.bar, &outcome.job);
        let is_named_so = bar.name.ends_with(", R");
        let recompute = if bar.recompute && !is_named_so { ", R" } else { "" };
        let size = if bar.size.is_some() { "" } else { " (fits)" };
        let kind = match Kind::of(bar) {
            Kind::Fitted => Some("fitted"),
            Kind::Asynchronous => Some("asynchronous"),
            Kind::Synchronous => None,
        };
        let inputs = match bar.inputs {
            Inputs::Paper => None,
            Inputs::Scripts => Some("scripts"),
            Inputs::Assumed => Some("assumed"),
        };
        let notes: Vec<_> = kind.into_iter().chain(inputs).collect();
        let _ = writeln!(
            page,
            "| {}{recompute} | {} | {} | {}{size} | {} | {} | {} | {} | {} |",
            bar.name,
            bar.depth,
            job.micro_batches,
            job.size,
            bar.reading.map_or(String::new(), |reading| reading.to_string()),
            rate(outcome.throughput),
            outcome.error().map_or(String::new(), percent),
            outcome.closed_form.map_or(String::new(), rate),
            notes.join(", "),
        );
    }
}

/// Figs. 10 and 11.
fn tuning(page: &mut String, study: &Study<'_>) {
    page.push_str(
        "\n## Figs. 10 and 11: the fastest shape of each baseline\n\n\
         Bert-48 on 32 nodes and GPT-2 on 512, B^ = 512, in 92 % of 16 GB.\n\n\
         | figure | | fastest in the paper | simulated | fastest here | simulated | |\n\
         |---|---|---|--:|---|--:|---|\n",
    );
    for Tuned { tuning, bar, throughput, fastest: (fastest, most) } in &study.tuned {
        let is_same = (bar.depth, bar.size) == (fastest.depth, fastest.size);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            tuning.figure,
            bar.name,
            shape(bar),
            rate(*throughput),
            shape(fastest),
            rate(*most),
            if is_same { "the same" } else { "" }
        );
    }
}

fn shape(bar: &Bar) -> String {
    let size = bar.size.unwrap_or(1);
    format!("D={}, B={size}{}", bar.depth, if bar.recompute { ", R" } else { "" })
}

/// Figs. 9, 12 and 15.
fn others(page: &mut String, readings: &Readings, study: &Study<'_>) {
    page.push_str(
        "\n## Fig. 9: memory of 32 workers\n\n\
         Least and most of any worker in GB, published in brackets where it can be read.\n\n",
    );
    let names = study.memory.first().into_iter().flatten().map(|(schedule, _)| *schedule);
    let names: Vec<_> = names.collect();
    let _ = writeln!(page, "| | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
    for (case, by_schedule) in readings.memory.iter().zip(&study.memory) {
        let cells = by_schedule.iter().map(|(schedule, [least, most])| {
            let published = case.readings_gb.get(*schedule);
            let published = published.map(|[least, most]| format!(" ({least} to {most})"));
            format!("{least:.1} to {most:.1}{}", published.unwrap_or_default())
        });
        let _ = writeln!(page, "| {} | {} |", case.name, cells.collect::<Vec<_>>().join(" | "));
    }
    page.push_str(
        "\n## Fig. 12: eager-opt over eager reduction\n\n\
         Bert-48 by Chimera, D = 4, B = 8, with reductions that slow compute and messages by a share while they run.\n\n\
         | nodes | published | free | a share of 0.6 | a share of 0.9 |\n|--:|--:|--:|--:|--:|\n",
    );
    for (row, [free, some, most]) in readings.eager_opt.iter().zip(&study.eager_opt) {
        let (nodes, reading) = (row.nodes, row.reading);
        let _ = writeln!(page, "| {nodes} | {reading:.2} | {free:.2} | {some:.2} | {most:.2} |");
    }
    let [few, many] = readings.weak_scaling.nodes;
    let (published, simulated) = (readings.weak_scaling.reading, study.weak_scaling);
    let _ = write!(
        page,
        "\n## Fig. 15: weak scaling of GPT-2\n\n\
         Chimera with D = 32 and a sequence for each node: the throughput of a node among {many:} is {:.1} % of that among\n\
         {few:} in the paper, and {:.1} % here ({}).\n",
        published * 100.0,
        simulated * 100.0,
        percent(simulated / published - 1.0)
    );
}

/// A signed percentage.
fn percent(part: f64) -> String {
    format!("{:+.0} %", part * 100.0)
}

/// A throughput, as precise as figures can be read.
fn rate(per_s: f64) -> String {
    if per_s < 100.0 { format!("{per_s:.1}") } else { format!("{per_s:.0}") }
}
