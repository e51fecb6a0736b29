//! Work of all ranks, in threads of this process or in processes.

use anyhow::Result;
use chimera_core::comm::{Comm, Endpoint, Host, HostStaged, Threads};
use chimera_core::engine::run_threads;
use chimera_core::fault::{Class, Fault};
use chimera_core::layers::Layers;
use chimera_device::{AnyKernels, Compute, Devices, OpenDevice};

use crate::run::{OnTransport, compute_threads};

/// Does the work of each rank on a thread of its own, which computes with `threads` threads. Returns
/// the results by rank.
pub(crate) fn in_threads<K: AnyKernels, W: OnTransport + Copy + Send + Sync>(
    devices: &Devices<K>,
    threads: usize,
    work: W,
) -> Result<Vec<W::Output>>
where
    W::Output: Send,
{
    let n_ranks = devices.by_rank().len();
    if devices.share_tensors() {
        return Ok(devices.run(AllRanks { work, n_ranks, threads })??);
    }
    // Tensors go through the host from device to device.
    Ok(run_threads(n_ranks as u32, |comm: &mut Threads<Host>| {
        let device = &devices.by_rank()[comm.rank().index()];
        on_rank(device, comm, threads, work)
    })?)
}

/// Does the work of the rank of `comm`, with tensors that go through the host.
pub(crate) fn on_rank<K: AnyKernels, W: OnTransport + Send>(
    device: &OpenDevice<K>,
    comm: &mut dyn Comm<Host>,
    threads: usize,
    work: W,
) -> Result<W::Output, Fault>
where
    W::Output: Send,
{
    device.run(OneRank { work, comm, threads })
}

struct AllRanks<W> {
    work: W,
    n_ranks: usize,
    threads: usize,
}

impl<W: OnTransport + Copy + Send + Sync> Compute for AllRanks<W>
where
    W::Output: Send,
{
    type Output = Result<Vec<W::Output>, Fault>;

    fn on<K: Layers>(self, devices: &[K]) -> Self::Output {
        let AllRanks { work, n_ranks, threads } = self;
        run_threads(n_ranks as u32, |comm: &mut Threads<K::Tensor>| {
            let kernels = devices[comm.rank().index() % devices.len()].clone();
            OnThreads { work, threads }.on(kernels, comm)
        })
    }
}

struct OneRank<'c, W> {
    work: W,
    comm: &'c mut dyn Comm<Host>,
    threads: usize,
}

impl<W: OnTransport + Send> Compute for OneRank<'_, W>
where
    W::Output: Send,
{
    type Output = Result<W::Output, Fault>;

    fn on<K: Layers>(self, devices: &[K]) -> Self::Output {
        let OneRank { work, comm, threads } = self;
        let none = || Fault::new(Class::Internal, comm.rank(), "a rank has no device");
        let kernels = devices.first().ok_or_else(none)?.clone();
        let mut staged = HostStaged::new(kernels.clone(), comm);
        OnThreads { work, threads }.on(kernels, &mut staged)
    }
}

/// Work of a rank that computes with this number of threads.
pub(crate) struct OnThreads<W> {
    pub(crate) work: W,
    pub(crate) threads: usize,
}

impl<W: OnTransport + Send> OnTransport for OnThreads<W>
where
    W::Output: Send,
{
    type Output = W::Output;

    fn on<K: Layers>(self, kernels: K, comm: &mut dyn Comm<K::Tensor>) -> Result<W::Output, Fault> {
        let OnThreads { work, threads } = self;
        compute_threads(threads, comm.rank())?.install(|| work.on(kernels, comm))
    }
}
