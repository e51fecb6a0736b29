//! `chimera profile`, and predictions from it.

use std::fs::{read_to_string, write};
use std::process::Command;

use serde_json::Value;

use crate::command::{chimera, folder, start_with};

/// A model between the measured sizes.
const MODEL: &str = "--layers 2 --hidden 48 --heads 4 --context 24 --micro-batch-size 2 --micro-batches 2 --threads 1";

#[test]
fn two_workers_are_predicted_with_what_they_take_to_reach_each_other() {
    let folder = folder();
    let (profile, out) = (folder.path().join("profile.json"), folder.path().join("run"));
    let (profile, out) = (profile.display(), out.display());
    let measure = format!(
        "profile --preset tiny --micro-batch-size 1,2 --threads 1 --time 0 --out {profile}"
    );
    assert_eq!(chimera(&measure).code, Some(0));
    as_if_idle(&profile.to_string());
    let text = read_to_string(profile.to_string()).expect("a profile");
    let measured: Value = serde_json::from_str(&text).expect("JSON");
    let workers = measured["measured"].as_array().expect("measurements");
    let Some(several) = workers.iter().find(|measured| measured["workers"].as_u64() > Some(1))
    else {
        println!("skipped: this machine has one core");
        return;
    };
    for list in ["messages", "reductions", "moves"] {
        let all = several[list].as_array().expect("a list");
        assert!(
            all.len() > 2 && all.iter().all(|one| one["seconds"].as_f64() > Some(0.0)),
            "{all:?}"
        );
    }
    // A plan uses these times of messages instead of links, but between nodes they differ.
    let plan = |ranks: &str| {
        let model = MODEL.replace("--micro-batch-size 2 --micro-batches 2", "");
        let job = format!("plan {ranks} --batch 8 --memory 1GiB --profile {profile} {model}");
        let [json, table] = ["--json", ""].map(|more| chimera(&format!("{job} {more}")));
        assert_eq!(json.code, Some(0), "{}", json.stderr);
        let plan: Value = serde_json::from_str(&json.stdout).expect("JSON");
        assert_eq!(plan["network"], "profile");
        assert!(
            table.stdout.contains("\nmessages and gradient reductions take as long as between")
        );
        json.stderr
    };
    assert_eq!(plan("--ranks 2"), "");
    let warning = plan("--ranks 4 --ranks-per-node 2");
    assert!(warning.contains("between nodes are assumed to take as long"), "{warning}");
    // Every worker of Chimera reduces the gradients of both stages.
    let ran = chimera(&format!(
        "train {MODEL} --depth 2 --schedule chimera --recompute full --steps 3 --out {out} --predict {profile} --json"
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let figures = summary["prediction"].as_array().expect("figures");
    let predicted = |what: &str| {
        let figure = figures.iter().find(|figure| figure["what"] == what).expect(what);
        figure["predicted"].as_f64().expect("a number")
    };
    for what in ["reduction", "update", "recompute", "idle, reduction", "worker 1 memory, bytes"] {
        assert!(predicted(what) > 0.0, "{what}");
    }
    // Moves to the host take the measured time, and need no cap if that time is known.
    let moved = chimera(&format!(
        "train {MODEL} --depth 2 --schedule gpipe --offload auto --memory-cap 1 --steps 3 --out {out}-moved --predict {profile} --json"
    ));
    assert_eq!(moved.code, Some(0), "{}", moved.stderr);
    let moved: Value = serde_json::from_str(&moved.stdout).expect("JSON");
    let moved = moved["prediction"].as_array().expect("figures");
    for what in ["offload", "reload", "idle, move"] {
        let figure = moved.iter().find(|figure| figure["what"] == what).expect(what);
        for side in ["predicted", "measured"] {
            assert!(figure[side].as_f64() > Some(0.0), "{what}, {side}: {figure}");
        }
    }
    let free = format!(
        "train {MODEL} --depth 2 --schedule gpipe --offload auto --steps 1 --out {out}-free"
    );
    assert_eq!(chimera(&format!("{free} --profile {profile}")).code, Some(0));
    let refused = chimera(&free);
    assert!(
        refused.stderr.contains("--memory-cap, or the time of a move with --profile"),
        "{}",
        refused.stderr
    );
    // Memory does not require recomputation, and the output shows what recomputation costs.
    let suggestion = &summary["suggestion"];
    assert!(suggestion["less"].as_f64() >= Some(0.05), "{suggestion}");
    assert!(
        ran.stderr.contains(suggestion["options"].as_str().expect("options")),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_profile_predicts_a_model_that_was_not_measured() {
    let folder = folder();
    let profile = folder.path().join("profile.json");
    let profile = profile.display();
    let measured = format!(
        "profile --preset tiny --micro-batch-size 1,2 --threads 1 --time 0 --out {profile}"
    );
    let ran = chimera(&measured);
    assert_eq!((ran.code, but_for_busy(&ran.stderr)), (Some(0), String::new()));
    as_if_idle(&profile.to_string());
    assert!(ran.stdout.contains("worker(s) of 1 thread(s)"), "{}", ran.stdout);

    let out = folder.path().join("run");
    let train = format!(
        "train {MODEL} --optimizer adamw --depth 1 --steps 3 --out {} --predict {profile} --json",
        out.display()
    );
    let ran = chimera(&train);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("predicted: a step of "), "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let figures = summary["prediction"].as_array().expect("figures");
    let of = |what: &str| figures.iter().find(|figure| figure["what"] == what).expect(what);
    for what in ["step", "forward", "backward", "update", "worker 0 busy"] {
        let figure = of(what);
        let [predicted, measured] =
            ["predicted", "measured"].map(|key| figure[key].as_f64().expect("a number"));
        assert!(predicted > 0.0 && measured > 0.0, "{figure}");
        let error = predicted / measured - 1.0;
        assert!((figure["error"].as_f64().expect("a number") - error).abs() < 1e-9, "{figure}");
    }
    for memory in ["worker 0 memory, bytes", "peak memory, bytes"] {
        assert!(of(memory)["error"].as_f64().expect("a number").abs() < 0.01);
    }
    if cfg!(target_os = "linux") {
        let process = of("process memory, bytes");
        assert!(process["measured"].as_f64() > of("peak memory, bytes")["measured"].as_f64());
    }

    let plan = format!(
        "plan --ranks 2 --batch 8 --memory 1GiB --inside 0,0 --profile {profile} {MODEL} --json"
    );
    let plan = plan.replace("--micro-batch-size 2 --micro-batches 2", "");
    let ran = chimera(&plan);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let plan: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(plan["measured"], true);
    let [fast, slow] = [0, 1].map(|i| plan["ways"][0]["step_s_range"][i].as_f64().expect("a time"));
    let step = plan["ways"][0]["step_s"].as_f64().expect("a time");
    assert!(fast <= step && step <= slow, "{fast} {step} {slow}");

    let simulated = |line: &str| -> Value {
        let ran = chimera(&format!("simulate {line} --json"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).expect("JSON")
    };
    let alone = simulated(&format!("1f1b --depth 1 --profile {profile} {MODEL}"));
    assert_eq!(alone["unit"], "second");
    assert_eq!(alone["step"], alone["makespan"]);
    // Without variation, the predicted step of a run includes updates, at the machine's speed
    // during the profile.
    let measured = std::fs::read_to_string(profile.to_string()).expect("the profile");
    let mut measured: Value = serde_json::from_str(&measured).expect("JSON");
    let profiled = measured["measured"][0]["reference_s"].as_f64().expect("a time");
    without_spread(&mut measured);
    let steady = folder.path().join("steady.json");
    std::fs::write(&steady, measured.to_string()).expect("written");
    let steady = steady.display();
    let ran = chimera(&format!(
        "train {MODEL} --depth 1 --optimizer adamw --steps 2 --out {}-steady --predict {steady} --json",
        out.display()
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let of_steady: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let predicted = |what: &str| {
        let figures = of_steady["prediction"].as_array().expect("figures");
        let figure = figures.iter().find(|figure| figure["what"] == what).expect(what);
        figure["predicted"].as_f64().expect("a time")
    };
    let step = predicted("step") * profiled / predicted("reference work");
    let makespan = simulated(&format!("1f1b --depth 1 --profile {steady} {MODEL}"))["makespan"]
        .as_f64()
        .expect("a time");
    assert!((makespan / step - 1.0).abs() < 1e-9, "{makespan} {step}");
    // Muon multiplies the matrices of layers, and each matrix size was measured.
    let muon =
        chimera(&train.replace("--depth 1", "--depth 1 --optimizer muon").replace("/run", "/muon"));
    assert_eq!(muon.code, Some(0), "{}", muon.stderr);
    assert!(!muon.stderr.contains("no profile has"), "{}", muon.stderr);
    let summary: Value = serde_json::from_str(&muon.stdout).expect("JSON");
    let mut its = summary["prediction"].as_array().expect("figures").iter();
    let update = its.find(|figure| figure["what"] == "update").expect("an update");
    assert!(update["predicted"].as_f64() > of("update")["predicted"].as_f64(), "{update}");
    let maps = measured["measured"][0]["layers"].as_array().expect("layers");
    let maps = maps.iter().filter(|layer| layer["layer"] == "muon");
    let sides = maps.map(|map| map["extents"].as_array().expect("extents").len());
    assert!(sides.clone().count() > 1 && sides.clone().all(|n| n == 3), "{:?}", sides.max());
    // One of its two layers, with its times from the profile.
    let again = simulated(&format!(
        "1f1b --depth 1 --profile {profile} {MODEL} --recompute full --recompute-stages 0:1"
    ));
    assert!(again["makespan"].as_f64() > Some(makespan), "{again}");
    let both = simulated(&format!("1f1b --depth 2 --profile {profile} {MODEL}"));
    let busy = |of: &Value, w: usize| of["workers"][w]["busy"].as_f64().expect("a time");
    assert!(
        busy(&both, 0) > 0.0 && busy(&both, 1) > busy(&both, 0),
        "the head is the last's: {both}"
    );
    // A plan predicts the same, except for the slowdown by other workers.
    let job = format!("--depth 2 --in-turn 1 --profile {profile} {MODEL}");
    let planned =
        chimera(&format!("plan --ranks 2 --batch 4 --memory 1GiB --schedule 1f1b {job} --json"));
    assert_eq!(planned.code, Some(0), "{}", planned.stderr);
    let planned: Value = serde_json::from_str(&planned.stdout).expect("JSON");
    let planned = planned["ways"][0]["step_s"].as_f64().expect("a time");
    let step = simulated(&format!("1f1b {job}"))["step"].as_f64().expect("a time");
    assert!((planned / step - 1.0).abs() < 1e-6, "{planned} {step}");
    for (options, named) in [
        (format!("--profile {profile} --forward 1"), "leave out --forward, --backward"),
        ("--preset tiny".into(), "name one with --profile, or leave preset out"),
        ("--profile none.json".into(), "none.json"),
        (format!("--profile {profile} --threads 1 --depth 4 --layers 2"), "layers"),
        (format!("--profile {profile} {MODEL} --depth 2 --model llama"), "no times of `rms_norm`"),
        (format!("--profile {profile} --threads 7"), "no times of 7 thread(s)"),
        (
            format!(
                "--profile {profile} {MODEL} --depth 2 --recompute full --recompute-stages 0:3"
            ),
            "stage 0 recomputes 3 layers, but it has 1",
        ),
    ] {
        let ran = chimera(&format!("simulate 1f1b {options}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
        assert!(ran.stderr.contains(named), "{options}: {}", ran.stderr);
    }

    let refused = chimera(&format!(
        "train {MODEL} --depth 1 --model llama --predict {profile} --out {}",
        out.display()
    ));
    let named = format!("the profile {profile} has no times of `rms_norm`");
    assert!(refused.stderr.contains(&named), "{}", refused.stderr);
    let refused = chimera(&train.replace("--threads 1", "--threads 7"));
    let named = format!("{profile}: the profile has no times of 7 thread(s)");
    assert!(refused.stderr.contains(&named), "{}", refused.stderr);

    let simulate = format!("simulate 1f1b --depth 1 --profile {profile} {MODEL}");
    let_the_machine_be(&profile.to_string(), 0.9);
    let doubted = chimera(&simulate);
    assert_eq!(doubted.code, Some(0), "{}", doubted.stderr);
    assert!(doubted.stderr.contains("times may be 11 % too long"), "{}", doubted.stderr);
    let_the_machine_be(&profile.to_string(), 0.5);
    for line in [&simulate, &train.replace("/run", "/busy")] {
        let refused = chimera(line);
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let why = "measure again with `chimera profile` while the machine does nothing else";
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
        let taken = chimera(&format!("{line} --any-profile=true"));
        assert_eq!(taken.code, Some(0), "{}", taken.stderr);
        assert!(taken.stderr.contains("times may be 100 % too long"), "{}", taken.stderr);
    }
    as_if_idle(&profile.to_string());

    let text = read_to_string(profile.to_string()).expect("a profile");
    let machine = text.lines().find(|line| line.contains("\"machine\"")).expect("a machine");
    write(profile.to_string(), text.replace(machine, "  \"machine\": \"an abacus\","))
        .expect("a file");
    let refused = chimera(&train);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("its machine is an abacus, not "), "{}", refused.stderr);
    let again = folder.path().join("again");
    let train = train.replace(&out.display().to_string(), &again.display().to_string());
    let taken = chimera(&format!("{train} --any-profile true"));
    assert_eq!(taken.code, Some(0), "{}", taken.stderr);
    assert!(taken.stderr.contains("warning: the profile is of another kind"), "{}", taken.stderr);
}

#[test]
fn a_negative_time_to_measure_for_is_refused() {
    let ran = chimera("profile --time -1");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--time -1 is not in 0..=1e6"), "{}", ran.stderr);
}

/// Products in bf16 have times of their own. Activations take as much memory as in f32.
#[test]
fn a_profile_in_bf16_predicts_training_in_bf16_alone() {
    let folder = folder();
    let profile = folder.path().join("profile.json");
    let profile = profile.display();
    let ran = chimera(&format!(
        "profile --preset tiny --micro-batch-size 1,2 --threads 1 --time 0 --precision bf16 --out {profile}"
    ));
    assert_eq!((ran.code, but_for_busy(&ran.stderr)), (Some(0), String::new()));
    as_if_idle(&profile.to_string());
    assert!(ran.stdout.contains(", cpu, bf16"), "{}", ran.stdout);

    let train = format!("train {MODEL} --depth 1 --steps 3 --predict {profile} --json");
    let ran = chimera(&format!("{train} --precision bf16"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let summary: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let figures = summary["prediction"].as_array().expect("figures");
    let memory = figures.iter().find(|figure| figure["what"] == "peak memory, bytes");
    let error = memory.expect("memory")["error"].as_f64().expect("a number");
    assert!(error.abs() < 0.01, "{error}");

    let ran = chimera(&train);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("precision"), "{}", ran.stderr);
}

/// Removes from a profile that other programs used the test machine.
fn as_if_idle(profile: &str) {
    let_the_machine_be(profile, 1.0);
}

/// Sets the share of its cores that the process got, as a profile records it.
fn let_the_machine_be(profile: &str, core_share: f64) {
    let text = read_to_string(profile).expect("a profile");
    let mut measured: Value = serde_json::from_str(&text).expect("JSON");
    for of_workers in measured["measured"].as_array_mut().expect("measurements") {
        assert!(of_workers["reference_quick_s"].as_f64() > Some(0.0), "{of_workers}");
        of_workers["reference_quick_s"] = of_workers["reference_s"].clone();
        of_workers["core_share"] = core_share.into();
    }
    write(profile, serde_json::to_string_pretty(&measured).expect("JSON")).expect("written");
}

/// Standard error without the extra lines of a busy machine: a warning, and progress every 15
/// seconds.
fn but_for_busy(stderr: &str) -> String {
    let is_of_busy =
        |line: &&str| line.contains("the machine was busy") || line.starts_with("measuring with ");
    stderr.lines().filter(|line| !is_of_busy(line)).collect()
}

/// Ranks would measure at the same time, and write one file.
#[test]
fn ranks_do_not_measure_a_profile() {
    let folder = folder();
    let out = folder.path().join("profile.json");
    let line = format!("profile --preset tiny --threads 1 --time 0 --out {}", out.display());
    for (n_ranks, code) in [("2", 2), ("1", 0)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_chimera"));
        command.envs([("OMPI_COMM_WORLD_SIZE", n_ranks), ("OMPI_COMM_WORLD_RANK", "0")]);
        let ran = start_with(command, &line).wait();
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert_eq!(out.exists(), code == 0);
        assert_eq!(ran.stderr.contains("start it once on each machine"), code == 2);
    }
}

/// Removes all variation from the times of a profile.
fn without_spread(profile: &mut Value) {
    match profile {
        Value::Object(keys) => {
            for (key, value) in keys {
                match key.as_str() {
                    "spread" => *value = 0.0.into(),
                    _ => without_spread(value),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(without_spread),
        _ => {}
    }
}
