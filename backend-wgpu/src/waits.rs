//! Before a rank waits for another, its device has begun all that it was asked for.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chimera_core::comm::{Comm, CommError, Host, HostStaged, Tag, Threads, Wrap};
use chimera_core::engine::{Job, Patience, Training, Worker, run_threads};
use chimera_core::ids::Rank;
use chimera_core::lower::{Lowering, lower};
use chimera_core::model::{Architecture, Gpt2Stage, ModelConfig, cut};
use chimera_core::schedule::{Shape, find};
use chimera_core::stage::Data;

use crate::{Options, Wgpu, adapters};

const CONTEXT: usize = 3;
const VOCAB: usize = 5;
const N_RANKS: u32 = 2;

/// A transport that looks at the device of its rank whenever it is asked to wait.
struct Watched<'c> {
    k: Wgpu,
    inner: &'c mut Threads<Host>,
    /// Layers that were recorded and not submitted, by wait.
    left: Vec<usize>,
}

impl Watched<'_> {
    fn look(&mut self) {
        self.left.push(self.k.gpu.n_recorded());
    }
}

impl Wrap for Watched<'_> {
    type Inner = Threads<Host>;

    fn inner(&self) -> &Threads<Host> {
        self.inner
    }

    fn inner_mut(&mut self) -> &mut Threads<Host> {
        self.inner
    }

    fn flush(&mut self) -> Result<(), CommError> {
        self.look();
        Ok(())
    }
}

impl Comm<Host> for Watched<'_> {
    fn send(&mut self, to: Rank, tag: Tag, tensor: Host) -> Result<(), CommError> {
        self.inner.send(to, tag, tensor)
    }

    fn try_recv(&mut self, from: Rank, tag: Tag) -> Result<Option<Host>, CommError> {
        self.inner.try_recv(from, tag)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.look();
        self.inner.recv(from, tag, deadline)
    }

    fn has_all_reduce(&self, members: &[Rank]) -> bool {
        self.inner.has_all_reduce(members)
    }
}

struct Digits;

impl Data for Digits {
    fn sample(
        &self,
        step: u64,
        sample: u64,
        input: &mut Vec<u32>,
        target: &mut Vec<u32>,
    ) -> std::io::Result<()> {
        let id = |i: usize| ((step + 3 * sample) as usize + i * i) as u32 % VOCAB as u32;
        input.extend((0..CONTEXT).map(id));
        target.extend((1..=CONTEXT).map(id));
        Ok(())
    }

    fn n_targets(&self) -> usize {
        CONTEXT
    }
}

/// The weight halves of ZB-H1's backwards are asked for right before waits.
#[test]
fn nothing_lies_unsubmitted_while_a_rank_waits() {
    let shape = Shape::new(N_RANKS as usize, 4);
    let timetable = find("zb-h1").expect("known").timetable(&shape).expect("it fits");
    let program = lower(&timetable, &Lowering::default()).expect("it is sound");
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 2,
        hidden: 4,
        heads: 2,
        context: CONTEXT,
        vocab: VOCAB,
        tied: false,
    };
    let cuts = cut(&model, timetable.placement.n_stages()).expect("it can be cut");
    let hour = Duration::from_secs(3600);
    let job = Job {
        program: &program,
        width: 1,
        micro_batch_size: 1,
        training: &Training { steps: 2, ..Training::default() },
        data: &Digits,
        patience: Patience { first_step: hour, later: hour },
        stop: &AtomicBool::new(false),
        epoch: Instant::now(),
    };
    let adapter = adapters().into_iter().next().expect("an adapter");
    let ran = run_threads(N_RANKS, |comm: &mut Threads<Host>| {
        let k = adapter.open(Options::default()).expect("it opens");
        let mut watched = Watched { k: k.clone(), inner: comm, left: Vec::new() };
        let mut worker =
            Worker::new(job, k.clone(), HostStaged::new(k.clone(), &mut watched), |id| {
                let stage = Gpt2Stage::new(k.clone(), &model, CONTEXT, cuts[id.index()].clone());
                Ok(stage.expect("a stage"))
            })?;
        worker.run(0)?;
        worker.run(1)?;
        drop(worker);
        Ok((watched.left, k.gpu.pool().n_submissions()))
    });
    for (rank, (left, n_submissions)) in ran.expect("it trains").into_iter().enumerate() {
        assert!(left.len() >= 4 && left.iter().all(|n| *n == 0), "rank {rank}: {left:?}");
        assert!(n_submissions >= left.len() as u64, "rank {rank}: {n_submissions} submissions");
    }
}
