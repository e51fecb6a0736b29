//! Rules as text, of which the fingerprints of programs are made.

use std::fmt;

use super::Rules;

/// A chain prints only its number of stages: existing fingerprints depend on this format.
impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The window is a part of the program.
        let Rules { graph, demand, recomputed, selective, keeps_versions, n_slices, .. } = self;
        let Rules { moves, works, .. } = self;
        let mut rules = f.debug_struct("Rules");
        rules.field("n_stages", &graph.n_stages());
        if !graph.is_chain() {
            rules.field("graph", &format_args!("{graph}"));
        }
        if !demand.frozen().is_empty() {
            rules.field("frozen", &demand.frozen());
        }
        if !demand.micro_batches_of().is_empty() {
            rules.field("micro_batches_of", &demand.micro_batches_of());
        }
        rules.field("recomputed", recomputed).field("selective", selective);
        rules.field("keeps_versions", keeps_versions);
        if *n_slices > 1 {
            rules.field("n_slices", n_slices);
        }
        if self.has_moves() {
            rules.field("offloaded", &moves.offloaded).field("kept", &moves.kept);
        }
        if !works.is_empty() {
            rules.field("works", works);
        }
        rules.finish()
    }
}
