//! Runs the ranks of a job as threads of one process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use chimera_schedule::ids::Rank;

use crate::comm::{Endpoint, Threads, threads};
use crate::fault::{Class, Fault, panicked};

/// Runs `body` for each rank, on its own thread and end of a transport. Returns the results.
///
/// A rank that fails or panics ends the others at once; the earliest cause is returned.
pub fn run_threads<T, R>(
    n_ranks: u32,
    body: impl Fn(&mut Threads<T>) -> Result<R, Fault> + Sync,
) -> Result<Vec<R>, Fault>
where
    T: Send,
    R: Send,
{
    // Shared, so that if a rank's thread cannot be started, its end is still there to abort with.
    let ends: Vec<_> = threads::<T>(n_ranks).into_iter().map(|end| Mutex::new(Some(end))).collect();
    let first = OnceLock::new();
    let fail = |comm: &mut Threads<T>, fault: Fault| {
        comm.abort(first.get_or_init(|| fault.clone()));
        fault
    };
    let take =
        |end: &Mutex<Option<Threads<T>>>| end.lock().unwrap_or_else(PoisonError::into_inner).take();
    let run = |end: &Mutex<Option<Threads<T>>>| {
        let mut comm = take(end)?;
        let rank = comm.rank();
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&mut comm)));
        let outcome = outcome.unwrap_or_else(|panic| Err(panicked(rank, &*panic)));
        Some(outcome.map_err(|fault| fail(&mut comm, fault)))
    };
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let start = |(rank, end)| {
            let thread = std::thread::Builder::new().name(format!("rank {rank}"));
            let started = thread.spawn_scoped(scope, move || run(end));
            started.map_err(|error| {
                let message =
                    format!("cannot start its thread: {error}; choose a smaller width or depth");
                let fault = Fault::new(Class::OutOfMemory, Rank(rank), message);
                match take(end) {
                    Some(mut comm) => fail(&mut comm, fault),
                    None => fault,
                }
            })
        };
        let handles: Vec<_> = (0..).zip(&ends).map(start).collect();
        let join =
            |handle: Result<std::thread::ScopedJoinHandle<'_, _>, Fault>| match handle?.join() {
                Ok(Some(outcome)) => outcome,
                Ok(None) => panic!("a rank ran twice"),
                Err(panic) => std::panic::resume_unwind(panic),
            };
        handles.into_iter().map(join).collect()
    });
    let all: Result<Vec<R>, Fault> = outcomes.into_iter().collect();
    all.map_err(|fault| first.get().cloned().unwrap_or(fault))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::comm::{
        CommError, Delayed, Host, HostStaged, Stamped, Tag, all_gather, conformance,
    };
    use crate::device::Device;
    use crate::device::reference::Reference;

    #[test]
    fn threads_conform() {
        for n in [1, 2, 5] {
            let ran = run_threads::<Host, ()>(n, |comm| {
                conformance::run(comm, |host| host, Host::clone);
                conformance::run_abort(comm, |host| host);
                Ok(())
            });
            assert_eq!(ran.map(|all| all.len()), Ok(n as usize));
        }
    }

    #[test]
    fn threads_learn_who_left() {
        std::thread::scope(|scope| {
            for comm in threads::<Host>(3) {
                scope.spawn(|| conformance::run_loss(comm, |host| host));
            }
        });
    }

    #[test]
    fn delayed_messages_conform() {
        run_threads::<Stamped<Host>, ()>(3, |comm| {
            let jitter = |tag: Tag| Duration::from_micros(tag.step() * 100);
            let mut delayed = Delayed::new(comm, jitter);
            conformance::run(&mut delayed, |host| host, Host::clone);
            conformance::run_abort(&mut delayed, |host| host);
            Ok(())
        })
        .expect("all ranks conform");
    }

    #[test]
    fn tensors_of_a_device_conform_on_a_transport_of_host_tensors() {
        let to = |host: Host| Reference.upload(&host.shape, &host.data).expect("a tensor");
        run_threads::<Host, ()>(3, |comm| {
            let mut staged = HostStaged::new(Reference, comm);
            conformance::run(&mut staged, to, |tensor| {
                Host::new(tensor.shape.clone(), Reference.download(tensor).expect("values"))
            });
            conformance::run_abort(&mut staged, to);
            Ok(())
        })
        .expect("all ranks conform");
    }

    #[test]
    fn the_first_cause_is_reported_by_all() {
        let began = Instant::now();
        let ran = run_threads::<u32, ()>(4, |comm| {
            if comm.rank() == Rank(2) {
                panic!("on purpose");
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            match all_gather(comm, &[], deadline) {
                Err(CommError::Aborted(cause)) => Err(cause),
                other => panic!("{other:?}"),
            }
        });
        let fault = ran.expect_err("rank 2 panics");
        assert_eq!((fault.class, fault.rank), (Class::Internal, Rank(2)));
        assert!(fault.message.contains("on purpose"), "{fault}");
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
