//! The weights that an op reads: they are live while it runs, and are not eaten.

use super::Rules;
use crate::ir::ids::StageId;
use crate::ir::op::{Kind, Op};
use crate::ir::timetable::Timetable;
use crate::ir::update::{Reads, Update, Window};

/// The weights of a stage in one version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weights {
    /// The stage.
    pub stage: StageId,
    /// The version.
    pub version: Version,
}

/// A version of the weights, as an op names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// The newest one of the worker.
    Newest,
    /// The one that this many updates of the program made.
    Made(u32),
    /// A prediction of the one that this many updates make, from the newest one.
    Predicted(u32),
}

impl Rules {
    /// The weights that an op reads; `None` if the program never changes them while it computes, or
    /// if the op eats a [`TokenKind::Version`](super::TokenKind::Version) instead.
    pub fn reads(&self, op: &Op) -> Option<Weights> {
        let window = self.window.as_ref().filter(|_| self.demand.trains(op.stage))?;
        let row = window.update().row();
        let reads = match op.kind {
            Kind::Forward => row.forward,
            Kind::Recompute | Kind::Backward | Kind::BackwardInput => row.backward,
            Kind::BackwardWeight => return None,
            Kind::Offload | Kind::Reload | Kind::Keep | Kind::Return | Kind::Work(_) => {
                return None;
            }
        };
        let own = window.update_of(op.span);
        let version = match reads {
            Reads::Own => Version::Made(own),
            Reads::Previous => Version::Made(own.saturating_sub(1)),
            Reads::Newest => Version::Newest,
            Reads::Predicted => Version::Predicted(own),
            Reads::OfForward => return None,
        };
        Some(Weights { stage: op.stage, version })
    }
}

/// The window of updates of a timetable; `None` if its only update comes after all compute.
pub(super) fn window_of(timetable: &Timetable) -> Option<Window> {
    let Timetable { update, n_micro_batches, units_per_micro, .. } = *timetable;
    Window::new(update, n_micro_batches, units_per_micro).filter(|_| update != Update::Flush)
}
