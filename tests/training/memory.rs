//! Memory of a run, as the operating system sees it.

use std::process::Command;

use crate::command::{folder, start_with, text};

/// The page faults of a run of `chimera train` from start to end.
fn page_faults(options: &str) -> i64 {
    let chimera = env!("CARGO_BIN_EXE_chimera");
    let mut sh = Command::new("sh");
    sh.arg("-c").arg(format!("{chimera} train {options} >said && cat /proc/$$/stat"));
    let ran = start_with(sh, "").wait();
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // The ninth field after the command's name counts the faults of the shell's children
    // (proc(5), `cminflt`).
    let fields = ran.stdout.rsplit(") ").next().unwrap_or_default();
    let field = fields.split(' ').nth(8).and_then(|field| field.parse().ok());
    field.unwrap_or_else(|| panic!("no page faults in {:?}", ran.stdout))
}

/// A step reuses the memory of the step before it.
#[test]
fn a_steady_step_takes_no_memory_from_the_system() {
    let folder = folder();
    let data = text(&folder).display().to_string();
    let faults = |steps: i64| {
        page_faults(&format!(
            "--layers 2 --hidden 64 --heads 4 --context 128 --depth 1 --threads 1 --micro-batches 2 \
             --micro-batch-size 16 --data {data} --steps {steps}"
        ))
    };
    let (few, many) = (5, 40);
    let of_a_step = (faults(many) - faults(few)) / (many - few);
    assert!(of_a_step < 20, "{of_a_step} page faults in a step");
}
