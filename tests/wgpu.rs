//! Training on wgpu adapters: as on the CPU, with any schedule, with workers that share an adapter.

mod command;

use std::fs::read_to_string;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use chimera::core::engine::StepReport;
use chimera::run::Run;
use chimera::run::outside::OnDisk;
use chimera::settings::Layers;

use command::{chimera, folder, text};

/// A model small enough for a software adapter.
const MODEL: &str = "--layers 4 --hidden 16 --heads 2 --context 16 --micro-batch-size 2 --depth 4 \
                     --micro-batches 4 --threads 1 --optimizer adamw --lr-schedule cosine";

fn prepare(options: &str) -> anyhow::Result<Run> {
    let layers = Layers::parse(&format!("{MODEL} --steps 4 {options}")).expect("options");
    Run::prepare(layers.resolve(&OnDisk)?)
}

fn train(options: &str) -> Vec<StepReport> {
    let run = prepare(options).unwrap_or_else(|refusal| panic!("{options}: {refusal}"));
    let reports = Mutex::new(Vec::new());
    let observe = |report: &StepReport| {
        reports.lock().expect("one writer").push(report.clone());
        Ok(())
    };
    let trained = run.train(&AtomicBool::new(false), observe);
    trained.unwrap_or_else(|fault| panic!("{options}: {fault}"));
    reports.into_inner().expect("one writer")
}

fn losses(reports: &[StepReport]) -> Vec<f64> {
    reports.iter().map(|report| report.loss).collect()
}

/// The losses of all steps that the run in this folder has recorded.
fn recorded(run: &Path) -> Vec<f64> {
    let text = read_to_string(run.join("metrics.jsonl")).expect("metrics");
    let loss = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a whole line");
        line["loss"].as_f64().expect("a loss")
    };
    text.lines().map(loss).collect()
}

/// Checks that training computes what the CPU computes: every loss, and the norm of every gradient.
fn compare(schedule: &str) {
    compare_on("wgpu:0", schedule);
}

fn compare_on(devices: &str, schedule: &str) {
    let [cpu, gpu] =
        ["cpu", devices].map(|devices| train(&format!("--schedule {schedule} --device {devices}")));
    assert_eq!(cpu.len(), 4, "{schedule}");
    for (cpu, gpu) in cpu.iter().zip(&gpu) {
        let step = cpu.step;
        let (loss, norm) = ((cpu.loss - gpu.loss).abs(), cpu.grad_norm - gpu.grad_norm);
        assert!(loss < 1e-4, "{schedule} step {step}: {} and {}", cpu.loss, gpu.loss);
        assert!(norm.abs() < 1e-4 * cpu.grad_norm, "{schedule} step {step}: {cpu:?} {gpu:?}");
    }
    assert!(gpu[3].loss < gpu[0].loss, "{schedule} learns nothing: {:?}", losses(&gpu));
}

/// A software adapter uses the host's memory.
#[test]
fn a_model_larger_than_memory_is_refused_on_a_software_adapter() {
    let is_software = chimera("devices").stdout.contains("wgpu:0: llvmpipe");
    if !is_software {
        return; // a GPU does not report its memory
    }
    let refusal = prepare("--layers 400 --hidden 4096 --device wgpu").err().expect("refused");
    let refusal = refusal.to_string();
    assert!(refusal.contains("on this host") && refusal.contains("are free"), "{refusal}");
}

#[test]
fn gpipe_trains_as_on_the_cpu() {
    compare("gpipe");
}

#[test]
fn dapple_trains_as_on_the_cpu() {
    compare("dapple");
}

#[test]
fn chimera_trains_as_on_the_cpu() {
    compare("chimera");
}

#[test]
fn zb_h1_trains_as_on_the_cpu() {
    compare("zb-h1");
}

#[test]
fn tied_heads_clipping_and_lamb_train_as_on_the_cpu() {
    compare("chimera --tied --clip 0.5 --optimizer lamb");
}

#[test]
fn recomputation_and_momentum_train_as_on_the_cpu() {
    compare("dapple --recompute full --optimizer sgd --lr 0.05 --width 2");
}

/// Grouped heads, biases, a window shorter than the context: everything that distinguishes Llama,
/// Qwen2 and Mistral.
const LLAMA: &str = "--model llama --kv-heads 1 --qkv-bias --sliding-window 6";

#[test]
fn a_llama_trains_as_on_the_cpu() {
    for schedule in [
        "gpipe",
        "dapple --tied --activation gelu",
        "chimera --recompute selective --dropout 0.1",
        "chimera --layers 8 --pipes 4 --scaling halving --rope-scaling linear:factor=2",
        "zb-h1 --clip 0.5",
        "dualpipe --layers 8 --micro-batches 8 --recompute full",
    ] {
        compare(&format!("{schedule} {LLAMA}"));
    }
}

#[test]
fn workers_on_wgpu_and_on_the_cpu_train_together() {
    compare_on("wgpu:0,cpu,wgpu:0,cpu", "dapple --eval-every 2");
    compare_on("cpu,wgpu:0,cpu,wgpu:0", "zb-h1 --clip 0.5");
}

/// The replicas of Chimera's stages lie on the first and the last worker, and on the two between.
#[test]
fn replicas_on_like_devices_stay_equal() {
    compare_on("cpu,wgpu:0,wgpu:0,cpu", "chimera --check-replicas 1");
}

#[test]
fn replicas_on_unlike_devices_are_refused() {
    let refusal = |options: &str| prepare(options).err().expect("it is refused").to_string();
    let unlike = "--schedule chimera --device cpu,cpu,wgpu:0,wgpu:0";
    let message = refusal(unlike);
    for part in ["stage 0 has replicas on worker 0 (cpu) and worker 3 (wgpu (", "shard-optimizer"] {
        assert!(message.contains(part), "{message}");
    }
    let message = refusal("--schedule dapple --tied --device cpu,cpu,cpu,wgpu:0");
    assert!(message.contains("stage 0 with stage 3"), "{message}");
    prepare("--schedule dapple --width 2 --device cpu,wgpu:0,cpu,cpu").expect("groups are alike");
}

/// If one replica updates a tensor for all, all have the same bits, whatever their devices.
#[test]
fn unlike_replicas_share_an_optimizer() {
    let options = "chimera --shard-optimizer --check-replicas 1";
    compare_on("cpu,cpu,wgpu:0,wgpu:0", options);
}

#[test]
fn the_same_run_gives_the_same_bits() {
    let runs = [(); 2].map(|()| losses(&train("--schedule chimera --device wgpu")));
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn devices_lists_what_device_names() {
    let ran = chimera("devices");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for part in ["cpu: ", "wgpu:0: ", "kernels in f32", "bound", "matrix products by "] {
        assert!(ran.stdout.contains(part), "{part} is not in\n{}", ran.stdout);
    }
}

/// Four workers on one adapter, from the command line, up to a checkpoint. The CPU continues from it
/// as if it had trained from the start.
#[test]
fn a_run_goes_on_elsewhere() {
    let folder = folder();
    let data = text(&folder);
    let train = |run: &Path, steps: u64, device: &str| {
        let ran = chimera(&format!(
            "train {MODEL} --steps {steps} --lr-schedule constant --warmup 1 --device {device} --data {} --out {} \
             --save-every 1 --resume auto",
            data.display(),
            run.display(),
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    };
    let [moved, stayed] = ["moved", "stayed"].map(|name| folder.path().join(name));
    let first = train(&moved, 2, "wgpu");
    assert!(first.contains("worker(s) on wgpu ("), "{first}");
    let rest = train(&moved, 4, "cpu");
    assert!(rest.contains("step 2 is next"), "{rest}");
    train(&stayed, 4, "cpu");
    let [moved, stayed] = [moved, stayed].map(|run| recorded(&run));
    assert_eq!((moved.len(), stayed.len()), (4, 4));
    for (is, was) in moved.iter().zip(&stayed) {
        assert!((is - was).abs() < 1e-4, "{moved:?} and {stayed:?}");
    }
}

#[test]
fn an_adapter_that_is_not_there_is_refused() {
    let ran = chimera("train --device wgpu:99");
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("there is no adapter wgpu:99"), "{}", ran.stderr);
}

/// The loss of a text, and its generated continuation.
#[test]
fn trained_models_are_used_on_an_adapter() {
    is_used("");
    is_used(LLAMA);
}

fn is_used(options: &str) {
    let folder = folder();
    let (data, model) = (text(&folder), folder.path().join("model"));
    let (data, model, run) = (data.display(), model.display(), folder.path().join("run"));
    let trained = chimera(&format!(
        "train {MODEL} {options} --steps 2 --data {data} --out {} --save {model}",
        run.display()
    ));
    assert_eq!(trained.code, Some(0), "{}", trained.stderr);
    let loss = |device: &str| {
        let line = format!("eval --model {model} --data {data} --device {device} --json");
        let ran = chimera(&line);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        report["loss"].as_f64().expect("a loss")
    };
    let [cpu, gpu] = ["cpu", "wgpu"].map(loss);
    assert!((cpu - gpu).abs() < 1e-4, "{cpu} and {gpu}");
    let text = ["cpu", "wgpu:0"].map(|device| {
        let greedy = "--tokens 8 --temperature 0 --tokenizer ids --json";
        let ran = chimera(&format!(
            "generate --model {model} --prompt 72,101 {greedy} --device {device}"
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout
    });
    assert_eq!(text[0], text[1]);
}
