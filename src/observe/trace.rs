//! Gathering what all ranks did in some steps, for a trace.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use chimera_core::analyze::{Event, Timeline, Wait};
use chimera_core::fault::Fault;
use chimera_core::ids::Rank;
use chimera_core::program::Program;
use chimera_core::render::chrome::{self, Ran, Sizes};

use crate::formats::files::io_fault;

/// Writes a trace as soon as all ranks are past its last step, or when the training ends before that.
pub(crate) struct Recorder<'p> {
    path: &'p Path,
    steps: Range<u64>,
    width: usize,
    sizes: Sizes,
    state: Mutex<Buffered<'p>>,
}

#[derive(Default)]
struct Buffered<'p> {
    runs: Vec<Ran<'p>>,
    n_past: usize,
    is_written: bool,
}

/// What a rank did in one run of a program.
pub(crate) struct Did<'p, 'w> {
    pub(crate) rank: Rank,
    pub(crate) program: &'p Program,
    /// The steps of the run.
    pub(crate) steps: Range<u64>,
    pub(crate) events: &'w [Event],
    pub(crate) waits: &'w [Wait],
}

impl<'p> Recorder<'p> {
    pub(crate) fn new(
        path: &'p Path,
        steps: Range<u64>,
        width: usize,
        sizes: Sizes,
    ) -> Recorder<'p> {
        Recorder { path, steps, width, sizes, state: Mutex::default() }
    }

    /// Whether what was done in these steps is shown.
    pub(crate) fn wants(&self, steps: &Range<u64>) -> bool {
        steps.start < self.steps.end && steps.end > self.steps.start
    }

    /// Takes what one rank did in steps that are shown; every rank tells of all those.
    pub(crate) fn add(&self, did: &Did<'p, '_>) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let n_workers = did.program.placement().n_workers();
        let (group, _) = did.program.placement().group_and_worker(did.rank);
        let step = did.steps.start;
        let is_same = |run: &&mut Ran| (run.group, run.step) == (group, step);
        let known = state.runs.iter_mut().rev().find(is_same);
        if let Some(run) = known {
            run.timeline.events.extend(did.events);
            run.waits.extend(did.waits);
        } else {
            let timeline = Timeline { n_workers, events: did.events.to_vec() };
            let waits = did.waits.to_vec();
            state.runs.push(Ran { program: did.program, group, step, timeline, waits });
        }
        state.n_past += usize::from(did.steps.end >= self.steps.end);
        if state.n_past == n_workers * self.width { self.write(&mut state) } else { Ok(()) }
    }

    /// Writes what there is, if that has not been done.
    pub(crate) fn finish(&self) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_written { Ok(()) } else { self.write(&mut state) }
    }

    fn write(&self, state: &mut Buffered<'_>) -> Result<(), Fault> {
        state.is_written = true;
        let text = chrome::training(&std::mem::take(&mut state.runs), Some(&self.sizes));
        std::fs::write(self.path, text).map_err(|e| io_fault("trace", self.path, &e))
    }
}
