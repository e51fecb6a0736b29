//! The Rust code of docs/library.md, compiled and run, so that it works when readers copy it.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use chimera::formats::checkpoint::Checkpoint;
use chimera::run::Model;
use chimera_candle::{Candle, Piece, Ran, stage};
use chimera_core::device::DeviceError;
use chimera_core::engine::Optimizer;
use chimera_core::graph::StageGraph;
use chimera_core::lower::{Passes, Recompute};
use chimera_core::prelude::*;

/// Samples of four numbers, and the targets for four layers.
struct Curves;

impl Data<f32> for Curves {
    fn sample(&self, _: u64, n: u64, x: &mut Vec<f32>, y: &mut Vec<f32>) -> std::io::Result<()> {
        x.extend((0..4).map(|i| (0.3 * (4 * n + i) as f32).sin()));
        y.extend([0.1, -0.1, 0.2, -0.2]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        4
    }
}

/// A layer with a tanh. The last one compares its output with the targets.
struct Layer(usize);

impl Piece for Layer {
    type Item = f32;
    type Module = Linear;

    fn build(&self, vb: VarBuilder<'_>) -> candle_core::Result<Linear> {
        candle_nn::linear(4, 4, vb.pp(format!("layer.{}", self.0)))
    }

    fn forward(
        &self,
        layer: &Linear,
        micro: &Micro<'_, f32>,
        x: Option<&Tensor>,
    ) -> candle_core::Result<Ran> {
        let rows =
            |numbers: &[f32]| Tensor::from_slice(numbers, (numbers.len() / 4, 4), &Device::Cpu);
        let x = x.cloned().map_or_else(|| rows(micro.input), Ok)?;
        let y = layer.forward(&x)?.tanh()?;
        if micro.target.is_empty() {
            return Ok(Ran::Activation(y));
        }
        let errors = (&y - rows(micro.target)?)?.sqr()?.sum_all()?;
        Ok(Ran::Loss((errors * micro.loss_scale)?))
    }
}

#[test]
fn stages_of_the_page_train() -> Result<()> {
    let (data, device) = (Curves, || Candle::cpu(DType::F32));
    let stage = |candle: &Candle, id: usize, _| stage(candle, Layer(id)).expect("layers");

    let training = Training { steps: 100, lr: 1e-3, ..Training::default() };
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?; // D = 4, N = 8
    let how = Lowering { barrier: training.needs_barrier(), ..Lowering::default() };
    let program = lower(&timetable, &how)?; // refused if it is not safe

    let n_stages = program.placement().n_stages();
    let trainer = Trainer::new(&program, &data).training(training).micro_batch_size(2);
    let trained = trainer
        .on_threads(|_rank| Ok(device()), |device, id| Ok(stage(device, id.index(), n_stages)))?;
    let weight = &trained.weights["layer.0.weight"]; // tensors by name
    assert_eq!(weight.dims(), [4, 4]);

    let losses: Vec<f64> = trained.reports.iter().map(|report| report.loss).collect();
    assert!(losses[99] < losses[0], "{losses:?}");
    Ok(())
}

#[test]
fn passes_of_the_page_are_proven() -> Result<()> {
    let (timetable, how) = (find("chimera")?.timetable(&Shape::new(4, 8))?, Lowering::default());

    let passes = Passes { recompute: Recompute::Full, ..Passes::default() };
    let timetable = passes.apply(timetable, &how, &UniformCosts::new(1.0, 2.0, 0.0))?;

    lower(&timetable, &how)?;
    Ok(())
}

struct MyModel;

impl Model for MyModel {
    type Device = Candle;
    type Item = f32;
    type Stage = chimera_candle::CandleStage<Layer>;

    fn name(&self) -> &str {
        "layers"
    }

    fn device(&self, _: Rank) -> std::result::Result<Candle, DeviceError> {
        Ok(Candle::cpu(DType::F32))
    }

    fn stage(&self, candle: &Candle, id: StageId, _: usize) -> Result<Self::Stage> {
        Ok(stage(candle, Layer(id.index()))?)
    }

    fn data(&self) -> &dyn Data<f32> {
        &Curves
    }
}

/// Only compiled, since it would write into the current folder. The tests of `resume.rs` run such a
/// run.
#[expect(dead_code)]
fn run_of_the_page() -> Result<()> {
    let stop = AtomicBool::new(false);

    use chimera::run::{Run, outside::OnDisk};
    use chimera::settings::{Layers, Settings};

    let settings = Settings::default()
        .with("schedule", "chimera")
        .with("depth", 4)
        .with("steps", 1000)
        .with("save-every", 100)
        .with("out", "runs/mine")
        .with("resume", "auto");
    let config = Layers { config: None, settings }.resolve(&OnDisk)?;
    let mut run = Run::with_model(config, MyModel)?;
    let trained = run.train_in_folder(
        &stop,
        |warning| eprintln!("{warning}"),
        |step| {
            println!("{}", step.loss);
            Ok(())
        },
    )?;
    if let Some(path) = trained.checkpoint {
        read_the_checkpoint(&path)?;
    }
    Ok(())
}

fn read_the_checkpoint(path: &std::path::Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path)?;
    for (name, shape) in checkpoint.shapes() {
        let param = Param::new(name, shape, Init::Zeros);
        let tensor = checkpoint.tensor(&param, &Optimizer::adamw())?;
        println!("{}: {:?}", param.name, tensor.weights.to_f64(param.n_elements()));
        for kept in tensor.state {
            println!("its {}: {:?}", kept.name, kept.elements.to_f64(param.n_elements()));
        }
    }
    Ok(())
}

/// Only compiled, since it needs GPUs.
#[expect(dead_code)]
fn gpus_of_the_page(trainer: &Trainer<'_, f32>, n_gpus: usize) -> Result<()> {
    let stage = |candle: &Candle, id: StageId| {
        Ok(stage(candle, Layer(id.index())).map_err(|e| e.to_string())?)
    };
    trainer.on_threads(|rank| Candle::cuda(rank.index() % n_gpus, DType::F32), stage)?;
    Ok(())
}

/// Stages in a graph.
#[test]
fn a_graph_is_lowered() -> Result<()> {
    let graph = StageGraph::new(4, &[0], &[(0, 1), (0, 3), (1, 2), (2, 3)], &[1, 3])?;
    let timetable = Timetable { graph, ..find("1f1b")?.timetable(&Shape::new(4, 8))? };
    let program = lower(&timetable, &Lowering::default())?;
    assert_eq!(program.rules().graph().edges().count(), 4);
    Ok(())
}

#[test]
fn the_page_has_this_code() {
    let squeeze = |text: &str| {
        let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let text: String = lines.flat_map(str::split_whitespace).collect();
        text.replace(",)", ")")
    };
    let page = include_str!("../../../../docs/library.md");
    let processes = squeeze(include_str!("../../../../tests/processes/src/main.rs"));
    let own = squeeze(include_str!("page.rs")) + &processes;
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert_eq!(blocks.len(), 9);
    for block in blocks {
        let block = block.split("```").next().unwrap_or_default();
        assert!(own.contains(&squeeze(block)), "put this in:\n{block}");
    }
}
