//! Starts candle's CUDA and Chimera's in one program and prints what each finds: `cargo xtask cuda
//! --beside-candle`.

use chimera_backend_cuda::Format;
use chimera_backend_cuda::cuda::{Cuda, devices, libraries};

fn main() {
    println!("libraries: {}", libraries());
    match candle_core::Device::new_cuda(0) {
        Ok(device) => println!("candle: {:?}", device.location()),
        Err(reason) => println!("candle: {reason}"),
    }
    match devices() {
        Ok(all) => println!("ours: {} GPU(s)", all.len()),
        Err(reason) => println!("ours: {reason}"),
    }
    if let Ok(cuda) = Cuda::new(0, Format::F32) {
        println!("ours: {cuda:?}");
    }
}
