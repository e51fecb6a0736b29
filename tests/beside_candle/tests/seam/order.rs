//! The lifetime of memory that both sides use, and the order of their work.

use candle_core::{Result, Tensor};
use chimera_backend_cuda::cuda::Cuda;
use chimera_backend_cuda::{Format, Gpu};
use chimera_core::device::Device;

use super::tensors::{devices, gpu};

const ELEMENTS: usize = 1 << 14;
const ROUNDS: usize = 20;

#[test]
#[ignore = "it takes an emulated GPU: memory_is_kept_and_given_back starts it on one"]
fn memory_lives_as_long_as_it_is_used() -> Result<()> {
    let gpu = gpu(Format::F32);
    let free = || gpu.driver().free_bytes().expect("it says so");
    for candle in devices() {
        let before = free();
        // Candle frees it at once, Chimera only after the queued work.
        let x = Tensor::from_vec(vec![2.0f32; ELEMENTS], (ELEMENTS / 4, 4), &candle)?;
        let ours = gpu.from_candle(&x).expect("it is taken");
        drop(x);
        let y = gpu.join(&[&ours]).expect("a copy");
        assert!(free() + 4 * ELEMENTS as u64 <= before, "its owner is gone");
        drop(ours);
        let z = gpu.to_candle(&y, &candle).expect("it is given");
        drop(y);
        assert!(is_all(&z, 2.0)?);
        let copy = z.copy()?;
        drop(z);
        assert!(is_all(&copy, 2.0)?);
        drop(copy);
        assert_eq!(free(), before, "something is left");
    }
    // Candle's memory outlives the pool that it came from.
    let [candle, _] = devices();
    let x = gpu.upload(&[4], &[1.0, 2.0, 3.0, 4.0]).expect("room");
    let kept = gpu.to_candle(&x, &candle).expect("it is given");
    drop((x, gpu));
    assert_eq!(kept.to_vec1::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    Ok(())
}

/// Each side writes data that the other then reads, round after round, on its own stream and on
/// candle's.
#[test]
#[ignore = "it takes an emulated GPU: both_sides_wait_for_each_other starts it on one"]
fn each_sees_what_the_other_wrote() -> Result<()> {
    for candle in devices() {
        rounds(&gpu(Format::F32), &candle)?;
    }
    let [_, candle] = devices();
    let cuda = Cuda::on(&candle.as_cuda_device()?.cuda_stream(), Format::F32).expect("it starts");
    rounds(&Gpu::new(cuda).poisoned(), &candle)
}

fn rounds(gpu: &Gpu<Cuda>, candle: &candle_core::Device) -> Result<()> {
    let ones = gpu.upload(&[ELEMENTS], &[1.0; ELEMENTS]).expect("room");
    let mut x = Tensor::zeros(ELEMENTS, candle_core::DType::F32, candle)?;
    for _ in 0..ROUNDS {
        let mut ours = gpu.from_candle(&x.copy()?).expect("it is taken");
        gpu.accumulate(&mut ours, &ones).expect("a sum");
        let sum = gpu.to_candle(&ours, candle).expect("it is given");
        x = sum.copy()?;
        gpu.accumulate(&mut ours, &ones).expect("a sum"); // after candle's copy
    }
    assert!(is_all(&x, ROUNDS as f32)?);
    Ok(())
}

fn is_all(x: &Tensor, value: f32) -> Result<bool> {
    Ok(x.flatten_all()?.to_vec1::<f32>()?.iter().all(|x| *x == value))
}
