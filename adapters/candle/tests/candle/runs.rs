//! Runs of a model whose layers share a tensor, on a table with exactly as many samples as they
//! need.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use candle_core::{DType, Tensor};
use candle_nn::{Linear, Module, VarBuilder, linear};
use chimera::run::{Model, Run, outside::OnDisk};
use chimera::settings::{Layers, Settings};
use chimera_candle::{Candle, CandleStage, Piece, Ran, stage};
use chimera_core::device::{self, DeviceError};
use chimera_core::prelude::*;

const LAYERS: usize = 4;
/// Samples per step.
const SAMPLES: u64 = 8;

/// Some of the layers, of which the second and the last share their weights.
struct Chain(std::ops::Range<usize>);

impl Piece for Chain {
    type Item = f32;
    type Module = Vec<Linear>;

    fn build(&self, vb: VarBuilder<'_>) -> candle_core::Result<Vec<Linear>> {
        let name = |n| if n % 2 == 1 { "shared".into() } else { format!("layer.{n}") };
        self.0.clone().map(|n| linear(4, 4, vb.pp(name(n)))).collect()
    }

    fn forward(
        &self,
        layers: &Vec<Linear>,
        micro: &Micro<'_, f32>,
        x: Option<&Tensor>,
    ) -> candle_core::Result<Ran> {
        let rows = |numbers: &[f32]| {
            let rows = (numbers.len() / 4, 4);
            Tensor::from_slice(numbers, rows, &candle_core::Device::Cpu)?.to_dtype(DType::F64)
        };
        let mut x = x.cloned().map_or_else(|| rows(micro.input), Ok)?;
        for layer in layers {
            x = layer.forward(&x)?.tanh()?;
        }
        if micro.target.is_empty() {
            return Ok(Ran::Activation(x));
        }
        let errors = (x - rows(micro.target)?)?.sqr()?.sum_all()?;
        Ok(Ran::Loss((errors * micro.loss_scale)?))
    }
}

/// A stage of candle with tied parameters.
struct Tied(CandleStage<Chain>, Vec<Param>);

impl Stage for Tied {
    type Tensor = Tensor;
    type Item = f32;
    type Saved = <CandleStage<Chain> as Stage>::Saved;
    type Deferred = <CandleStage<Chain> as Stage>::Deferred;

    fn params(&self) -> &[Param] {
        &self.1
    }

    fn forward(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f32>,
        x: Option<Tensor>,
    ) -> device::Result<(Output<Tensor>, Self::Saved)> {
        self.0.forward(w, micro, x)
    }

    fn backward_input(
        &self,
        w: &[Tensor],
        micro: &Micro<'_, f32>,
        saved: Self::Saved,
        dy: Tensor,
    ) -> device::Result<(Option<Tensor>, Self::Deferred)> {
        self.0.backward_input(w, micro, saved, dy)
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_, f32>,
        deferred: Self::Deferred,
        into: &mut [Tensor],
    ) -> device::Result<()> {
        self.0.backward_weight(micro, deferred, into)
    }
}

/// A table with exactly as many samples as needed.
struct Table(Vec<f32>);

impl Table {
    /// Samples for some steps.
    fn of(n_steps: u64) -> Table {
        Table((0..SAMPLES * n_steps * 4).map(|n| (0.7 * n as f32).sin()).collect())
    }
}

impl Data<f32> for Table {
    fn sample(&self, step: u64, n: u64, x: &mut Vec<f32>, y: &mut Vec<f32>) -> std::io::Result<()> {
        let at = 4 * (SAMPLES * step + n) as usize;
        x.extend(&self.0[at..at + 4]);
        y.extend([0.1, -0.1, 0.2, -0.2]);
        Ok(())
    }

    fn n_targets(&self) -> usize {
        4
    }
}

struct Whole {
    table: Table,
    n_held_out: u64,
}

impl Model for Whole {
    type Device = Candle;
    type Item = f32;
    type Stage = Tied;

    fn name(&self) -> &str {
        "chain"
    }

    fn device(&self, _: Rank) -> std::result::Result<Candle, DeviceError> {
        Ok(Candle::cpu(DType::F64))
    }

    fn stage(&self, candle: &Candle, id: StageId, n_stages: usize) -> Result<Tied> {
        let id = id.index();
        let made = stage(candle, Chain(LAYERS * id / n_stages..LAYERS * (id + 1) / n_stages))?;
        let tied =
            |param: &Param| Param { tied: param.name.starts_with("shared"), ..param.clone() };
        let params = made.params().iter().map(tied).collect();
        Ok(Tied(made, params))
    }

    fn data(&self) -> &dyn Data<f32> {
        &self.table
    }

    fn held_out(&self) -> Option<(&dyn Data<f32>, u64)> {
        Some((&self.table, self.n_held_out))
    }
}

fn settings(folder: &Path, depth: i64, n_steps: i64) -> Settings {
    Settings::default()
        .with("schedule", "1f1b")
        .with("depth", depth)
        .with("micro-batches", 4)
        .with("micro-batch-size", 2)
        .with("steps", n_steps)
        .with("lr", 0.01)
        .with("lr-schedule", "constant")
        .with("save-every", 100)
        .with("threads", 1)
        .with("resume", "auto")
        .with("out", folder.to_str().expect("a path"))
}

/// Trains, or resumes. Returns the weights by name, and the number of steps.
fn train(settings: Settings, table: Table) -> Result<(Vec<(String, Vec<f32>)>, usize)> {
    let config = Layers { config: None, settings }.resolve(&OnDisk)?;
    let mut run = Run::with_model(config, Whole { table, n_held_out: 3 })?;
    let (stop, mut n_steps) = (AtomicBool::new(false), 0);
    let trained = run.train_in_folder(
        &stop,
        |_| (),
        |_| {
            n_steps += 1;
            Ok(())
        },
    )?;
    assert!(trained.checkpoint.is_some());
    let named = trained.weights.into_iter().map(|(param, values)| (param.name, values));
    let mut weights: Vec<_> = named.collect();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    weights.dedup_by(|a, b| a.0 == b.0);
    Ok((weights, n_steps))
}

#[test]
fn data_need_have_no_sample_beyond_the_last_step() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let go_on = |n_steps: u64, table| train(settings(folder.path(), 2, n_steps as i64), table);
    let (weights, n_steps) = go_on(3, Table::of(3))?;
    assert_eq!(n_steps, 3);
    assert_eq!(go_on(3, Table::of(3))?, (weights, 0), "it is finished");
    let mut other = Table::of(5);
    other.0[SAMPLES as usize * 2 * 4] += 1.0;
    let refusal = go_on(5, other).expect_err("other samples");
    let refusal = format!("{refusal:#}");
    assert!(refusal.contains("other samples in step 2 than in the checkpoint"), "{refusal}");
    assert_eq!(go_on(5, Table::of(5))?.1, 2);
    Ok(())
}

#[test]
fn layers_that_share_a_tensor_may_be_in_any_stages() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let train = |depth| {
        let folder = folder.path().join(format!("depth {depth}"));
        train(settings(&folder, depth, 4), Table::of(4))
    };
    // The shared tensor is in one stage, in both, and in two of four.
    let [one, two, four] = [train(1)?.0, train(2)?.0, train(4)?.0];
    assert_eq!(one.len(), 6);
    for other in [two, four] {
        for ((name, wanted), (other, got)) in one.iter().zip(&other) {
            assert_eq!(name, other);
            let is_near = wanted.iter().zip(got).all(|(a, b)| (a - b).abs() < 1e-6);
            assert!(is_near, "{name}: {wanted:?} and {got:?}");
        }
    }
    Ok(())
}

#[test]
fn an_evaluation_of_no_samples_is_refused_before_the_start() -> Result<()> {
    let folder = tempfile::TempDir::new()?;
    let settings = settings(folder.path(), 1, 4).with("eval-every", 2);
    let config = Layers { config: None, settings }.resolve(&OnDisk)?;
    let refused = Run::with_model(config, Whole { table: Table::of(4), n_held_out: 0 });
    let refusal = format!("{:#}", refused.err().expect("refused"));
    assert!(refusal.contains("let Model::held_out give one or more"), "{refusal}");
    Ok(())
}
