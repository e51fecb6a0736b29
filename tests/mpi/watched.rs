//! The traces and logs that ranks write.

use std::fs::read_to_string;

use serde_json::Value;

use crate::command::{chimera, folder};
use crate::{options, ranks};

/// A trace of ranks shows the same as one of threads, except for the times.
#[test]
fn ranks_are_traced_as_threads_are() {
    let folder = folder();
    let traced = |name: &str| {
        let file = folder.path().join(format!("{name}.trace"));
        let more = format!("--depth 2 --transport {name} --trace {}", file.display());
        let line = options(&folder, name, &more);
        let ran = if name == "mpi" { ranks(2, &line) } else { chimera(&line) };
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let trace: Value =
            serde_json::from_str(&read_to_string(&file).expect("a trace")).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events").clone();
        let word = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_string();
        // Waits depend on timing.
        let is_work = |event: &&Value| event["ph"] == "X" && !word(event, "cat").contains("wait");
        let shown = |event: &Value| (event["pid"].to_string(), word(event, "name"));
        let mut work: Vec<_> = events.iter().filter(is_work).map(shown).collect();
        work.sort();
        let n_arrows = |end: &str| events.iter().filter(|event| event["ph"] == end).count();
        (work, n_arrows("s"), n_arrows("f"))
    };
    let (threads, mpi) = (traced("threads"), traced("mpi"));
    assert!(mpi.0.len() > 16 && mpi.1 > 8 && mpi.1 == mpi.2, "{mpi:?}");
    assert_eq!(mpi, threads);
}

/// Every rank has a log, which a resumed run continues.
#[test]
fn every_rank_logs() {
    let folder = folder();
    let logs = folder.path().join("logs");
    let line = |steps: u64| {
        let more = "--depth 2 --save-every 2 --resume auto --lr-schedule constant --warmup 1";
        let more = format!("{more} --log {}", logs.display());
        options(&folder, "run", &more).replace("--steps 5", &format!("--steps {steps}"))
    };
    assert_eq!(ranks(2, &line(2)).code, Some(0));
    assert_eq!(chimera(&format!("{} --transport threads", line(4))).code, Some(0));
    for rank in 0..2 {
        let log = read_to_string(logs.join(format!("rank.{rank}.log"))).expect("a log");
        let of = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        let own = format!(" is rank {rank}: worker {rank} of pipeline 0");
        for (text, n) in [
            (own.as_str(), 2),
            ("; step 0 is next", 1),
            (" step 0: loss ", 1),
            (" step 3: loss ", 1),
            ("; waited ", 4),
            ("a checkpoint is begun: step 4 is next", 1),
            ("all is trained", 2),
        ] {
            assert_eq!(of(text), n, "{text} in\n{log}");
        }
    }
}
