//! What was found.

use serde::Serialize;

/// All that was found.
#[derive(Serialize, Debug)]
pub struct Report {
    /// The device in words.
    pub device: String,
    /// The program's version.
    pub version: &'static str,
    /// What must hold.
    pub checks: Vec<Check>,
    /// What is only told.
    pub measurements: Vec<Measurement>,
    /// What was not tried, and why; versions.
    pub notes: Vec<String>,
}

/// Something that must hold.
#[derive(Serialize, Clone, Debug)]
pub struct Check {
    /// What was tried.
    pub what: String,
    /// Whether it holds.
    pub passed: bool,
    /// What came out: a relative error, or a count. In JSON `null`, where nothing or no number came out.
    pub value: f64,
    /// What it may be at most.
    pub limit: f64,
    /// Where it was worst, or why there is no value.
    pub at: String,
}

/// Something measured.
#[derive(Serialize, Clone, Debug)]
pub struct Measurement {
    /// What.
    pub what: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

impl Check {
    pub(super) fn new(what: String, value: f64, limit: f64, at: String) -> Self {
        Self { what, passed: value <= limit, value, limit, at }
    }

    /// Of what brought no value, for the reason `at`.
    pub(super) fn failed(what: String, at: String) -> Self {
        Self::new(what, f64::INFINITY, 0.0, at)
    }
}

/// What a part finds.
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
