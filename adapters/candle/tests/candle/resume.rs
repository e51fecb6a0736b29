//! A run of the model, stopped and resumed: with the same D to the bit, and with others.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use candle_core::DType;
use chimera::formats::checkpoint::Checkpoint;
use chimera::run::outside::OnDisk;
use chimera::run::{Model, Run};
use chimera::settings::{Config, Layers, Settings};
use chimera_candle::{Candle, CandleStage, stage};
use chimera_core::device::{DeviceError, Dtype, Elements};
use chimera_core::engine::{Optimizer, ParamGroup, UpdateRule};
use chimera_core::ids::{Rank, StageId};
use chimera_core::stage::{Data, Param};

use super::llama::{Ids, LAYERS, Llama};

/// The model, with an optimizer of its own if it has one.
#[derive(Default)]
struct Whole {
    optimizer: Option<Optimizer>,
    /// Free memory of each rank's device, unless it is the host's.
    free_bytes: Option<u64>,
}

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

    fn optimizer(&self) -> Option<Optimizer> {
        self.optimizer.clone()
    }

    fn free_bytes(&self, _: Rank) -> Option<u64> {
        self.free_bytes
    }

    fn held_out(&self) -> Option<(&dyn Data, u64)> {
        Some((&Ids, 3))
    }
}

/// Every tensor of a checkpoint, with the optimizer's state for it.
type Kept = Vec<(Param, Vec<Elements>)>;

/// The settings of a training run.
#[derive(Clone)]
struct How {
    optimizer: Option<Optimizer>,
    schedule: &'static str,
    depth: i64,
    width: i64,
    is_sharded: bool,
}

impl How {
    /// Chimera on four workers.
    fn by(optimizer: Option<Optimizer>) -> How {
        How { optimizer, schedule: "chimera", depth: 4, width: 1, is_sharded: false }
    }
}

/// The settings of a run in `folder`.
fn settings_of(folder: &Path, how: &How) -> Config {
    settings_with(folder, how, |settings| settings)
}

/// The settings of a run in `folder`, with `more` options.
fn settings_with(folder: &Path, how: &How, more: impl Fn(Settings) -> Settings) -> Config {
    let How { schedule, depth, width, is_sharded, .. } = *how;
    let settings = Settings::default()
        .with("schedule", schedule)
        .with("depth", depth)
        .with("width", width)
        .with("micro-batches", 8 / width)
        .with("shard-optimizer", is_sharded)
        .with("micro-batch-size", 2)
        .with("steps", 10)
        .with("save-every", 100)
        .with("eval-every", 2)
        .with("threads", 1)
        .with("resume", "auto")
        .with("out", folder.to_str().expect("a path"));
    Layers { config: None, settings: more(settings) }.resolve(&OnDisk).expect("settings")
}

/// Trains in `folder` up to `steps`, from its last checkpoint if there is one. Ends after
/// `stop_after` steps of its own. Returns the content of its checkpoint.
fn train(folder: &Path, how: &How, stop_after: usize) -> Kept {
    let optimizer = how.optimizer.clone();
    let config = settings_of(folder, how);
    let mut run =
        Run::with_model(config, Whole { optimizer: optimizer.clone(), ..Whole::default() })
            .expect("a run");
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
    let optimizer = &optimizer.unwrap_or(Optimizer::adamw());
    let params = checkpoint.shapes().into_iter();
    let kept = params.map(|(name, shape)| {
        let param = Param::new(name, shape, chimera_core::stage::Init::Zeros);
        let snapshot = checkpoint.tensor(&param, optimizer).expect("a tensor");
        assert_eq!(snapshot.weights.dtype, Dtype::F64);
        let kept = snapshot.state.into_iter().map(|kept| kept.elements);
        (param, std::iter::once(snapshot.weights).chain(kept).collect())
    });
    kept.collect()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("entries") {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    }
}

/// The largest difference between the content of two checkpoints.
fn apart(one: &Kept, other: &Kept) -> f64 {
    assert_eq!(one.len(), other.len());
    let pairs = one.iter().zip(other).flat_map(|((param, one), (_, other))| {
        assert_eq!(one.len(), other.len(), "{}", param.name);
        one.iter().zip(other).map(|(one, other)| {
            let values = |elements: &Elements| elements.clone().to_f64(param.n_elements());
            let apart = values(one).into_iter().zip(values(other)).map(|(a, b)| (a - b).abs());
            apart.fold(0.0, f64::max)
        })
    });
    pairs.fold(0.0, f64::max)
}

#[test]
fn a_stopped_run_goes_on_to_the_bit_and_under_another_depth_up_to_rounding() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let how = How::by(None);
    let whole = train(&at("whole"), &how, usize::MAX);
    train(&at("stopped"), &how, 5);
    for (name, schedule, depth, bound) in
        [("same", "chimera", 4, 0.0), ("two", "1f1b", 2, 1e-12), ("one", "gpipe", 1, 1e-12)]
    {
        copy(&at("stopped"), &at(name));
        let resumed = train(&at(name), &How { schedule, depth, ..how.clone() }, usize::MAX);
        let apart = apart(&whole, &resumed);
        assert!(apart <= bound, "{name} differs by {apart}");
    }
    let metrics = std::fs::read_to_string(at("same").join("metrics.jsonl")).expect("metrics");
    assert_eq!(metrics.lines().count(), 10);
    let settings = std::fs::read_to_string(at("same").join("config.toml")).expect("settings");
    assert!(settings.contains("model = \"small llama\"") && !settings.contains("hidden"));
}

/// Heavy-ball momentum and the number of its updates: two tensors with names that no built-in rule
/// uses.
struct HeavyBall;

impl UpdateRule for HeavyBall {
    fn name(&self) -> &str {
        "heavy-ball"
    }

    fn state(&self, param: &Param) -> &[&'static str] {
        if param.decay { &["velocity", "age"] } else { &["velocity"] }
    }

    fn update(&self, group: ParamGroup<'_>) -> chimera_core::device::Result<()> {
        let lr = group.lr;
        group.on_host(|tensor| {
            let mut state = tensor.state.into_iter();
            let velocity = state.next().expect("a velocity");
            for ((w, g), v) in tensor.weights.iter_mut().zip(tensor.gradient).zip(velocity) {
                *v = 0.9 * *v + g;
                *w -= lr * *v;
            }
            state.flatten().for_each(|age| *age += 1.0);
            Ok(())
        })
    }
}

#[test]
fn an_own_optimizer_is_resumed_and_sharded() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for optimizer in [Optimizer::new(HeavyBall), Optimizer::muon()] {
        let at = |name: &str| at(optimizer.name()).join(name);
        let how = How { depth: 2, width: 2, ..How::by(Some(optimizer.clone())) };
        let whole = train(&at("whole"), &how, usize::MAX);
        train(&at("stopped"), &how, 5);
        copy(&at("stopped"), &at("sharded"));
        for (name, is_sharded) in [("stopped", false), ("sharded", true)] {
            let how = How { is_sharded, ..how.clone() };
            assert_eq!(apart(&whole, &train(&at(name), &how, usize::MAX)), 0.0, "{name}");
        }
        let kept = whole.iter().map(|(param, kept)| kept.len() - 1 == optimizer.state(param).len());
        assert!(kept.into_iter().all(|is_kept| is_kept));
    }
    let [ball, muon] = ["heavy-ball", "muon"].map(|name| at(name).join("stopped"));
    let settings = std::fs::read_to_string(ball.join("config.toml")).expect("settings");
    assert!(settings.contains("optimizer = \"heavy-ball\""), "{settings}");
    copy(&muon, &at("mixed"));
    let settings = settings_of(&at("mixed"), &How { depth: 2, width: 2, ..How::by(None) });
    let model = Whole { optimizer: Some(Optimizer::new(HeavyBall)), ..Whole::default() };
    let mut run = Run::with_model(settings, model).expect("a run");
    let refusal = run.train_in_folder(&AtomicBool::new(false), |_| (), |_| Ok(()));
    let refusal = format!("{:#}", refusal.err().expect("another optimizer"));
    assert!(refusal.contains("optimizer: \"muon\""), "{refusal}");
}

#[test]
fn the_memory_is_known_before_the_start() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let goes_on = AtomicBool::new(false);
    for (schedule, is_sharded) in [("1f1b", false), ("chimera", false), ("chimera", true)] {
        for recompute in ["none", "full"] {
            let how = How { schedule, is_sharded, depth: 2, width: 2, optimizer: None };
            let out = folder.path().join(format!("{schedule} {is_sharded} {recompute}"));
            let settings =
                settings_with(&out, &how, |settings| settings.with("recompute", recompute));
            let run = Run::with_model(settings.clone(), Whole::default()).expect("a run");
            let mut bytes = 0;
            let trained = run.train(&goes_on, |step| {
                bytes = step.bytes();
                Ok(())
            });
            trained.expect("trained");
            let needs = run.needs();
            let foreseen =
                needs.iter().map(|need| 2.0 * (need.state + need.activations)).sum::<f64>();
            assert_eq!(foreseen.round() as u64, bytes, "{}", out.display());
            let small = Whole { free_bytes: Some(10_000), ..Whole::default() };
            let refused =
                Run::with_model(settings, small).expect("a run").train(&goes_on, |_| Ok(()));
            let refusal = format!("{:#}", refused.err().expect("too little memory"));
            assert!(refusal.contains("but 9.77 KiB are free"), "{refusal}");
        }
    }
}
