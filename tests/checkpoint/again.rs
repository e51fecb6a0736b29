//! A run that is started again in its folder. Whatever ended it, it continues from the files there,
//! or reports why it cannot.

use std::fs::{create_dir, read, read_to_string, remove_file, rename, write};
use std::process::Command;

use super::at;
use super::run::{line, losses, signal, wait_for};
use crate::command::{chimera, folder, start};

/// A fork has no checkpoint of its own at first.
#[test]
fn a_fork_that_is_killed_goes_on_from_where_it_began() {
    let folder = folder();
    let [base, fork] = ["base", "fork"].map(|name| folder.path().join(name));
    assert_eq!(chimera(&line(&folder, "base", "--steps 4 --save-every 2")).code, Some(0));
    let from = at(&base, 2).display().to_string();
    let whole = chimera(&line(&folder, "whole", &format!("--steps 6 --resume {from}")));
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
    let kill = |options: &str| {
        let running = start(&line(&folder, "fork", &format!("--steps 1000000 {options}")));
        let text = || read_to_string(fork.join("metrics.jsonl")).unwrap_or_default();
        let before = text().lines().count();
        wait_for(|| text().lines().count() > before + 2);
        signal(&running, "-KILL");
        running.wait();
    };
    kill(&format!("--resume {from}"));
    kill("--resume auto");
    let before = losses(&fork);
    let moved = folder.path().join("moved");
    rename(&base, &moved).expect("renamed");
    let again = line(&folder, "fork", "--steps 6 --resume auto");
    let gone = chimera(&again);
    assert_eq!((gone.code, gone.stdout.as_str()), (Some(4), ""), "{}", gone.stderr);
    let told = format!("{from}: there is no such folder; {}", fork.join("config.toml").display());
    assert!(gone.stderr.contains(&told), "{}", gone.stderr);
    assert_eq!(losses(&fork), before);
    rename(&moved, &base).expect("renamed");
    let ran = chimera(&again);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let told = format!("resumes from {from}: step 2 is next");
    assert!(ran.stdout.contains(&told), "{}", ran.stdout);
    assert!(!ran.stderr.contains("lacks the metrics"), "{}", ran.stderr);
    assert_eq!(losses(&fork), losses(&folder.path().join("whole")));
    let settings = read_to_string(fork.join("config.toml")).expect("settings");
    assert!(settings.contains(&format!("resume = \"{from}\"")), "{settings}");
}

#[test]
fn a_finished_run_without_checkpoints_is_not_trained_again() {
    let folder = folder();
    let run = folder.path().join("run");
    assert_eq!(chimera(&line(&folder, "run", "--steps 3")).code, Some(0));
    let before = losses(&run);
    let refused = |options: &str, hint: &str| {
        let ran = chimera(&line(&folder, "run", options));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{options}: {}", ran.stderr);
        for told in ["nothing is left to train: ", hint] {
            assert!(ran.stderr.contains(told), "{options}: {}", ran.stderr);
        }
        assert_eq!(losses(&run), before, "{options}");
    };
    let init = format!("--init {}", run.join("model").display());
    refused("--steps 3 --resume auto", &init);
    refused("--steps 5 --resume auto", &init);
    // A process that is killed right after it writes the model leaves no summary.
    remove_file(run.join("summary.json")).expect("a file");
    refused("--steps 3 --resume auto", &init);
    let ran = chimera(&format!("generate --model {} --prompt a --tokens 3", run.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

#[test]
fn a_run_goes_on_without_its_settings() {
    let folder = folder();
    let run = folder.path().join("run");
    assert_eq!(chimera(&line(&folder, "run", "--steps 4 --save-every 2")).code, Some(0));
    let before = losses(&run);
    remove_file(run.join("config.toml")).expect("a file");
    let ran = chimera(&line(&folder, "run", "--steps 6 --save-every 2 --resume auto"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!((losses(&run).len(), &losses(&run)[..4]), (6, &before[..]));
    assert!(run.join("config.toml").is_file());
}

/// Each killed save left a file with a name of its own, as large as its data.
#[test]
fn half_written_files_of_killed_processes_are_removed() {
    let folder = folder();
    let [run, saved] = ["run", "saved"].map(|name| folder.path().join(name));
    assert_eq!(chimera(&line(&folder, "run", "--steps 2 --save-every 2")).code, Some(0));
    remove_file(run.join("model/steps")).expect("a file");
    create_dir(&saved).expect("a folder");
    let left = [
        run.join("summary.json.71.part"),
        run.join("model/model.safetensors.71.part"),
        run.join("model/tokenizer.json.72.part"),
        saved.join("config.json.71.part"),
    ];
    let of_a_user = [run.join("notes.71.part"), saved.join("model.safetensors.part")];
    for path in left.iter().chain(&of_a_user) {
        write(path, "half").expect("written");
    }
    let save = format!("--steps 4 --save-every 2 --resume auto --save {}", saved.display());
    for options in ["--steps 2 --resume auto", &save] {
        let ran = chimera(&line(&folder, "run", options));
        assert_eq!(ran.code, Some(0), "{options}: {}", ran.stderr);
    }
    assert!(left.iter().all(|path| !path.exists()), "{left:?}");
    assert!(of_a_user.iter().all(|path| path.exists()), "{of_a_user:?}");
}

/// GNU `timeout` signals a process, and then its group.
#[test]
fn two_signals_at_once_are_one() {
    let folder = folder();
    let run = folder.path().join("run");
    let running = start(&line(&folder, "run", "--steps 1000000"));
    wait_for(|| read(run.join("metrics.jsonl")).is_ok_and(|metrics| !metrics.is_empty()));
    let both = format!("kill -INT {0}; kill -TERM {0}", running.child.id());
    assert!(Command::new("sh").args(["-c", &both]).status().is_ok_and(|status| status.success()));
    let ran = running.wait();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(at(&run, losses(&run).len() as u64).is_dir(), "{}", ran.stderr);
}
