//! Tests that a device has begun all requested work before its rank waits for another.

use std::time::Instant;

use chimera_core::comm::{AllReduce, Comm, CommError, Host, HostStaged, Tag, Threads, Wrap};
use chimera_core::engine::run_threads;
use chimera_core::ids::Rank;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::Shape;
use chimera_testkit::equivalence::TrialRun;

use crate::{Options, Wgpu, adapters};

const N_RANKS: u32 = 2;
const MICRO_BATCHES: u32 = 4;
const STEPS: u64 = 2;

/// A transport that never has a message at once, and checks the device of its rank at every wait.
struct Watched<'c> {
    k: Wgpu,
    inner: &'c mut Threads<Host>,
    /// Number of layers that were recorded and not submitted, by wait.
    waits: Vec<usize>,
}

impl Watched<'_> {
    fn look(&mut self) {
        self.waits.push(self.k.gpu.n_recorded());
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

    fn try_recv(&mut self, _: Rank, _: Tag) -> Result<Option<Host>, CommError> {
        Ok(None)
    }

    fn recv(&mut self, from: Rank, tag: Tag, deadline: Instant) -> Result<Host, CommError> {
        self.look();
        self.inner.recv(from, tag, deadline)
    }

    fn reducer(&mut self, members: &[Rank]) -> Option<&mut dyn AllReduce<Host>> {
        self.inner.reducer(members)
    }
}

/// The weight halves of ZB-H1's backwards are requested right before waits.
#[test]
fn nothing_lies_unsubmitted_while_a_rank_waits() {
    let model = ModelConfig {
        architecture: Architecture::GPT2,
        layers: 2,
        hidden: 4,
        heads: 2,
        context: 3,
        vocab: 5,
        tied: false,
        llama: None,
        end_of_text: None,
    };
    let run = TrialRun {
        schedule: "zb-h1",
        shape: Shape::new(N_RANKS as usize, MICRO_BATCHES),
        model,
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 1,
        steps: STEPS,
    };
    let adapter = adapters().into_iter().next().expect("an adapter");
    let ran = run_threads(N_RANKS, |comm: &mut Threads<Host>| {
        let k = adapter.open(Options::default()).expect("it opens");
        let mut watched = Watched { k: k.clone(), inner: comm, waits: Vec::new() };
        run.train_as(k.clone(), &mut HostStaged::new(k, &mut watched)).expect("it trains");
        Ok(watched.waits)
    });
    for (rank, waits) in ran.expect("it trains").into_iter().enumerate() {
        assert!(waits.len() as u64 >= STEPS * u64::from(MICRO_BATCHES), "rank {rank}: {waits:?}");
        assert!(waits.iter().all(|n| *n == 0), "rank {rank}: {waits:?}");
    }
}
