//! Saves by ranks that are processes. Here they are threads that exchange only what processes
//! could.

use std::io::{Error, ErrorKind};
use std::mem::take;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use chimera::core::comm::Host;
use chimera::core::engine::{StepReport, run_threads};
use chimera::core::fault::{Class, Fault};
use chimera::core::ids::Rank;
use chimera::formats::checkpoint::{Checkpoint, Disk, MANIFEST, Saver, State, Store};
use chimera::run::Trained;

use super::kill::{manifest, tensor};
use super::{at, numbers, prepare};
use crate::command::folder;

/// All ranks agree that a loss is not finite, so they can finish the save that is under way.
#[test]
fn a_loss_that_is_not_finite_does_not_interrupt_a_save() {
    let folder = folder();
    let store = Store::of(folder.path());
    // Slower than a step, so that the save is still under way.
    let slow = Disk::gated(|_, _| {
        sleep(Duration::from_millis(100));
        Ok(())
    });
    let mut run = prepare("--depth 2 --lr 1e30 --clip 0 --save-every 1");
    run.save_into(store.clone().on(slow), |_| ());
    let fault = run_threads::<Host, ()>(2, |comm| {
        let ended = run.train_as(comm, &AtomicBool::new(false), || None, |_| Ok(()));
        ended.map(drop).map_err(|error| error.downcast::<Fault>().expect("a fault"))
    });
    let fault = fault.expect_err("it diverges");
    assert_eq!(fault.class, Class::NonFinite, "{fault}");
    let newest = store.newest(&|message| panic!("{message}")).expect("usable");
    assert_eq!(newest.map(|checkpoint| checkpoint.manifest().step), fault.step);
}

/// Trains on two ranks that save a part each. Returns their numbers, the results, and the
/// warnings. A rank that waits for another in vain gives up soon.
fn train_on(disk: Disk, into: &Path) -> (Vec<[u64; 4]>, Trained, Vec<String>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&warnings);
    let mut run = prepare("--depth 2 --save-every 2 --timeout 10 --start-timeout 10");
    run.save_into(Store::of(into).on(disk), move |warning| {
        told.lock().expect("one").push(warning.to_string());
    });
    let reports = Mutex::new(Vec::new());
    let trained = run_threads::<Host, Option<Trained>>(2, |comm| {
        let observe = |report: &StepReport| {
            reports.lock().expect("one writer").push(report.clone());
            Ok(())
        };
        let trained = run.train_as(comm, &AtomicBool::new(false), || None, observe);
        trained.map_err(|error| error.downcast::<Fault>().expect("a fault"))
    });
    let trained = trained.expect("trains").into_iter().next().flatten().expect("that of rank 0");
    let warnings = take(&mut *warnings.lock().expect("one"));
    (numbers(&reports.into_inner().expect("one writer")), trained, warnings)
}

/// Whichever rank fails at whatever file, all ranks train on without this checkpoint, with a
/// warning.
#[test]
fn a_rank_that_cannot_write_costs_a_checkpoint_and_no_step() {
    let sound = folder();
    let (expected, _, warnings) = train_on(Disk::default(), sound.path());
    assert_eq!((expected.len(), warnings.len()), (6, 0));
    for (change, file) in [
        ("create folder", ""),
        ("write", "shard-0000"),
        ("write", "shard-0001"),
        ("write", "manifest.json"),
    ] {
        for step in [2, 6] {
            let run = folder();
            let (lost, is_last) = (at(run.path(), step), step == 6);
            let place = lost.clone();
            let full = Disk::gated(move |what, path| {
                let is_meant = path.starts_with(&place) && path.to_string_lossy().contains(file);
                if what == change && is_meant {
                    Err(Error::from(ErrorKind::StorageFull))
                } else {
                    Ok(())
                }
            });
            let (numbers, trained, warnings) = train_on(full, run.path());
            let case = format!("{change} {file} of step {step}");
            assert_eq!(numbers, expected, "{case}");
            let message = format!("cannot write checkpoint {}: no storage space", lost.display());
            let fault = trained.unwritten.map(|fault| (fault.class.code(), fault.message));
            if is_last {
                assert_eq!((fault, warnings), (Some((9, message)), vec![]), "{case}");
            } else {
                let warning = format!("{message}; training goes on");
                assert_eq!((fault, warnings), (None, vec![warning]), "{case}");
            }
            assert_eq!(trained.checkpoint, (!is_last).then(|| at(run.path(), 6)), "{case}");
            let whole = [2, 4, 6].map(|step| Checkpoint::open(&at(run.path(), step)).is_ok());
            assert_eq!((whole, lost.exists()), ([is_last, true, !is_last], false), "{case}");
        }
    }
}

/// An all-gather of one rank.
fn alone(own: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    Ok(vec![own.to_vec()])
}

/// An all-gather in which another rank dies.
fn lost(_: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    Err(Fault::new(Class::PeerLost, Rank(0), "rank 1 has died"))
}

/// A rank that is lost during a save leaves it unfinished, without a thread that writes on. Whoever
/// begins the save again finishes it.
#[test]
fn a_save_that_a_death_interrupts_is_begun_again() {
    let folder = folder();
    let n_changes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_changes);
    let slow = Disk::gated(move |_, _| {
        sleep(Duration::from_millis(20));
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    let saver = Saver::new(Store::of(folder.path()).on(slow), 1, |warning| panic!("{warning}"));
    let begin = || {
        let state = State { began: 1, step: 2, is_done: true, is_last: true, is_skipped: false };
        let (mut share, part) = (saver.share(Rank(0)), vec![tensor("a", 3, 1.0)]);
        assert!(!share.is_unfinished());
        share.begin(Some(&mut alone), &state, manifest(2), vec![part]).expect("no other rank");
        share
    };

    let mut share = begin();
    share.poll(Some(&mut lost)).expect_err("a death while it is written");
    assert!(share.is_unfinished());
    drop(share);
    let written = n_changes.load(Ordering::Relaxed);
    sleep(Duration::from_millis(100));
    assert_eq!(n_changes.load(Ordering::Relaxed), written);
    assert!(!at(folder.path(), 2).join(MANIFEST).exists());

    let mut share = begin();
    share.settle(Some(&mut alone)).expect("no other rank");
    assert!(at(folder.path(), 2).join(MANIFEST).exists());
    share.finish(Some(&mut lost)).expect_err("a death before all know where it is");
    assert!(share.is_unfinished());
    drop(share);

    let mut share = begin();
    let saved = share.finish(Some(&mut alone)).expect("no other rank").expect("a save");
    assert_eq!(saved.expect("published before"), at(folder.path(), 2));
    assert!(!share.is_unfinished());
}
