//! `chimera slurm`: a batch script.

use std::fs::write;
use std::process::Command;

use tempfile::TempDir;

use crate::command::{chimera, folder};

#[test]
fn a_script_starts_stops_and_goes_on() {
    let folder = folder();
    let config = folder.path().join("it's mine.toml");
    let settings = "depth = 4\nwidth = 2\nthreads = 3\nout = \"run\"\nsave-every = 100\n";
    write(&config, settings).expect("settings");
    let ran = chimera(&format!(
        "slurm \"{}\" --nodes 2 --time 1-00:00:00 --gpus-per-rank 1",
        config.display()
    ));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let place = format!("{}/", folder.path().display());
    insta::assert_snapshot!(ran.stdout.replace(&place, ""));
    check(&folder, &ran.stdout);
}

/// Open MPI starts ranks that survive deaths, with spare tasks.
#[test]
fn a_script_leaves_room_for_dead_ranks() {
    let folder = folder();
    let config = folder.path().join("run.toml");
    let settings =
        "depth = 4\nthreads = 2\nout = \"run\"\nsave-every = 100\nsurvive = \"respawn\"\n";
    write(&config, settings).expect("settings");
    let ran = chimera(&format!("slurm \"{}\" --spare 2", config.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let place = format!("{}/", folder.path().display());
    insta::assert_snapshot!(ran.stdout.replace(&place, ""));
    check(&folder, &ran.stdout);
    let ran = chimera(&format!("slurm \"{}\"", config.display()));
    assert!(ran.stdout.contains("--ntasks=5\n"), "{}", ran.stdout);
    write(&config, settings.replace("respawn", "narrow")).expect("settings");
    let ran = chimera(&format!("slurm \"{}\"", config.display()));
    assert!(ran.stdout.contains("--ntasks=4\n"), "{}", ran.stdout);
}

/// Checks a script's syntax with a shell.
fn check(folder: &TempDir, text: &str) {
    let script = folder.path().join("job.sh");
    write(&script, text).expect("a script");
    for shell in ["sh", "bash"] {
        let checked = Command::new(shell).arg("-n").arg(&script).status().expect("a shell");
        assert!(checked.success(), "{shell}");
    }
}

/// A script states the transport of the ranks, and whether they compute on GPUs.
#[test]
fn a_script_keeps_the_transport_and_tells_of_gpus() {
    let folder = folder();
    let config = folder.path().join("run.toml");
    let settings =
        "depth = 4\nout = \"run\"\nsave-every = 100\ndevice = \"cuda\"\ntransport = \"nccl\"\n";
    write(&config, settings).expect("settings");
    let ran = chimera(&format!("slurm \"{}\" --gpus-per-rank 1", config.display()));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains(" --transport nccl "), "{}", ran.stdout);
    let ran = chimera(&format!("slurm \"{}\"", config.display()));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("add --gpus-per-rank 1"), "{}", ran.stderr);
}

/// Only the first start of a fork begins with the other run's checkpoint.
#[test]
fn a_script_of_a_fork_begins_with_its_checkpoint() {
    let folder = folder();
    let config = folder.path().join("fork.toml");
    let from = "base/checkpoints/step-00000003";
    let settings = format!("out = \"my run\"\nsave-every = 5\nresume = \"{from}\"\n");
    for survive in ["", "survive = \"respawn\"\n"] {
        write(&config, format!("{settings}{survive}")).expect("settings");
        let ran = chimera(&format!("slurm {}", config.display()));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let first = format!("resume=auto\n[ -e 'my run/config.toml' ] || resume={from}\n");
        assert!(ran.stdout.contains(&first), "{}", ran.stdout);
        assert!(ran.stdout.contains(" --resume \"$resume\""), "{}", ran.stdout);
        check(&folder, &ran.stdout);
    }
}

#[test]
fn what_cannot_be_queued_again_is_refused() {
    let folder = folder();
    let config = folder.path().join("run.toml");
    for (settings, options, said) in [
        ("depth = 4\n", "", "must name `out`"),
        ("out = \"run\"\n", "", "`save-every`"),
        ("out = \"run\"\nsave-every = 5\n", "--partition \"a b\"", "--partition: letters"),
        ("out = \"run\"\nsave-every = 5\ndeep = 4\n", "", "unknown key `deep`"),
        ("out = \"run\"\nsave-every = 5\n", "--spare 1", "say `survive`"),
        ("out = \"run\"\nsave-every = 5\n", "--time abc", "`abc` is no time that SLURM reads"),
        (
            "out = \"run\"\nsave-every = 5\n",
            "--notice 65535 --time 1:00",
            "--notice 65535 leaves the job no time",
        ),
        (
            "out = \"run\"\nsave-every = 5\n",
            "--gpus-per-rank 0",
            "`0` is not a whole number from 1 to",
        ),
    ] {
        write(&config, settings).expect("settings");
        let ran = chimera(&format!("slurm {} {options}", config.display()));
        assert_eq!(ran.code, Some(2), "{settings}");
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
    let ran = chimera("slurm \"run\n#SBATCH --array=0-9\n.toml\"");
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot stand in a batch script"), "{}", ran.stderr);
}
