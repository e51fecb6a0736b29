//! Tests NCCL between threads of this process: the suite of transports, and training.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chimera_backend_cuda::{Gpu, cuda::Cuda};
use chimera_comm_nccl::{Library, Nccl};
use chimera_core::comm::{Endpoint, Host, Threads, conformance, threads};
use chimera_core::device::Device as _;
use chimera_core::engine::Patience;
use chimera_testkit::equivalence::RunError;

use super::conformance::small;
use super::suite::Suite;
use crate::device::Devices;

/// Timeout of one part.
const PATIENCE: Duration = Duration::from_secs(45);

/// Runs one, two and four ranks, on as many GPUs as there are.
pub(super) fn ranks(suite: &mut Suite, devices: &Devices) {
    let library = match Library::open().and_then(|library| Ok((library.version()?, library))) {
        Ok((version, library)) => {
            suite.note(&format!("NCCL {version}"));
            Arc::new(library)
        }
        Err(reason) => return suite.note(&format!("NCCL is not tried: {reason}")),
    };
    let gpus: Vec<Gpu<Cuda>> =
        devices.by_rank().iter().filter_map(|opened| opened.kernels().cloned()).collect();
    let is_shared = |n: usize| devices.shared().len() < n;
    for n in [1, 2, 4] {
        let what = format!("{n} rank(s) over NCCL");
        if is_shared(n) && library.shares_gpus() != Ok(true) {
            let why = "it needs as many GPUs, or NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1";
            suite.note(&format!("{what}: not tried: {why}"));
            continue;
        }
        let conform = on_ranks(&library, &gpus[..n], |gpu, end| {
            let to = |host: Host| gpu.upload(&host.shape, &host.data).expect("uploaded");
            let from = |tensor: &_| {
                Host::new(gpu.shape(tensor), gpu.download(tensor).expect("downloaded"))
            };
            conformance::run(end, to, from);
            Ok(())
        });
        let failure = conform.iter().find_map(|rank| rank.as_ref().err());
        let failed = f64::from(u8::from(failure.is_some()));
        suite.check(what.clone(), failed, 0.0, failure.cloned().unwrap_or_default());
        if n == 1 || failure.is_some() {
            continue;
        }
        let run = small("chimera", n);
        let Some(expected) = suite.train(&what, &run, &gpus) else { continue };
        let trained = on_ranks(&library, &gpus[..n], |gpu, end| {
            run.train_as(gpu.clone(), end).map_err(|e: RunError| e.to_string())
        });
        match trained.into_iter().next() {
            Some(Ok(got)) => {
                suite.compare(format!("losses with {what}"), &got.losses, &expected.losses)
            }
            Some(Err(reason)) => suite.fail(&what, &reason),
            None => {}
        }
    }
}

type End = Nccl<Cuda, Threads<Host>>;

/// Runs `body` on every rank, each in a thread; a rank that fails ends the others.
fn on_ranks<R: Send>(
    library: &Arc<Library>,
    gpus: &[Gpu<Cuda>],
    body: impl Fn(&Gpu<Cuda>, &mut End) -> Result<R, String> + Sync,
) -> Vec<Result<R, String>> {
    std::thread::scope(|scope| {
        let start = |(control, gpu): (Threads<Host>, _)| {
            let (library, body) = (Arc::clone(library), &body);
            let rank = move || {
                let rank = control.rank();
                let named = |e: &dyn std::fmt::Display| format!("{rank}: {e}");
                let patience = Patience { first_step: PATIENCE, later: PATIENCE };
                let end = Nccl::start(library, gpu, control, patience, || None);
                let mut end = end.map_err(|e| named(&e))?;
                let result = body(gpu, &mut end).map_err(|e| named(&e))?;
                end.close(Instant::now() + PATIENCE).map_err(|e| named(&e))?;
                Ok(result)
            };
            let started = std::thread::Builder::new().spawn_scoped(scope, rank);
            started.map_err(|error| format!("a rank's thread cannot be started: {error}"))
        };
        let ends = threads::<Host>(gpus.len() as u32);
        let ranks: Vec<_> = ends.into_iter().zip(gpus).map(start).collect();
        let join = |rank: Result<std::thread::ScopedJoinHandle<'_, Result<R, String>>, String>| {
            rank?.join().unwrap_or_else(|_| Err("a rank panicked".into()))
        };
        ranks.into_iter().map(join).collect()
    })
}
