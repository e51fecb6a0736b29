//! Tables that compare expected and measured values, with signed errors.

use std::fmt::Write;

/// A row as text.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Signed {
    pub(crate) what: String,
    pub(crate) expected: String,
    pub(crate) measured: String,
    /// Empty if nothing was expected.
    pub(crate) error: String,
}

/// Formats a fraction as a signed error in percent.
pub(crate) fn percent(error: f64) -> String {
    format!("{:+.1} %", tenths(100.0 * error))
}

/// Formats the difference of two ratios in percentage points.
pub(crate) fn points(difference: f64) -> String {
    format!("{:+.1} pts", tenths(100.0 * difference))
}

/// Rounds to one decimal, without a sign if the result is zero.
fn tenths(x: f64) -> f64 {
    (10.0 * x).round() / 10.0 + 0.0
}

/// Formats the rows below a heading that names the expected values; `width` is that of the first
/// column.
pub(crate) fn table(expected: &str, rows: &[Signed], width: usize) -> String {
    let widest = |of: fn(&Signed) -> &str| {
        rows.iter().map(|row| of(row).chars().count()).max().unwrap_or(0).max(10)
    };
    let (left, right) = (widest(|row| &row.expected), widest(|row| &row.measured));
    let mut text = format!("{:width$} {expected:>left$} {:>right$} {:>9}", "", "measured", "error");
    for Signed { what, expected, measured, error } in rows {
        let _ = write!(text, "\n{what:width$} {expected:>left$} {measured:>right$} {error:>9}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_sign_unless_they_are_none() {
        assert_eq!(
            [0.1, -0.0349, -1e-6, 0.0].map(percent),
            ["+10.0 %", "-3.5 %", "+0.0 %", "+0.0 %"]
        );
        assert_eq!([0.05, -1e-9].map(points), ["+5.0 pts", "+0.0 pts"]);
    }
}
