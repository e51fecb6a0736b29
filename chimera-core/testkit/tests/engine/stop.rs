//! A run that any rank asks to stop, before any instruction: the current step is discarded on all
//! ranks or finished on all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use chimera_engine::comm::{
    AllReduce, Comm, CommError, Endpoint, Liveness, Position, Tag, Threads,
};
use chimera_engine::device::Elements;
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::{Counts, Job, Snapshot, StepReport, Worker};
use chimera_engine::fault::Fault;
use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::program::Instr;
use chimera_schedule::schedule::{Shape, find};

use crate::training::{N_STEPS, Run, execute};

/// The step in which the run is asked to stop.
const STEP: u64 = 2;

/// A transport that sets its rank's flag when the rank comes to `at`.
struct Asked<'c> {
    inner: &'c mut Threads<Tensor>,
    at: Option<Position>,
    flag: &'c AtomicBool,
    passes_on: bool,
}

impl Liveness for Asked<'_> {
    fn report_progress(&mut self, position: Position) {
        self.inner.report_progress(position);
        if self.at == Some(position) {
            self.flag.store(true, Ordering::Relaxed);
        }
    }

    fn query_progress(&mut self, deadline: Instant) -> Result<Vec<Option<Position>>, CommError> {
        self.inner.query_progress(deadline)
    }

    fn request_stop(&mut self) {
        self.inner.request_stop();
    }

    fn stop_requested(&self) -> Option<bool> {
        self.inner.stop_requested().filter(|_| self.passes_on)
    }
}

impl Endpoint for Asked<'_> {
    fn rank(&self) -> Rank {
        self.inner.rank()
    }

    fn n_ranks(&self) -> u32 {
        self.inner.n_ranks()
    }

    fn send_bytes(&mut self, to: Rank, bytes: Vec<u8>) -> Result<(), CommError> {
        self.inner.send_bytes(to, bytes)
    }

    fn try_recv_bytes(&mut self, from: Rank) -> Result<Option<Vec<u8>>, CommError> {
        self.inner.try_recv_bytes(from)
    }

    fn recv_bytes(&mut self, from: Rank, deadline: Instant) -> Result<Vec<u8>, CommError> {
        self.inner.recv_bytes(from, deadline)
    }

    fn abort(&mut self, cause: &Fault) {
        self.inner.abort(cause);
    }
}

impl Comm<Tensor> for Asked<'_> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Tensor) -> Result<(), CommError> {
        self.inner.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Tensor>, CommError> {
        self.inner.try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Tensor, CommError> {
        self.inner.recv(from, tag, deadline)
    }

    fn reducer(&mut self, _: &[Rank]) -> Option<&mut dyn AllReduce<Tensor>> {
        None
    }
}

/// The results of a run's ranks.
#[derive(PartialEq, Debug)]
struct Left {
    /// Losses of the steps that were trained.
    losses: Vec<f64>,
    counts: Counts,
    state: Vec<Snapshot>,
    /// The weights of all ranks.
    weights: Vec<Tensor>,
    /// The weights of the whole model, as rank 0 gathers them.
    gathered: Vec<Elements>,
}

/// The rank that asks to stop, and the position at which it does.
#[derive(Clone, Copy, Debug)]
struct Ask {
    rank: u32,
    at: Option<Position>,
    passes_on: bool,
}

const NOBODY: Ask = Ask { rank: 0, at: None, passes_on: true };

/// Trains to step `end`, or until the stop.
fn train(run: &Run, end: u64, ask: Ask) -> Left {
    let schedule = find(run.schedule).expect("known");
    let timetable = schedule.timetable(&run.shape).expect("fits");
    let n_ranks = run.width * run.shape.depth;
    let flags: Vec<_> = (0..n_ranks).map(|_| AtomicBool::new(false)).collect();
    let ranks = execute(run, &timetable, |job, inner, stage| {
        let rank = inner.rank();
        let flag = &flags[rank.index()];
        let at = ask.at.filter(|_| rank == Rank(ask.rank));
        if at == Some(Position::Start) {
            flag.store(true, Ordering::Relaxed);
        }
        let comm = Asked { inner, at, flag, passes_on: ask.passes_on };
        let mut worker = Worker::new(Job { stop: flag, ..job }, Reference, comm, stage)?;
        let mut next = 0;
        let mut reports: Vec<StepReport> = Vec::new();
        while next < end && !reports.last().is_some_and(|report| report.stop) {
            let trained = worker.run(next)?;
            if trained.is_empty() {
                break;
            }
            next += trained.len() as u64;
            reports.extend(trained);
        }
        // As a run does after its last step, over the same transport.
        worker.check_replicas()?;
        let state = worker.snapshot(Vec::new())?;
        let gathered = worker.gather_weights(next)?.into_iter();
        let gathered = gathered.map(|(_, values)| values).collect();
        let stages = (0..job.program.placement().n_stages() as u16).map(StageId);
        let held = stages.filter_map(|stage| worker.held(stage));
        let weights = held.flat_map(|(_, weights, _)| weights).cloned().collect();
        let losses = reports.iter().map(|report| report.loss).collect();
        Ok(Left { losses, counts: worker.counts(), state, weights, gathered })
    });
    let all = ranks.unwrap_or_else(|fault| panic!("{run:?} {ask:?}: {fault}"));
    all.into_iter()
        .reduce(|all, other| {
            assert_eq!((&all.losses, all.counts), (&other.losses, other.counts), "{run:?} {ask:?}");
            let (state, weights) =
                ([all.state, other.state].concat(), [all.weights, other.weights].concat());
            Left { state, weights, ..all }
        })
        .expect("a rank")
}

/// The number of instructions in each worker's row, and the index of its step sync.
fn rows(run: &Run) -> Vec<(u32, u32)> {
    let schedule = find(run.schedule).expect("known");
    let timetable = schedule.timetable(&run.shape).expect("fits");
    let rows = std::sync::Mutex::new(Vec::new());
    execute::<Tensor, _>(run, &timetable, |job, _, _| {
        let row = |row: &Vec<Instr>| {
            let sync = row.iter().position(|i| *i == Instr::Agree).expect("a step sync");
            (row.len() as u32, sync as u32)
        };
        *rows.lock().expect("no panic") = job.program.rows().iter().map(row).collect();
        Ok(())
    })
    .expect("no rank fails");
    rows.into_inner().expect("no panic")
}

fn runs() -> Vec<Run> {
    let chimera = Run::new("chimera", Shape::new(2, 2));
    vec![
        Run::new("gpipe", Shape::new(2, 3)),
        Run { shape: Shape::new(3, 4), ..Run::new("1f1b", Shape::new(3, 4)) },
        Run::new("zb-h1", Shape::new(2, 3)),
        Run { tied: true, ..chimera.clone() },
        Run { width: 2, shard_optimizer: true, ..chimera },
    ]
}

/// With the barrier a step is complete on all ranks or on none, whenever the request comes.
#[test]
fn a_step_that_is_stopped_leaves_the_state_of_the_last_whole_one() {
    for run in runs() {
        let by_steps: Vec<_> = (0..=N_STEPS).map(|n| train(&run, n, NOBODY)).collect();
        for (worker, (n, sync)) in (0..).zip(rows(&run)) {
            let depth = run.shape.depth as u32;
            let rank = worker + depth * (run.width as u32 - 1);
            for instr in 0..=n {
                let at = Some(Position::At { step: STEP, instr });
                let left = train(&run, N_STEPS, Ask { rank, at, ..NOBODY });
                let n_steps = left.losses.len();
                // A rank right before its step sync goes there, and others may discard meanwhile.
                let expected = match instr + 1 {
                    next if next < sync => 2..=2,
                    next if next == sync => 2..=3,
                    _ => 3..=3,
                };
                assert!(expected.contains(&n_steps), "{run:?}: {rank} at {instr}: {n_steps} steps");
                assert!(left == by_steps[n_steps], "{run:?}: {rank} at {instr}: another state");
            }
        }
    }
}

/// Without the barrier weights change within the step, also in a window. Some transports cannot
/// abandon a step.
#[test]
fn what_cannot_be_discarded_is_finished() {
    let gpipe = Run::new("gpipe", Shape::new(2, 3));
    let window = Shape { window: 2, ..Shape::new(2, 2) };
    let without = |run: Run| Run { clip: None, check_finite: false, ..run };
    for (run, passes_on, first, then) in [
        (without(gpipe.clone()), true, 3, 4),
        (gpipe, false, 3, 4),
        (without(Run::new("pipedream-2bw", window)), true, 4, 4),
    ] {
        for (rank, (n, sync)) in (0..).zip(rows(&run)) {
            for instr in 0..=n {
                let at = Some(Position::At { step: STEP, instr });
                let left = train(&run, 4, Ask { rank, at, passes_on });
                let expected = if instr <= sync { first } else { then };
                assert_eq!(left.losses.len(), expected, "{run:?}: {rank} at {instr}");
                let undisturbed = train(&run, expected as u64, NOBODY);
                assert!(left == undisturbed, "{run:?}: {rank} at {instr}: another state");
            }
        }
    }
}

/// A request from before the first step is honoured before anything is trained.
#[test]
fn nothing_is_begun_by_a_run_that_is_to_stop() {
    let gpipe = Run::new("gpipe", Shape::new(2, 3));
    let without = Run { clip: None, check_finite: false, ..gpipe.clone() };
    let window = Shape { window: 2, ..Shape::new(2, 2) };
    for run in [gpipe, without.clone(), Run { schedule: "pipedream", shape: window, ..without }] {
        let left = train(&run, 4, Ask { at: Some(Position::Start), ..NOBODY });
        assert!(left == train(&run, 0, NOBODY), "{run:?}");
    }
}
