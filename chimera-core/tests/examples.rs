//! The examples run, and stay small enough to be read at once.

#![allow(clippy::duplicate_mod, reason = "four examples train the stages of a fifth")]

use std::error::Error;
use std::path::Path;

#[path = "../examples/own_executor.rs"]
mod own_executor;
#[path = "../examples/own_optimizer.rs"]
mod own_optimizer;
#[path = "../examples/own_schedule.rs"]
mod own_schedule;
#[path = "../examples/own_transport.rs"]
mod own_transport;
#[path = "../examples/own_work.rs"]
mod own_work;
#[path = "../examples/two_models.rs"]
mod two_models;

#[test]
fn examples_run() -> Result<(), Box<dyn Error>> {
    own_transport::own_stage::main()?;
    own_schedule::main()?;
    own_executor::main()?;
    own_optimizer::main()?;
    own_work::main()?;
    two_models::main()?;
    own_transport::main()
}

#[test]
fn examples_have_less_than_eighty_lines() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for file in folder.read_dir()? {
        let path = file?.path();
        let n = std::fs::read_to_string(&path)?.lines().count();
        assert!(n < 80, "{} has {n} lines", path.display());
    }
    Ok(())
}
