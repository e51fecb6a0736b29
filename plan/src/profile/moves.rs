//! Times of moves of activations out of a device's memory and back, with several workers at once.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};
use chimera_core::layers::Layers;
use chimera_device::thread_pool;

use super::law::middle;
use super::{MoveTime, Workers};

/// Elements of the activations that are measured.
const ELEMENTS: [usize; 5] = [1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23];
/// Tensors that the activations are split into: a stage saves several.
const N_TENSORS: usize = 8;
/// Moves of each size, after one that does not count.
const N_MOVES: usize = 7;

/// Measures moves by a number of workers at once.
pub(super) fn measure<K: Layers>(device: &K, by: Workers) -> Result<Vec<MoveTime>> {
    ELEMENTS.into_iter().map(|elements| of_size(device, by.workers, elements)).collect()
}

fn of_size<K: Layers>(device: &K, workers: usize, elements: usize) -> Result<MoveTime> {
    let barrier = Barrier::new(workers);
    let pool = thread_pool(workers)?;
    let timed = pool.broadcast(|_| moves(&device.clone(), elements, &barrier));
    let timed = timed.into_iter().collect::<Result<Vec<_>>>()?;
    let mut timed: Vec<f64> = timed.concat();
    let (seconds, spread) = middle(&mut timed).context("there is no worker")?;
    let count = timed.len();
    Ok(MoveTime { bytes: elements * size_of::<f32>(), count, seconds, spread })
}

/// Returns the seconds of each move; a way out and back counts as two. A worker that has failed
/// still keeps pace with the others.
fn moves<K: Layers>(device: &K, elements: usize, barrier: &Barrier) -> Result<Vec<f64>> {
    let mut timed = Ok(Vec::new());
    for pass in 0..=N_MOVES {
        let tensors = (0..N_TENSORS).map(|_| device.zeros(&[elements / N_TENSORS]));
        let tensors = tensors.collect::<Result<Vec<_>, _>>();
        barrier.wait();
        let moved = tensors.map_err(anyhow::Error::from).and_then(|tensors| {
            let start = Instant::now();
            let reload = device.offload(tensors)?;
            let back = reload(device)?;
            // An asynchronous device has finished the last one when it can be read.
            back.last().map(|last| device.download(last)).transpose()?;
            Ok(start.elapsed().as_secs_f64() / 2.0)
        });
        match (&mut timed, moved) {
            (Ok(all), Ok(seconds)) if pass > 0 => all.push(seconds),
            (Ok(_), Err(error)) => timed = Err(error),
            _ => {}
        }
    }
    timed
}
