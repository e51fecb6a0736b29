//! A save that is cut off at any moment leaves a whole checkpoint: the one before, or its own.

use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use chimera::core::engine::{Optimizer, Snapshot, StateTensor, WindowHistory};
use chimera::core::fault::Class;
use chimera::core::stage::{Init, Param};
use chimera::formats::checkpoint::{Checkpoint, Disk, FORMAT, Manifest, Store, moments};

use super::{at, train};
use crate::command::folder;

pub(super) fn manifest(step: u64) -> Manifest {
    Manifest {
        format: FORMAT,
        written_by: "a test".into(),
        step,
        updates: step,
        skipped: 0,
        windows: WindowHistory::default(),
        samples_per_step: 1,
        next_samples: String::new(),
        samples_step: None,
        data: None,
        settings: Default::default(),
        optimizer_state: moments(),
        special_ids: None,
        end_of_text: None,
        timetable: None,
        shards: Vec::new(),
    }
}

pub(super) fn tensor(name: &str, n: usize, value: f32) -> Snapshot {
    let (name, shape) = (name.to_string(), vec![n]);
    let param = Param::new(name, shape, Init::Zeros);
    let elements = |value| vec![value; n].into();
    let kept = |name, value| StateTensor { name, shape: vec![n], elements: elements(value) };
    let state = vec![kept("m", value + 1.0), kept("v", value + 2.0)];
    Snapshot { param, weights: elements(value), state }
}

/// Two files, one of them of several writes, and a rank without any.
fn parts(step: u64) -> Vec<Vec<Snapshot>> {
    let step = step as f32;
    vec![
        vec![tensor("a", 300_000, step), tensor("b", 3, -step)],
        vec![],
        vec![tensor("c", 1, step)],
    ]
}

fn save(store: &Store, step: u64) -> Result<(), chimera::core::fault::Fault> {
    store.save(manifest(step), &parts(step)).map(|_| ())
}

fn assert_whole(checkpoint: &Checkpoint) {
    let step = checkpoint.manifest().step;
    for tensor in parts(step).iter().flatten() {
        assert_eq!(
            checkpoint.tensor(&tensor.param, &Optimizer::adamw()).as_ref(),
            Ok(tensor),
            "step {step}"
        );
    }
}

/// The names of all files and folders below a run.
fn names(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).expect("a folder") {
        let entry = entry.expect("an entry").path();
        if entry.is_dir() {
            found.extend(names(&entry));
        }
        found.push(entry.file_name().unwrap_or_default().to_string_lossy().into_owned());
    }
    found.sort();
    found
}

#[test]
fn a_kill_at_every_change_leaves_a_whole_checkpoint() {
    let mut n_new = 0;
    for n_done in 0.. {
        let run = folder();
        let store = Store::of(run.path());
        save(&store, 1).expect("a checkpoint");
        save(&store, 2).expect("a checkpoint");
        let left = Arc::new(AtomicUsize::new(n_done));
        let (gate, dead) = (Arc::clone(&left), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&dead);
        // After the kill nothing is changed or cleaned up any more.
        let killed = store.clone().on(Disk::gated(move |change, path| {
            let lives = gate.try_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            lives.map(|_| ()).map_err(|_| {
                seen.fetch_add(1, Ordering::SeqCst);
                Error::other(format!("killed before {change} {}", path.display()))
            })
        }));
        let outcome = save(&killed, 3);
        let newest = store.newest(&|message| panic!("{n_done}: {message}")).expect("usable");
        let newest = newest.expect("a checkpoint");
        assert_whole(&newest);
        let step = newest.manifest().step;
        assert!(step == 3 || step == 2 && outcome.is_err(), "{n_done}: step {step}");
        n_new += usize::from(step == 3 && outcome.is_err());
        // The next save removes what the killed one left.
        save(&store, 3 + step % 2).expect("a checkpoint");
        let names = names(run.path());
        assert!(!names.iter().any(|name| name.ends_with(".part")), "{n_done}: {names:?}");
        let steps = names.iter().filter(|name| name.starts_with("step-")).count();
        assert_eq!((steps, names.iter().filter(|name| *name == "manifest.json").count()), (2, 2));
        if dead.load(Ordering::SeqCst) == 0 {
            assert!(outcome.is_ok() && n_done > 15, "{n_done} changes");
            break;
        }
    }
    assert!(n_new > 2, "no kill between publishing and the end of pruning");
}

/// The changes of a save, each with its file or folder within the run.
fn changes(store: &Store, run: &Path, step: u64) -> Vec<(&'static str, String)> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (seen, run) = (Arc::clone(&log), run.to_path_buf());
    let disk = Disk::gated(move |change, path| {
        let name = path.strip_prefix(&run).expect("within the run").to_string_lossy();
        let part = format!(".{}.part", std::process::id());
        let name = name.trim_end_matches(&part).to_string();
        seen.lock().expect("one").push((change, name));
        Ok(())
    });
    save(&store.clone().on(disk), step).expect("a checkpoint");
    let mut changes = std::mem::take(&mut *log.lock().expect("one"));
    // Files of tensors are written concurrently.
    let is_of_tensors = |(_, name): &(&'static str, String)| name.contains("shard-");
    for together in changes.chunk_by_mut(|a, b| is_of_tensors(a) && is_of_tensors(b)) {
        together.sort_by(|(_, a), (_, b)| a.cmp(b));
    }
    changes.dedup(); // one write per file is enough
    changes
}

/// After a power failure only synced data exists. So a file is synced before its name, a manifest's
/// files before the manifest, and a new checkpoint before an old one is removed.
#[test]
fn what_is_relied_on_is_synced_before() {
    let run = folder();
    let store = Store::of(run.path());
    let of_step = |step: u64| {
        let folder = format!("checkpoints/step-{step:08}");
        let mut changes = vec![("create folder", folder.clone())];
        for file in ["shard-0000.safetensors", "shard-0002.safetensors", "manifest.json"] {
            let path = format!("{folder}/{file}");
            changes.extend(["create", "write", "sync", "rename"].map(|c| (c, path.clone())));
        }
        changes.extend([("sync folder", folder), ("sync folder", "checkpoints".into())]);
        changes
    };
    let made = vec![("create folder", "checkpoints".to_string()), ("sync folder", String::new())];
    assert_eq!(changes(&store, run.path(), 1), [made, of_step(1)].concat());
    assert_eq!(changes(&store, run.path(), 2), of_step(2));
    let old = "checkpoints/step-00000001".to_string();
    let removed = vec![("remove", format!("{old}/manifest.json")), ("remove folder", old)];
    assert_eq!(changes(&store, run.path(), 3), [of_step(3), removed].concat());
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    for change in ["create folder", "create", "write", "sync", "rename", "sync folder"] {
        let run = folder();
        let store = Store::of(run.path());
        save(&store, 1).expect("a checkpoint");
        let before = names(run.path());
        let full = store.clone().on(Disk::gated(move |what, _| {
            if what == change { Err(Error::from(ErrorKind::StorageFull)) } else { Ok(()) }
        }));
        let fault = save(&full, 2).expect_err("a full disk");
        assert_eq!(fault.class, Class::Io);
        assert!(fault.message.contains("step-00000002: no storage space"), "{}", fault.message);
        assert_eq!(names(run.path()), before, "{change}");
        assert_whole(&Checkpoint::open(&at(run.path(), 1)).expect("a checkpoint"));
    }
}

/// A failed periodic save causes a warning, and the next save is tried. A failed last save ends the
/// run.
#[test]
fn training_goes_on_without_a_checkpoint_but_does_not_end_so() {
    for (failing, is_last) in [("step-00000002", false), ("step-00000006", true)] {
        let run = folder();
        let disk = Disk::gated(move |_, path| {
            if path.to_string_lossy().contains(failing) {
                Err(Error::from(ErrorKind::StorageFull))
            } else {
                Ok(())
            }
        });
        let trained = train("--depth 2 --save-every 2", None, run.path(), disk);
        let (reports, trained) = trained.expect("trains");
        assert_eq!((reports.len(), trained.weights.is_empty()), (6, false), "{failing}");
        assert_eq!(trained.unwritten.map(|fault| fault.class), is_last.then_some(Class::Io));
        assert_eq!(trained.checkpoint, (!is_last).then(|| at(run.path(), 6)));
        let whole = [2, 4, 6].map(|step| Checkpoint::open(&at(run.path(), step)).is_ok());
        assert_eq!(whole, [is_last, true, !is_last], "{failing}");
        assert!(!run.path().join("checkpoints").join(failing).exists());
    }
}

/// All ranks wait for a slow disk, so that no rank takes a waiting one for lost.
#[test]
fn a_slow_disk_is_no_lost_peer() {
    let run = folder();
    let is_slow = Mutex::new(true);
    let disk = Disk::gated(move |_, _| {
        if std::mem::take(&mut *is_slow.lock().expect("one")) {
            sleep(Duration::from_secs(4));
        }
        Ok(())
    });
    let options = "--width 2 --depth 1 --micro-batches 2 --save-every 1 --timeout 2";
    let (reports, _) = train(options, None, run.path(), disk).expect("trains");
    assert_eq!(reports.len(), 6);
}

#[test]
fn values_that_are_not_finite_are_not_saved() {
    let run = folder();
    let store = Store::of(run.path());
    save(&store, 1).expect("a checkpoint");
    for at in 0..3 {
        let mut unsound = tensor("wte", 4, 1.0);
        let [m, v] = &mut unsound.state[..] else { panic!("two moments") };
        [&mut unsound.weights, &mut m.elements, &mut v.elements][at].words[2] = f32::NAN;
        let fault = store.save(manifest(2), &[vec![unsound]]).expect_err("refused");
        let message =
            ["wte", "wte.m", "wte.v"][at].to_owned() + " is not finite: no checkpoint is saved";
        assert_eq!((fault.class, fault.message), (Class::NonFinite, message));
    }
    assert_eq!(store.entries().expect("a folder").len(), 1);
}

/// Keeping fewer checkpoints makes room before the next is written. At least one is whole at all
/// times.
#[test]
fn a_full_disk_has_room_for_fewer_checkpoints() {
    let run = folder();
    let store = Store::of(run.path());
    let many = store.clone().keeping(5);
    (1..=5).for_each(|step| save(&many, step).expect("a checkpoint"));
    let full = store.on(Disk::gated(|change, _| match change {
        "write" => Err(Error::from(ErrorKind::StorageFull)),
        _ => Ok(()),
    }));
    save(&full, 6).expect_err("a full disk");
    let steps: Vec<u64> =
        full.entries().expect("a folder").iter().map(|entry| entry.step).collect();
    assert_eq!(steps, [4, 5]);
    assert_whole(&Checkpoint::open(&at(run.path(), 5)).expect("a checkpoint"));
}
