//! Mistakes of the backend are found: the emulated driver acts as if a call had been forgotten or confused, and the
//! training below fails or comes to other losses.

use std::env;
use std::process::Command;

use chimera_backend_candle::gpu::Element;
use chimera_core::device::reference::Reference;
use chimera_core::equivalence::RunError;

use super::{emulated, run};

/// By its name in `streams.h`: to forget to wait for a writer, to give memory back on another stream, to bind no context,
/// to confuse the contexts of a copy between GPUs, to forget the copy, to keep a pool from the other GPU.
const MISTAKES: [&str; 6] =
    ["no-wait", "other-stream", "no-context", "swapped-contexts", "no-copy", "no-access"];
/// Orders of the streams' work that are tried before a mistake counts as not found.
const ORDERS: u32 = 4;

#[test]
fn two_gpus_train_as_the_reference() -> Result<(), RunError> {
    let run = run("chimera", 2);
    let expected = run.train(|_| Ok(Reference))?.losses;
    let got = run.train(|rank| Ok(emulated::gpu(rank.index(), Element::F32)))?.losses;
    let is_near = |(got, expected): (&f64, &f64)| (got - expected).abs() < 1e-4 * expected;
    assert!(got.iter().zip(&expected).all(is_near), "{got:?} is not {expected:?}");
    Ok(())
}

#[test]
fn mistakes_are_found() {
    assert!(trains("", 1), "without a mistake");
    for mistake in MISTAKES {
        assert!((0..ORDERS).any(|order| !trains(mistake, order)), "{mistake} is not found");
    }
}

/// Whether the test above passes in a process of its own, which a mistake may end.
fn trains(mistake: &str, order: u32) -> bool {
    let mut test = Command::new(env::current_exe().expect("this program"));
    test.args(["--exact", "mistakes::two_gpus_train_as_the_reference"]);
    test.env("EMULATED_MISTAKE", mistake).env("EMULATED_SEED", order.to_string());
    test.output().expect("it starts").status.success()
}
