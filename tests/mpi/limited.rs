//! Ranks that run short of a system resource or of an MPI feature.

use crate::command::folder;
use crate::{CHIMERA, errors, options, ranks, survivors_speak};

/// A rank without free file descriptors does not report the ranks that it monitors as dead.
#[test]
fn a_rank_without_files_calls_no_other_dead() {
    let folder = folder();
    for limit in 16..=20 {
        let name = format!("run{limit}");
        let all = "--depth 4 --micro-batches 4 --no-save --timeout 5";
        let line = options(&folder, &name, all).replace("--steps 5", "--steps 40");
        let limited = format!("bash -c \"ulimit -n {limit}; exec $0 $@\" {CHIMERA} {line}");
        let ran = ranks(3, &format!("{line} : -n 1 {limited}"));
        let out = folder.path().join(name);
        let errors = if out.exists() { errors(&out) } else { Default::default() };
        for error in errors.values() {
            let blamed = error["peer"].as_u64();
            assert!(blamed.is_none_or(|peer| peer == 3), "{limit}: {error} {}", ran.stderr);
        }
        for rank in 0..3 {
            let blamed = ran.stderr.contains(&format!("rank {rank} ended"));
            assert!(!blamed, "{limit}: {}", ran.stderr);
        }
    }
}

/// An MPI without ULFM, or with ULFM switched off, is not a bug. Each rank reports it in a line of
/// its own.
#[test]
fn survival_without_ulfm_is_wrong_usage() {
    if !survivors_speak() {
        return; // MPICH has the functions
    }
    let folder = folder();
    let ran = ranks(4, &options(&folder, "run", "--depth 4 --survive respawn"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let said: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("error:")).collect();
    assert!(!said.is_empty(), "{}", ran.stderr);
    for line in said {
        assert!(line.starts_with("error: rank "), "{}", ran.stderr);
        assert_eq!(line.matches("error:").count(), 1, "{}", ran.stderr);
        assert!(line.ends_with("or leave survival out"), "{}", ran.stderr);
    }
}
