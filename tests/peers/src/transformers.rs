//! GPT-2, BERT and Llama models, read and written by Chimera and by Hugging Face's `transformers`:
//! both compute the same logits from a folder, and an export of a model of theirs has the same
//! bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use xtask::command::{cargo, files, given_python, read, root, run as run_command};

/// Largest difference of two logits, and of two losses.
const TOLERANCE: f64 = 1e-4;
/// The folder of the tests' models.
const FIXTURES: &str = "tests/fixtures";
/// The models, and the number of byte ids of Chimera's own.
const MODELS: [(&str, usize); 3] = [("gpt2", 256), ("bert", 260), ("llama", 256)];
/// Tokens per sample of the random models.
const SEQUENCE: usize = 16;
/// Sizes of Chimera's own models.
const SIZES: &str = "--layers 3 --hidden 32 --heads 4 --context 24";

/// The options of the comparison.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Python that has torch and transformers [default: a fresh one in target/transformers, which downloads
    /// them]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Writes its models into tests/fixtures too
    #[arg(long)]
    write: bool,
    /// Number of Llama, Qwen2 and Mistral models with random configurations to compare and to train
    /// for some steps
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    drawn: usize,
    /// Seed of the random configurations
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Makes models on both sides and compares the results.
pub(crate) fn run(args: &Args) -> Result<()> {
    let packages = ["torch", "transformers"];
    let python = given_python(args.python.as_deref(), "transformers", &packages)?;
    for (model, vocab) in MODELS {
        let script = format!("tests/peers/transformers_{model}.py");
        check(&Peer { python: python.clone(), script }, model, vocab, args.write)?;
    }
    let script = "tests/peers/transformers_llama.py".to_string();
    check_drawn(&Peer { python, script }, args)
}

/// Reads, exports and trains models with random configurations.
fn check_drawn(peer: &Peer, args: &Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
    peer.ask(&[
        "draw",
        &theirs.display().to_string(),
        &args.seed.to_string(),
        &args.drawn.to_string(),
    ])?;
    for kind in kinds(&theirs)? {
        let (name, out) = (name(&kind), ours.join(name(&kind)));
        let expected = Expected::of(&kind)?;
        check_passed_on(peer, &kind, &out, &expected)?;
        check_bytes(&kind, &out)?;
        for way in [
            "--depth 1 --micro-batches 1 --micro-batch-size 8",
            "--depth 1 --micro-batches 4 --micro-batch-size 2",
        ] {
            compare(
                &format!("{name}, losses of {way}"),
                &losses_here(&kind, &out, way)?,
                &expected.losses,
            )?;
        }
    }
    Ok(())
}

/// Losses of training steps on all the tokens beside a model.
fn losses_here(kind: &Path, out: &Path, way: &str) -> Result<Vec<f64>> {
    let (kind, run) = (kind.display(), out.with_extension(way.replace(' ', "")));
    // Scaled frequencies make Chimera's context longer than theirs.
    let data =
        format!("--data {kind}/ids.bin --validation-data {kind}/ids.bin --sequence {SEQUENCE}");
    let optimizer =
        "--lr 1e-3 --lr-schedule constant --warmup 0 --beta2 0.95 --weight-decay 0.1 --clip 1";
    let out = run.display();
    chimera(&format!(
        "train --init {kind} {data} {way} --steps 20 {optimizer} --no-save true --out {out}"
    ))?;
    losses_of(&run)
}

/// Losses in the metrics of a run.
pub(crate) fn losses_of(run: &Path) -> Result<Vec<f64>> {
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl"))?;
    let loss = |line: &str| serde_json::from_str::<Value>(line).ok()?["loss"].as_f64();
    Ok(metrics.lines().filter_map(loss).collect())
}

/// Ids, logits and losses that a reader of a folder must compute.
struct Expected {
    ids: Vec<String>,
    logits: Vec<f64>,
    /// Losses of training steps; empty without any.
    losses: Vec<f64>,
}

impl Expected {
    fn of(kind: &Path) -> Result<Expected> {
        let expected: Value = serde_json::from_slice(&std::fs::read(kind.join("expected.json"))?)?;
        let ids = numbers(&expected["ids"])?;
        let ids = ids.iter().map(|id| (*id as u32).to_string()).collect();
        let losses = expected.get("losses").map_or(Ok(Vec::new()), numbers)?;
        Ok(Expected { ids, logits: numbers(&expected["logits"])?, losses })
    }
}

pub(crate) fn kinds(theirs: &Path) -> Result<Vec<PathBuf>> {
    let mut kinds: Vec<PathBuf> =
        theirs.read_dir()?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    kinds.sort();
    Ok(kinds)
}

fn check(peer: &Peer, model: &str, vocab: usize, is_written: bool) -> Result<()> {
    println!("{model}: {}", peer.ask(&["version"])?.trim());
    let folder = tempfile::tempdir()?;
    let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
    peer.ask(&["make", &theirs.display().to_string()])?;

    for kind in &kinds(&theirs)? {
        let out = ours.join(name(kind));
        check_passed_on(peer, kind, &out, &Expected::of(kind)?)?;
        if name(kind) == "tied" {
            check_bytes(kind, &out)?;
        }
    }
    for tied in ["true", "false"] {
        let (out, save) = (ours.join(format!("run-{tied}")), ours.join(format!("trained-{tied}")));
        let places = format!("--out {} --save {}", out.display(), save.display());
        let sizes = format!("--model {model} {SIZES} --vocab {vocab} --tied {tied}");
        chimera(&format!("train {sizes} --depth 1 --steps 20 --lr 0.01 {places}"))?;
        let ids: Vec<String> = "A pipeline of stages".bytes().map(|id| id.to_string()).collect();
        let what = format!("trained here, tied {tied}, read there");
        compare(&what, &logits_here(&save, &ids)?, &peer.logits(&save, &ids)?)?;
    }
    if is_written {
        write(&theirs, &root().join(FIXTURES).join(model))?;
    }
    Ok(())
}

/// Reads a model of theirs, exports it to `out`, and lets them read the export.
fn check_passed_on(peer: &Peer, kind: &Path, out: &Path, expected: &Expected) -> Result<()> {
    let Expected { ids, logits, .. } = expected;
    let name = name(kind);
    compare(&format!("{name}, read here"), &logits_here(kind, ids)?, logits)?;
    chimera(&format!("export {} --out {}", kind.display(), out.display()))?;
    compare(&format!("{name}, exported, read there"), &peer.logits(out, ids)?, logits)
}

/// Checks that an export has the bytes of its source.
fn check_bytes(kind: &Path, out: &Path) -> Result<()> {
    let bytes = |folder: &Path| std::fs::read(folder.join("model.safetensors"));
    ensure!(bytes(out)? == bytes(kind)?, "{}: the export has other bytes", name(kind));
    println!("{}: the export has the same bytes", name(kind));
    Ok(())
}

/// The Python program on the other side.
pub(crate) struct Peer {
    pub(crate) python: PathBuf,
    pub(crate) script: String,
}

impl Peer {
    pub(crate) fn ask(&self, words: &[&str]) -> Result<String> {
        let mut peer = Command::new(&self.python);
        peer.arg(&self.script).args(words).current_dir(root());
        read(&mut peer)
    }

    fn logits(&self, folder: &Path, ids: &[String]) -> Result<Vec<f64>> {
        let folder = folder.display().to_string();
        let words = ["logits", &folder].into_iter().chain(ids.iter().map(String::as_str));
        numbers(&serde_json::from_str(&self.ask(&words.collect::<Vec<_>>())?)?)
    }
}

fn logits_here(folder: &Path, ids: &[String]) -> Result<Vec<f64>> {
    let mut ours =
        cargo(["run", "--quiet", "--package", "chimera-pipeline", "--example", "logits", "--"]);
    numbers(&serde_json::from_str(&read(ours.arg(folder).args(ids))?)?)
}

/// Runs our command with the words of `line`.
pub(crate) fn chimera(line: &str) -> Result<()> {
    let mut ours =
        cargo(["run", "--quiet", "--package", "chimera-pipeline", "--bin", "chimera", "--"]);
    run_command(ours.args(line.split(' ')).stdout(std::process::Stdio::null()))
}

pub(crate) fn numbers(list: &Value) -> Result<Vec<f64>> {
    let list = list.as_array().context("not a list")?;
    list.iter().map(|x| x.as_f64().context("not a number")).collect()
}

fn compare(what: &str, ours: &[f64], theirs: &[f64]) -> Result<()> {
    ensure!(ours.len() == theirs.len(), "{what}: {} values, not {}", ours.len(), theirs.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).fold(0.0, f64::max);
    let difference = largest(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    let size = largest(&mut theirs.iter().copied());
    println!("{what}: {} values up to {size:.2} differ by at most {difference:.1e}", ours.len());
    ensure!(difference <= TOLERANCE, "{what}: more than {TOLERANCE:e}");
    Ok(())
}

/// Copies the models into the folder of the tests' models.
fn write(theirs: &Path, fixtures: &Path) -> Result<()> {
    for file in files(theirs)? {
        let to = fixtures.join(file.strip_prefix(theirs)?);
        let folder = to.parent().context("a file has a folder")?;
        std::fs::create_dir_all(folder)?;
        std::fs::write(&to, std::fs::read(&file)?)?;
    }
    println!("written to {}", fixtures.display());
    Ok(())
}

pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
