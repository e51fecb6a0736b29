//! How well a run was predicted, in words.

use chimera_core::notation::significant;

use crate::cli::parts::console::figure;
use crate::plan::{Figure, Prediction};

/// What is said before the first step.
pub(crate) fn before(prediction: &Prediction) -> String {
    let Prediction { step_s, range_s: [fast, slow], .. } = prediction;
    let [fast, slow] = [fast, slow].map(|seconds| significant(*seconds, 3));
    format!(
        "predicted: a step of {} s, {fast} .. {slow} s by the spread of the profile",
        significant(*step_s, 3)
    )
}

/// A line for each figure.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut text = format!("{:20} {:>10} {:>10} {:>9}", "", "predicted", "measured", "error");
    for Figure { what, predicted, measured, error } in figures {
        let error = match what.ends_with("ratio") {
            true => format!("{:+.1} pts", 100.0 * (predicted - measured)),
            false => format!("{:+.1} %", 100.0 * error),
        };
        let [predicted, measured] = [predicted, measured].map(|x| match what.ends_with("bytes") {
            true => significant(*x, 4),
            false => figure(*x),
        });
        text.push_str(&format!("\n{what:20} {predicted:>10} {measured:>10} {error:>9}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_its_signed_error() {
        let figures = [Figure::of("step", 1.1, 1.0), Figure::of("bubble ratio", 0.2, 0.25)];
        let text = table(&figures);
        assert!(text.contains("+10.0 %") && text.contains("-5.0 pts"), "{text}");
    }
}
