//! Mistakes of the backend are found: the emulated driver acts as if a call had been forgotten or
//! confused, and the tests below fail or compute other numbers.

use std::env;
use std::process::Command;

use chimera_backend_cuda::Format;
use chimera_core::device::reference::Reference;
use chimera_core::device::{Asynchronous, Device, DeviceError, Overlap};
use chimera_core::layers::{Layout, Linear};
use chimera_testkit::equivalence::RunError;

use super::{emulated, run};

/// Mistakes by their names in `streams.h`: not waiting for a writer, freeing memory on another
/// stream, binding no context, confusing the contexts of a copy between GPUs, forgetting the copy,
/// and hiding a pool from the other GPU.
const MISTAKES: [&str; 6] =
    ["no-wait", "other-stream", "no-context", "swapped-contexts", "no-copy", "no-access"];
/// Orders of the streams' work that are tried before a mistake counts as not found.
const ORDERS: u32 = 4;

#[test]
fn two_gpus_train_as_the_reference() -> Result<(), RunError> {
    let run = run("chimera", 2);
    let expected = run.train(|_| Ok(Reference))?.losses;
    let got = run.train(|rank| Ok(emulated::gpu(rank.index(), Format::F32).generic()))?.losses;
    let is_near = |(got, expected): (&f64, &f64)| (got - expected).abs() < 1e-4 * expected;
    assert!(got.iter().zip(&expected).all(is_near), "{got:?} is not {expected:?}");
    Ok(())
}

/// Two overlapping pieces of work, the second of which reads earlier results, and then one that
/// reads both.
#[test]
fn what_comes_behind_an_overlap_waits_for_both_pieces() -> Result<(), DeviceError> {
    let gpu = emulated::gpu(0, Format::F32);
    let x = gpu.upload(&[2, 2], &[1.0, 2.0, 3.0, 4.0])?;
    for _ in 0..4 {
        let mut sum = gpu.zeros(&[2, 2])?;
        gpu.overlap(Overlap::First)?;
        let product = gpu.linear(&x, &x, Layout::InOut, None, None)?;
        gpu.overlap(Overlap::Second)?;
        gpu.accumulate(&mut sum, &x)?;
        gpu.overlap(Overlap::Over)?;
        gpu.accumulate(&mut sum, &product)?;
        drop(product);
        assert_eq!(gpu.download(&sum)?, [8.0, 12.0, 18.0, 26.0]);
    }
    Ok(())
}

#[test]
fn mistakes_are_found() {
    let training = "two_gpus_train_as_the_reference";
    // The mistake would be harmless if both pieces were in one queue.
    let overlap = "what_comes_behind_an_overlap_waits_for_both_pieces";
    for (test, mistakes) in [(training, &MISTAKES[..]), (overlap, &["no-wait"])] {
        assert!(passes(test, "", 1), "{test}: without a mistake");
        for mistake in mistakes {
            let is_found = (0..ORDERS).any(|order| !passes(test, mistake, order));
            assert!(is_found, "{test}: {mistake} is not found");
        }
    }
}

/// Runs a test above in a process of its own, since a mistake may end it. Returns true if it
/// passes.
fn passes(name: &str, mistake: &str, order: u32) -> bool {
    let mut test = Command::new(env::current_exe().expect("this program"));
    test.args(["--exact", &format!("mistakes::{name}")]);
    test.env("EMULATED_MISTAKE", mistake).env("EMULATED_SEED", order.to_string());
    test.output().expect("it starts").status.success()
}
