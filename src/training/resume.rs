//! Going on from a checkpoint: what may be different then, and what must not.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use chimera_core::engine::Data;

use super::{Run, Samples};
use crate::checkpoint::{Checkpoint, FORMAT, Manifest, Saver, Store};
use crate::settings::Settings;

/// Settings without which it would be another training.
const FIXED: &[&str] =
    &["model", "layers", "hidden", "heads", "context", "vocab", "tied", "seed", "optimizer"];
/// Settings that decide how and where, but not what is trained. `data` is compared by its content,
/// micro-batches by the samples of a step.
const FREE: &[&str] = &[
    "init",
    "placement",
    "search-time",
    "data",
    "schedule",
    "depth",
    "width",
    "pipes",
    "chunks",
    "scaling",
    "in-turn",
    "waves",
    "in-flight",
    "recompute",
    "hoist",
    "split-backward",
    "memory-cap",
    "window",
    "micro-batches",
    "micro-batch-size",
    "preset",
    "sync",
    "shard-optimizer",
    "device",
    "precision",
    "transport",
    "threads",
    "timeout",
    "start-timeout",
    "out",
    "metrics",
    "trace",
    "trace-steps",
    "eval-every",
    "peak-flops",
    "tensorboard",
    "prometheus",
    "save",
    "save-every",
    "keep",
    "resume",
    "check-finite",
    "non-finite",
    "check-replicas",
];
/// What held before there were such keys.
const EARLIER: &[(&str, &str)] = &[("model", "\"gpt2\""), ("dropout", "0.0")];
/// The most samples that the hash of a step covers.
const N_HASHED: u64 = 64;

impl Run {
    /// Begins where a checkpoint ends. Returns, in words, the settings that change from there on.
    ///
    /// # Errors
    /// If it is of another training: other sizes, seed or data, or another number of samples per step.
    pub fn resume(&mut self, checkpoint: Checkpoint) -> Result<Vec<String>> {
        let manifest = checkpoint.manifest();
        let place = checkpoint.path().display();
        let now = self.settings();
        let changed = |key: &str| {
            let of = |settings: &BTreeMap<String, String>| {
                let earlier = || EARLIER.iter().find(|(of, _)| *of == key);
                settings.get(key).cloned().or_else(|| earlier().map(|(_, was)| was.to_string()))
            };
            let (was, is) = (of(&manifest.settings), of(&now));
            let text = |value: Option<String>| value.unwrap_or_else(|| "not set".into());
            (was != is).then(|| format!("{key}: {} in the checkpoint, {} now", text(was), text(is)))
        };
        let mut conflicts: Vec<String> = FIXED.iter().filter_map(|key| changed(key)).collect();
        let (was, is) = (manifest.samples_per_step, self.samples_per_step());
        if was != is {
            let product = "width * micro-batches * micro-batch-size";
            conflicts.push(format!("{product}: {was} in the checkpoint, {is} now"));
        }
        if conflicts.is_empty() && self.samples_of(manifest.step) != manifest.next_samples {
            let hint = match self.plan.config.data.is_empty() {
                true => {
                    "; the project's own text changes with its versions: name files with --data"
                }
                false => "",
            };
            let step = manifest.step;
            conflicts
                .push(format!("data: other samples in step {step} than in the checkpoint{hint}"));
        }
        if !conflicts.is_empty() {
            bail!("{place} is of another training:\n  {}", conflicts.join("\n  "));
        }
        ensure!(
            manifest.step <= self.plan.config.steps,
            "{place} has {} steps already: choose --steps above that",
            manifest.step
        );
        let other = now.keys().filter(|key| !FIXED.contains(&key.as_str()));
        let other = other.filter(|key| !FREE.contains(&key.as_str()));
        let notes = other.filter_map(|key| changed(key)).collect();
        self.plan.last = self.plan.rest(manifest.step)?;
        self.start = Some(checkpoint);
        Ok(notes)
    }

    /// Saves checkpoints as the settings say; `warn` is told what could not be saved on the way.
    pub fn save_into(&mut self, store: Store, warn: impl Fn(&str) + Send + Sync + 'static) {
        let store = store.keeping(self.plan.config.keep);
        self.saver = Some(Saver::new(store, self.plan.config.save_every, warn));
    }

    /// The first step that is trained.
    pub fn first_step(&self) -> u64 {
        self.start.as_ref().map_or(0, |checkpoint| checkpoint.manifest().step)
    }

    pub(super) fn samples(&self) -> Samples<'_> {
        let (seed, per_step) = (self.plan.config.seed, self.samples_per_step());
        let n_targets = self.model().predictions(self.plan.config.context);
        Samples { corpus: &self.corpus, seed, n_targets, per_step }
    }

    /// The manifest of a checkpoint after so many steps and updates, but for its files.
    pub(super) fn manifest(&self, step: u64, updates: u64) -> Manifest {
        Manifest {
            format: FORMAT,
            written_by: format!("chimera {}", env!("CARGO_PKG_VERSION")),
            step,
            updates,
            samples_per_step: self.samples_per_step(),
            next_samples: self.samples_of(step),
            settings: self.settings(),
            shards: Vec::new(),
        }
    }

    /// All settings, as TOML values.
    pub(super) fn settings(&self) -> BTreeMap<String, String> {
        let keys = Settings::keys().into_iter();
        keys.filter_map(|key| {
            let (value, _) = self.plan.config.value(&key)?;
            let value = value.to_string();
            Some((key, value))
        })
        .collect()
    }

    fn samples_per_step(&self) -> u64 {
        self.tokens_per_step() / self.plan.config.context.max(1) as u64
    }

    /// BLAKE3 of a step's first samples.
    pub(super) fn samples_of(&self, step: u64) -> String {
        let (mut input, mut target) = (Vec::new(), Vec::new());
        let mut hasher = blake3::Hasher::new();
        for sample in 0..self.samples_per_step().min(N_HASHED) {
            input.clear();
            target.clear();
            // No data is like data that cannot be read; a run that needs it ends by itself.
            if let Err(error) = self.samples().sample(step, sample, &mut input, &mut target) {
                return format!("unreadable: {error}");
            }
            input.iter().chain(&target).for_each(|id| {
                hasher.update(&id.to_le_bytes());
            });
        }
        hasher.finalize().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_that_is_named_is_one() {
        let keys = Settings::keys();
        assert!(FIXED.iter().chain(FREE).all(|key| keys.iter().any(|known| known == key)));
    }
}
