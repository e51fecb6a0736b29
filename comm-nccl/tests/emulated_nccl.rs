//! The NCCL transport on an emulated NCCL and emulated GPUs: the conformance suite, training, and
//! ranks that do not come.

#![allow(unsafe_code)] // for the emulated libraries, which are opened at run time

#[path = "../../backend-cuda/tests/emulated/mod.rs"]
mod emulated;

use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use chimera_backend_cuda::cuda::Cuda;
use chimera_backend_cuda::{Format, Gpu};
use chimera_comm_nccl::{Counts, Library, Nccl};
use chimera_core::comm::{
    Comm, CommError, Endpoint, Host, Ordered, OrderedMessage, Tag, Threads, all_gather,
    conformance, threads,
};
use chimera_core::device::Device;
use chimera_core::device::reference::Reference;
use chimera_core::engine::Patience;
use chimera_core::fault::Class;
use chimera_core::ids::Rank;
use chimera_core::lower::Recompute;
use chimera_core::model::{Architecture, ModelConfig};
use chimera_core::schedule::{Scaling, Shape};
use chimera_testkit::equivalence::{RunError, TrialRun};

type End = Nccl<Cuda, Threads<Host>>;

#[test]
fn ranks_conform() {
    for n in 1..=4 {
        on_ranks(n, Format::F32, |kernels, mut end| {
            let to = |host: Host| kernels.upload(&host.shape, &host.data).expect("uploaded");
            let from = |tensor: &_| {
                Host::new(kernels.shape(tensor), kernels.download(tensor).expect("downloaded"))
            };
            conformance::run(&mut end, to, from);
            conformance::run_abort(&mut end, to);
        });
    }
}

#[test]
fn schedules_train_as_over_threads() {
    for (schedule, shape) in [
        ("dapple", Shape::new(2, 4)),
        ("gems", Shape::new(4, 4)),
        ("zb-h2", Shape::new(4, 8)),
        ("interleaved", Shape::new(2, 4)),
        ("dualpipe", Shape::new(4, 8)),
        ("chimera", Shape::new(4, 4)),
        ("chimera", Shape { scaling: Scaling::Doubling, ..Shape::new(4, 8) }),
        ("chimera", Shape { n_pipes: 4, ..Shape::new(4, 8) }),
        ("pipedream", Shape::new(3, 3)),
    ] {
        let run = TrialRun {
            schedule,
            shape,
            model: model(),
            recompute: Recompute::None,
            split_backward: false,
            micro_batch_size: 2,
            steps: 2,
        };
        let expected = run.train(|_| Ok(gpu(0, Format::F32))).expect("it trains over threads");
        let got = on_ranks(shape.depth as u32, Format::F32, |kernels, mut end| {
            let trained = run.train_as(kernels, &mut end).expect("it trains over NCCL");
            end.close(soon()).expect("all leave");
            trained
        });
        assert_eq!(got[0].losses, expected.losses, "{schedule}");
    }
}

#[test]
fn bf16_travels() -> Result<(), RunError> {
    let shape = Shape::new(2, 4);
    let run = TrialRun {
        schedule: "chimera",
        shape,
        model: model(),
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 1,
        steps: 3,
    };
    let expected = run.train(|_| Ok(Reference))?.losses;
    let got = on_ranks(2, Format::Bf16, |kernels, mut end| {
        let trained = run.train_as(kernels, &mut end).expect("it trains over NCCL");
        end.close(soon()).expect("all leave");
        trained
    });
    for (got, expected) in got[0].losses.iter().zip(&expected) {
        assert!((got - expected).abs() < 1e-2 * expected, "{got} is not {expected}");
    }
    Ok(())
}

/// The sender takes part in one step, and then makes no transport call.
#[test]
fn a_rank_that_stands_still_is_named() {
    let given_up = Barrier::new(2);
    let patience = Patience { later: Duration::from_millis(200), ..PATIENCE };
    let outcomes = on_ranks_with(patience, 2, Format::F32, |kernels, mut end| {
        let (sends, peer) = (end.rank() == Rank(1), Rank(1 - end.rank().0));
        let follow = |end: &mut End, step| {
            end.follow(vec![vec![OrderedMessage { peer, sends, tag: tag(step) }]])
        };
        follow(&mut end, 0).expect("nothing is before");
        if sends {
            let tensor = kernels.upload(&[3], &[1.0, 2.0, 3.0]).expect("uploaded");
            end.send(peer, tag(0), tensor).expect("sent");
            given_up.wait();
            return None;
        }
        let taken = end.recv(peer, tag(0), soon()).expect("taken");
        assert_eq!(kernels.download(&taken).expect("downloaded"), [1.0, 2.0, 3.0]);
        // Its size is known, so the receive begins at once.
        let outcome = follow(&mut end, 1).and_then(|()| end.recv(peer, tag(1), soon()));
        let outcome = outcome.and_then(|_| end.recv_bytes(peer, soon()));
        given_up.wait();
        outcome.err()
    });
    let error = outcomes[0].clone().expect("nothing came");
    assert!(matches!(error, CommError::Timeout { from: Rank(1), .. }), "{error:?}");
    assert_eq!(error.into_fault(Rank(0)).class, Class::Timeout);
}

/// Messages may be given in another order than they are sent; a group goes at once, both ways.
#[test]
fn messages_go_in_their_order() {
    let counts = on_ranks(3, Format::F32, |kernels, mut end| {
        let me = end.rank();
        let others = || (0..3).map(Rank).filter(move |rank| *rank != me);
        for step in 0..3 {
            let group = |wave: u64| {
                let turns = others().flat_map(|peer| {
                    let tag = tag(2 * step + wave);
                    [true, false].map(|sends| OrderedMessage { peer, sends, tag })
                });
                turns.collect::<Vec<_>>()
            };
            end.follow(vec![group(0), group(1)]).expect("the step before is done");
            for wave in [1, 0] {
                for to in others() {
                    let values = [me.0 as f32, to.0 as f32, wave as f32, step as f32];
                    let tensor = kernels.upload(&[4], &values).expect("uploaded");
                    end.send(to, tag(2 * step + wave), tensor).expect("sent");
                }
            }
            for (wave, from) in [0, 1].into_iter().flat_map(|w| others().map(move |r| (w, r))) {
                let got = end.recv(from, tag(2 * step + wave), soon()).expect("taken");
                let wanted = [from.0 as f32, me.0 as f32, wave as f32, step as f32];
                assert_eq!(kernels.download(&got).expect("downloaded"), wanted);
            }
        }
        let counts = end.counts();
        end.close(soon()).expect("all leave");
        counts
    });
    // The payload of a private tag is its channel: only the first message has a header.
    assert_eq!(counts, [Counts { sent: 12, received: 12, groups: 6, headers: 2 }; 3]);
}

#[test]
fn another_shape_than_before_is_refused() {
    on_ranks(2, Format::F32, |kernels, mut end| {
        let (me, peer) = (end.rank(), Rank(1 - end.rank().0));
        let turn = |step| OrderedMessage { peer, sends: me == Rank(0), tag: tag(step) };
        end.follow(vec![vec![turn(0)]]).expect("nothing is before");
        if me == Rank(1) {
            end.recv(peer, tag(0), soon()).expect("taken");
            return end.close(soon()).expect("all leave");
        }
        let tensor = kernels.upload(&[2], &[1.0, 2.0]).expect("uploaded");
        end.send(peer, tag(0), tensor).expect("sent");
        end.follow(vec![vec![turn(1)]]).expect("the step before is done");
        let other = kernels.upload(&[3], &[1.0, 2.0, 3.0]).expect("uploaded");
        let refused = end.send(peer, tag(1), other).expect_err("it is longer");
        assert!(refused.to_string().contains("is of shape [3], and was of shape [2]"), "{refused}");
        end.close(soon()).expect("all leave");
    });
}

/// Chimera's messages in a step: activations, gradients, and two of each bucket to each replica.
#[test]
fn messages_of_a_step_are_few() {
    let run = TrialRun {
        schedule: "chimera",
        shape: Shape::new(4, 4),
        model: model(),
        recompute: Recompute::None,
        split_backward: false,
        micro_batch_size: 1,
        steps: 3,
    };
    let counts = on_ranks(4, Format::F32, |kernels, mut end| {
        run.train_as(kernels, &mut end).expect("it trains over NCCL");
        let counts = end.counts();
        end.close(soon()).expect("all leave");
        counts
    });
    let counts = counts.into_iter().map(|Counts { sent, received, groups, headers }| {
        assert_eq!(headers, sent / 3, "headers are sent only in the first step");
        [sent, received, groups].map(|n| n / 3)
    });
    // Four messages for its two buckets, and one or two activations or gradients per micro-batch.
    assert_eq!(counts.collect::<Vec<_>>(), [[8, 8, 10], [12, 12, 13], [12, 12, 13], [8, 8, 10]]);
}

/// A rank that never comes is waited for no longer than allowed.
#[test]
fn the_start_has_a_time_limit() {
    let mut ends = threads::<Host>(2);
    let (absent, present) = (ends.pop(), ends.pop().expect("two"));
    let patience = Patience { first_step: Duration::from_millis(100), ..PATIENCE };
    let began = Nccl::start(library(), &emulated::gpu(0, Format::F32), present, patience, || None);
    assert!(matches!(began.err(), Some(CommError::Timeout { from: Rank(1), .. })));
    drop(absent);
}

/// The transport below notices a rank that disappears while NCCL starts.
#[test]
fn a_start_ends_when_the_transport_below_does() {
    let mut ends = threads::<Host>(2);
    let (mut absent, present) = (ends.pop().expect("two"), ends.pop().expect("two"));
    let gone = std::thread::spawn(move || all_gather(&mut absent, &[], soon()).map(drop));
    let lost = CommError::Failed("rank 1 is gone".into());
    let why_over = || Some(CommError::Failed("rank 1 is gone".into()));
    let gpu = emulated::gpu(0, Format::F32);
    let began = Nccl::start(library(), &gpu, present, PATIENCE, why_over);
    assert_eq!(began.err(), Some(lost));
    gone.join().expect("no panic").expect("an exchange");
}

#[test]
fn a_missing_library_is_said() {
    let error = Library::open_at("libnccl.so.0").err().expect("there is no such version");
    assert!(error.starts_with("NCCL is not found: libnccl.so.0 ("), "{error}");
    assert!(!error.contains("dlopen failed"), "the loader has a reason: {error}");
}

fn model() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::GPT2,
        layers: 8,
        hidden: 8,
        heads: 2,
        context: 6,
        vocab: 19,
        tied: false,
        llama: None,
        end_of_text: None,
    }
}

const PATIENCE: Patience =
    Patience { first_step: Duration::from_secs(60), later: Duration::from_secs(60) };

fn soon() -> Instant {
    Instant::now() + PATIENCE.later
}

fn tag(step: u64) -> Tag {
    Tag::private(0x80, step)
}

/// Runs `body` on every rank, each in a thread, and returns the results.
fn on_ranks<R: Send>(
    n_ranks: u32,
    format: Format,
    body: impl Fn(Gpu<Cuda>, End) -> R + Sync,
) -> Vec<R> {
    on_ranks_with(PATIENCE, n_ranks, format, body)
}

fn on_ranks_with<R: Send>(
    patience: Patience,
    n_ranks: u32,
    format: Format,
    body: impl Fn(Gpu<Cuda>, End) -> R + Sync,
) -> Vec<R> {
    std::thread::scope(|scope| {
        let start = |control: Threads<Host>| {
            let body = &body;
            scope.spawn(move || {
                let kernels = gpu(control.rank().index() % 2, format);
                let end = Nccl::start(library(), &kernels, control, patience, || None);
                body(kernels, end.expect("NCCL starts"))
            })
        };
        let ranks: Vec<_> = threads::<Host>(n_ranks).into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

/// Attention on emulated tensor cores takes long, and is not tested here.
fn gpu(ordinal: usize, format: Format) -> Gpu<Cuda> {
    emulated::gpu(ordinal, format).generic()
}

/// The emulated NCCL.
fn library() -> Arc<Library> {
    static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
    let open = || {
        emulated::load();
        let library = Library::open().expect("it has all functions");
        assert_eq!(library.version().as_deref(), Ok("2.30.99"));
        Arc::new(library)
    };
    Arc::clone(LIBRARY.get_or_init(open))
}
