//! `--eval-every`: the validation loss during training.

use chimera::candle::Candle;
use chimera::run::evaluate::{Bert, CausalLm};

use super::{MODEL, prepare, train};
use crate::command::{chimera, folder, text};

#[test]
fn the_pipeline_evaluates_as_the_whole_model_does() {
    let folder = folder();
    let data = text(&folder);
    let other = folder.path().join("other");
    std::fs::write(&other, "another text ".repeat(100)).expect("a file");
    let model = format!("{MODEL} --data {} --eval-every 5", data.display());
    for options in [
        "--depth 1",
        "--schedule chimera --pipes 4 --width 2 --micro-batches 4",
        "--schedule interleaved --depth 2",
        "--schedule dualpipe-v --depth 2 --tied",
        "--schedule pipedream-2bw --depth 2 --window 2",
        &format!("--depth 2 --validation-data {}", other.display()),
    ] {
        let options = format!("{model} {options}");
        let (run, (reports, trained)) = (prepare(&options), train(&options));
        let whole = CausalLm::new(Candle::cpu(), run.model(), &trained.weights).expect("a model");
        let loss = whole.loss(&run.validation().expect("text")).expect("a loss");
        let evaluated: Vec<_> =
            reports.iter().map(|r| r.validation_loss.map(f64::to_bits)).collect();
        let mut expected = vec![None; reports.len()];
        expected[4] = Some(loss.to_bits());
        assert_eq!(evaluated, expected, "{options}: {loss}");
    }
}

/// The weights of a step within a window do not exist anywhere. So the loss is that of the window's
/// last step and is recorded there, even if the window has more than one evaluation due.
#[test]
fn a_window_is_evaluated_at_its_last_step() {
    let folder = folder();
    let model = format!("{MODEL} --data {} --depth 2", text(&folder).display());
    for (options, at) in [
        ("--schedule pipedream-2bw --window 5 --eval-every 4", vec![4]),
        ("--schedule pipedream-2bw --window 5 --eval-every 2", vec![4]),
        ("--schedule zb-h2 --tied false --border free --window 3 --eval-every 2", vec![2, 4]),
        (
            "--schedule zb-h2 --tied false --border free --window 3 --clip 0.01 --eval-every 2",
            vec![2, 4],
        ),
        ("--schedule zb-h2 --tied false --border free --window 3 --eval-every 4", vec![4]),
    ] {
        let options = format!("{model} {options}");
        let (run, (reports, trained)) = (prepare(&options), train(&options));
        let evaluated = reports.iter().filter(|r| r.validation_loss.is_some()).map(|r| r.step);
        assert_eq!(evaluated.collect::<Vec<_>>(), at, "{options}");
        let whole = CausalLm::new(Candle::cpu(), run.model(), &trained.weights).expect("a model");
        let loss = whole.loss(&run.validation().expect("text")).expect("a loss");
        assert_eq!(reports[4].validation_loss, Some(loss), "{options}");
    }
}

/// Evaluation uses no dropout.
#[test]
fn a_bert_is_evaluated_whole() {
    let folder = folder();
    let data = text(&folder);
    let options = format!(
        "{MODEL} --data {} --eval-every 5 --model bert --dropout 0.3 --depth 2 --width 2",
        data.display()
    );
    let (run, (reports, trained)) = (prepare(&options), train(&options));
    let whole = Bert::new(Candle::cpu(), run.model(), &trained.weights).expect("a model");
    let loss = whole.loss(&run.validation().expect("text")).expect("a loss");
    let evaluated = reports[4].validation_loss.expect("evaluated");
    assert!((evaluated - loss).abs() < 1e-5, "{evaluated}, not {loss}");
}

#[test]
fn other_data_to_validate_with_leaves_all_to_train_on() {
    let folder = folder();
    let (data, other) = (text(&folder), folder.path().join("other"));
    std::fs::write(&other, "z".repeat(300)).expect("a file");
    let files = format!("{MODEL} --data {}", data.display());
    let (run, split) =
        (prepare(&format!("{files} --validation-data {}", other.display())), prepare(&files));
    assert_eq!(run.corpus().n_validation(), 300);
    let n_split = split.corpus().n_train() + split.corpus().n_validation();
    assert_eq!(run.corpus().n_train(), n_split);
    let seen = run.validation().expect("text").input;
    assert!(seen.iter().all(|id| *id == u32::from(b'z')));
}

#[test]
fn evaluating_leaves_the_training_as_it_is() {
    let folder = folder();
    let options = format!("{MODEL} --data {} --width 2", text(&folder).display());
    let losses = |more: &str| {
        let (reports, _) = train(&format!("{options} {more}"));
        reports.iter().map(|r| (r.loss.to_bits(), r.validation_loss.is_some())).unzip()
    };
    let (plain, none): (Vec<u64>, Vec<bool>) = losses("");
    let (evaluated, some): (Vec<u64>, Vec<bool>) = losses("--eval-every 2");
    assert_eq!(plain, evaluated);
    assert_eq!((none, some), (vec![false; 5], vec![false, true, false, true, false]));
}

#[test]
fn evaluations_stand_in_the_metrics_and_on_the_terminal() {
    let folder = folder();
    let (data, out) = (text(&folder), folder.path().join("run"));
    let options = format!("--data {} --out {} --eval-every 2", data.display(), out.display());
    let ran = chimera(&format!("train {MODEL} {options}"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let said = ran.stdout.lines().filter(|l| l.contains("validation loss")).count();
    assert_eq!(said, 3, "{}", ran.stdout);
    assert!(ran.stdout.contains("after 4 steps: validation loss "), "{}", ran.stdout);
    let metrics = std::fs::read_to_string(out.join("metrics.jsonl")).expect("metrics");
    for (step, line) in metrics.lines().enumerate() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let number = |key: &str| line[key].as_f64();
        assert!(number("mfu").is_some_and(|mfu| mfu > 0.0), "{line}");
        assert_eq!(number("validation_loss").is_some(), step == 1 || step == 3, "{line}");
        if let (Some(loss), Some(perplexity)) = (number("validation_loss"), number("perplexity")) {
            assert!((perplexity / loss.exp() - 1.0).abs() < 1e-12, "{line}");
        }
    }
}
