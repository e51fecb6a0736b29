//! Compiles the kernels for the chips that are named, without a GPU, and prints what each kernel needs:
//! `cargo run -p chimera-backend-candle --features cuda --example compile -- sm_90 sm_80`.

use std::process::ExitCode;

use chimera_backend_candle::gpu::Element;
use chimera_backend_candle::gpu::cuda::compile;

fn main() -> ExitCode {
    for chip in std::env::args().skip(1) {
        for activations in [Element::F32, Element::Bf16] {
            let (image, log) = match compile(&chip, activations) {
                Ok(compiled) => compiled,
                Err(reason) => {
                    eprintln!("{chip}, {activations:?}: {reason}");
                    return ExitCode::FAILURE;
                }
            };
            println!("{chip}, {activations:?}: {} bytes", image.len());
            let mut kernel = "";
            for line in log.lines() {
                if let Some((_, name)) = line.split_once("entry function '") {
                    kernel = name.split('\'').next().unwrap_or_default();
                } else if let Some((_, used)) = line.split_once(": Used ") {
                    println!("  {kernel}: {used}");
                } else if line.contains("bytes spill") && !line.contains(" 0 bytes spill stores") {
                    eprintln!("{chip}, {activations:?}: {kernel} spills registers: {line}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
