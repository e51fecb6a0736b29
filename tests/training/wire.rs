//! Messages between workers in fewer bits.

use chimera::run::Run;
use chimera::run::outside::OnDisk;
use chimera::settings::{Layers, unread_options};

use super::MODEL;
use super::equivalence::Oracle;
use crate::command::{chimera, folder, text};
use crate::metrics::losses;

/// The losses of 5 steps of 1F1B with messages in this format.
fn with(oracle: &Oracle, wire: &str) -> Vec<f64> {
    oracle.losses(&format!("{MODEL} --schedule 1f1b --wire {wire}"))
}

#[test]
fn messages_in_fewer_bits_change_losses_by_their_rounding() {
    let oracle = Oracle::new();
    let exact = with(&oracle, "f32");
    // In the first step only messages differ, and later the weights too.
    for (wire, first, later) in [("bf16", 1e-4, 1e-2), ("int8", 1e-3, 2e-2)] {
        let rounded = with(&oracle, wire);
        let apart = |(a, b): (&f64, &f64)| (a - b).abs() / a;
        let apart: Vec<_> = exact.iter().zip(&rounded).map(apart).collect();
        assert!(apart[0] > 0.0 && apart[0] < first, "{wire}: {apart:?}");
        assert!(apart.iter().all(|apart| *apart < later), "{wire}: {apart:?}");
        assert!(rounded[4] < rounded[0], "{wire}: nothing is learnt: {rounded:?}");
        assert_eq!(with(&oracle, wire), rounded, "{wire} again");
    }
}

#[test]
fn only_messages_between_the_named_workers_are_rounded() {
    let oracle = Oracle::new();
    let (exact, all) = (with(&oracle, "f32"), with(&oracle, "int8"));
    assert_eq!(with(&oracle, "int8:0-1,1-2,2-3"), all);
    // 1F1B sends nothing from the first worker to the last.
    assert_eq!(with(&oracle, "int8:0-3"), exact);
    let some = with(&oracle, "int8:1-2");
    assert!(some != exact && some != all, "{some:?}");
}

/// The step that a run resumes with has the bits that it has in a whole run: errors that are fed
/// back do not outlive a step or a window, also if the window is trained again.
#[test]
fn a_run_with_rounded_messages_resumes_to_the_bit() {
    let folder = folder();
    let model = MODEL.replace("--steps 5", "");
    for (nth, shape) in [
        "--schedule chimera --scaling halving",
        "--schedule zb-h1",
        "--schedule pipedream-2bw --window 2",
        "--schedule 1f1b --border free --window 2 --clip 0.1",
    ]
    .into_iter()
    .enumerate()
    {
        let run = |name: &str, steps: u64| {
            let out = folder.path().join(format!("{name}{nth}"));
            let line = format!(
                "train {model} {shape} --wire int8 --data {} --out {} --steps {steps} \
                 --lr-schedule constant --warmup 0 --save-every 2 --resume auto",
                text(&folder).display(),
                out.display()
            );
            let ran = chimera(&line);
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
            losses(&out)
        };
        let whole = run("whole", 6);
        run("parts", 2);
        run("parts", 4);
        assert_eq!((whole.len(), run("parts", 6)), (6, whole), "{shape}");
    }
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let model = MODEL.replace("--depth 4", "");
    let refusal = |options: &str| {
        let layers = Layers::parse(&format!("{model} {options}")).map_err(|e| e.to_string())?;
        let config = layers.resolve(&OnDisk).map_err(|e| e.to_string())?;
        Run::prepare(config).map_err(|e| e.to_string())
    };
    for (options, said) in [
        ("--wire int4", "unknown format of messages `int4`: choose one of f32, bf16, int8"),
        ("--wire int8:0-4", "wire int8:0-4 names worker 4, but a pipeline has 4 workers"),
        ("--wire int8:0", "`0` is not a pair of workers such as 0-1"),
        ("--wire f32:0-1", "f32 compresses nothing"),
        ("--wire bf16:0-1 --survive narrow", "wire bf16:0-1 names workers, and survive narrow"),
        ("--wire bf16 --transport nccl", "wire bf16 packs messages in the memory of the host"),
    ] {
        let refused = refusal(&format!("--depth 4 {options}")).err().expect("refused");
        assert!(refused.contains(said), "{options}: {refused}");
    }
    assert!(refusal("--depth 4 --wire bf16 --survive narrow").is_ok());
    let config = Layers::parse(&format!("{model} --depth 1 --wire int8")).expect("options");
    let unread = unread_options(&config.resolve(&OnDisk).expect("settings"));
    assert_eq!(unread, ["`wire` has no effect: it is for pipelines of several workers"]);
}
