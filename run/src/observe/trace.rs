//! Collects what all ranks did in some steps, for a trace.

use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chimera_core::analyze::{Event, Timeline, Wait};
use chimera_core::device::{KernelRun, KernelTime};
use chimera_core::fault::Fault;
use chimera_core::ids::{Rank, WorkerId};
use chimera_core::program::Program;
use chimera_core::render::chrome::{self, Gap, Ran, Sizes};
use chimera_formats::files::{io_fault, write_named};

/// Writes a trace as soon as all ranks have passed its last step, or when the training ends before
/// that.
pub(crate) struct Recorder<'p> {
    path: &'p Path,
    steps: Range<u64>,
    width: usize,
    sizes: Sizes,
    /// The programs of a run: of its steps, of its last steps, which may be fewer, and, for a
    /// window without borders, of single steps.
    programs: Vec<&'p Program>,
    /// Seconds from the start of the trace to the start of the ranks' clock.
    offset: f64,
    state: Mutex<Recorded>,
}

/// The recorded steps, which outlive a transport that a dead rank has ended.
#[derive(Default)]
pub(crate) struct Recorded {
    began: Option<Instant>,
    runs: Vec<Recording>,
    gaps: Vec<Gap>,
    n_past: usize,
    is_complete: bool,
}

/// The events of one pipeline group in one run of a program.
struct Recording {
    /// Index of the program.
    program: usize,
    group: usize,
    step: u64,
    timeline: Timeline,
    waits: Vec<Wait>,
    kernels: Vec<(WorkerId, KernelRun)>,
}

/// The events of one rank in one run of a program.
pub(crate) struct Did<'p, 'w> {
    pub(crate) rank: Rank,
    pub(crate) program: &'p Program,
    /// The steps of the run.
    pub(crate) steps: Range<u64>,
    pub(crate) events: &'w [Event],
    pub(crate) waits: &'w [Wait],
    pub(crate) kernels: &'w [KernelRun],
}

impl<'p> Recorder<'p> {
    pub(crate) fn new(
        path: &'p Path,
        steps: Range<u64>,
        width: usize,
        sizes: Sizes,
        programs: [&'p Program; 2],
    ) -> Recorder<'p> {
        let bordered = programs.into_iter().filter_map(Program::bordered);
        let programs = programs.into_iter().chain(bordered).collect();
        let (offset, state) = (0.0, Mutex::default());
        Recorder { path, steps, width, sizes, programs, offset, state }
    }

    /// Continues what was recorded before, for ranks whose clock begins at `epoch`.
    pub(crate) fn with(self, mut recorded: Recorded, epoch: Instant) -> Recorder<'p> {
        let began = *recorded.began.get_or_insert(epoch);
        let offset = epoch.saturating_duration_since(began).as_secs_f64();
        Recorder { offset, state: Mutex::new(recorded), ..self }
    }

    /// Returns what has been recorded so far.
    pub(crate) fn into_recorded(self) -> Recorded {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that training resumes with `step`, and the reason for the gap before it.
    pub(crate) fn resume(&self, step: u64, reason: String) {
        let mut state = self.lock();
        if state.is_complete {
            return;
        }
        state.runs.retain(|run| run.step < step); // the later steps are computed again
        state.n_past = 0;
        let ends = state.runs.iter().flat_map(|run| &run.timeline.events).map(|event| event.end);
        let start = ends.fold(f64::NEG_INFINITY, f64::max);
        // A gap without a step since the previous one extends that one.
        let earlier = state.gaps.iter().filter(|gap| gap.end > start).map(|gap| gap.reason.clone());
        let mut reasons: Vec<String> = earlier.collect();
        reasons.push(reason);
        reasons.dedup();
        state.gaps.retain(|gap| gap.end <= start);
        if start.is_finite() {
            let reason = reasons.join("; ");
            state.gaps.push(Gap { start, end: f64::INFINITY, reason });
        }
    }

    /// Returns true if the trace shows these steps.
    pub(crate) fn wants(&self, steps: &Range<u64>) -> bool {
        let is_shown = steps.start < self.steps.end && steps.end > self.steps.start;
        is_shown && !self.lock().is_complete
    }

    /// Adds the events of one rank in steps that are shown; every rank calls this for all of them.
    pub(crate) fn add(&self, did: &Did<'p, '_>) -> Result<(), Fault> {
        let mut state = self.lock();
        let n_workers = did.program.placement().n_workers();
        let (group, worker) = did.program.placement().group_and_worker(did.rank);
        let step = did.steps.start;
        let is_same = |run: &Recording| (run.group, run.step) == (group, step);
        let nth = state.runs.iter().rposition(is_same).unwrap_or_else(|| {
            let timeline = Timeline { n_workers, events: Vec::new() };
            let is_its = |program: &&Program| std::ptr::eq(*program, did.program);
            let program = self.programs.iter().position(is_its).unwrap_or(0);
            let (waits, kernels) = (Vec::new(), Vec::new());
            let run = Recording { program, group, step, timeline, waits, kernels };
            state.runs.push(run);
            state.runs.len() - 1
        });
        let offset = self.offset;
        let later = |time: f64| time + offset;
        let events = did.events.iter();
        let events = events.map(|e| Event { start: later(e.start), end: later(e.end), ..*e });
        state.runs[nth].timeline.events.extend(events);
        let waits = did.waits.iter();
        let waits = waits.map(|w| Wait { start: later(w.start), end: later(w.end), ..*w });
        state.runs[nth].waits.extend(waits);
        let kernels = did.kernels.iter();
        let kernels = kernels.map(|k| (worker, KernelRun { start: later(k.start), ..k.clone() }));
        state.runs[nth].kernels.extend(kernels);
        let starts = did.events.iter().map(|e| e.start).chain(did.waits.iter().map(|w| w.start));
        let start = later(starts.fold(f64::INFINITY, f64::min));
        if let Some(gap) = state.gaps.last_mut() {
            gap.end = gap.end.min(start);
        }
        state.n_past += usize::from(did.steps.end >= self.steps.end);
        if state.n_past == n_workers * self.width { self.write(&mut state) } else { Ok(()) }
    }

    /// Writes the trace if that has not been done. Returns the time of each kernel, summed over all
    /// ranks.
    pub(crate) fn finish(&self) -> Result<Vec<KernelTime>, Fault> {
        let mut state = self.lock();
        if !state.is_complete {
            let written = self.write(&mut state);
            state.is_complete = false;
            written?;
        }
        let kernels = state.runs.iter().flat_map(|run| &run.kernels);
        Ok(KernelTime::sums(kernels.map(|(_, kernel)| kernel)))
    }

    fn write(&self, state: &mut Recorded) -> Result<(), Fault> {
        state.is_complete = true;
        let ran = |run: &Recording| Ran {
            program: self.programs[run.program],
            group: run.group,
            step: run.step,
            timeline: run.timeline.clone(),
            waits: run.waits.clone(),
            kernels: run.kernels.clone(),
        };
        let runs: Vec<_> = state.runs.iter().map(ran).collect();
        // A gap has no end yet if not all ranks have trained after it.
        let now = state.began.map_or(0.0, |began| began.elapsed().as_secs_f64());
        let ended = |gap: &Gap| Gap { end: gap.end.min(now.max(gap.start)), ..gap.clone() };
        let gaps: Vec<_> = state.gaps.iter().map(ended).collect();
        let text = chrome::training(&runs, &gaps, Some(&self.sizes));
        write_trace(self.path, text.as_bytes()).map_err(|e| io_fault("trace", self.path, &e))
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a trace either whole or not at all, unless its path is a link, which is kept. If writing
/// fails, an empty file that was created for the trace is removed.
fn write_trace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    let found = path.symlink_metadata().ok();
    if found.as_ref().is_some_and(|found| found.is_symlink()) {
        return std::fs::write(path, text);
    }
    write_named(path, text).inspect_err(|_| {
        if found.is_some_and(|found| found.is_file() && found.len() == 0) {
            let _ = std::fs::remove_file(path); // the first error is the one to report
        }
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs::{create_dir, read_to_string};

    use super::*;

    #[test]
    fn a_trace_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        std::fs::write(&path, "").unwrap();
        write_trace(&path, b"{}").unwrap();
        assert_eq!(read_to_string(&path).unwrap(), "{}");
        // A folder is in the way of the new file.
        create_dir(folder.path().join(format!("t.json.{}.part", std::process::id()))).unwrap();
        write_trace(&path, b"[]").unwrap_err();
        assert_eq!(read_to_string(&path).unwrap(), "{}");
        std::fs::write(&path, "").unwrap();
        write_trace(&path, b"[]").unwrap_err();
        assert!(!path.exists());
        write_trace(Path::new("/dev/null"), b"[]").unwrap();
    }
}
