//! `chimera plan`: the configurations that it shows, and the commands that it prints.

use std::fs::write;

use serde_json::Value;

use crate::command::{chimera, folder};

const JOB: &str = "plan --ranks 4 --batch 32 --flops 1e11 --inside 1e-5,1e-9";

/// `train` takes the same options as `config show`, whose output `config check` verifies.
fn check(command: &str) {
    let options = command.strip_prefix("chimera train ").unwrap_or_else(|| panic!("{command}"));
    let shown = chimera(&format!("config show {options}"));
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""), "{command}");
    let folder = folder();
    let file = folder.path().join("run.toml");
    write(&file, shown.stdout).expect("a file");
    let checked = chimera(&format!("config check {}", file.display()));
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{command}");
}

#[test]
fn the_fastest_ways_stand_in_a_table() {
    let ran = chimera(&format!("{JOB} --memory 40MiB --top 6"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn every_way_can_be_trained() {
    let ran = chimera(&format!("{JOB} --memory 0.02GB --top 12 --steps 3 --tied true --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let ways = plan["ways"].as_array().expect("ways");
    assert_eq!((ways.len(), &plan["command"]), (12, &ways[0]["command"]));
    let (mut step_s, mut schedules) = (0.0f32, Vec::new());
    for way in ways {
        let (takes, bytes) = (way["step_s"].as_f64(), way["bytes"]["total"].as_f64());
        // Of configurations with equal times, up to rounding, the simplest comes first.
        let takes = takes.expect("a time") as f32;
        assert!(takes >= step_s && bytes <= Some(2e7), "{way:#}");
        step_s = takes;
        schedules.push(&way["schedule"]);
        let command = way["command"].as_str().expect("a command");
        assert!(command.contains("--steps 3") && command.contains("--tied true"), "{command}");
        check(command);
    }
    schedules.dedup();
    assert!(schedules.len() > 1, "{schedules:?}");
}

#[test]
fn what_was_said_is_not_chosen() {
    let folder = folder();
    let file = folder.path().join("run.toml");
    write(&file, "preset = 'tiny'\nschedule = 'chimera'\nscaling = 'doubling'\n").expect("a file");
    let said = format!("--config {} --depth 2 --micro-batch-size 2", file.display());
    let ran = chimera(&format!("{JOB} --memory 1GiB {said}"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let (table, command) = ran.stdout.trim().rsplit_once('\n').expect("lines");
    assert!(
        table.contains("\n1 configuration fits into 1 GiB a rank, ")
            && table.contains("chimera doubling"),
        "{table}"
    );
    check(command);
}

#[test]
fn a_network_that_is_left_out_is_warned_of() {
    let plan = |options: &str| {
        let ran =
            chimera(&format!("plan --ranks 16 --batch 128 --flops 1e14 --memory 24GiB {options}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran
    };
    let free = plan("--preset gpt2-1558m --top 1");
    assert!(free.stderr.starts_with("warning: no link is given"), "{}", free.stderr);
    assert!(free.stdout.contains("  data parallel  "), "{}", free.stdout);
    assert_eq!(plan("--preset gpt2-124m --top 1 --inside 5e-6,5e-12").stderr, "");
}

/// Steps that are too long to be simulated are estimated, and marked so.
#[test]
fn the_longest_steps_are_marked() {
    let job = "plan --ranks 2 --batch 65536 --depth 2 --micro-batch-size 1 --schedule zb-h1 --flops 1e11 --memory 1GiB \
               --inside 0,0";
    let ran = chimera(job);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains(" ~") && ran.stdout.contains("with ~ they are estimated"));
    let ran = chimera(&format!("{job} --json"));
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let (foreseen, n) = (&plan["ways"][0]["simulated"], &plan["ways"][0]["micro_batches"]);
    assert_eq!((foreseen.as_bool(), n.as_u64()), (Some(false), Some(65536)));
}

/// The name of the hardware provides rates, memory and links. Given values take precedence.
#[test]
fn data_sheets_answer_what_is_not_given() {
    let plan = |options: &str| {
        let ran = chimera(&format!("plan --ranks 8 --batch 64 --top 2 --json {options}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
        serde_json::from_str::<Value>(&ran.stdout).expect("JSON")
    };
    let h100 = plan("--hardware h100-sxm --preset gpt2-1558m");
    let way = &h100["ways"][0];
    let step = |time: &Value| time.as_f64().expect("a time");
    let [fast, slow] = [0, 1].map(|at| step(&way["step_s_range"][at]));
    assert!(fast < step(&way["step_s"]) && step(&way["step_s"]) < slow, "{way:#}");
    assert!(slow / fast <= 2.0 && slow / fast > 1.2, "{way:#}");
    assert_eq!((&h100["measured"], &h100["network"]), (&false.into(), &"described".into()));
    let command = h100["command"].as_str().expect("a command");
    assert!(command.contains("--device cuda") && command.contains("--precision bf16"), "{command}");
    let given = plan("--hardware h100-sxm --flops 1e12 --precision f32 --memory 1TB");
    assert_eq!(given["ways"][0]["step_s_range"], Value::Null);
    assert!(given["command"].as_str().is_some_and(|line| line.contains("--precision f32")));
    let ran = chimera("plan --ranks 32 --batch 512 --hardware p100-piz-daint --preset bert-48");
    assert!(ran.stdout.contains("the range is from 60 % to 30 %"), "{}", ran.stdout);
    assert!(ran.stdout.contains("\nnot measured: "), "{}", ran.stdout);
    let part = " a rank (92 % of the data sheet's memory), ";
    assert!(ran.stdout.contains(part), "{}", ran.stdout);
    let job = "plan --ranks 1 --batch 8 --hardware h100-sxm --preset tiny --memory 40GiB";
    let given = chimera(job).stdout;
    assert!(given.contains(" into 40 GiB a rank, ") && !given.contains(part), "{given}");
    assert!(given.contains("  one rank  ") && !given.contains(" data parallel "), "{given}");
    assert!(ran.stdout.contains("mpirun -n 32 --map-by ppr:1:node "), "{}", ran.stdout);
    let ran = chimera("plan --ranks 8 --batch 64 --hardware abacus");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("there is no hardware `abacus`"), "{}", ran.stderr);
    let folder = folder();
    let ran = chimera(&format!("plan --ranks 8 --batch 64 --hardware {}", folder.path().display()));
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.starts_with("error: cannot read "), "{}", ran.stderr);
}

/// An error names the file that has a wrong value, not the command line.
#[test]
fn a_wrong_value_of_a_data_sheet_is_said_to_be_in_its_file() {
    let folder = folder();
    let file = folder.path().join("mine.toml");
    let sheet = include_str!("../../plan/src/plan/costs/hardware/a100-40gb.toml");
    for (from, to, named) in [
        ("\"bf16\"", "\"fp8\"", "`precision` is \"fp8\": "),
        ("\"cuda\"", "\"tpu\"", "`device` is \"tpu\": "),
        ("latency-s = 5e-6", "latency-s = -1", "`inside.latency-s` is -1.0; "),
    ] {
        std::fs::write(&file, sheet.replacen(from, to, 1)).expect("a file");
        let ran = chimera(&format!("plan --ranks 8 --batch 64 --hardware {}", file.display()));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{to}");
        assert!(ran.stderr.contains("mine.toml") && ran.stderr.contains(named), "{}", ran.stderr);
    }
}

/// The order of a timetable in a file is fixed, whatever the scaling of others.
#[test]
fn a_timetable_in_a_file_is_not_said_to_scale() {
    let folder = folder();
    let file = folder.path().join("mine.json");
    let shown = chimera("schedule show 1f1b --depth 2 --micro-batches 4 --json");
    std::fs::write(&file, shown.stdout).expect("a file");
    let ran = chimera(&format!(
        "plan --ranks 4 --batch 16 --memory 1GiB --flops 1e12 --schedule {}",
        file.display()
    ));
    let line = ran.stdout.lines().find(|line| line.contains("mine.json")).expect("a line");
    assert!(!line.contains("auto"), "{line}");
}

/// Sizes are written as for `train`.
#[test]
fn memory_has_any_unit() {
    let plan = |memory: &str| {
        let ran = chimera(&format!("{JOB} --depth 2 --schedule 1f1b --memory {memory}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{memory}");
        ran.stdout
    };
    let wanted = plan("1GiB");
    for memory in ["1gib", "1073741824", "1048576KiB", "0.0009765625TiB"] {
        assert_eq!(plan(memory), wanted, "{memory}");
    }
    let shown = chimera("config show --bucket-size 1TB").stdout;
    assert!(shown.contains("bucket-size = \"976562500KiB\""), "{shown}");
}

/// The data may be missing too, if the vocabulary is given or follows from its name.
#[test]
fn data_may_be_elsewhere() {
    for options in ["--data none.bin --vocab 512", "--data none.txt"] {
        let ran = chimera(&format!("{JOB} --memory 1GiB --depth 2 {options}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
    }
}

/// Devices may be those of another machine.
#[test]
fn a_gpu_can_be_planned_for_where_there_is_none() {
    let bytes = |options: &str| {
        let ran =
            chimera(&format!("{JOB} --memory 1GiB --depth 2 --schedule 1f1b --json {options}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
        let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        plan["ways"][0]["bytes"]["activations"].as_f64()
    };
    assert!(bytes("--device cuda --precision bf16") < bytes("--device cuda"));
    assert_eq!(bytes("--device cpu --precision bf16"), bytes("--device cpu"));
}

#[test]
fn what_cannot_be_planned_is_refused() {
    for (options, hint) in [
        ("--memory 1MB", "the smallest, "),
        ("--memory 1MB", "on its peak rank"),
        ("--memory 1GiB --schedule pipedream", "choose a synchronous schedule"),
        ("--memory 1GiB --depth 3", "leave no way to train"),
        ("--memory 1GiB --depth 3", "--ranks must be a multiple of the depth, 3"),
        ("--memory 1GiB --heads 5", "heads"),
        (
            "--memory 1GiB --data none.bin",
            "the vocabulary follows from none.bin, which is not here",
        ),
        ("--memory 24Gigs", "such as 25MiB"),
        ("--memory 24", "is 24 byte(s) a rank: give it with its unit, such as 24GiB"),
    ] {
        let ran = chimera(&format!("{JOB} {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}");
        assert!(ran.stderr.contains(hint), "{options}: {}", ran.stderr);
    }
}

/// Each shape has the order that a search finds.
#[test]
fn orders_are_searched_on_request() {
    let ran = chimera(&format!("{JOB} --memory 1GiB --schedule auto --depth 4 --search-time 4"));
    assert_eq!((ran.code, ran.stderr.contains("panicked")), (Some(0), false), "{}", ran.stderr);
    let command = ran.stdout.lines().last().expect("the command that trains it");
    assert!(command.starts_with("chimera train --schedule auto --depth 4"), "{}", ran.stdout);
}

/// A search that is stopped reports so, with what it has not tried.
#[test]
fn a_plan_that_runs_out_of_time_says_so() {
    let ran = chimera(&format!(
        "{JOB} --memory 1GiB --batch 4096 --ranks 64 --layers 64 --search-time 0"
    ));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("choose a larger --search-time"), "{}", ran.stderr);
}

/// Ranks of several nodes have to be started there.
#[test]
fn a_plan_for_several_nodes_starts_their_ranks() {
    let plan = "plan --ranks 4 --batch 8 --memory 8GiB --flops 1e12 --schedule 1f1b --depth 4";
    let command = |options: &str| {
        let printed = chimera(&format!("{plan} {options}")).stdout;
        printed.lines().last().expect("a command").to_string()
    };
    let several = command("--ranks-per-node 2");
    assert!(several.starts_with("mpirun -n 4 --map-by ppr:2:node chimera train "), "{several}");
    for options in ["", "--ranks-per-node 4"] {
        assert!(command(options).starts_with("chimera train "), "{options}");
    }
}

/// People ask for these by name; each lists the parts of its step.
#[test]
fn answers_have_names_and_reasons() {
    let ran = chimera(&format!("{JOB} --memory 1GiB --tokens 20M --json"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(plan["model"]["parameters"].as_u64(), Some(956_352));
    let answers = &plan["answers"];
    for name in ["fastest", "simplest", "least_memory", "data_parallel"] {
        // Steps far from the fastest are only estimated, and have no parts.
        if answers[name]["simulated"] == true {
            let (step, parts) = (&answers[name]["step_s"], &answers[name]["parts"]);
            let sum: f64 = ["ideal_s", "bubble_s", "messages_s", "reductions_s", "unevenness_s"]
                .iter()
                .map(|part| parts[part].as_f64().expect("a time"))
                .sum();
            let step = step.as_f64().expect("a time");
            assert!((sum / step - 1.0).abs() < 1e-6, "{name}: {sum} {step}");
        }
        let days = answers[name]["days"].as_f64().expect("days");
        let rate = answers[name]["tokens_per_s"].as_f64().expect("a rate");
        assert!((days * 86_400.0 * rate / 20e6 - 1.0).abs() < 1e-9, "{name}: {days}");
    }
    assert_eq!(answers["fastest"]["simulated"], true);
    let step = |name: &str| answers[name]["step_s"].as_f64().expect("a time");
    assert!(step("simplest") <= 1.03 * step("fastest"));
    assert_eq!(answers["data_parallel"]["depth"].as_u64(), Some(1));
    // 32 samples of 128 tokens a step.
    let command = plan["command"].as_str().expect("a command");
    assert!(command.contains("--steps 4883"), "{command}");
}

#[test]
fn the_model_and_its_size_come_first() {
    let ran = chimera(&format!("{JOB} --memory 1GiB"));
    let first = ran.stdout.lines().next().expect("a line");
    assert_eq!(
        first,
        "tiny: 956k parameters, 8 layers of 96; a step of 32 samples of 128 tokens (4096 tokens) on 4 ranks"
    );
    for answer in ["\nfastest ", "\nsimplest within 3 % ", "\nleast memory ", "\ndata parallelism "]
    {
        assert!(ran.stdout.contains(answer), "{answer}: {}", ran.stdout);
    }
}

#[test]
fn settings_are_written_for_train() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name).display().to_string();
    write(at("base.toml"), "lr = 0.01\n").expect("a file");
    let options = format!("--config {} --out {}", at("base.toml"), at("run.toml"));
    let ran = chimera(&format!("{JOB} --memory 1GiB {options}"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let command = ran.stdout.lines().last().expect("a command");
    assert_eq!(command, format!("chimera train --config {}", at("run.toml")));
    let checked = chimera(&format!("config check {}", at("run.toml")));
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    let shown = chimera(&format!("config show --config {}", at("run.toml"))).stdout;
    assert!(shown.contains("lr = 0.01"), "{shown}");
    // Any other name is the directory of the run, as for `train`.
    let ran = chimera(&format!("{JOB} --memory 1GiB --out runs/mine"));
    assert!(ran.stdout.trim_end().ends_with("--out runs/mine"), "{}", ran.stdout);
}

#[test]
fn rates_and_links_have_units() {
    let plan = |options: &str| {
        let job = "plan --ranks 4 --batch 32 --depth 2 --schedule 1f1b";
        let ran = chimera(&format!("{job} {options}"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{options}");
        ran.stdout
    };
    let plain = plan("--flops 1e11 --memory 40000000000 --inside 1e-5,1e-9");
    assert_eq!(plan("--flops 100G --memory 40G --inside 10us,1GB/s"), plain);
    for name in ["h100", "h200", "b200", "a100", "v100", "l40s", "rtx4090", "mi300x"] {
        plan(&format!("--hardware {name}"));
    }
    let ran = chimera(&format!("{JOB} --memory 1GiB --depth 2 --inside 5e-6,300e9"));
    let warning = "warning: --inside: a byte takes 3e11 s on this link: write a latency and a rate";
    assert!(ran.stderr.starts_with(warning), "{}", ran.stderr);
}

/// A slow link costs a plan less if messages have fewer bits.
#[test]
fn a_plan_counts_the_bytes_of_rounded_messages() {
    let step_s = |wire: &str| {
        let job = "plan --ranks 2 --batch 8 --flops 1e12 --inside 1e-5,1e-6 --memory 1GiB";
        let shape = "--schedule 1f1b --depth 2 --width 1 --micro-batch-size 1";
        let ran = chimera(&format!("{job} {shape} --wire {wire} --json"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        let way = &plan["ways"][0];
        let command = way["command"].as_str().expect("a command");
        assert!(command.contains(&format!("--wire {wire}")), "{command}");
        way["step_s"].as_f64().expect("a time")
    };
    let [exact, bf16, int8] = ["f32", "bf16", "int8"].map(step_s);
    // The link is so slow that nothing else counts.
    assert!((bf16 / exact - 0.5).abs() < 0.02, "{bf16} of {exact}");
    assert!((int8 / exact - 17.0 / 64.0).abs() < 0.02, "{int8} of {exact}");
}
