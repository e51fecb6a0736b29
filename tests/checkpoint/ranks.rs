//! Saving by ranks that are processes; here they are threads that exchange only what processes could.

use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use chimera::checkpoint::{Disk, Store};
use chimera::core::comm::Host;
use chimera::core::engine::run_threads;
use chimera::core::fault::{Class, Fault};

use super::prepare;
use crate::command::folder;

/// All ranks agree that a loss is not finite, so they can finish the save under way.
#[test]
fn a_loss_that_is_not_finite_does_not_interrupt_a_save() {
    let folder = folder();
    let store = Store::of(folder.path());
    // Slower than a step, so that the save is under way.
    let slow = Disk::gated(|_, _| {
        sleep(Duration::from_millis(100));
        Ok(())
    });
    let mut run = prepare("--depth 2 --lr 1e30 --clip 0 --save-every 1");
    run.save_into(store.clone().on(slow), |_| ());
    let fault = run_threads::<Host, ()>(2, |comm| {
        let ended = run.train_as(comm, &AtomicBool::new(false), || false, |_| Ok(()));
        ended.map(drop).map_err(|error| error.downcast::<Fault>().expect("a fault"))
    });
    let fault = fault.expect_err("it diverges");
    assert_eq!(fault.class, Class::NonFinite, "{fault}");
    let newest = store.newest(&|message| panic!("{message}")).expect("usable");
    assert_eq!(newest.map(|checkpoint| checkpoint.manifest().step), fault.step);
}
