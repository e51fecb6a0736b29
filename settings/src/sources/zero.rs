//! ZeRO stages: `zero` stands for other options.

use toml::Value;

use super::origin::{Entries, text};
use crate::{ReplicaSettings, SettingsError};

/// Shards the optimizer from stage 1 on. From stage 2 on also starts reductions as soon as their
/// gradients are complete, which frees them, unless a start was chosen.
pub(super) fn follow(merged: &mut Entries) -> Result<(), SettingsError> {
    let stage = merged.get("zero").cloned();
    let Some((Value::Integer(stage @ 1..), origin)) = stage else { return Ok(()) };
    let sharded = merged.get("shard-optimizer");
    if let Some((Value::Boolean(false), place)) = sharded.filter(|(_, place)| !place.is_default()) {
        let message = format!(
            "`zero` is {stage}, which shards the optimizer, and `shard-optimizer` is false: leave one of them out"
        );
        return Err(SettingsError { place: place.to_string(), message });
    }
    merged.insert("shard-optimizer", (true.into(), origin.clone()));
    let is_open = merged.get("sync").is_none_or(|(_, place)| place.is_default());
    if stage > 1 && is_open && text(merged, "sync") != Some("eager") {
        merged.insert("sync", ("eager".into(), origin));
    }
    Ok(())
}

impl ReplicaSettings {
    /// The most stages with whole weights on a worker at once; 0 if weights are not sharded.
    pub fn most_whole_stages(&self) -> u32 {
        if self.zero > 2 { self.whole_stages } else { 0 }
    }
}
