//! The report of a search.

use std::fmt;

use super::Progress;
use crate::ir::notation::significant;

/// The result of a search for a schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Makespan, bound and effort.
    pub progress: Progress,
    /// The listed schedule, with its parameters, that the search could not improve on.
    pub like: Option<String>,
    /// The choice among placements, if there was one.
    pub across: Option<Across>,
}

/// The choice of a search among placements.
#[derive(Clone, PartialEq, Debug)]
pub struct Across {
    /// The chosen placement, with its options.
    pub placement: String,
    /// Number of placements that were searched.
    pub n_placements: usize,
    /// The limits of the search.
    pub limits: Vec<Limit>,
}

/// A limit of a search, and its cost.
#[derive(Clone, PartialEq, Debug)]
pub struct Limit {
    /// The option on the command line that sets the limit.
    pub name: &'static str,
    /// Value of the limit; `None` if there is no such limit.
    pub value: Option<f64>,
    /// The next value that was tried; `None` for no limit.
    pub relaxed: Option<f64>,
    /// The makespan found with the relaxed value, if it is shorter.
    pub makespan: Option<f64>,
}

impl Report {
    /// The report of an unfinished search.
    pub fn under_way(progress: Progress) -> Report {
        Report { progress, like: None, across: None }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Progress { makespan, lower_bound, n_orders } = self.progress;
        write!(f, "search: makespan {}", significant(makespan, 6))?;
        let over = match &self.across {
            Some(Across { placement, n_placements, .. }) => {
                write!(f, " on {placement}")?;
                format!("over {n_placements} placement(s)")
            }
            None => "on this placement".to_string(),
        };
        if !self.progress.has_bound() {
            f.write_str(", no time to find a lower bound, ")?;
        } else {
            let above = if lower_bound > 0.0 { makespan / lower_bound - 1.0 } else { 0.0 };
            let bound = significant(lower_bound, 6);
            let above = (above * 100.0).max(0.0);
            write!(f, ", lower bound {bound} {over}, {above:.1} % above it, ")?;
        }
        write!(f, "{n_orders} order(s) tried")?;
        if let Some(schedule) = &self.like {
            write!(f, "; it is {schedule}")?;
        }
        let Some(across) = &self.across else { return Ok(()) };
        for (i, limit) in across.limits.iter().enumerate() {
            f.write_str(if i == 0 { "\nlimits: " } else { ", " })?;
            limit.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { name, value, relaxed, makespan } = *self;
        let Some(value) = value else { return write!(f, "no {name}") };
        write!(f, "{name} {value}")?;
        if name == MEMORY_CAP {
            f.write_str(" of activations only")?;
        }
        let relaxed = relaxed.map_or("without".to_string(), |relaxed| format!("with {relaxed}"));
        match makespan {
            Some(makespan) => write!(f, " ({relaxed}: {})", significant(makespan, 6)),
            None => write!(f, " ({relaxed}: not shorter)"),
        }
    }
}

/// The name of the limit on activation memory.
pub(super) const MEMORY_CAP: &str = "memory-cap";
