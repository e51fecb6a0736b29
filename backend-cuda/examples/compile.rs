//! Compiles the kernels for the given chips, without a GPU, and prints the resources of each
//! kernel: `cargo run -p chimera-backend-cuda --features cuda --example compile -- sm_90 sm_80`. It
//! fails if a kernel keeps values in local memory, or if its blocks need more registers than a
//! multiprocessor has.

use std::process::ExitCode;

use chimera_backend_cuda::Format;
use chimera_backend_cuda::cuda::{by_kernel, compile, fault};

fn main() -> ExitCode {
    for chip in std::env::args().skip(1) {
        for format in Format::ALL {
            let (image, log) = match compile(&chip, format) {
                Ok(compiled) => compiled,
                Err(reason) => {
                    eprintln!("{chip}, {format:?}: {reason}");
                    return ExitCode::FAILURE;
                }
            };
            println!("{chip}, {format:?}: {} bytes", image.len());
            for (kernel, line) in by_kernel(&log) {
                if let Some((_, used)) = line.split_once(": Used ") {
                    println!("  {kernel}: {used}");
                }
            }
            if let Some(fault) = fault(&log) {
                eprintln!("{chip}, {format:?}: {fault}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
