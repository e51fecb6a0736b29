//! Chimera: 2f pipes in opposite directions that fill each other's bubbles.

use super::grid::Grid;
use super::{Parameter, Scaling, Schedule, Shape, Unfit};
use crate::ir::op::{Kind, Span};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;

pub(super) struct Chimera;

impl Schedule for Chimera {
    facts! {
        name: "chimera";
        about: "2f pipes in opposite directions fill each other's bubbles; 2f copies of the weights";
        paper: "Li & Hoefler, Chimera, SC 2021, arXiv 2107.06925";
        place: "figures 3, 6, 7 and 8";
        reads: [Parameter::Pipes, Parameter::Scaling];
        variants: ["", "--pipes 4", "--scaling direct", "--scaling doubling", "--scaling halving"];
    }

    /// The other scalings.
    fn parameters(&self, plain: Shape) -> Vec<(Shape, String)> {
        let scaled = |(name, scaling): &(&str, Scaling)| {
            (Shape { scaling: *scaling, ..plain }, format!("--scaling {name}"))
        };
        Scaling::ALL[1..].iter().map(scaled).collect()
    }

    fn timetable(&self, shape: &Shape) -> Result<Timetable, Unfit> {
        shape.check(self)?;
        shape.check_even_depth(self)?;
        let f = fit_pipes(shape)?;
        let mut grid = Grid::new(Placement::mirrored(shape.depth, f));
        let d = shape.depth as u32;
        let mut micro = 0;
        let mut slot = 0;
        while micro < shape.n_micro_batches {
            let left = shape.n_micro_batches - micro;
            let unit = match shape.scaling {
                Scaling::Doubling if left > d => {
                    Unit { n: left.min(2 * d), form: UnitKind::Doubled }
                }
                Scaling::Direct | Scaling::Doubling => {
                    Unit { n: left.min(d), form: UnitKind::Plain }
                }
                Scaling::Halving => Unit { n: left.min(d), form: UnitKind::Halved },
            };
            unit.put(&mut grid, f, micro, slot);
            micro += unit.n;
            slot += unit.n_slots(shape.depth);
        }
        let units_per_micro = if shape.scaling == Scaling::Halving { 2 } else { 1 };
        Ok(grid.finish_in_units(self, shape, units_per_micro))
    }
}

/// A group of micro-batches, spread over all pipes, that starts together.
///
/// In a plain unit the j-th micro-batch of a pipe runs on stage `s` forward in slot `s + 2j` and
/// backward in slot `2D-1-s + 2j`; the overlaid pipes never meet in a slot. If forward slots must
/// cost as much as backward slots, a forward slot holds two micro-batches (doubling) or a backward
/// slot half of one (halving): either way, two backwards follow from each forward slot, and the
/// unit takes `3D` slots instead of `2D`.
struct Unit {
    n: u32,
    form: UnitKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnitKind {
    Plain,
    Doubled,
    Halved,
}

impl Unit {
    fn put(&self, grid: &mut Grid, f: usize, first_micro: u32, first_slot: u64) {
        let mut micro = first_micro;
        let n_stages = grid.n_stages();
        for (pipe, n) in shares(self.n, f).into_iter().enumerate() {
            for stage in 0..n_stages {
                for j in 0..n {
                    self.put_micro(grid, pipe, stage, j, micro + j, first_slot);
                }
            }
            micro += n;
        }
    }

    /// Puts the `j`-th micro-batch of a pipe on one stage.
    fn put_micro(
        &self,
        grid: &mut Grid,
        pipe: usize,
        stage: usize,
        j: u32,
        micro: u32,
        first_slot: u64,
    ) {
        let (s, d) = (stage as u64, grid.n_stages() as u64);
        let forward = |j: u32| first_slot + s + 2 * u64::from(j);
        let backward = |j: u32| first_slot + 2 * d - 1 - s + 2 * u64::from(j);
        match self.form {
            UnitKind::Plain | UnitKind::Doubled => {
                let forward_slot = if self.form == UnitKind::Plain { j } else { j / 2 };
                grid.put(forward(forward_slot), Kind::Forward, pipe, stage, Span::one(micro));
                grid.put(backward(j), Kind::Backward, pipe, stage, Span::one(micro));
            }
            UnitKind::Halved => {
                let halves = Span { start: 2 * micro, len: 2 };
                grid.put(forward(j), Kind::Forward, pipe, stage, halves);
                for (i, half) in (2 * j..).zip(halves.units()) {
                    grid.put(backward(i), Kind::Backward, pipe, stage, Span::one(half));
                }
            }
        }
    }

    fn n_slots(&self, depth: usize) -> u64 {
        depth as u64 * if self.form == UnitKind::Plain { 2 } else { 3 }
    }
}

/// Number of the `n` micro-batches that each pipe carries: down pipes first, except that a
/// remainder goes to down 0, up 0, down 1, up 1, …
fn shares(n: u32, f: usize) -> Vec<u32> {
    let n_pipes = 2 * f as u32;
    let share = |turn: u32| n / n_pipes + u32::from(turn < n % n_pipes);
    let turns = (0..n_pipes).step_by(2).chain((1..n_pipes).step_by(2));
    turns.map(share).collect()
}

fn fit_pipes(shape: &Shape) -> Result<usize, Unfit> {
    let Shape { depth, n_pipes, .. } = *shape;
    let half = depth / 2;
    let fits = |f: usize| f > 0 && half % f == 0;
    if n_pipes % 2 == 0 && fits(n_pipes / 2) {
        return Ok(n_pipes / 2);
    }
    let choices: Vec<String> =
        (1..=half).filter(|&f| fits(f)).map(|f| (2 * f).to_string()).collect();
    let reason = format!("{n_pipes} pipes are not 2f with f a divisor of D/2 = {half}");
    Err(Unfit::new(&Chimera, reason, format!("{} pipes", choices.join(", "))))
}
