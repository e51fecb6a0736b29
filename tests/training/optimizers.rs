//! Optimizers that do work besides the ops of micro-batches.

use crate::command::chimera;

/// A step with the default settings has more pieces of this work than micro-batches.
#[test]
fn kfac_trains_with_the_default_settings() {
    let ran = chimera("train --optimizer kfac --steps 2 --threads 1 --no-save");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
