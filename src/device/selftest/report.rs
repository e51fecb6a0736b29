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
    /// What came out: a relative error, or a count.
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
    /// Whether it holds.
    pub fn passes(&self) -> bool {
        self.value <= self.limit
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
                let (verdict, at) = if check.passes() { ("ok", "") } else { ("FAILED", &**at) };
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
