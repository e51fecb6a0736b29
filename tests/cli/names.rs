//! The names of schedules, on the command line and in output.

use crate::command::{chimera, folder};

#[test]
fn a_schedule_may_be_named_as_an_option() {
    for (line, same) in [
        ("simulate --schedule 1f1b --depth 4", "simulate 1f1b --depth 4"),
        ("schedule show --schedule gpipe", "schedule show gpipe"),
        ("schedule export --schedule gpipe --format json", "schedule export gpipe --format json"),
        ("schedule compare gpipe --schedule 1f1b", "schedule compare gpipe 1f1b"),
    ] {
        let (ran, same) = (chimera(line), chimera(same));
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        assert_eq!(ran.stdout, same.stdout, "{line}");
    }
    for line in ["simulate 1f1b --schedule gpipe", "schedule show", "schedule export --format json"]
    {
        assert_eq!(chimera(line).code, Some(2), "{line}");
    }
}

#[test]
fn a_timetable_that_cuts_forwards_is_not_called_halved_backwards() {
    let folder = folder();
    let file = folder.path().join("cut.json");
    let op = |kind: &str, unit: u32| {
        format!(r#"{{"kind":"{kind}","pipe":0,"stage":0,"micro_batches":[{unit}]}}"#)
    };
    let row = [op("F", 0), op("F", 1), op("B", 0), op("B", 1)].join(", ");
    let cut = format!(
        r#"{{"schedule": "cut", "depth": 1, "stages": 1, "pipes": 1, "micro_batches": 1, "unit": 0.5,
            "placement": [[0]], "rows": [[{row}]]}}"#
    );
    std::fs::write(&file, cut).expect("a file");
    let line = format!("simulate {}", file.display());
    let ran = chimera(&line);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("cut, in 2 parts: makespan"), "{}", ran.stdout);
    let halved = chimera("simulate chimera --depth 2 --micro-batches 4 --scaling halving");
    assert!(halved.stdout.contains("chimera, backwards halved: makespan"), "{}", halved.stdout);
}
