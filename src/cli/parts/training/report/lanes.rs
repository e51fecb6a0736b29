//! Timelines for the page's script: numbers and words as JSON, times in seconds from the start of
//! the step.

use std::collections::{BTreeMap, BTreeSet};

use chimera_core::ids::PipeId;
use chimera_core::render::tones;
use serde_json::{Value, json};

use super::critical::critical_path;
use crate::formats::trace::{Slice, TracedRun};

/// The most ranks on a page: more would be too long to scroll.
const MOST_RANKS: usize = 128;
/// The most slices on a page: browsers can hardly open more.
const MOST_SLICES: usize = 200_000;
/// The most slices of a timeline whose critical path is marked: a longer search would delay the end
/// of a run.
const MOST_MARKED: usize = 5_000;

/// A timeline for the script, and a note about what is left out.
pub(super) struct Lanes {
    pub(super) data: Value,
    pub(super) omitted: Option<String>,
}

impl Lanes {
    pub(super) fn of(run: &TracedRun) -> Lanes {
        let (start, end) = run.span();
        let all: BTreeSet<u32> = run.slices.iter().map(|slice| slice.rank).collect();
        let ranks: Vec<u32> = all.iter().copied().take(MOST_RANKS).collect();
        let is_shown = |rank: u32| ranks.binary_search(&rank).is_ok();
        let shown = || run.slices.iter().chain(&run.waits).filter(|slice| is_shown(slice.rank));
        let slices: Vec<Value> = shown().take(MOST_SLICES).map(|s| slice(s, start)).collect();
        let cut = [
            (ranks.len(), all.len(), "ranks"),
            (slices.len(), shown().count(), "pieces of these ranks"),
        ];
        let cut: Vec<String> = (cut.iter().filter(|(drawn, all, _)| drawn < all))
            .map(|(drawn, all, what)| format!("the first {drawn} of {all} {what} are drawn"))
            .collect();
        let omitted = (!cut.is_empty()).then(|| cut.join("; "));
        let mut memory: BTreeMap<u32, Vec<[f64; 2]>> = BTreeMap::new();
        for held in run.memory.iter().filter(|held| is_shown(held.rank)) {
            memory.entry(held.rank).or_default().push([held.at - start, held.bytes]);
        }
        let data = json!({
            "ranks": ranks, "seconds": end - start, "slices": slices, "memory": Vec::from_iter(memory),
            "critical": marked(run, is_shown), "tones": tones_of(run),
        });
        Lanes { data, omitted }
    }
}

/// Returns the places of the critical path among the slices that are shown.
fn marked(run: &TracedRun, is_shown: impl Fn(u32) -> bool) -> Vec<usize> {
    if run.slices.len() > MOST_MARKED {
        return Vec::new();
    }
    let path: BTreeSet<usize> = critical_path(run).into_iter().collect();
    let shown = run.slices.iter().enumerate().filter(|(_, slice)| is_shown(slice.rank));
    let places = shown.enumerate().filter(|(_, (nth, _))| path.contains(nth));
    places.map(|(place, _)| place).collect()
}

/// Returns the colours of each pipe that has ops, as in drawings.
fn tones_of(run: &TracedRun) -> BTreeMap<u32, [&'static str; 4]> {
    let pipes = run.slices.iter().flat_map(|slice| &slice.ops).map(|op| op.pipe);
    let n_pipes = pipes.clone().max().map_or(0, |last| last as usize + 1);
    pipes.map(|pipe| (pipe, tones(PipeId(pipe as u16), n_pipes))).collect()
}

/// Converts a slice to a row of numbers and words.
fn slice(slice: &Slice, start: f64) -> Value {
    let ops = slice.ops.iter().map(|op| json!([op.kind, op.pipe, op.stage, op.micro_batches]));
    let (took, ops) = (slice.end - slice.start, ops.collect::<Vec<_>>());
    json!([slice.rank, slice.lane, slice.start - start, took, slice.kind, slice.name, ops])
}
