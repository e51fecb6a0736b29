//! Checkpoints that differ from what was written.

use std::fs::{create_dir, read, read_to_string, remove_file, rename, write};
use std::path::Path;
use std::sync::Mutex;

use chimera::core::comm::{Endpoint, Host};
use chimera::core::engine::run_threads;
use chimera::core::ids::Rank;
use chimera::formats::checkpoint::{Checkpoint, Disk, MANIFEST, Store};
use chimera::run::{Place, checkpoint_as};
use tempfile::TempDir;

use super::{at, config, train};
use crate::command::{Ran, chimera, folder};

/// A run of 6 steps with checkpoints after steps 3 and 6.
fn trained() -> TempDir {
    let run = folder();
    train("--depth 2 --save-every 3", None, run.path(), Disk::default()).expect("trains");
    run
}

type Damage = fn(&Path);

/// Damages to a file of a checkpoint, each with a part of the refusal.
const DAMAGES: [(Damage, &str); 9] = [
    (|at| cut(&at.join("shard-0000.safetensors")), "shard-0000.safetensors: it has "),
    (|at| flip(&at.join("shard-0001.safetensors"), 9), "shard-0001.safetensors: its content"),
    (|at| flip(&at.join("shard-0001.safetensors"), 20_000), "shard-0001.safetensors: its content"),
    (
        |at| remove_file(at.join("shard-0001.safetensors")).expect("a file"),
        "shard-0001.safetensors: No such",
    ),
    (swap, "shard-0000.safetensors: it"),
    (|at| flip(&at.join(MANIFEST), 100), "manifest.json: its content"),
    (|at| cut(&at.join(MANIFEST)), "manifest.json: it cannot be read"),
    (format_flipped, "manifest.json: its content"),
    (outside, "manifest.json: `../shard-0000.safetensors` is not a plain file name"),
];

fn cut(path: &Path) {
    let bytes = read(path).expect("a file");
    write(path, &bytes[..bytes.len() - 1 - bytes.len() / 3]).expect("written");
}

fn flip(path: &Path, at: usize) {
    let mut bytes = read(path).expect("a file");
    bytes[at] ^= 1;
    write(path, bytes).expect("written");
}

fn swap(at: &Path) {
    let [a, b, aside] =
        ["shard-0000.safetensors", "shard-0001.safetensors", "aside"].map(|name| at.join(name));
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        rename(from, to).expect("renamed");
    }
}

/// Changes the manifest and updates its hash.
fn forge(at: &Path, from: &str, to: &str) {
    let text = read_to_string(at.join(MANIFEST)).expect("a manifest");
    let rest = text.splitn(3, '\n').nth(2).expect("lines").replacen(from, to, 1);
    let hash = blake3::hash(rest.as_bytes());
    write(at.join(MANIFEST), format!("{{\n  \"blake3\": \"{hash}\",\n{rest}")).expect("written");
}

fn newer(at: &Path) {
    forge(at, "\"format\": 1", "\"format\": 2");
}

/// Damage that looks like a later format.
fn format_flipped(at: &Path) {
    let text = read_to_string(at.join(MANIFEST)).expect("a manifest");
    write(at.join(MANIFEST), text.replacen("\"format\": 1", "\"format\": 9", 1)).expect("written");
}

fn outside(at: &Path) {
    forge(at, "shard-0000", "../shard-0000");
}

#[test]
fn a_broken_checkpoint_is_refused_with_file_and_reason() {
    for (nth, (damage, reason)) in DAMAGES.iter().enumerate() {
        let run = trained();
        damage(&at(run.path(), 6));
        let refusal = Checkpoint::open(&at(run.path(), 6)).err().expect("refused").to_string();
        assert!(refusal.contains(reason), "{nth}: {refusal}");
        let store = Store::of(run.path());
        // The checkpoint before is used, and a warning gives the reason.
        let told = Mutex::new(Vec::new());
        let newest = store.newest(&|message| told.lock().expect("one").push(message.to_string()));
        assert_eq!(newest.expect("usable").expect("one").manifest().step, 3, "{nth}");
        let told = told.into_inner().expect("one");
        assert!(told.len() == 2 && told[0].contains(reason), "{nth}: {told:?}");
        assert!(told[1].ends_with("step-00000006.broken"), "{told:?}");
        assert!(!at(run.path(), 6).exists() && at(run.path(), 6).with_extension("broken").exists());
        // If no checkpoint is left, the run does not train from scratch.
        damage(&at(run.path(), 3));
        let refusal = store.newest(&|_| ()).err().expect("nothing is left").to_string();
        assert!(refusal.contains(reason) && at(run.path(), 3).exists(), "{nth}: {refusal}");
    }
}

#[test]
fn the_checkpoint_that_may_be_meant_is_whole() {
    let run = trained();
    create_dir(at(run.path(), 7)).expect("an interrupted save");
    let refusal = Checkpoint::open(run.path()).err().expect("no checkpoint").to_string();
    let meant = format!("did you mean {}?", at(run.path(), 6).display());
    assert!(refusal.ends_with(&meant), "{refusal}");
}

/// A checkpoint of another version, or one that this process may not read, may be sound. The search
/// ends there and renames nothing.
#[test]
fn what_may_be_sound_is_not_put_aside() {
    #[cfg_attr(not(unix), expect(unused_mut))]
    let mut hindrances: Vec<(Damage, &str)> = vec![(
        newer,
        "manifest.json: it has format 2, and this program reads up to 1: use the version",
    )];
    #[cfg(unix)]
    hindrances.push((
        |at| {
            rename(at.join(MANIFEST), at.join("aside")).expect("renamed");
            std::os::unix::fs::symlink(MANIFEST, at.join(MANIFEST)).expect("a link to itself");
        },
        "cannot be read: ",
    ));
    #[cfg(unix)]
    if !reads_all() {
        hindrances.push((|at| lock_up(&at.join("shard-0001.safetensors")), "cannot be read: "));
        hindrances.push((lock_up, "cannot be read: "));
    }
    for (hinder, reason) in hindrances {
        let run = trained();
        hinder(&at(run.path(), 6));
        // An interrupted save stays too.
        create_dir(at(run.path(), 7)).expect("a folder");
        let told = Mutex::new(Vec::new());
        let tell = |message: &str| told.lock().expect("one").push(message.to_string());
        let refusal = Store::of(run.path()).newest(&tell).err().expect("refused").to_string();
        assert!(refusal.contains(reason), "{refusal}");
        assert!(!refusal.contains("no checkpoint of this run can be used"), "{refusal}");
        assert!(told.into_inner().expect("one").is_empty(), "{reason}");
        for step in [3, 6, 7] {
            assert!(at(run.path(), step).is_dir(), "{reason}: {step}");
        }
        let resume = format!("train --steps 9 --resume auto --out {}", run.path().display());
        let ran = chimera(&resume);
        assert_eq!(ran.code, Some(4), "{reason}: {}", ran.stderr);
        assert!(at(run.path(), 6).is_dir() && at(run.path(), 7).is_dir(), "{reason}");
        #[cfg(unix)]
        unlock(&at(run.path(), 6));
    }
}

/// Returns true if this process runs as root, for which permissions do not count.
#[cfg(unix)]
fn reads_all() -> bool {
    let file = folder();
    let path = file.path().join("file");
    write(&path, "").expect("a file");
    lock_up(&path);
    read(&path).is_ok()
}

#[cfg(unix)]
fn lock_up(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o0)).expect("permissions");
}

/// Makes the folder removable again.
#[cfg(unix)]
fn unlock(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("permissions");
}

/// Ranks that are processes read a part each, and agree on one checkpoint or one reason.
#[test]
fn ranks_find_together_what_is_broken() {
    for (nth, (damage, reason)) in DAMAGES.iter().enumerate() {
        let n_ranks = 2 + nth as u32 % 2;
        // A rank that only looks at the header may report another reason.
        let (file, _) = reason.split_once(": ").expect("a file");
        let run = trained();
        let newest = at(run.path(), 6);
        damage(&newest);
        let find = |resume: &str| {
            let out = run.path().display();
            let config = config(&format!("--depth 2 --out {out} --resume {resume}"));
            let told = Mutex::new(Vec::new());
            let tell = |message: &str| told.lock().expect("one").push(message.to_string());
            let found = run_threads::<Host, _>(n_ranks, |comm| {
                let place = (comm.rank() == Rank(0)).then(|| Place::claim(&config).expect("free"));
                let found = checkpoint_as(&config, comm, place.as_ref(), &Path::to_path_buf, &tell);
                let step = |checkpoint: Checkpoint| checkpoint.manifest().step;
                Ok(found.map(|found| found.map(step)).map_err(|refusal| refusal.to_string()))
            });
            (found.expect("no rank is lost"), told.into_inner().expect("one"))
        };
        let (found, told) = find(newest.to_str().expect("UTF-8"));
        assert!(found[0].as_ref().is_err_and(|e| e.contains(file)), "{nth}: {found:?}");
        assert!(told.is_empty() && found[1..].iter().all(|other| *other == Ok(None)), "{found:?}");
        let (found, told) = find("auto");
        assert!(found.iter().all(|step| *step == Ok(Some(3))), "{nth}: {found:?}");
        assert!(told.len() == 2 && told[0].contains(file), "{nth}: {told:?}");
        damage(&at(run.path(), 3));
        let (found, _) = find("auto");
        assert!(found[0].as_ref().is_err_and(|e| e.contains(file)), "{nth}: {found:?}");
    }
}

#[test]
fn of_several_processes_each_reads_its_files() {
    let run = trained();
    let path = at(run.path(), 6);
    let refusals = || [0, 1].map(|nth| Checkpoint::open_part(&path, nth, 2).err());
    assert_eq!(refusals(), [None, None]);
    flip(&path.join("shard-0001.safetensors"), 20_000);
    let [first, second] = refusals();
    assert!(first.is_none() && second.is_some_and(|e| e.to_string().contains("its content")));
    cut(&path.join("shard-0001.safetensors"));
    let [first, second] = refusals();
    assert!(first.is_some_and(|e| e.to_string().contains("it has ")) && second.is_some());
}

#[test]
fn a_forged_manifest_is_told_by_its_hash_alone() {
    let run = trained();
    let text = read_to_string(at(run.path(), 6).join(MANIFEST)).expect("a manifest");
    for (from, to) in [("\"step\": 6", "\"step\": 5"), ("\"seed\": \"1\"", "\"seed\": \"2\"")] {
        assert!(text.contains(from), "{text}");
        write(at(run.path(), 6).join(MANIFEST), text.replace(from, to)).expect("written");
        let refusal = Checkpoint::open(&at(run.path(), 6)).err().expect("refused").to_string();
        assert!(refusal.ends_with("the hash differs"), "{refusal}");
    }
}

#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let (run, path) = (trained(), "shard-0000.safetensors");
    let shard = at(run.path(), 6).join(path);
    rename(&shard, run.path().join(path)).expect("renamed");
    std::os::unix::fs::symlink(run.path().join(path), &shard).expect("a link");
    let refusal = Checkpoint::open(&at(run.path(), 6)).err().expect("refused").to_string();
    assert!(refusal.ends_with("it is not a regular file"), "{refusal}");
}

/// A header may promise anything. No more is read or allocated than the file has.
#[test]
fn headers_that_lie_are_refused() {
    let run = trained();
    let shard = at(run.path(), 6).join("shard-0000.safetensors");
    let bytes = read(&shard).expect("a file");
    let lies: [(Vec<u8>, &str); 4] = [
        ([&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat(), "bytes is too long"),
        (b"{}".to_vec(), "it has no header"),
        ([&2u64.to_le_bytes()[..], b"{}", &bytes[8..]].concat(), "does not account for its"),
        ([&8u64.to_le_bytes()[..], &[b'['; 8]].concat(), "its header cannot be read"),
    ];
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_string();
    let manifest = read_to_string(at(run.path(), 6).join(MANIFEST)).expect("a manifest");
    for (lie, reason) in lies {
        write(at(run.path(), 6).join(MANIFEST), &manifest).expect("written");
        write(&shard, &lie).expect("written");
        let size = |bytes: &[u8]| format!("\"bytes\": {}", bytes.len());
        forge(&at(run.path(), 6), &size(&bytes), &size(&lie));
        forge(&at(run.path(), 6), &hash(&bytes), &hash(&lie));
        let refusal = Checkpoint::open(&at(run.path(), 6)).err().expect("refused").to_string();
        assert!(refusal.contains(reason), "{reason}: {refusal}");
    }
}

/// A training without checks, or another program, may have left such weights.
#[test]
fn weights_that_are_not_finite_are_refused_with_their_file() {
    let run = trained();
    let at = at(run.path(), 6);
    let shard = at.join("shard-0000.safetensors");
    let bytes = read(&shard).expect("a file");
    let header = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let mut broken = bytes.clone();
    broken[8 + header..].fill(0xff);
    write(&shard, &broken).expect("written");
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_string();
    forge(&at, &hash(&bytes), &hash(&broken));
    let (place, out) = (at.display(), run.path().join("out"));
    let text = crate::command::text(&run);
    for line in [
        format!("checkpoint export {place} --out {}", out.display()),
        format!("export {place} --out {}", out.display()),
        format!("eval --model {place} --data {}", text.display()),
        format!("generate --model {place} --prompt x"),
    ] {
        let ran = chimera(&line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(7), ""), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("shard-0000.safetensors: "), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(" has values that are not finite"), "{line}: {}", ran.stderr);
        assert!(!out.exists(), "{line}");
    }
}

#[test]
fn a_damaged_timetable_makes_a_checkpoint_unusable() {
    let run = trained();
    let at = at(run.path(), 6);
    forge(&at, "\"shards\": ", "\"timetable\": \"{}\",\n  \"shards\": ");
    let ran = chimera(&format!("checkpoint verify {}", at.display()));
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("manifest.json: its timetable cannot be read: "), "{}", ran.stderr);
}

#[test]
fn the_command_lists_verifies_and_exports() {
    let run = trained();
    let line =
        |line: &str| -> Ran { chimera(&line.replace("RUN", &run.path().display().to_string())) };
    let listed = line("checkpoint ls RUN");
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);
    let lines: Vec<Vec<&str>> =
        listed.stdout.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["step", "MiB", "files", "path"]);
    assert_eq!((lines.len(), lines[1][0], lines[2][0], lines[2][2]), (3, "3", "6", "2"));
    let verified = line("checkpoint verify RUN/checkpoints/step-00000006");
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.contains("step 6, ") && verified.stdout.ends_with("all as written\n"));
    // The weights alone, as the library reads them.
    let exported = line("checkpoint export RUN/checkpoints/step-00000006 --out RUN/w.safetensors");
    assert_eq!(exported.code, Some(0), "{}", exported.stderr);
    let bytes = read(run.path().join("w.safetensors")).expect("a file");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let checkpoint = Checkpoint::open(&at(run.path(), 6)).expect("a checkpoint");
    let shapes = checkpoint.shapes();
    assert_eq!((file.len(), shapes.len()), (shapes.len(), 3 + 12 * 4 + 2));
    for (name, shape) in &shapes {
        let values = checkpoint.weights(name, shape).expect("weights");
        let values: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let tensor = file.tensor(name).expect("a tensor");
        assert_eq!((tensor.shape(), tensor.data() == values), (&shape[..], true), "{name}");
    }
    assert_eq!(
        line("checkpoint export RUN/checkpoints/step-00000006 --out RUN/w.safetensors").code,
        Some(2)
    );
    let nowhere = "checkpoint export RUN/checkpoints/step-00000006 --out RUN/none/w.safetensors";
    let refused = line(nowhere);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.starts_with("error: cannot write weights "), "{}", refused.stderr);
    flip(&at(run.path(), 6).join("shard-0001.safetensors"), 5000);
    for command in
        ["verify RUN/checkpoints/step-00000006", "export RUN/checkpoints/step-00000006 --out RUN/x"]
    {
        let refused = line(&format!("checkpoint {command}"));
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{command}");
        assert!(
            refused.stderr.contains("shard-0001.safetensors: its content"),
            "{}",
            refused.stderr
        );
    }
    let hinted = line("checkpoint verify RUN");
    assert_eq!(hinted.code, Some(4));
    assert!(hinted.stderr.contains("did you mean "), "{}", hinted.stderr);
    assert_eq!(line("checkpoint ls RUN/nowhere").code, Some(2));
}
