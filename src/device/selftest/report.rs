//! The report of a selftest.

use serde::Serialize;

/// All results of a selftest.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The device in words.
    pub device: String,
    /// The program's version.
    pub version: &'static str,
    /// Checks that must pass.
    pub checks: Vec<Check>,
    /// Measurements, which cannot fail.
    pub measurements: Vec<Measurement>,
    /// Tests that were skipped, with the reason; versions.
    pub notes: Vec<String>,
}

/// A check that must pass.
#[derive(Serialize, Clone, Debug)]
pub struct Check {
    /// Name of the check.
    pub what: String,
    /// Whether it holds.
    pub passed: bool,
    /// The result: a relative error, or a count. In JSON `null` if there is none or it is not
    /// finite.
    pub value: f64,
    /// The largest value that passes.
    pub limit: f64,
    /// Place of the worst value, or the reason why it is missing.
    pub at: String,
}

/// A measured value.
#[derive(Serialize, Clone, Debug)]
pub struct Measurement {
    /// Name of the measurement.
    pub what: String,
    /// The value.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
}

impl Check {
    pub(super) fn new(what: String, value: f64, limit: f64, at: String) -> Self {
        Self { what, passed: value <= limit, value, limit, at }
    }

    /// Makes a failed check without a value, for the reason `at`.
    pub(super) fn failed(what: String, at: String) -> Self {
        Self::new(what, f64::INFINITY, 0.0, at)
    }
}

/// A finding of a part.
pub(super) enum Found {
    Check(Check),
    Measurement(Measurement),
    Note(String),
}

impl Report {
    pub(super) fn add(&mut self, found: Found, observe: &mut impl FnMut(&str)) {
        match found {
            Found::Check(check) => {
                let Check { what, value, at, .. } = &check;
                let (verdict, at) = if check.passed { ("ok", "") } else { ("FAILED", &**at) };
                observe(&format!("{what:<52} {value:>9.1e} {verdict:>7}  {at}"));
                self.checks.push(check);
            }
            Found::Measurement(measurement) => {
                let Measurement { what, value, unit } = &measurement;
                observe(&format!("{what:<52} {value:>9.4} {unit}"));
                self.measurements.push(measurement);
            }
            Found::Note(note) => {
                observe(&note);
                self.notes.push(note);
            }
        }
    }
}
