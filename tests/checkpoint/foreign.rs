//! A resumed run keeps its hands off what is not its own.

use std::fs::{read, write};

use crate::command::{Ran, chimera, folder, text};

const MODEL: &str = "--layers 2 --hidden 8 --heads 2 --context 8 --depth 1 --threads 1 \
                     --micro-batches 2 --micro-batch-size 1";

#[test]
fn files_of_others_are_left_as_they_are() {
    let folder = folder();
    let (data, place) = (text(&folder), folder.path());
    let train = |options: &str| -> Ran {
        chimera(&format!("train {MODEL} --data {} {options}", data.display()))
    };
    let at = |name: &str| place.join(name);
    let (own, other) = (at("own"), at("other"));
    let save = format!("--steps 4 --save-every 2 --out {}", own.display());
    assert_eq!(train(&save).code, Some(0));
    assert_eq!(train(&format!("--steps 3 --out {}", other.display())).code, Some(0));
    let prose = at("prose.txt");
    write(&prose, "In the beginning\nwas the word\n").expect("a file");
    let checkpoint = own.join("checkpoints/step-00000004");
    let on = format!("--steps 6 --out {} --resume auto", own.display());
    for (options, kept) in [
        (
            format!("--steps 6 --resume {} --out {}", checkpoint.display(), other.display()),
            [other.join("config.toml"), other.join("metrics.jsonl")],
        ),
        (format!("{on} --metrics {}", prose.display()), [prose.clone(), prose.clone()]),
    ] {
        let before = kept.clone().map(|file| read(file).expect("a file"));
        let ran = train(&options);
        assert_eq!(ran.code, Some(2), "{options}: {}", ran.stderr);
        assert_eq!(kept.map(|file| read(file).expect("a file")), before, "{options}");
    }
    let before = read(&prose).expect("a file");
    assert_eq!(train(&format!("{on} --trace {}", prose.display())).code, Some(0));
    assert_eq!(read(at("prose.txt.1")).expect("a file"), before);
}

#[test]
fn a_trace_stays_when_its_steps_are_over() {
    let folder = folder();
    let (data, trace) = (text(&folder), folder.path().join("trace.json"));
    let train = |steps: u32| {
        let out = folder.path().join("run");
        let ran = chimera(&format!(
            "train {MODEL} --data {} --out {} --save-every 2 --resume auto --trace {} \
             --trace-steps 1..3 --steps {steps}",
            data.display(),
            out.display(),
            trace.display()
        ));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        read(&trace).expect("a trace")
    };
    let written = train(4);
    assert!(written.len() > 1000);
    assert_eq!(train(6), written);
}
