//! Workers in the opposite order.

use super::Placement;
use crate::ir::ids::WorkerId;

impl Placement {
    /// The placement with its workers in the opposite order.
    pub fn opposite(&self) -> Placement {
        let last = self.n_workers as u16 - 1;
        let turned = |worker: &WorkerId| WorkerId(last - worker.0);
        let pipes = self.pipes.iter().map(|pipe| pipe.iter().map(turned).collect()).collect();
        Placement { pipes, ..self.clone() }
    }
}
