//! Updates: when weights change, and the version of them that a pass reads.

mod row;

pub use row::{Per, Reads, UpdateRow};

use crate::ir::op::Span;

/// The rule by which a timetable updates weights.
///
/// A synchronous step ends with a flush. Other timetables cover a *window* of several steps whose
/// micro-batches overlap, and flush only at its end. In an asynchronous one newer versions of the
/// weights are made between a forward and its backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Update {
    /// Once, after all micro-batches.
    Flush,
    /// After every step, each stage as soon as its gradients are summed. A forward of step `t`
    /// waits for update `t` and reads its version. Weights are those of synchronous steps (a free
    /// border between steps, as in Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section
    /// 4).
    EachStep {
        /// Steps of the window.
        n_steps: u32,
    },
    /// After every micro-batch; a forward reads the newest version its worker has (PipeDream,
    /// section 3.3: weight stashing).
    Stash {
        /// Steps of the window.
        n_steps: u32,
    },
    /// After every step; a forward of step `t` reads the version of `max(t - 1, 0)` updates, so
    /// that two versions are enough (PipeDream-2BW, section 3.1).
    DoubleBuffer {
        /// Steps of the window.
        n_steps: u32,
    },
    /// After every step; a forward, and later its backward, read the newest version their worker
    /// has, so that one version is enough (TiMePReSt: no weight stashing).
    Newest {
        /// Steps of the window.
        n_steps: u32,
    },
    /// After every micro-batch; a forward reads a prediction of the version that its backward will
    /// read (PipeOptim).
    Predicted {
        /// Steps of the window.
        n_steps: u32,
    },
}

impl Update {
    /// Number of steps: 1, or the steps of the window.
    pub fn n_steps(self) -> u32 {
        match self {
            Update::Flush => 1,
            Update::EachStep { n_steps }
            | Update::Stash { n_steps }
            | Update::DoubleBuffer { n_steps }
            | Update::Newest { n_steps }
            | Update::Predicted { n_steps } => n_steps,
        }
    }
}

/// The division of a timetable's micro-batch units into steps and updates. Numbers count from the
/// start of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    update: Update,
    units_per_step: u32,
    units_per_update: u32,
    n_updates: u32,
}

impl Window {
    /// The window of `n_micro_batches` with `units_per_micro` units each; `None` unless they make
    /// whole steps.
    pub fn new(update: Update, n_micro_batches: u32, units_per_micro: u32) -> Option<Window> {
        let n_steps = update.n_steps();
        if n_steps == 0 || !n_micro_batches.is_multiple_of(n_steps) {
            return None;
        }
        let units = |micros: u32| micros.saturating_mul(units_per_micro).max(1);
        let micros_per_step = n_micro_batches / n_steps;
        let (micros_per_update, n_updates) = match update.row().per {
            Per::MicroBatch => (1, n_micro_batches),
            Per::Window | Per::Step => (micros_per_step, n_steps),
        };
        let units_per_step = units(micros_per_step);
        let units_per_update = units(micros_per_update);
        Some(Window { update, units_per_step, units_per_update, n_updates })
    }

    /// The rule of updates.
    pub fn update(&self) -> Update {
        self.update
    }

    /// Number of steps. All have the same number of micro-batches.
    pub fn n_steps(&self) -> u32 {
        self.update.n_steps()
    }

    /// Number of updates of every weight.
    pub fn n_updates(&self) -> u32 {
        self.n_updates
    }

    /// Number of updates per step.
    pub fn updates_per_step(&self) -> u32 {
        self.n_updates / self.n_steps()
    }

    /// Number of micro-batch units per step.
    pub fn units_per_step(&self) -> u32 {
        self.units_per_step
    }

    /// Number of micro-batch units per update.
    pub fn units_per_update(&self) -> u32 {
        self.units_per_update
    }

    /// The step that a span belongs to.
    pub fn step_of(&self, span: Span) -> u32 {
        span.start / self.units_per_step
    }

    /// The update that uses the gradients of a span.
    pub fn update_of(&self, span: Span) -> u32 {
        span.start / self.units_per_update
    }

    /// Returns true if all units of a span belong to one update.
    pub(crate) fn is_of_one_update(&self, span: Span) -> bool {
        let last = span.units().end.saturating_sub(1);
        self.update_of(span) == self.update_of(Span::one(last))
    }
}
