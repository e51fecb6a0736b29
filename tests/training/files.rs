//! The files that a run writes.

use std::collections::BTreeMap;
use std::fs::{read, read_dir, read_to_string, remove_dir_all, remove_file};
use std::path::Path;
use std::process::Command;

use chimera::core::engine::{Load, Recoveries, StepReport};
use chimera::observe::Metrics;
use chimera::run::Folder;
use proptest::prelude::*;
use safetensors::{Dtype, SafeTensors};

use super::{MODEL, prepare, train};
use crate::command::{chimera, folder, text};

const KEYS: [&str; 12] = [
    "step",
    "loss",
    "grad_norm",
    "lr",
    "tokens",
    "tokens_seen",
    "step_s",
    "tokens_per_s",
    "bubble_ratio",
    "bytes",
    "max_rank_bytes",
    "mfu",
];

/// The numbers of each line as written, in the order of the keys.
fn lines(metrics: &Path) -> Vec<Vec<String>> {
    let text = read_to_string(metrics).expect("metrics");
    assert!(text.ends_with('\n'), "{text}");
    let line = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        let (line, _) = line.split_once(",\"ranks\":").expect("the ranks stand last");
        let pairs = line.trim_matches(['{', '}']).split(',').map(|pair| pair.split_once(':'));
        let (keys, numbers): (Vec<_>, Vec<_>) = pairs.map(|pair| pair.expect("a pair")).unzip();
        assert_eq!(keys, KEYS.map(|key| format!("\"{key}\"")));
        numbers.into_iter().map(str::to_string).collect()
    };
    text.lines().map(line).collect()
}

/// The numbers of one key, bit for bit. (serde_json would round some of them.)
fn column(metrics: &Path, key: &str) -> Vec<u64> {
    let at = KEYS.iter().position(|k| *k == key).expect("a key");
    let bits = |line: Vec<String>| line[at].parse::<f64>().expect("a number").to_bits();
    lines(metrics).into_iter().map(bits).collect()
}

#[test]
fn metrics_hold_every_step_to_the_bit() {
    let folder = folder();
    let data = text(&folder);
    let out = folder.path().join("run");
    let options = format!("{MODEL} --data {} --width 2 --micro-batches 3", data.display());
    let ran = chimera(&format!("train {options} --out {}", out.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let metrics = out.join("metrics.jsonl");
    for (step, line) in lines(&metrics).iter().enumerate() {
        let number = |i: usize| line[i].parse::<f64>().expect("a number");
        let tokens = 2 * 3 * 2 * 16;
        assert_eq!((&line[0], &line[4]), (&step.to_string(), &tokens.to_string()));
        assert_eq!(line[5], ((step + 1) * tokens).to_string(), "tokens_seen");
        assert_eq!(number(7), 192.0 / number(6), "tokens_per_s");
        assert!((0.0..=1.0).contains(&number(8)), "bubble_ratio");
        assert!(number(10) > 0.0 && number(10) <= number(9), "max_rank_bytes");
    }
    let (reports, _) = train(&options);
    assert_eq!(reports.len(), 5);
    let bits =
        |f: fn(&StepReport) -> f64| reports.iter().map(|r| f(r).to_bits()).collect::<Vec<_>>();
    assert_eq!(column(&metrics, "loss"), bits(|r| r.loss));
    assert_eq!(column(&metrics, "grad_norm"), bits(|r| r.grad_norm));
    assert_eq!(column(&metrics, "lr"), bits(|r| r.lr));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 200, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn any_number_reads_back(
        numbers in prop::array::uniform5(any::<f64>().prop_filter("finite", |x| x.is_finite())),
        step in 0..1u64 << 53,
    ) {
        let folder = folder();
        let run = prepare(&format!("--out {}", folder.path().display()));
        let [loss, grad_norm, lr, step_s, bubble_ratio] = numbers;
        let report = StepReport {
            step, loss, has_targets: true, grad_norm, lr, step_s, copy_s: 0.0, ranks: vec![Load { bubble_ratio, ..Load::default() }],
            validation_loss: None, skipped: None, n_skipped: 0, is_bordered: false, n_repeated: 0, recoveries: Recoveries::default(), stop: false,
        };
        let metrics = Metrics::of(&report, 1, Some(1.0));
        Folder::create(run.config()).and_then(|mut f| f.record(&metrics, &|_| ())).expect("a line");
        let metrics = folder.path().join("metrics.jsonl");
        for (key, number) in [
            ("loss", loss), ("grad_norm", grad_norm), ("lr", lr), ("step_s", step_s),
            ("bubble_ratio", bubble_ratio),
        ] {
            prop_assert_eq!(column(&metrics, key), [number.to_bits()]);
        }
        prop_assert_eq!(&lines(&metrics)[0][0], &step.to_string());
    }
}

#[test]
fn saved_weights_are_keyed_by_name_and_equal_to_the_bit() {
    let folder = folder();
    let data = text(&folder);
    let model = format!("{MODEL} --data {}", data.display());
    let save = |name: &str, options: &str| {
        let to = folder.path().join(format!("{name}-weights"));
        let out = folder.path().join(name);
        let places = format!("--out {} --save {}", out.display(), to.display());
        let ran = chimera(&format!("train {options} {places}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert_eq!(read_dir(&to).map_or(0, Iterator::count), 3, "not a model and whose it is");
        read(to.join("model.safetensors")).expect("weights")
    };
    let options = format!("{model} --depth 4 --pipes 4 --width 2 --micro-batches 3");
    let first = save("first", &options);
    assert!(first == save("again", &options), "equal runs save different files");

    let saved = SafeTensors::deserialize(&first).expect("safetensors");
    let (_, trained) = train(&options);
    let n_elements: usize = trained.weights.iter().map(|(p, _)| p.n_elements()).sum();
    assert_eq!(n_elements as u64, prepare(&options).model().n_params());
    assert_eq!(saved.len(), trained.weights.len());
    for (param, values) in &trained.weights {
        let name = format!("transformer.{}", param.name);
        let name = if param.name.starts_with("lm_head") { &param.name } else { &name };
        let tensor = saved.tensor(name).expect("named after the parameter");
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &param.shape[..]));
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(tensor.data() == bytes, "{}", param.name);
    }

    let alone = save("alone", &format!("{model} --depth 1"));
    let alone = SafeTensors::deserialize(&alone).expect("safetensors");
    let shapes = |file: &SafeTensors<'_>| {
        let tensors = file.tensors().into_iter();
        let shapes = tensors.map(|(name, tensor)| (name, tensor.shape().to_vec()));
        shapes.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(shapes(&alone), shapes(&saved), "names depend on the pipeline");
    for name in ["wte.weight", "h.0.attn.c_attn.weight", "h.7.mlp.c_proj.bias", "ln_f.weight"] {
        let name = format!("transformer.{name}");
        assert!(saved.tensor(&name).is_ok(), "{name} is not among {:?}", saved.names());
    }
}

#[test]
fn the_settings_of_a_run_make_the_same_run() {
    let folder = folder();
    let data = text(&folder);
    let (out, other) = (folder.path().join("run"), folder.path().join("other"));
    let options = format!(
        "{MODEL} --data {} --lr 0.0123 --seed 5 --scaling halving --sync eager --tied --warmup 2",
        data.display()
    );
    let first = chimera(&format!("train {options} --out {}", out.display()));
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let config = out.join("config.toml");
    let again = chimera(&format!("train --config {} --out {}", config.display(), other.display()));
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    for key in ["loss", "grad_norm", "lr"] {
        let of = |run: &Path| column(&run.join("metrics.jsonl"), key);
        assert_eq!((of(&out), of(&out).len()), (of(&other), 5), "{key}");
    }
}

#[test]
fn a_run_ends_with_what_it_learnt() {
    let folder = folder();
    let data = text(&folder);
    let train = |more: &str| {
        let ran = chimera(&format!("train {MODEL} --depth 4 --data {} {more}", data.display()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    let said = train("");
    let mut last = said.lines().rev();
    let report = last.next().and_then(|line| line.strip_prefix("report: runs/"));
    let next =
        last.next().and_then(|line| line.strip_prefix("next: chimera generate --model runs/"));
    let run = last.next().and_then(|line| line.strip_prefix("run: runs/"));
    let run = run.expect("the folder");
    assert!(next.is_some_and(|next| next.starts_with(run)), "{said}");
    assert_eq!(report, Some(format!("{run}/report.html").as_str()));
    for part in ["step 0  loss ", "step 4  loss ", "validation loss ", "sample:", "  P3 "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let out = folder.path().join("run");
    let summary = train(&format!("--json --out {}", out.display()));
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON alone");
    let path = out.display().to_string();
    assert_eq!((&summary["steps"], &summary["run"]), (&5.into(), &path.into()));
    let loss = summary["validation_loss"].as_f64();
    assert!(loss.is_some_and(|loss| (2.0..6.0).contains(&loss)), "{summary}");
    for file in ["config.toml", "metrics.jsonl", "pipeline.svg"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(!out.join("error.0.json").exists());
}

#[test]
fn a_start_that_is_refused_leaves_no_folder() {
    let folder = folder();
    for refused in ["--trace none/t.json", "--metrics none/m.jsonl", "--resume none"] {
        let line = format!("train {MODEL} {refused}");
        let ran = Command::new(env!("CARGO_BIN_EXE_chimera"))
            .args(line.split_whitespace())
            .current_dir(folder.path())
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && !said.contains("another run"), "{said}");
    }
    assert_eq!(read_dir(folder.path().join("runs")).expect("a folder").count(), 0);
}

#[test]
fn a_run_without_checkpoints_is_not_overwritten_by_another() {
    let folder = folder();
    let data = text(&folder);
    let out = folder.path().join("run");
    let train = |more: &str| {
        let place = format!("--data {} --out {}", data.display(), out.display());
        chimera(&format!("train {MODEL} {place} {more}"))
    };
    assert_eq!(train("").code, Some(0));
    // As if the run was killed before its end.
    remove_file(out.join("summary.json")).expect("a summary");
    remove_dir_all(out.join("model")).expect("a model");
    let whole = || (read(out.join("metrics.jsonl")).ok(), read(out.join("config.toml")).ok());
    let before = whole();
    let refused = train("--seed 7 --resume auto");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("seed: 1 there, 7 now"), "{}", refused.stderr);
    assert!(whole() == before);
    assert_eq!(train("--resume auto").code, Some(0));
}

#[test]
fn a_long_run_keeps_the_times_of_its_last_steps_only() {
    let small = "--layers 1 --hidden 8 --heads 1 --context 8 --depth 1 --micro-batches 1 \
                 --micro-batch-size 1 --threads 1";
    for (n_steps, n_kept) in [(1, 0), (5, 4), (130, 100)] {
        let (reports, trained) = train(&format!("{small} --steps {n_steps}"));
        let times: Vec<f64> = reports.iter().map(|report| report.step_s).collect();
        assert_eq!(trained.steps_s, times[times.len() - n_kept..], "{n_steps}");
    }
}
