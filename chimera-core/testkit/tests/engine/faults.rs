//! The engine's faults when a rank or a message goes wrong.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chimera_engine::comm::{Endpoint, Payload, Tag, Threads, all_gather, threads};
use chimera_engine::device::reference::{Reference, Tensor};
use chimera_engine::engine::{Job, NonFinite, Patience, Worker, handshake, run_threads};
use chimera_engine::fault::{Class, Fault};
use chimera_schedule::costs::UniformCosts;
use chimera_schedule::ids::{Rank, StageId};
use chimera_schedule::lower::{Lowering, Passes, lower};
use chimera_schedule::schedule::{Shape, find};
use chimera_schedule::timetable::Timetable;

use crate::moves::kept_elsewhere;
use crate::training::faulty::{Fate, Faulty};
use crate::training::{Outcome, Run, body, execute};

/// The end of a run: the reported fault, the fault of each rank, and the time it took.
struct End {
    reported: Fault,
    of_ranks: Vec<Fault>,
    took: Duration,
}

fn timetable(run: &Run) -> Timetable {
    let schedule = find(run.schedule).expect("known");
    schedule.timetable(&run.shape).expect("fits")
}

/// Trains with the faults of `fate`.
fn train(
    run: &Run,
    fate: impl Fn(Rank, Tag) -> Fate + Copy + Send + Sync,
) -> Result<Vec<Outcome>, Fault> {
    execute(run, &timetable(run), |job, inner, stage| body(job, Faulty { inner, fate }, stage))
}

/// Trains with the faults of `fate`. The run must fail, and every rank must end.
fn fail(run: &Run, fate: impl Fn(Rank, Tag) -> Fate + Copy + Send + Sync) -> End {
    let of_ranks = Mutex::new(Vec::new());
    let began = Instant::now();
    let ran = execute(run, &timetable(run), |job, inner, stage| {
        let outcome = body(job, Faulty { inner, fate }, stage);
        if let Err(fault) = &outcome {
            of_ranks.lock().expect("no panic here").push(fault.clone());
        }
        outcome
    });
    End {
        reported: ran.expect_err("the run fails"),
        of_ranks: of_ranks.into_inner().expect("no panic here"),
        took: began.elapsed(),
    }
}

/// GPipe on two workers with one micro-batch, in which each wait and its start are certain.
fn two_workers() -> Run {
    Run { patience: Duration::from_secs(1), ..Run::new("gpipe", Shape::new(2, 1)) }
}

fn chimera() -> Run {
    Run { width: 2, ..Run::new("chimera", Shape::new(4, 6)) }
}

/// Applies `fate` to the token messages of `rank` in the third step.
fn on(rank: u32, fate: Fate) -> impl Fn(Rank, Tag) -> Fate + Copy + Send + Sync {
    move |from, tag| {
        let is_struck =
            from == Rank(rank) && tag.step() == 2 && matches!(tag.payload(), Payload::Token(_));
        if is_struck { fate } else { Fate::Arrives }
    }
}

/// The seconds of `waited 1.0 s for …`.
fn waited_s(fault: &Fault) -> f64 {
    let rest = fault.message.strip_prefix("waited ");
    let number = rest.and_then(|rest| rest.split_once(" s for "));
    number.and_then(|(s, _)| s.parse().ok()).unwrap_or_else(|| panic!("{fault}"))
}

#[test]
fn a_lost_message_is_named_when_patience_ends() {
    let end = fail(&two_workers(), on(1, Fate::IsLost));
    let fault = &end.reported;
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Timeout, Rank(0), Some(Rank(1))));
    assert_eq!((fault.step, fault.class.code()), (Some(2), 6));
    let named = "s for gradient(pipe 0, stage 1, micro-batch 0) from rank 1";
    assert!(fault.message.contains(named), "{fault}");
    assert!(
        fault.message.contains("; rank 1 sent it and last finished B(pipe 0, stage 1, "),
        "{fault}"
    );
    assert!(fault.message.ends_with(" of all ranks: lost on the way"), "{fault}");
    assert!((1.0..10.0).contains(&waited_s(fault)), "{fault}");
    assert!(end.took < Duration::from_secs(20), "{:?}", end.took);
}

/// Two workers, of which the first keeps the second's saved activations of micro-batch 0. Only `by`
/// has a short timeout.
fn fail_beside_moves(by: Rank, fate: impl Fn(Rank, Tag) -> Fate + Copy + Send + Sync) -> Fault {
    let run = Run { shape: Shape::new(2, 2), ..two_workers() };
    let moved = kept_elsewhere(&timetable(&run), 1, &[[0, 1, 1, 1, 1]]);
    let ran = execute(&run, &moved, |job, inner, stage| {
        let later = if inner.rank() == by { run.patience } else { Duration::from_secs(60) };
        let patience = Patience { later, ..job.patience };
        body(Job { patience, ..job }, Faulty { inner, fate }, stage)
    });
    ran.map(drop).expect_err("the run fails")
}

/// Beside moves, one wait consists of many short ones.
#[test]
fn a_wait_beside_moves_is_told_as_a_whole() {
    let fault = fail_beside_moves(Rank(0), on(1, Fate::IsLost));
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Timeout, Rank(0), Some(Rank(1))));
    assert!((1.0..10.0).contains(&waited_s(&fault)), "{fault}");
}

/// A rank that waits for its own moves waits for the rank that keeps its activations.
#[test]
fn a_lost_move_is_named() {
    let fault = fail_beside_moves(Rank(1), |from, tag| match tag.payload() {
        Payload::Moved { returns: true, tensor: 0, .. } if from == Rank(0) && tag.step() == 2 => {
            Fate::IsLost
        }
        _ => Fate::Arrives,
    });
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Timeout, Rank(1), Some(Rank(0))));
    assert_eq!(fault.step, Some(2));
    let named = "s for returned activations(pipe 0, stage 1, micro-batch 0) from rank 0";
    assert!(fault.message.contains(named), "{fault}");
    assert!(fault.message.ends_with(": lost on the way"), "{fault}");
    assert!((1.0..10.0).contains(&waited_s(&fault)), "{fault}");
}

#[test]
fn a_lost_part_of_a_sum_is_named() {
    let run = Run { width: 2, shape: Shape::new(1, 1), ..two_workers() };
    let is_struck = AtomicBool::new(false);
    let end = fail(&run, |from, tag| match tag.payload() {
        Payload::Gradients { .. } if from == Rank(1) && tag.step() == 2 => {
            if is_struck.swap(true, Ordering::Relaxed) { Fate::Arrives } else { Fate::IsLost }
        }
        _ => Fate::Arrives,
    });
    let fault = &end.reported;
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Timeout, Rank(0), Some(Rank(1))));
    assert_eq!(fault.step, Some(2));
    assert!(fault.message.contains(" s for gradients of bucket 0 from rank 1"), "{fault}");
    let op = fault.op.as_deref().unwrap_or_default();
    assert!(op.starts_with("reduction of "), "{fault}");
    assert!(
        fault.message.ends_with(" waits for the gradient reduction of bucket 0: lost on the way"),
        "{fault}"
    );
}

/// Whichever of many ranks times out first, all end with its diagnosis.
#[test]
fn all_ranks_end_with_one_diagnosis() {
    let run = Run { patience: Duration::from_secs(1), ..chimera() };
    let end = fail(&run, on(5, Fate::IsLost));
    assert_eq!(end.of_ranks.len(), 8);
    assert_eq!((end.reported.class, end.reported.step), (Class::Timeout, Some(2)));
    assert!(end.of_ranks.iter().all(|f| f.class == Class::Timeout && f.step == Some(2)));
    assert!(end.of_ranks.contains(&end.reported));
    assert_eq!(end.reported.peer, Some(Rank(5)), "{}", end.reported);
    assert!(end.took < Duration::from_secs(20), "{:?}", end.took);
}

#[test]
fn a_stalled_rank_is_named() {
    let end = fail(&two_workers(), on(1, Fate::Stalls(Duration::from_secs(3))));
    let fault = &end.reported;
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Timeout, Rank(0), Some(Rank(1))));
    assert_eq!(end.of_ranks, [fault.clone(), fault.clone()]);
    let diagnosis = "; rank 1 last finished B(pipe 0, stage 1, micro-batch 0) and is sending \
                   gradient(pipe 0, stage 1, micro-batch 0): stalled in the transport";
    assert!(fault.message.ends_with(diagnosis), "{fault}");
}

#[test]
fn the_first_step_is_given_more_time() {
    let slow = |from: Rank, tag: Tag| match (from, tag.step()) {
        (Rank(1), 0) => Fate::Stalls(Duration::from_secs(2)),
        _ => Fate::Arrives,
    };
    let run = two_workers();
    assert_eq!(train(&run, slow).map(|ranks| ranks.len()), Ok(2));
}

#[test]
fn a_panic_takes_all_ranks_down_at_once() {
    for rank in [0, 3, 6] {
        let end = fail(&chimera(), on(rank, Fate::Panics));
        assert_eq!((end.reported.class, end.reported.rank), (Class::Internal, Rank(rank)));
        assert!(end.reported.message.contains("on purpose"), "{}", end.reported);
        assert_eq!(end.of_ranks.len(), 7, "all but the one that panicked");
        assert!(end.of_ranks.iter().all(|fault| *fault == end.reported));
        assert!(end.took < Duration::from_secs(20), "{:?}", end.took); // the timeout is a minute
    }
}

#[test]
fn a_rank_that_leaves_is_missed() {
    let run = two_workers();
    let ran = execute(&run, &timetable(&run), |job, comm: &mut Threads<Tensor>, stage| {
        if comm.rank() == Rank(1) {
            // Its end of the transport closes as if its process had ended.
            drop(std::mem::replace(comm, threads(1).remove(0)));
            return Ok(());
        }
        body(job, comm, stage).map(drop)
    });
    let fault = ran.expect_err("rank 1 is gone");
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::PeerLost, Rank(0), Some(Rank(1))));
    assert!(
        fault.message.contains("rank 1 ended before it sent gradient(pipe 0, stage 1"),
        "{fault}"
    );
}

#[test]
fn a_value_that_is_not_finite_stops_all_ranks_before_the_step() {
    for run in [chimera(), Run::new("gpipe", Shape::new(2, 1))] {
        let n_ranks = run.width * run.shape.depth;
        let end = fail(&run, on(0, Fate::IsNaN));
        assert_eq!((end.reported.class, end.reported.step), (Class::NonFinite, Some(2)));
        assert_eq!(end.of_ranks.len(), n_ranks);
        assert!(end.of_ranks.iter().all(|fault| *fault == end.reported), "{:?}", end.of_ranks);
        let last = run.shape.depth - 1;
        let message = &end.reported.message;
        assert!(message.starts_with("the loss of F(pipe 0, stage "), "{message}");
        assert!(
            message.contains(&format!("stage {last}, micro-batch 0) is not finite")),
            "{message}"
        );
        assert_eq!(end.reported.rank, Rank(last as u32), "{message}");
    }
}

/// An asynchronous schedule has no step sync before an update: each stage checks its own gradients.
#[test]
fn a_value_that_is_not_finite_stops_a_window_at_its_step() {
    for schedule in ["pipedream", "pipedream-2bw"] {
        let run = Run::new(schedule, Shape { window: 3, ..Shape::new(2, 2) });
        let end = fail(&run, |from, tag| match tag.payload() {
            Payload::Token(token)
                if from == Rank(0) && (tag.step(), token.span.start) == (3, 2) =>
            {
                Fate::IsNaN
            }
            _ => Fate::Arrives,
        });
        // Micro-batch 2 is the first of the second step of the second window.
        assert_eq!((end.reported.class, end.reported.step), (Class::NonFinite, Some(4)));
        let message = &end.reported.message;
        assert!(message.starts_with("the gradient of "), "{message}");
        let advice = "is not finite. Lower the learning rate (lr), or clip gradients (clip)";
        assert!(message.ends_with(advice), "{message}");
        assert!(end.of_ranks.iter().all(|fault| fault.class == Class::NonFinite));
    }
}

#[test]
fn without_the_check_training_goes_on() {
    let run = Run { clip: None, check_finite: false, ..Run::new("gpipe", Shape::new(2, 1)) };
    let ran = train(&run, on(0, Fate::IsNaN));
    let losses = &ran.expect("trains on")[0].losses;
    assert_eq!(losses.len(), 5);
    assert!(losses[..2].iter().all(|l| l.is_finite()) && losses[2..].iter().all(|l| l.is_nan()));
}

/// After a chain of waits, the fault names the rank that does not advance.
#[test]
fn the_first_not_to_advance_is_named_through_all_who_wait_for_it() {
    let run = Run { patience: Duration::from_secs(1), ..Run::new("gpipe", Shape::new(4, 1)) };
    let end = fail(&run, on(3, Fate::Stalls(Duration::from_secs(5))));
    let fault = &end.reported;
    assert_eq!((fault.class, fault.peer), (Class::Timeout, Some(Rank(3))), "{fault}");
    let chain = "which waits for gradient(pipe 0, stage 3, micro-batch 0) from rank 3; rank 3 last finished";
    assert!(fault.rank == Rank(2) || fault.message.contains(chain), "{fault}");
    assert!(fault.message.ends_with(": stalled in the transport"), "{fault}");
}

#[test]
fn ranks_of_different_runs_end_before_the_first_step() {
    let met = |value: fn(Rank) -> Vec<u8>| {
        run_threads::<(), ()>(4, move |comm| {
            let deadline = Instant::now() + Duration::from_secs(60);
            match comm.rank() {
                Rank(2) => all_gather(comm, &value(Rank(2)), deadline)
                    .map(drop)
                    .map_err(|e| Fault::new(Class::Internal, Rank(2), e.to_string())),
                rank => {
                    let eight = ("micro-batches".to_string(), "8".to_string());
                    handshake(comm, &vec![eight], deadline).map_err(|fault| {
                        assert_eq!((fault.rank, fault.peer), (rank, Some(Rank(2))), "{fault}");
                        fault
                    })
                }
            }
        })
    };
    assert!(met(|_| br#"[["micro-batches","8"]]"#.to_vec()).is_ok());
    let fault = met(|_| br#"[["micro-batches","16"]]"#.to_vec()).unwrap_err();
    assert_eq!((fault.class, fault.class.code()), (Class::Mismatch, 10));
    assert_eq!(
        fault.message,
        "the ranks are not of one run:\n  micro-batches: ranks 0-1, 3 = 8, rank 2 = 16"
    );
    for other in [|_| b"\xff\x00".to_vec(), |_| Vec::new(), |_| vec![b'['; 1 << 20]] {
        let fault = met(other).unwrap_err();
        assert_eq!(fault.class, Class::Mismatch);
        assert!(fault.message.starts_with("rank 2 greets in another way"), "{fault}");
    }
}

#[test]
fn what_is_of_another_shape_is_refused_before_use() {
    let run = two_workers();
    let end = fail(&run, on(0, Fate::IsShort));
    let fault = &end.reported;
    assert_eq!((fault.class, fault.rank, fault.peer), (Class::Mismatch, Rank(1), Some(Rank(0))));
    assert_eq!(
        fault.message,
        "rank 0 sent activation(pipe 0, stage 0, micro-batch 0) of shape [39], not [10, 4]: it trains \
         another model or schedule"
    );
    let run = Run { width: 2, shape: Shape::new(1, 1), ..two_workers() };
    for is_part in [true, false] {
        let end = fail(&run, |from, tag| match tag.payload() {
            Payload::Gradients { .. } if is_part && from == Rank(0) && tag.step() == 2 => {
                Fate::IsShort
            }
            Payload::Sums { .. } if !is_part && from == Rank(0) && tag.step() == 2 => Fate::IsShort,
            _ => Fate::Arrives,
        });
        let fault = &end.reported;
        assert_eq!((fault.class, fault.rank), (Class::Mismatch, Rank(1)), "{fault}");
        assert!(fault.message.starts_with("rank 0 sent "), "{fault}");
        assert!(
            fault.message.contains("gradients of bucket 0 ") && fault.message.contains(", not ["),
            "{fault}"
        );
    }
}

/// A step without a finite gradient has no effect: neither weights nor moments change.
#[test]
fn a_step_that_is_not_finite_can_be_skipped() {
    for run in [chimera(), Run::new("gpipe", Shape::new(2, 1))] {
        let run = Run { non_finite: NonFinite::Skip, ..run };
        let ran = train(&run, on(0, Fate::IsNaN)).expect("trains on");
        for Outcome { losses, weights, .. } in &ran {
            assert!(losses[2].is_nan() && losses.iter().filter(|l| l.is_finite()).count() == 4);
            let at = |step| weights.iter().filter(move |((s, _), _)| *s == step).map(|(_, w)| w);
            assert!(at(2).eq(at(1)) && !at(3).eq(at(2)));
            assert!(weights.values().flatten().all(|w| w.is_finite()));
        }
    }
}

/// Updates without a barrier come before the step sync of their window, so they do not depend on
/// the window that was skipped last.
#[test]
fn a_window_behind_a_skipped_step_changes_the_weights() {
    let run = Run { non_finite: NonFinite::Skip, clip: None, ..Run::new("1f1b", Shape::new(2, 4)) };
    // The last of three steps, in its window and by itself.
    let fate = |from: Rank, tag: Tag| match tag.payload() {
        Payload::Token(token)
            if from == Rank(0) && (tag.step() == 2 || tag.step() == 0 && token.span.start >= 8) =>
        {
            Fate::IsNaN
        }
        _ => Fate::Arrives,
    };
    let trained = |timetable: &Timetable, steps_of_a_program: usize| {
        let ran = execute(&run, timetable, |job, inner, stage| {
            let mut worker = Worker::new(job, Reference, Faulty { inner, fate }, stage)?;
            let mut n_skipped = Vec::new();
            for first in (0..6).step_by(steps_of_a_program) {
                let reports = worker.run(first)?;
                n_skipped.extend(reports.iter().map(|report| report.n_skipped));
            }
            let held = (0..2).filter_map(|id| worker.held(StageId(id)));
            let weights = held.flat_map(|(_, weights, _)| weights.to_vec());
            Ok((n_skipped, weights.collect::<Vec<_>>()))
        });
        ran.expect("trains on")
    };
    let bound = timetable(&run);
    let passes = Passes { free_border: Some(3), ..Passes::default() };
    let costs = UniformCosts::new(1.0, 2.0, 0.0);
    let free = passes.apply(bound.clone(), &Lowering::default(), &costs).expect("sound");
    let (bound, free) = (trained(&bound, 1), trained(&free, 3));
    assert_eq!(bound[0].0, [0, 0, 1, 1, 1, 1]);
    assert_eq!(free, bound);
}

/// Weights that give no finite gradient any more do not recover.
#[test]
fn twenty_steps_in_a_row_are_too_many_to_skip() {
    let run = Run { non_finite: NonFinite::Skip, ..Run::new("gpipe", Shape::new(2, 1)) };
    let fate = |_: Rank, tag: Tag| match tag.payload() {
        Payload::Token(_) if tag.step() != 2 => Fate::IsNaN,
        _ => Fate::Arrives,
    };
    let ran = execute(&run, &timetable(&run), |job, inner, stage| {
        let mut worker = Worker::new(job, Reference, Faulty { inner, fate }, stage)?;
        (0..30).try_for_each(|step| worker.run(step).map(drop))
    });
    let fault = ran.expect_err("gives up");
    assert_eq!((fault.class, fault.step), (Class::NonFinite, Some(22)), "{fault}");
    assert!(
        fault.message.contains(" is not finite for the 20th step in a row; the weights"),
        "{fault}"
    );
}

#[test]
fn the_report_says_why_a_step_was_skipped() {
    let run = Run { non_finite: NonFinite::Skip, ..Run::new("gpipe", Shape::new(2, 1)) };
    let fate = on(0, Fate::IsNaN);
    let ran = execute(&run, &timetable(&run), |job, inner, stage| {
        let mut worker = Worker::new(job, Reference, Faulty { inner, fate }, stage)?;
        (0..4).map(|step| Ok(worker.run(step)?.remove(0))).collect::<Result<Vec<_>, Fault>>()
    });
    for reports in ran.expect("trains on") {
        let why = "the loss of F(pipe 0, stage 1, micro-batch 0) is not finite on rank 1";
        let skipped: Vec<_> = reports.iter().map(|r| (r.skipped.as_deref(), r.n_skipped)).collect();
        assert_eq!(skipped, [(None, 0), (None, 0), (Some(why), 1), (None, 1)]);
    }
}

#[test]
fn an_asynchronous_schedule_skips_nothing() {
    let shape = Shape { window: 3, ..Shape::new(2, 2) };
    let run = Run { non_finite: NonFinite::Skip, ..Run::new("pipedream", shape) };
    let fault = train(&run, on(0, Fate::Arrives)).unwrap_err();
    assert!(fault.message.contains("without a flush after each step can skip no step"), "{fault}");
}

/// A sum that arrives with another value on one replica.
#[test]
fn replicas_that_differ_are_found_with_their_tensor() {
    let run = Run { clip: None, ..Run::new("chimera", Shape::new(2, 2)) };
    let is_struck = |from, tag: Tag| {
        from == Rank(0) && tag.step() == 1 && matches!(tag.payload(), Payload::Sums { .. })
    };
    for strikes in [false, true] {
        let fate =
            |from, tag| if strikes && is_struck(from, tag) { Fate::IsWrong } else { Fate::Arrives };
        let ran = execute(&run, &timetable(&run), |job, inner, stage| {
            let mut worker = Worker::new(job, Reference, Faulty { inner, fate }, stage)?;
            for step in 0..2 {
                worker.run(step)?;
                let checked = worker.check_replicas();
                assert_eq!(checked.is_err(), strikes && step == 1);
                checked?;
            }
            Ok(())
        });
        match ran {
            Ok(_) => assert!(!strikes),
            Err(fault) => {
                assert_eq!((fault.class, fault.step), (Class::Mismatch, Some(1)));
                assert_eq!((fault.rank, fault.peer), (Rank(1), Some(Rank(0))));
                assert!(fault.message.contains(" differs between rank 0 and rank 1"), "{fault}");
            }
        }
    }
}

/// The last of three steps would be the first of a window of two, whose second step was not
/// requested.
#[test]
fn steps_that_are_no_whole_windows_are_refused() {
    let shape = Shape { window: 2, ..Shape::new(2, 2) };
    let timetable = find("pipedream").expect("known").timetable(&shape).expect("fits");
    let program = lower(&timetable, &Lowering::default()).expect("sound");
    let trained = |steps| crate::own_work::train(&program, steps, &|_| Ok(()));
    trained(2).expect("a window");
    let refused = trained(3).expect_err("not whole windows");
    assert_eq!(refused.class, Class::Usage);
    assert!(refused.message.contains("choose a multiple of 2"), "{}", refused.message);
}
