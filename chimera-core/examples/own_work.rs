//! Custom work in the idle time of a training: every worker counts random points within a circle.

#[allow(dead_code)]
#[path = "own_stage.rs"]
mod own_stage;

use std::error::Error;
use std::f64::consts::PI;
use std::sync::atomic::{AtomicU64, Ordering};

use chimera_core::costs::{PerStage, UniformCosts, WithOwnWork};
use chimera_core::device::reference::Reference;
use chimera_core::effects::{OwnWork, Pieces};
use chimera_core::engine::WorkPiece;
use chimera_core::lower::fill;
use chimera_core::prelude::*;
use own_stage::{Curve, bend};

/// Points per piece.
const POINTS: u64 = 1000;

/// Counts the points of a piece that lie within the quarter of a circle.
fn within(piece: u64) -> u64 {
    let mut state = piece.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut coordinate = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let is_within = |_: &u64| coordinate().powi(2) + coordinate().powi(2) < 1.0;
    (0..POINTS).filter(is_within).count() as u64
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let timetable = find("chimera")?.timetable(&Shape::new(4, 8))?;
    let how = Lowering::default();
    let program = lower(&timetable, &how)?;

    // A piece takes half of a forward, and a worker does up to five for each of its stages in a step.
    let points = OwnWork { name: "points".into(), pieces: Pieces::Anytime(5) };
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let costs = WithOwnWork::new(&costs, vec![PerStage(vec![0.5])]);
    let filled = fill(&program, &[points], &how, &costs)?;
    let (with, without) = (simulate(&filled, &costs), simulate(&program, &costs));
    println!("bubble ratio {:.3}, before {:.3}", with.bubble_ratio(), without.bubble_ratio());
    assert_eq!(with.makespan(), without.makespan());

    let (done, inside) = (AtomicU64::new(0), AtomicU64::new(0));
    let own_work = |_: &WorkPiece<'_>| {
        let piece = done.fetch_add(1, Ordering::Relaxed);
        inside.fetch_add(within(piece + 1), Ordering::Relaxed);
        Ok(())
    };
    let trainer = Trainer::new(&filled, &Curve)
        .training(Training { steps: 20, ..Training::default() })
        .micro_batch_size(2)
        .own_work(&own_work);
    let trained = trainer.on_threads(|_| Ok(Reference), |_, id| Ok(bend(id.index())))?;
    let (done, inside) = (done.into_inner(), inside.into_inner());
    let estimate = 4.0 * inside as f64 / (done * POINTS) as f64;
    println!("{} steps and {done} pieces: pi is about {estimate:.3}", trained.reports.len());
    assert!((estimate - PI).abs() < 0.05, "{estimate}");
    Ok(())
}
