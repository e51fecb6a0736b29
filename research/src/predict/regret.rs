//! Quality of the plan's choice: runs every configuration that the plan finds for a model, and
//! compares the order.

use std::ops::Range;

use anyhow::{Context, Result, ensure};

use super::draw::Shape;
use super::run::Lab;
use xtask::measure::median;

/// The planned ranks: threads of this machine.
const RANKS: usize = 2;
/// Configurations that differ by less count as equally fast.
const DIFFERS: f64 = 0.05;

/// A configuration with its step, planned and measured, in seconds.
struct Way {
    name: String,
    options: Vec<String>,
    planned: f64,
    measured: Vec<f64>,
}

/// Plans each case, runs all its configurations, and prints the cost of the choice.
pub(super) fn run(lab: &Lab, seed: u64, cases: Range<u64>, rounds: Range<u8>) -> Result<()> {
    println!(
        "| model | batch | configurations | planned first | planned s | measured s | fastest measured | its s | regret | pairs | in \
         order | step errs by |"
    );
    println!("|---|--:|--:|---|--:|--:|---|--:|--:|--:|--:|--:|");
    for case in cases {
        let shape = Shape::of_case(seed, case);
        let mut ways = ways(lab, &shape)?;
        for _ in rounds.clone() {
            for way in &mut ways {
                let trained = lab.train(&way.options)?;
                let [_, measured, _] = trained.figure("step").context("no step was predicted")?;
                way.measured.push(measured);
            }
        }
        let steps: Vec<[f64; 2]> =
            ways.iter().map(|way| [way.planned, median(way.measured.clone())]).collect();
        for (way, [planned, measured]) in ways.iter().zip(&steps) {
            eprintln!(
                "{planned:.4} {measured:.4} {:+.1} % {}",
                100.0 * (planned / measured - 1.0),
                way.name
            );
        }
        let best = (0..ways.len()).min_by(|a, b| steps[*a][1].total_cmp(&steps[*b][1]));
        let best = best.context("the plan knows no configuration")?;
        let (n_in_order, n_pairs) = in_order(&steps);
        let errors = steps.iter().map(|[planned, measured]| (planned / measured - 1.0).abs());
        println!(
            "| {shape} | {} | {} | {} | {:.4} | {:.4} | {} | {:.4} | {:+.1} % | {n_pairs} | {:.1} % | {:.1} % |",
            shape.batch(),
            ways.len(),
            ways[0].name,
            steps[0][0],
            steps[0][1],
            ways[best].name,
            steps[best][1],
            100.0 * (steps[0][1] / steps[best][1] - 1.0),
            100.0 * n_in_order as f64 / n_pairs.max(1) as f64,
            100.0 * median(errors.collect()),
        );
    }
    Ok(())
}

/// All configurations of the plan, the fastest first.
fn ways(lab: &Lab, shape: &Shape) -> Result<Vec<Way>> {
    let plan = lab.plan(RANKS, shape.batch(), &shape.model_options())?;
    let ways = plan["ways"].as_array().context("a plan without ways")?;
    ensure!(plan["n_left_out"] == 0, "the plan has not tried all configurations");
    let way = |way: &serde_json::Value| {
        let command = way["command"].as_str().context("a way without a command")?;
        let words = command.split_whitespace().skip_while(|word| *word != "train").skip(1);
        let [schedule, recompute] =
            ["schedule", "recompute"].map(|key| way[key].as_str().unwrap_or(""));
        let [width, depth, size, n] =
            ["width", "depth", "micro_batch_size", "micro_batches"].map(|key| &way[key]);
        let scaling = way["scaling"].as_str().filter(|scaling| *scaling != "direct").unwrap_or("");
        let parameters = &way["parameters"];
        Ok(Way {
            name: format!(
                "{schedule} {scaling} W{width} D{depth} B{size} N{n} {recompute} {parameters}"
            ),
            options: words.map(String::from).collect(),
            planned: way["step_s"].as_f64().context("a way without a step")?,
            measured: Vec::new(),
        })
    };
    ways.iter().map(way).collect()
}

/// Counts the pairs whose measured steps differ: those planned in the same order, and all.
fn in_order(steps: &[[f64; 2]]) -> (usize, usize) {
    let (mut n_in_order, mut n_pairs) = (0, 0);
    for (at, [planned, measured]) in steps.iter().enumerate() {
        for [other_planned, other_measured] in &steps[at + 1..] {
            let [short, long] = [measured.min(*other_measured), measured.max(*other_measured)];
            if long < short * (1.0 + DIFFERS) {
                continue;
            }
            n_pairs += 1;
            n_in_order += usize::from((planned < other_planned) == (measured < other_measured));
        }
    }
    (n_in_order, n_pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_hardly_differ_do_not_count() {
        let steps = [[1.0, 1.0], [2.0, 1.04], [3.0, 0.9], [0.5, 0.8]];
        // The second and the first hardly differ; the third is planned after both and is faster;
        // the last is first.
        assert_eq!(in_order(&steps), (3, 5));
        assert_eq!(in_order(&steps[..1]), (0, 0));
    }
}
