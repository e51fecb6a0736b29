//! The links of a topology and their load, as text and as JSON.

use std::fmt::Write;

use anyhow::Result;
use chimera_core::analyze::links::{LinkLoad, Mapping};
use serde_json::{Value, json};

use crate::cli::parts::schedule::rank_map::mapping_json;

/// The links of a step. Without a topology there are none.
#[derive(Clone, Copy, Default)]
pub(super) struct Links<'s> {
    pub(super) loads: &'s [LinkLoad],
    /// The devices of the ranks, if they were searched.
    pub(super) mapping: Option<&'s Mapping>,
}

impl Links<'_> {
    /// Adds what is known of links to the figures of a step.
    pub(super) fn add_to(self, figures: &mut Value, makespan: f64) {
        if !self.loads.is_empty() {
            figures["links"] = self.loads.iter().map(|load| link_json(load, makespan)).collect();
        }
        if let Some(mapping) = self.mapping {
            figures["mapping"] = mapping_json(mapping);
        }
    }
}

/// Writes a line about the links that were used.
pub(super) fn write_links(text: &mut String, loads: &[LinkLoad], makespan: f64) -> Result<()> {
    let busiest = loads.iter().max_by(|a, b| carried(a).total_cmp(&carried(b)));
    if let Some(busiest) = busiest {
        let n_shared = loads.iter().filter(|load| load.is_contended).count();
        write!(
            text,
            "\nlinks: {} used, {n_shared} shared by flows; the busiest is {}, with {:.1} % of its bandwidth",
            loads.len(),
            busiest.name,
            100.0 * carried(busiest) / makespan
        )?;
    }
    Ok(())
}

/// Time that a link's bytes need at its whole bandwidth.
fn carried(load: &LinkLoad) -> f64 {
    load.loaded.iter().map(|time| (time.to - time.from) * time.used).sum()
}

/// Returns the load of a link as JSON.
fn link_json(load: &LinkLoad, makespan: f64) -> Value {
    let most = load.loaded.iter().map(|time| time.n_flows).max();
    json!({
        "name": load.name, "used": carried(load) / makespan, "shared": load.is_contended,
        "most_flows": most,
        "loaded": load.loaded.iter().map(|t| json!([t.from, t.to, t.n_flows, t.used])).collect::<Vec<_>>(),
    })
}
