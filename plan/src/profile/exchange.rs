//! Times of messages, reductions and the step sync between workers on threads. They are measured in
//! the engine itself, with stages that hold weights and only wait for a while.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use chimera_core::analyze::{Awaited, Event, Wait, Work};
use chimera_core::comm::{Endpoint, Threads};
use chimera_core::effects::Token;
use chimera_core::engine::{Job, Optimizer, Patience, Training, Worker, run_threads};
use chimera_core::ids::BucketId;
use chimera_core::layers::Layers;
use chimera_core::lower::{Lowering, lower};
use chimera_core::op::{Cell, Kind};
use chimera_core::program::Program;
use chimera_core::schedule::{Shape, find};
use chimera_core::stage::samples;
use chimera_device::thread_pool;

use super::idle_stage::IdleStage;
use super::law::{median, middle};
use super::{MessageTime, ReductionTime, Workers};

/// Elements of the measured messages, and of the gradients of the measured reductions.
const ELEMENTS: [usize; 5] = [1 << 8, 1 << 12, 1 << 16, 1 << 19, 1 << 22];
/// Steps of each size, after one that does not count.
const N_STEPS: u64 = 12;
/// Duration of a stage's op: as long as a short one of a model, so that a worker that waits for its message sleeps.
const OP: Duration = Duration::from_micros(400);
/// Time after which a rank considers others lost.
const PATIENCE: Duration = Duration::from_secs(100);

/// Measurements between a number of workers.
pub(super) struct Exchange {
    pub(super) messages: Vec<MessageTime>,
    pub(super) reductions: Vec<ReductionTime>,
    pub(super) sync_s: f64,
}

/// Measures messages and reductions between workers that are threads on a device.
pub(super) fn measure<K: Layers>(device: &K, by: Workers) -> Result<Exchange> {
    let workers = by.workers;
    let (mut messages, mut reductions, mut syncs) = (Vec::new(), Vec::new(), Vec::new());
    for elements in ELEMENTS {
        let line = program("gpipe", workers)?;
        messages.extend(message(&line, &ran(device, &line, by, (elements, 1))?, elements));
        // One worker in each of several groups: all reduce the one bucket.
        let alone = program("gpipe", 1)?;
        let ranks = ran(device, &alone, by, (1, elements))?;
        reductions.extend(reduction(&ranks, elements));
        syncs.extend(ranks[0].iter().enumerate().filter_map(|(step, _)| sync(&ranks, step)));
    }
    ensure!(
        !messages.is_empty(),
        "no worker ever waited for a message, so none could be timed: measure again when the machine has less to do"
    );
    let sync_s = median(&mut syncs); // zero if nobody waits for it
    Ok(Exchange { messages, reductions, sync_s })
}

fn program(schedule: &str, depth: usize) -> Result<Program> {
    let timetable = find(schedule)?.timetable(&Shape::new(depth, 4))?;
    Ok(lower(&timetable, &Lowering::default())?)
}

/// The ops and waits of a rank in a step.
type RankStep = (Vec<Event>, Vec<Wait>);

/// Runs a program with stages of this many elements. Returns the ops and waits of each rank in each step.
fn ran<K: Layers>(
    device: &K,
    program: &Program,
    Workers { workers, threads }: Workers,
    elements: (usize, usize),
) -> Result<Vec<Vec<RankStep>>> {
    let width = workers / program.placement().n_workers();
    let pools = (0..workers).map(|_| thread_pool(threads)).collect::<Result<Vec<_>, _>>()?;
    let training = Training { optimizer: Optimizer::sgd(), ..Training::default() };
    let job = Job {
        program,
        width,
        micro_batch_size: 1,
        training: &training,
        // One number, which is never read.
        data: &samples(1, |_, _, input: &mut Vec<u32>, target| {
            input.push(0);
            target.push(0);
        }),
        patience: Patience { first_step: PATIENCE, later: PATIENCE },
        stop: &AtomicBool::new(false),
        own_work: None,
        epoch: Instant::now(),
    };
    let n_stages = program.placement().n_stages();
    let ranks = run_threads(workers as u32, |comm: &mut Threads<K::Tensor>| {
        let (device, rank) = (device.clone(), comm.rank());
        pools[rank.index()].install(|| {
            let stage = |id| Ok(IdleStage::new(&device, id, n_stages, elements, OP));
            let mut worker = Worker::new(job, device.clone(), comm, stage)?;
            let mut steps = Vec::new();
            for step in 0..=N_STEPS {
                worker.all_gather("common start", &[])?;
                worker.run(step)?;
                let (events, waits, _) = worker.timeline()?;
                if step > 0 {
                    steps.push((events.to_vec(), waits.to_vec()));
                }
            }
            Ok(steps)
        })
    });
    ranks.context("messages between threads could not be measured")
}

/// Returns the time of a message from the end of the op that makes it until the receiver goes on,
/// and the time that it occupies its sender. Returns `None` if nobody ever waited for one, as on a
/// busy machine: other sizes are better evidence than a guess.
fn message(program: &Program, ranks: &[Vec<RankStep>], elements: usize) -> Option<MessageTime> {
    let (mut took, mut occupied) = (Vec::new(), Vec::new());
    for step in 0..N_STEPS as usize {
        let of_step: Vec<&RankStep> = ranks.iter().filter_map(|rank| rank.get(step)).collect();
        for wait in of_step.iter().flat_map(|(_, waits)| waits) {
            let Awaited::Message(token) = wait.awaited else { continue };
            let made = of_step.iter().find_map(|(events, _)| made(program, events, &token));
            // Messages that came before the receiver wanted them tell nothing.
            took.extend(made.filter(|made| *made > wait.start).map(|made| wait.end - made));
        }
        // The first worker's forwards run one after the other, each with a message.
        let first = of_step.first().map_or(&[][..], |(events, _)| events);
        let forwards = first.iter().filter(|event| is_forward(event)).collect::<Vec<_>>();
        occupied.extend(forwards.windows(2).map(|pair| pair[1].start - pair[0].end));
    }
    let ((seconds, spread), (occupies, _)) = (middle(&mut took)?, middle(&mut occupied)?);
    Some(MessageTime { bytes: 4 * elements, count: took.len(), seconds, spread, occupies })
}

fn is_forward(event: &Event) -> bool {
    matches!(event.work, Work::Cell(Cell::One(op)) if op.kind == Kind::Forward)
}

/// Returns when the op that makes a token was done.
fn made(program: &Program, events: &[Event], token: &Token) -> Option<f64> {
    let makes = |event: &&Event| match &event.work {
        Work::Cell(cell) => program.rules().cell_effects(cell).makes.contains(token),
        Work::Reduce(_) | Work::Step(_) | Work::Move(_) => false,
    };
    Some(events.iter().find(makes)?.end)
}

/// Returns the time of a reduction from the start of its last replica to the end of its last, and
/// the time that it occupies a worker. Returns `None` if there was none.
fn reduction(ranks: &[Vec<RankStep>], elements: usize) -> Option<ReductionTime> {
    let (mut took, mut occupied) = (Vec::new(), Vec::new());
    for step in 0..N_STEPS as usize {
        let (mut from, mut to) = (0.0f64, 0.0f64);
        for (events, waits) in ranks.iter().filter_map(|rank| rank.get(step)) {
            let reduce = events.iter().find(|event| event.work == Work::Reduce(BucketId(0)));
            let awaits = waits.iter().find(|wait| wait.awaited == Awaited::Sum(BucketId(0)));
            let Some((reduce, wait)) = reduce.zip(awaits) else { continue };
            (from, to) = (from.max(reduce.start), to.max(reduce.end));
            occupied.push(wait.start - reduce.start);
        }
        took.push(to - from);
    }
    let ((seconds, spread), (occupies, _)) = (middle(&mut took)?, middle(&mut occupied)?);
    let (replicas, count) = (ranks.len(), took.len());
    Some(ReductionTime { replicas, elements, count, seconds, spread, occupies })
}

/// Returns the time of the step sync after the last rank has arrived at it.
fn sync(ranks: &[Vec<RankStep>], step: usize) -> Option<f64> {
    let waits = ranks.iter().filter_map(|rank| {
        rank.get(step)?.1.iter().find(|wait| wait.awaited == Awaited::Agreement)
    });
    let (from, to) =
        waits.fold((0.0f64, 0.0f64), |(from, to), wait| (from.max(wait.start), to.max(wait.end)));
    (to > from).then_some(to - from)
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::simulate;
    use chimera_core::costs::UniformCosts;
    use chimera_core::ids::WorkerId;

    use super::*;

    /// Returns steps of two workers, where the second begins to wait for the first forward's message at `start`.
    fn steps(program: &Program, start: f64) -> Vec<Vec<RankStep>> {
        let timeline = simulate(program, &UniformCosts::new(1.0, 2.0, 0.0));
        let [first, second] = [WorkerId(0), WorkerId(1)].map(|worker| {
            let events = timeline.events.iter().filter(|event| event.worker == worker);
            events.cloned().collect::<Vec<_>>()
        });
        let Work::Cell(cell) = &first[0].work else { panic!("no forward") };
        let effects = program.rules().cell_effects(cell);
        let token = effects.makes.iter().find(|token| token.stage != token.to).expect("a message");
        let (awaited, end) = (Awaited::Message(*token), first[0].end + 0.25);
        let waits = vec![Wait { worker: WorkerId(1), awaited, start, end }];
        vec![vec![(first, vec![]); N_STEPS as usize], vec![(second, waits); N_STEPS as usize]]
    }

    #[test]
    fn of_a_message_that_nobody_waited_for_nothing_is_known() {
        let line = program("gpipe", 2).unwrap();
        let time = message(&line, &steps(&line, 0.5), 256).expect("a wait");
        assert_eq!((time.bytes, time.count, time.seconds), (1024, N_STEPS as usize, 0.25));
        assert_eq!(message(&line, &steps(&line, 1.125), 256), None);
    }
}
