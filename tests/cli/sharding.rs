//! State that is shared by the replicas of a stage: `--zero`, and `--reduce-within`.

use serde_json::{Value, json};

use crate::command::chimera;

fn simulate(line: &str) -> Value {
    let ran = chimera(&format!("simulate {line} --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

const LINE: &str = "gradients: those of at most 1.38 stages at once, on worker 3, which has 4";

/// Of four replicas each keeps a quarter of a sum.
#[test]
fn a_simulation_counts_the_gradients_of_a_worker() {
    let four = "--depth 4 --micro-batches 4 --width 2";
    let peaks = |line: &str| simulate(line)["peak_gradient_stages"].clone();
    let without = chimera(&format!("simulate chimera {four} --zero 1")).stdout;
    assert!(!without.contains("gradients: "), "{without}");
    // The outer workers end the backwards of one stage before those of the other begin.
    assert_eq!(peaks(&format!("chimera {four} --zero 2")), json!([1.25, 2.0, 2.0, 1.25]));
    assert_eq!(peaks(&format!("chimera {four} --zero 2 --sync at-end")), json!(vec![2.0; 4]));
    // With four pipes each worker has all stages, and one at a time is in its backwards.
    let pipes = format!("chimera {four} --pipes 4 --zero 2");
    assert_eq!(peaks(&pipes), json!(vec![1.375; 4]));
    let text = chimera(&format!("simulate {pipes}")).stdout;
    assert!(text.contains(LINE) && include_str!("../../docs/sharding.md").contains(LINE), "{text}");
    assert_eq!(peaks(&format!("1f1b {four} --zero 2")), json!(vec![1.0; 4]));
}

/// Of R replicas each keeps an R-th of a stage's weights, and gathers the rest of one stage at a time.
#[test]
fn a_simulation_counts_the_weights_of_a_worker() {
    let four = "--depth 4 --micro-batches 4 --width 2 --zero 3";
    let peaks = |line: &str| simulate(line)["peak_weight_stages"].clone();
    assert_eq!(peaks(&format!("chimera {four}")), json!(vec![1.25; 4]));
    assert_eq!(peaks(&format!("chimera {four} --whole-stages 2")), json!(vec![2.0; 4]));
    assert_eq!(peaks(&format!("chimera {four} --pipes 4")), json!(vec![1.375; 4]));
    assert_eq!(peaks(&format!("1f1b {four}")), json!(vec![1.0; 4]));
    let exposed =
        |more: &str| simulate(&format!("chimera {four} {more}"))["gatherings_exposed"].as_f64();
    assert_eq!(exposed(""), Some(0.0));
    assert!(exposed("--message 2") > Some(0.0));
    let text = chimera(&format!("simulate chimera {four} --pipes 4 --message 0.5")).stdout;
    let line = text.lines().find(|line| line.starts_with("weights: ")).expect("a line");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/sharding.md");
    assert!(std::fs::read_to_string(page).expect("a page").contains(line), "{text}");
}

#[test]
fn what_zero_does_not_fit_is_refused() {
    for (line, why) in [
        ("simulate pipedream --zero 2", "zero 2 needs weights that nobody reads"),
        (
            "train --schedule pipedream --tied false --zero 1",
            "shard-optimizer and zero need weights",
        ),
        ("train --zero 2 --shard-optimizer false", "`zero` is 2, which shards the optimizer"),
        ("train --zero 4", "0 to 3"),
    ] {
        let ran = chimera(&format!("{line} --depth 2"));
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{line}: {}", ran.stderr);
    }
}

/// Two nodes of two ranks with B bytes of gradients. If all reduce at once, a node sends B in each of
/// two rounds. If the ranks of a node add up first, it sends half of that, and each rank half of B
/// inside of the node in each of two more.
#[test]
fn sums_inside_of_nodes_first_save_half_of_the_bytes_between_two() {
    let step = "1f1b --depth 1 --micro-batches 2 --width 4 --ranks-per-node 2 --gradient-bytes 65536 \
                --inside 0,1e-6 --between 0,1e-5";
    let sums = |more: &str| simulate(&format!("{step} {more}"))["sums"].as_f64().expect("a time");
    let bytes = 65536.0;
    assert!((sums("") - 2.0 * bytes * 1e-5).abs() < 1e-9, "{}", sums(""));
    let within = sums("--reduce-within 2");
    assert!((within - bytes * (1e-5 + 1e-6)).abs() < 1e-9, "{within}");
    for (more, why) in [
        ("--reduce-within 4", "give --ranks-per-node 4 too"),
        ("--reduce-within 2 --topology pcie", ""),
    ] {
        let ran = chimera(&format!("simulate {step} {more}"));
        assert_eq!(ran.code, Some(2), "{more}: {}", ran.stderr);
        assert!(ran.stderr.contains(why), "{more}: {}", ran.stderr);
    }
}
