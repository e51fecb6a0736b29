//! Names of choices that other crates define.

use chimera_core::lower::Recompute;
use chimera_core::model::PRESETS;
use chimera_device::Precision;

use crate::values::recomputed::AUTO;

/// Names of sizes of models.
pub(super) fn presets() -> Vec<&'static str> {
    PRESETS.iter().map(|preset| preset.name).collect()
}

/// Names of parts to recompute.
pub(super) fn recomputations() -> Vec<&'static str> {
    Recompute::ALL.map(|(name, _)| name).into_iter().chain([AUTO]).collect()
}

/// Names of number formats of sums: tf32 only applies to products.
pub(super) fn reduced() -> Vec<&'static str> {
    let others = Precision::ALL.iter().filter(|(_, precision)| *precision != Precision::Tf32);
    others.map(|(name, _)| *name).collect()
}
