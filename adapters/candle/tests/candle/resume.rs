//! A run of the model: stopped, and resumed under the same D and others, from what was kept to the bit.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use candle_core::DType;
use chimera::formats::checkpoint::Checkpoint;
use chimera::run::outside::OnDisk;
use chimera::run::{Model, Run};
use chimera::settings::{Layers, Settings};
use chimera_candle::{Candle, CandleStage, stage};
use chimera_core::device::{DeviceError, Dtype, Elements};
use chimera_core::ids::{Rank, StageId};
use chimera_core::stage::{Data, Param};

use super::llama::{Ids, LAYERS, Llama};

struct Whole;

impl Model for Whole {
    type Device = Candle;
    type Item = u32;
    type Stage = CandleStage<Llama>;

    fn name(&self) -> &str {
        "small llama"
    }

    fn device(&self, _: Rank) -> std::result::Result<Candle, DeviceError> {
        Ok(Candle::cpu(DType::F64))
    }

    fn stage(&self, candle: &Candle, id: StageId, n_stages: usize) -> Result<CandleStage<Llama>> {
        anyhow::ensure!(n_stages <= LAYERS, "it has {LAYERS} layers");
        Ok(stage(candle, Llama::of_stage(id.index(), n_stages))?)
    }

    fn data(&self) -> &dyn Data {
        &Ids
    }

    fn held_out(&self) -> Option<(&dyn Data, u64)> {
        Some((&Ids, 3))
    }
}

/// Every tensor of a checkpoint with its moments.
type Kept = Vec<(Param, [Elements; 3])>;

/// Trains in `folder` by `schedule` on `depth` workers up to `steps`, from its last checkpoint on if there is one; ends
/// after `stop_after` steps of its own. Returns what its checkpoint holds.
fn train(folder: &Path, schedule: &str, depth: i64, stop_after: usize) -> Kept {
    let settings = Settings::default()
        .with("schedule", schedule)
        .with("depth", depth)
        .with("micro-batches", 8)
        .with("micro-batch-size", 2)
        .with("steps", 10)
        .with("save-every", 100)
        .with("eval-every", 2)
        .with("threads", 1)
        .with("resume", "auto")
        .with("out", folder.to_str().expect("a path"));
    let config = Layers { config: None, settings }.resolve(&OnDisk).expect("settings");
    let mut run = Run::with_model(config, Whole).expect("a run");
    let (stop, mut n_steps) = (AtomicBool::new(false), 0);
    let trained = run.train_in_folder(
        &stop,
        |told| panic!("{told}"),
        |report| {
            assert_eq!(report.validation_loss.is_some(), report.step % 2 == 1);
            n_steps += 1;
            stop.store(n_steps >= stop_after, Ordering::Relaxed);
            Ok(())
        },
    );
    let path = trained.expect("trained").checkpoint.expect("a checkpoint");
    let checkpoint = Checkpoint::open(&path).expect("sound");
    let params = checkpoint.shapes().into_iter();
    let kept = params.map(|(name, shape)| {
        let param = Param::new(name, shape, chimera_core::stage::Init::Zeros);
        let snapshot = checkpoint.tensor(&param).expect("a tensor");
        let [m, v] = snapshot.moments;
        assert_eq!(snapshot.weights.dtype, Dtype::F64);
        (param, [snapshot.weights, m, v])
    });
    kept.collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("entries") {
        let entry = entry.expect("an entry");
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied")),
        }
    }
}

#[test]
fn a_stopped_run_goes_on_to_the_bit_and_under_another_depth_up_to_rounding() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let whole = train(&at("whole"), "chimera", 4, usize::MAX);
    train(&at("stopped"), "chimera", 4, 5);
    for (name, schedule, depth, bound) in
        [("same", "chimera", 4, 0.0), ("two", "1f1b", 2, 1e-12), ("one", "gpipe", 1, 1e-12)]
    {
        copy(&at("stopped"), &at(name));
        let resumed = train(&at(name), schedule, depth, usize::MAX);
        assert_eq!(resumed.len(), whole.len());
        for ((param, wanted), (_, found)) in whole.iter().zip(resumed) {
            for (wanted, found) in wanted.iter().zip(found) {
                let [wanted, found] =
                    [wanted.clone(), found].map(|elements| elements.to_f64(param.n_elements()));
                let apart = wanted.iter().zip(&found).map(|(a, b)| (a - b).abs());
                let apart = apart.fold(0.0, f64::max);
                assert!(apart <= bound, "{name}: {} differs by {apart}", param.name);
            }
        }
    }
    let metrics = std::fs::read_to_string(at("same").join("metrics.jsonl")).expect("metrics");
    assert_eq!(metrics.lines().count(), 10);
    let settings = std::fs::read_to_string(at("same").join("config.toml")).expect("settings");
    assert!(settings.contains("model = \"small llama\"") && !settings.contains("hidden"));
}
