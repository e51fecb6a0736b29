//! Workers in the opposite order.

use super::Placement;
use crate::ir::ids::WorkerId;
use crate::ir::timetable::Timetable;

impl Placement {
    /// The placement with its workers in the opposite order.
    pub fn opposite(&self) -> Placement {
        let last = self.n_workers as u16 - 1;
        let turned = |worker: &WorkerId| WorkerId(last - worker.0);
        let pipes = self.pipes.iter().map(|pipe| pipe.iter().map(turned).collect()).collect();
        Placement { pipes, ..self.clone() }
    }
}

impl Timetable {
    /// The timetable with its workers in the opposite order.
    pub fn opposite(&self) -> Timetable {
        let rows = self.rows.iter().rev().cloned().collect();
        Timetable { placement: self.placement.opposite(), rows, ..self.clone() }
    }
}
