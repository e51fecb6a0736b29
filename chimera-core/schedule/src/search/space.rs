//! The space of a search: the placements within limits, and the ops that orders may have on them.

use crate::costs::Costs;
use crate::ir::op::{Cell, Kind, Op};
use crate::ir::placement::Placement;
use crate::ir::timetable::Timetable;
use crate::lower::Recompute;

/// The placements of a search, and the passes that it may use on them.
#[derive(Clone, PartialEq, Debug)]
pub struct Space {
    /// The placements with their names, which differ.
    pub placements: Vec<(String, Placement)>,
    /// Backwards of half a micro-batch may be used, on smaller kernels.
    pub halved_micro_batches: bool,
    /// The values that all forwards keep; [`Recompute::None`] leaves the choice to the search,
    /// which recomputes under a memory limit only.
    pub recompute: Recompute,
    /// Saved activations may be moved to hosts or other workers.
    pub moves: bool,
}

impl Space {
    /// Every built-in kind of placement on `depth` workers with at most `weight_copies` copies of a
    /// stage over all workers and `max_chunks` stages of a pipe on a worker.
    pub fn within(depth: usize, weight_copies: usize, max_chunks: usize) -> Space {
        let mut space = Space {
            placements: Vec::new(),
            halved_micro_batches: true,
            recompute: Recompute::None,
            moves: true,
        };
        space.add("line".into(), Placement::line(depth));
        if depth == 1 {
            return space; // all others are the same stages one after another
        }
        for chunks in (2..=max_chunks).step_by(2) {
            let name =
                if chunks == 2 { "v".into() } else { format!("wave --waves {}", chunks / 2) };
            space.add(name, Placement::wave(depth, chunks));
        }
        for chunks in 2..=max_chunks {
            let name = format!("interleaved --chunks {chunks}");
            space.add(name, Placement::interleaved(depth, chunks));
        }
        for f in (1..=weight_copies / 2).filter(|f| depth.is_multiple_of(*f)) {
            space.add(format!("mirrored --pipes {}", 2 * f), Placement::mirrored(depth, f));
        }
        space
    }

    /// Adds a placement, unless it is there.
    pub fn add(&mut self, name: String, placement: Placement) {
        if self.placements.iter().all(|(_, other)| *other != placement) {
            self.placements.push((name, placement));
        }
    }

    /// The name of a placement.
    pub(super) fn name(&self, placement: &Placement) -> Option<&str> {
        let named = self.placements.iter().find(|(_, other)| other == placement);
        named.map(|(name, _)| name.as_str())
    }
}

/// Returns true if ops of this kind take time on the stages of the timetable.
pub(super) fn takes_time(timetable: &Timetable, kind: Kind, costs: &impl Costs) -> bool {
    let rows = (0..).map(crate::ir::ids::WorkerId).zip(&timetable.rows);
    let forwards = rows.flat_map(|(worker, row)| {
        let forward = |cell: &Cell| cell.ops().find(|op| op.kind == Kind::Forward);
        row.iter().find_map(forward).map(|op| (worker, op))
    });
    forwards.into_iter().any(|(worker, op)| costs.op(worker, &Op { kind, ..op }) > 0.0)
}
