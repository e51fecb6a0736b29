//! Describes the prediction of a run and its errors.

use chimera_core::notation::significant;

use crate::cli::parts::terminal::console::figure;
use crate::cli::parts::terminal::signed;
use crate::cli::parts::terminal::signed::{Signed, percent, points};
use crate::plan::{Figure, Prediction};

/// The message before the first step.
pub(crate) fn before(prediction: &Prediction) -> String {
    let Prediction { step_s, range_s: [fast, slow], reference, .. } = prediction;
    let [fast, slow] = [fast, slow].map(|seconds| significant(*seconds, 3));
    let now = reference.map_or(String::new(), |time| {
        let ratio = time.ratio();
        let (factor, how) = if ratio > 1.0 { (ratio, "slower") } else { (1.0 / ratio, "faster") };
        format!("; scaled to this machine, now {factor:.2} times {how} than when that was measured")
    });
    format!(
        "predicted: a step of {} s, {fast} .. {slow} s by the spread of the profile{now}",
        significant(*step_s, 3)
    )
}

/// Formats a line for each figure.
pub(crate) fn table(figures: &[Figure]) -> String {
    signed::table("predicted", &rows(figures), 24)
}

/// Makes a row for each figure; a positive error means that more was predicted than measured.
pub(crate) fn rows(figures: &[Figure]) -> Vec<Signed> {
    let row = |Figure { what, predicted, measured, error }: &Figure| {
        let error =
            if what.ends_with("ratio") { points(predicted - measured) } else { percent(*error) };
        let [expected, measured] = [predicted, measured]
            .map(|x| if what.ends_with("bytes") { significant(*x, 4) } else { figure(*x) });
        Signed { what: what.clone(), expected, measured, error }
    };
    figures.iter().map(row).collect()
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
