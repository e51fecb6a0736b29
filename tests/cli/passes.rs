//! `--split-backward`, `--recompute` and `--hoist`.

use serde_json::Value;

use crate::command::{chimera, folder};

fn ok(line: &str) -> String {
    let ran = chimera(line);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    ran.stdout
}

fn makespan(line: &str) -> f64 {
    let simulated: Value =
        serde_json::from_str(&ok(&format!("simulate {line} --json"))).expect("JSON");
    simulated["makespan"].as_f64().expect("a number")
}

/// Chimera after Mario, and the makespan of ZB-H1 from 1F1B.
#[test]
fn makespans_are_those_of_the_rules() {
    for (line, expected) in [
        ("chimera --depth 8", 36.0),
        ("chimera --depth 8 --recompute full --hoist on-demand", 50.0),
        ("chimera --depth 8 --recompute full", 44.0),
        ("chimera --depth 8 --recompute full --hoist 3", 41.0),
        ("chimera --depth 8 --recompute full --hoist auto", 41.0),
        ("chimera --depth 8 --recompute full --hoist auto --memory-cap 1", 44.0),
        ("chimera --depth 8 --recompute full --hoist on-demand --recompute-time 0", 36.0),
        ("1f1b --depth 4 --micro-batches 8", 33.0),
        ("1f1b --depth 4 --micro-batches 8 --recompute full", 41.0),
        ("1f1b --depth 4 --micro-batches 8 --recompute full --recompute-stages 0-3", 41.0),
        ("1f1b --depth 4 --micro-batches 8 --recompute full --recompute-stages 0", 37.0),
        ("1f1b --depth 4 --micro-batches 8 --split-backward", 27.0),
        ("1f1b --depth 4 --micro-batches 8 --split-backward --memory-cap 4", 27.0),
        ("chimera --depth 4 --micro-batches 8 --split-backward", 25.0),
    ] {
        assert_eq!(makespan(line), expected, "{line}");
    }
}

/// In 1F1B the first stage holds four micro-batches, and the last stage one.
#[test]
fn as_few_stages_recompute_as_memory_asks_for() {
    let model = "--layers 8 --hidden 32 --heads 4 --context 32 --threads 1 --schedule 1f1b --depth 4 --micro-batches 8 \
                 --micro-batch-size 4 --optimizer adamw \
                 --steps 1 --recompute full --no-save true";
    let folder = folder();
    let run = |name: &str, options: &str| {
        let out = folder.path().join(name);
        let ran = chimera(&format!("train {model} {options} --out {}", out.display()));
        let settings = std::fs::read_to_string(out.join("config.toml")).unwrap_or_default();
        (ran, settings)
    };
    let (ran, settings) = run("two", "--recompute-stages auto --memory-cap 2");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(settings.contains("recompute-stages = \"0-1\""), "{settings}");
    let (ran, settings) = run("all", "--recompute-stages auto --memory-cap 4");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(settings.contains("recompute = \"none\""), "{settings}");
    // The first stage is the longest: the remaining memory goes to the most expensive work.
    let uneven = |name: &str, gib: &str| {
        let options = format!("--layout 3,2,2,1 --recompute auto --rank-memory {gib}");
        let (ran, settings) = run(name, &options);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(!ran.stderr.contains("no effect"), "{}", ran.stderr);
        settings
    };
    assert!(uneven("full", "0.0023").contains("recompute-stages = \"0\""));
    assert!(uneven("part", "0.0028").contains("recompute-stages = \"0:selective\""));
    for (options, named) in [
        ("--recompute-stages auto", "--rank-memory"),
        ("--recompute-stages auto --rank-memory 0.000001", "though all stages recompute: worker "),
        ("--recompute-stages 4", "there are 4, from 0"),
        ("--recompute-stages 1..2", "numbers of stages such as"),
        ("--recompute-stages 1:0", "0,1:3"),
    ] {
        let (ran, _) = run("refused", options);
        assert!(ran.code != Some(0) && ran.stderr.contains(named), "{options}: {}", ran.stderr);
    }
    let ran = chimera("simulate 1f1b --depth 4 --recompute full --recompute-stages auto");
    assert!(ran.stderr.contains("--memory-cap"), "{}", ran.stderr);
    let ran = chimera("simulate 1f1b --depth 4 --recompute full --recompute-stages 0:2");
    assert!(ran.stderr.contains("the layers are unknown"), "{}", ran.stderr);
    let drawn = ok("simulate 1f1b --depth 4 --micro-batches 8 --recompute auto --memory-cap 2");
    assert!(drawn.contains("\nstages that recompute: 0-1\n"), "{drawn}");
    let drawn = ok("simulate 1f1b --depth 4 --micro-batches 8 --recompute auto --memory-cap 4");
    assert!(drawn.contains("\nstages that recompute: none\n"), "{drawn}");
}

#[test]
fn what_no_recomputation_makes_fit_is_refused_as_a_full_one_is() {
    let model = "--layers 4 --hidden 32 --heads 4 --context 32 --threads 1 --depth 4 --micro-batches 4 --steps 1 --no-save true";
    for command in ["simulate zb-h1".to_string(), format!("train {model} --schedule zb-h1")] {
        for recompute in ["full", "auto"] {
            let ran = chimera(&format!("{command} --memory-cap 3 --recompute {recompute}"));
            assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{command}: {}", ran.stderr);
            let refusal =
                "it holds the activations of 4 micro-batches at once, more than the limit of 3";
            assert!(ran.stderr.contains("worker 3, cell 10: "), "{command}: {}", ran.stderr);
            assert!(ran.stderr.contains(refusal), "{command}: {}", ran.stderr);
        }
    }
}

/// The shorter scaling is chosen under a cap, and by what is recomputed or offloaded.
#[test]
fn the_scaling_that_is_taken_is_the_shorter_one() {
    for line in [
        "chimera --depth 2 --micro-batches 23 --split-backward --memory-cap 2",
        "chimera --depth 2 --micro-batches 7 --message 0.5 --memory-cap 1 --offload auto --recompute auto",
        "chimera --depth 4 --micro-batches 8 --recompute full --recompute-stages 0",
    ] {
        let of = |scaling: &str| makespan(&format!("{line} --scaling {scaling}"));
        assert_eq!(of("auto"), of("direct").min(of("halving")), "{line}");
    }
}

/// Zero is a valid time, but not a valid number of steps.
#[test]
fn ops_may_take_no_time_and_a_window_has_steps() {
    assert_eq!(makespan("1f1b --micro-batches 8 --bpipe --forward 0 --backward 0"), 0.0);
    for name in ["chimera", "pipedream"] {
        let ran = chimera(&format!("simulate {name} --border free --window 0"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        assert!(ran.stderr.contains("a window of 0 steps "), "{}", ran.stderr);
    }
}

/// A transfer of 1 is hidden and one of 50 is not. Stages that recompute are listed.
#[test]
fn stages_offload_or_recompute_whatever_is_shorter() {
    let shape = "1f1b --depth 4 --micro-batches 12 --memory-cap 2";
    let line = format!("{shape} --transfer");
    let both = "--offload auto --recompute auto";
    assert_eq!(
        makespan(&format!("{line} 0.5 {both}")),
        makespan(&format!("{line} 0.5 --offload auto"))
    );
    assert_eq!(
        makespan(&format!("{line} 50 {both}")),
        makespan(&format!("{shape} --recompute auto"))
    );
    let drawn = ok(&format!("simulate {line} 50 {both}"));
    assert!(drawn.contains("; nothing is offloaded\n"), "{drawn}");
    let drawn = ok(&format!("simulate {line} 0.5 {both}"));
    assert!(
        drawn.contains("\nstages that recompute: none; the others offload what is over\n"),
        "{drawn}"
    );
    let drawn = ok(&format!("simulate {line} 50 --offload auto"));
    assert!(drawn.contains("move "), "{drawn}");
    let model = "--layers 8 --hidden 32 --heads 4 --context 32 --threads 1 --schedule 1f1b --depth 4 --micro-batches 8 --steps 1 \
                 --micro-batch-size 4 --optimizer adamw \
                 --no-save true";
    let folder = folder();
    let out = folder.path().join("run");
    // Recomputing all stages in full does not fit, and moves have no known cost.
    let ran =
        chimera(&format!("train {model} {both} --rank-memory 0.0023 --out {}", out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let settings = std::fs::read_to_string(out.join("config.toml")).unwrap_or_default();
    for line in ["recompute = \"none\"", "offload = \"auto\"", "memory-cap = "] {
        assert!(settings.contains(line), "{line}: {settings}");
    }
}

/// The cap limits saved activations; checkpointed inputs are counted beside them.
#[test]
fn kept_inputs_are_told() {
    let ran = chimera("simulate gpipe --depth 2 --micro-batches 4 --recompute full --memory-cap 1");
    let first = "gpipe: makespan 19, bubble ratio 0.1579, peak activations of 1 micro-batch, \
                 checkpointed inputs of at most 4, 8 messages";
    assert_eq!(ran.stdout.lines().next(), Some(first));
    assert!(ran.stdout.lines().nth(2).is_some_and(|line| line.ends_with("  checkpointed inputs")));
    let ran = chimera("simulate 1f1b --depth 2 --micro-batches 4 --recompute selective --json");
    let simulated: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let kept = [0, 1].map(|w| &simulated["workers"][w]["peak_kept_inputs"]);
    assert_eq!(kept, [2.0, 1.0]);
}

#[test]
fn drawings_show_halves_and_recomputations() {
    let drawn =
        ok("schedule show 1f1b --depth 2 --micro-batches 2 --split-backward --recompute full");
    for label in [" 0r ", " 0i ", " 1w"] {
        assert!(drawn.contains(label), "{label}: {drawn}");
    }
    assert!(!drawn.contains('\''), "{drawn}");
}

#[test]
fn what_is_shown_is_checked_and_passed_once_more() {
    let folder = folder();
    let path = folder.path().join("mine.json");
    let options = "--depth 4 --micro-batches 6 --recompute selective --hoist 2";
    std::fs::write(&path, ok(&format!("schedule show chimera {options} --json"))).expect("a file");
    let checked = ok(&format!("schedule check {} --split-backward", path.display()));
    assert!(checked.starts_with("proven safe"), "{checked}");
    let split = makespan(&format!("{} --split-backward", path.display()));
    assert_eq!(split, makespan(&format!("chimera {options} --split-backward")));
}

/// Recomputation on demand stays on demand in a file.
#[test]
fn what_is_written_takes_as_long() {
    let folder = folder();
    let path = folder.path().join("mine.json");
    for (hoist, expected) in [("on-demand", 50.0), ("0", 44.0)] {
        let options = format!("chimera --depth 8 --recompute full --hoist {hoist}");
        std::fs::write(&path, ok(&format!("schedule show {options} --json"))).expect("a file");
        assert_eq!(makespan(&path.display().to_string()), expected, "{hoist}");
    }
}

#[test]
fn a_cap_that_cannot_be_kept_is_refused_with_the_cell() {
    let ran = chimera("simulate gpipe --depth 2 --micro-batches 4 --split-backward --memory-cap 3");
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("worker 0, cell 3") && ran.stderr.contains('^'), "{}", ran.stderr);
    ok("simulate gpipe --depth 2 --micro-batches 4 --recompute full --memory-cap 1");
}

/// The advice leaves out options that are set already. Moves cannot take deferred weight work.
#[test]
fn a_cap_that_cannot_be_kept_tells_what_is_left_to_do() {
    let other = "take a schedule that holds fewer";
    for (line, told) in [
        (
            "gpipe --memory-cap 3",
            format!("add --recompute full, --offload auto or --bpipe, or {other}"),
        ),
        ("1f1b --memory-cap 0.5 --offload auto", format!("add --recompute full, or {other}")),
        (
            "1f1b --memory-cap 1 --bpipe",
            format!("add --recompute full or --offload auto instead of --bpipe, or {other}"),
        ),
        (
            "1f1b --memory-cap 0.5 --recompute full",
            format!("add --offload auto or --bpipe, or {other}"),
        ),
        (
            "1f1b --memory-cap 0.5 --recompute full --offload auto",
            format!("to hold fewer, {other}"),
        ),
    ] {
        let ran = chimera(&format!("simulate {line} --depth 4 --micro-batches 8"));
        assert_eq!(ran.code, Some(3), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(&told), "{line}: {}", ran.stderr);
        assert!(!ran.stderr.contains("cannot be moved"), "{line}: {}", ran.stderr);
    }
    let ran = chimera("simulate zb-h1 --depth 4 --micro-batches 8 --memory-cap 1 --offload auto");
    let told = "more than the limit of 1; 1 of them cannot be moved: backwards are split";
    assert!(ran.code == Some(3) && ran.stderr.contains(told), "{}", ran.stderr);
}

#[test]
fn modes_that_are_not_there_name_those_that_are() {
    for (options, hint) in [
        ("--recompute half", "choose one of none, full, selective, auto"),
        ("--hoist late", "choose on-demand, auto or a number of cells"),
        ("--hoist -1", "choose on-demand, auto or a number of cells"),
    ] {
        let ran = chimera(&format!("simulate chimera {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

#[test]
fn there_is_nothing_to_hoist_without_recomputation() {
    for hoist in ["3", "auto"] {
        let ran = chimera(&format!("simulate gpipe --hoist {hoist}"));
        assert_eq!(ran.code, Some(2), "{}", ran.stdout);
        assert!(ran.stderr.contains("choose recompute full or selective too"), "{}", ran.stderr);
    }
    let unknown = chimera("simulate nothing");
    assert!(
        unknown.stderr.contains("1f1b") && unknown.stderr.contains(", auto"),
        "{}",
        unknown.stderr
    );
}

/// The live ranks do the work of the dead ones, also with costs by worker.
#[test]
fn a_step_without_dead_ranks_is_that_of_those_that_live() {
    let figures = |options: &str| -> Value {
        serde_json::from_str(&ok(&format!("simulate {options} --json"))).expect("JSON")
    };
    let lost = figures("chimera --depth 4 --micro-batches 8 --lost 2");
    let whole = figures("chimera --depth 4 --micro-batches 8");
    assert_eq!(lost["workers"].as_array().map(Vec::len), Some(3));
    assert!(lost["makespan"].as_f64() > whole["makespan"].as_f64(), "{lost}");
    let busy = |figures: &Value| -> Option<f64> {
        figures["workers"].as_array()?.iter().map(|worker| worker["busy"].as_f64()).sum()
    };
    assert_eq!(busy(&lost), busy(&whole), "the same work on fewer ranks");
    // Ranks of several groups, one of them slow: without the others of its group it is still that
    // one.
    let of_two = figures("1f1b --depth 2 --width 2 --lost 0,3 --speeds 1,1,0.5,1");
    let of_two: Vec<f64> = of_two["workers"]
        .as_array()
        .expect("workers")
        .iter()
        .filter_map(|worker| worker["busy"].as_f64())
        .collect();
    assert_eq!(of_two, [12.0, 24.0], "two micro-batches of each of two groups, of 3 forwards each");
    for (options, reason) in [
        ("1f1b --depth 4 --lost 2", "no rank that lives holds stage 2"),
        ("chimera --depth 4 --lost 9", "rank 9 does not exist"),
        ("chimera --depth 4 --width 2 --lost 8", "rank 8 does not exist"),
        (
            "chimera --depth 4 --lost 2 --ranks-per-node 2 --inside 0,0 --between 1,0",
            "leave --ranks-per-node and --between out",
        ),
    ] {
        let ran = chimera(&format!("simulate {options}"));
        assert!(ran.code == Some(2) && ran.stderr.contains(reason), "{options}: {}", ran.stderr);
    }
}
