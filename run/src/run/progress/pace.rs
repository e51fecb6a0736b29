//! The progress of a run within a step: the time that is left, and whether a stop has to wait for it.
//!
//! Rank 0 stands for all. A simulation from the operations of the stages gives the share of a step's time that
//! is over after each op of its row. So a few measured ops already give an estimate of the whole step.

use std::mem::replace;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use chimera_core::analyze::{Event, Timeline, Work, simulate};
use chimera_core::comm::Position;
use chimera_core::costs::StageCosts;
use chimera_core::engine::{Did, Doing};
use chimera_core::ids::{Rank, WorkerId};
use chimera_core::op::Lane;
use chimera_core::program::{Instr, Program};
use chimera_core::update::Update;
use chimera_plan::plan::{Units, costs_by_flops};
use chimera_settings::Transport;

use crate::observe::Explain;
use crate::run::{DirectTransport, Run, Transformer};

/// The least number of ops that an estimate follows from: the first one of a run warms caches up.
const LEAST_OPS: usize = 3;

/// The progress of rank 0 within a step, or within a window of steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WithinStep {
    /// Number of the step, or of the first step of the window.
    pub step: u64,
    /// Steps of the window.
    pub n_steps: u32,
    /// Micro-batches that rank 0 has finished.
    pub n_done: u32,
    /// All micro-batches of rank 0.
    pub n_micro_batches: u32,
    /// Ops that rank 0 has finished, and the seconds that they and the waits between them took.
    pub ops: (usize, f64),
    /// Seconds since the start of the step.
    pub elapsed_s: f64,
    /// Estimated seconds of the whole step, from the ops that are finished.
    pub whole_s: Option<f64>,
}

impl WithinStep {
    /// Returns a name for the step or steps.
    pub fn name(&self) -> String {
        match u64::from(self.n_steps) {
            1 => format!("step {}", self.step),
            n => format!("steps {} to {}", self.step, self.step + n - 1),
        }
    }

    /// Returns the seconds that are left of the step.
    pub fn left_s(&self) -> Option<f64> {
        self.whole_s.map(|whole| whole - self.elapsed_s)
    }
}

/// Reports the progress of a run to any thread.
pub struct Pace {
    explain: Arc<Explain>,
    ruler: Ruler,
    /// The first step with another program.
    end: u64,
    /// The step seen last, when it was first seen, and when its first op began by the rank's clock.
    seen: Mutex<Option<(u64, Instant, f64)>>,
}

impl Pace {
    /// Returns the progress of rank 0, if it is within a step.
    pub fn look(&self) -> Option<WithinStep> {
        let recorder = self.explain.recorder(Rank(0))?;
        let Position::At { step, instr } = recorder.position() else { return None };
        let instr = instr as usize;
        if step >= self.end || instr + 1 >= self.ruler.over.len() {
            return None; // in the last steps of a run, or between steps
        }
        let did: Vec<_> = recorder.all().into_iter().filter(|did| did.step == step).collect();
        let first = did.first().map_or(f64::INFINITY, |did| did.start);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.is_none_or(|(of, ..)| of != step) {
            *seen = Some((step, Instant::now(), first));
        }
        let (_, since, start) = seen.as_mut()?;
        *start = start.min(first); // the recorder forgets the first ops of a long step
        let is_op = |did: &&Did| matches!(did.what, Doing::Work(Work::Cell(_)));
        let took = did.iter().rfind(is_op).map_or(0.0, |last| last.end - *start);
        let elapsed_s = since.elapsed().as_secs_f64().max(took);
        let (over, n_ops) = (self.ruler.over[instr], self.ruler.n_ops[instr]);
        // A device may do its work long after it was asked to.
        let is_enough = over > 0.0 && n_ops >= LEAST_OPS;
        let whole_s = is_enough.then(|| took / over).filter(|whole| *whole > elapsed_s);
        Some(WithinStep {
            step,
            n_steps: self.ruler.n_steps,
            n_done: self.ruler.n_done[instr],
            n_micro_batches: self.ruler.n_micro_batches,
            ops: (n_ops, took),
            elapsed_s,
            whole_s,
        })
    }
}

/// The row of worker 0: for each instruction, the progress before it.
struct Ruler {
    /// Share of the step's time that is over.
    over: Vec<f64>,
    n_ops: Vec<usize>,
    /// Micro-batches with nothing left to do.
    n_done: Vec<u32>,
    n_micro_batches: u32,
    n_steps: u32,
}

impl Ruler {
    /// Up to `workers_at_once` workers of a pipeline group have a core each; more share them.
    fn of(program: &Program, costs: &StageCosts, workers_at_once: f64) -> Ruler {
        let row = program.rows().first().map_or(&[][..], Vec::as_slice);
        let timeline = simulate(program, costs);
        let time = stretched(&timeline, workers_at_once);
        let is_mine = |e: &&Event| e.worker == WorkerId(0) && matches!(e.work, Work::Cell(_));
        let mut ends = timeline.events.iter().filter(is_mine).map(|e| time(e.end));
        let whole = time(timeline.makespan());
        let mut ruler = Ruler {
            over: vec![0.0],
            n_ops: vec![0],
            n_done: vec![0],
            n_micro_batches: program.n_micro_batches(),
            n_steps: program.window().n_steps(),
        };
        let ending = ending(program, row);
        let (mut over, mut n_ops, mut n_done) = (0.0, 0, 0);
        for (instr, n_ending) in row.iter().zip(ending) {
            if matches!(instr, Instr::Run(cell) if cell.lane() == Lane::Compute) {
                (over, n_ops) = (ends.next().unwrap_or(over * whole) / whole, n_ops + 1);
            }
            n_done += n_ending;
            ruler.over.push(over);
            ruler.n_ops.push(n_ops);
            ruler.n_done.push(n_done);
        }
        ruler
    }
}

/// Returns for each instruction of a row how many micro-batches have their last pass in it.
fn ending(program: &Program, row: &[Instr]) -> Vec<u32> {
    let (mut is_seen, mut ending) =
        (vec![false; program.n_micro_batches() as usize], vec![0; row.len()]);
    for (instr, n_ending) in row.iter().zip(&mut ending).rev() {
        let Instr::Run(cell) = instr else { continue };
        let passes = cell.ops().filter(|op| op.kind.lane() == Lane::Compute);
        for unit in passes.flat_map(|op| op.micro_batch_units()) {
            let is_seen = &mut is_seen[(unit / program.units_per_micro()) as usize];
            *n_ending += u32::from(!replace(is_seen, true));
        }
    }
    ending
}

/// Returns a clock that slows down where more than `at_once` workers are busy.
fn stretched(timeline: &Timeline, at_once: f64) -> impl Fn(f64) -> f64 {
    let cells = timeline.events.iter().filter(|e| matches!(e.work, Work::Cell(_)));
    let mut changes: Vec<_> = cells.flat_map(|e| [(e.start, 1.0), (e.end, -1.0)]).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut before, mut n_busy, mut now) = (0.0, 0.0, 0.0);
    let mut clock = Vec::with_capacity(changes.len());
    for (at, change) in changes {
        now += (at - before) * f64::max(1.0, n_busy / at_once);
        (before, n_busy) = (at, n_busy + change);
        clock.push((at, now));
    }
    move |time| {
        let at = clock.partition_point(|(at, _)| *at <= time);
        let (from, then) = at.checked_sub(1).map_or((0.0, 0.0), |at| clock[at]);
        then + time - from
    }
}

impl<K: DirectTransport> Run<Transformer<K>> {
    /// Returns an object that reports the progress of this run to other threads. The last ops of
    /// ranks have to be [kept](Run::explain_in).
    pub fn pace(&self) -> Option<Arc<Pace>> {
        let explain = self.explain.as_ref()?;
        let pace = self.pace.get_or_init(|| {
            let (config, window) = (self.config(), u64::from(self.program().window().n_steps()));
            let n_whole = (config.training.steps - self.first_step()) / window;
            let end = self.first_step() + n_whole * window;
            let (explain, seen) = (Arc::clone(explain), Mutex::default());
            Arc::new(Pace { explain, ruler: self.ruler(), end, seen })
        });
        Some(Arc::clone(pace))
    }

    fn ruler(&self) -> Ruler {
        let (program, sequence) = (self.program(), self.config().model.sequence);
        let (model, cuts) = (self.model(), &self.subject.cuts);
        // A ruler only has shares of a step, so any unit of time will do.
        let is_selective = |stage| program.rules().is_selective_somewhere(stage);
        let costs = costs_by_flops(model, sequence, cuts, (1.0, Units::of(program)), is_selective);
        Ruler::of(program, &StageCosts::new(costs), self.workers_at_once())
    }

    /// Returns the number of workers of a pipeline group that can run without slowing each other down.
    fn workers_at_once(&self) -> f64 {
        let config = self.config();
        if self.devices().one().is_some_and(|device| device.is_host()) {
            self.cores() as f64 / (config.devices.threads * config.schedule.width) as f64
        } else {
            f64::INFINITY
        }
    }

    /// Returns the reason why a step that was begun is finished when the run is to stop; `None` if it is discarded.
    pub fn finishes_steps(&self) -> Option<&'static str> {
        let config = self.config();
        if self.program().window().update() != Update::Flush {
            Some("an asynchronous schedule updates weights within it")
        } else if !self.program().has_barrier() {
            Some(
                "without --clip and --check-finite weights are updated before all workers are done",
            )
        } else if config.devices.transport == Transport::Nccl {
            Some("messages over NCCL that were sent have to be received")
        } else if config.replicas.mpi_allreduce {
            Some("MPI's all-reduce has to be finished by all ranks")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::costs::{PerStage, UniformCosts, WithOwnWork};
    use chimera_core::effects::{OwnWork, Pieces};
    use chimera_core::lower::{Lowering, fill, lower, offload};
    use chimera_core::schedule::{Shape, find};

    use super::*;

    fn ruler(schedule: &str, at_once: f64) -> Ruler {
        let timetable = find(schedule).unwrap().timetable(&Shape::new(2, 2)).unwrap();
        let program = lower(&timetable, &Lowering::default()).unwrap();
        let stage = UniformCosts::new(1.0, 2.0, 0.0);
        Ruler::of(&program, &StageCosts::new(vec![stage; 2]), at_once)
    }

    /// GPipe on two workers: F0 F1 . . . . B1 B0, nine units of time.
    #[test]
    fn ops_tell_which_part_of_a_step_is_over() {
        let ruler = ruler("gpipe", 2.0);
        let mut by_op: Vec<_> = ruler.over.iter().map(|over| over * 9.0).collect();
        by_op.dedup();
        assert_eq!(by_op, [0.0, 1.0, 2.0, 7.0, 9.0]);
        assert_eq!((ruler.n_done.first(), ruler.n_done.last()), (Some(&0), Some(&2)));
        assert_eq!(ruler.n_ops.last(), Some(&4));
        assert!(ruler.n_done.iter().zip(&ruler.over).all(|(n, over)| *n == 2 || *over < 1.0));
    }

    /// On one core all cells of both workers run one after the other.
    #[test]
    fn workers_that_share_a_core_slow_each_other_down() {
        let ruler = ruler("gpipe", 1.0);
        let mut by_op: Vec<_> = ruler.over.iter().map(|over| (over * 12.0).round()).collect();
        by_op.dedup();
        assert_eq!(by_op[..2], [0.0, 1.0]);
        assert_eq!(by_op.last(), Some(&12.0));
    }

    /// Six pieces fit into the idle time of each worker, which has two micro-batches.
    #[test]
    fn pieces_of_work_are_ops_but_no_micro_batches() {
        let timetable = find("gpipe").unwrap().timetable(&Shape::new(2, 2)).unwrap();
        let program = lower(&timetable, &Lowering::default()).unwrap();
        let stages = StageCosts::new(vec![UniformCosts::new(1.0, 2.0, 0.0); 2]);
        let costs = WithOwnWork::new(&stages, vec![PerStage(vec![0.5])]);
        let work = OwnWork { name: "factors".into(), pieces: Pieces::Anytime(100) };
        let filled = fill(&program, &[work], &Lowering::default(), &costs).unwrap();
        let ruler = Ruler::of(&filled, &stages, 2.0);
        assert_eq!(ruler.n_ops.last(), Some(&(4 + 6)));
        assert_eq!((ruler.n_done.last(), ruler.over.last()), (Some(&2), Some(&1.0)));
    }

    /// GPipe of one worker that holds one of two micro-batches at a time.
    #[test]
    fn moves_run_beside_the_ops_that_are_counted() {
        let timetable = find("gpipe").unwrap().timetable(&Shape::new(1, 2)).unwrap();
        let stages = StageCosts::new(vec![UniformCosts::new(1.0, 2.0, 0.0)]);
        let how = Lowering { max_peak: Some(1.0), ..Lowering::default() };
        let program = lower(&offload(timetable, &how, &stages).unwrap(), &how).unwrap();
        let ruler = Ruler::of(&program, &stages, 1.0);
        assert_eq!((ruler.n_ops.last(), ruler.n_done.last()), (Some(&4), Some(&2)));
        let mut by_op: Vec<_> = ruler.over.iter().map(|over| over * 6.0).collect();
        by_op.dedup();
        assert_eq!(by_op, [0.0, 1.0, 2.0, 4.0, 6.0]);
    }
}
