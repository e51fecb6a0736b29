//! What the ranks of a run must have in common, field by field.

use chimera_core::engine::Fields;

use super::Run;
use crate::data::Digest;
use crate::settings::{Config, Settings};
use crate::timetable::is_file;

/// Settings that a rank may have of its own, or that are compared by what they lead to: the program, the
/// samples, the weights, the sizes of the model.
const OWN: &[&str] = &[
    "data",
    "preset",
    "init",
    "search-time",
    "threads",
    "timeout",
    "start-timeout",
    "out",
    "metrics",
    "log",
    "trace",
    "peak-flops",
    "tensorboard",
    "prometheus",
    "save",
    "keep",
    "resume",
    "schedule",
];

/// Version and settings that all ranks must have in common; what they lead to, [`Run::greeting`] adds.
pub(super) fn settings(config: &Config) -> Fields {
    let mut fields: Fields = vec![("version".into(), env!("CARGO_PKG_VERSION").into())];
    let mut add = |name: &str, value: String| fields.push((name.into(), value));
    for key in Settings::keys() {
        let by_name = key == "schedule" && !is_file(&config.schedule);
        if by_name || !OWN.contains(&key.as_str()) {
            let value = config.value(&key).map(|(value, _)| value.to_string());
            add(&key, value.unwrap_or_else(|| "none".into()));
        }
    }
    add("traced", config.trace.is_some().to_string()); // all ranks tell what they did
    fields
}

impl Run {
    /// What all ranks tell each other before the first step.
    pub(super) fn greeting(&self) -> Fields {
        let config = self.config();
        let mut fields = settings(config);
        let mut add = |name: &str, value: String| fields.push((name.into(), value));
        add("world", format!("{} groups of {} workers", config.width, config.depth));
        add("program", self.program().fingerprint());
        if let Some(last) = &self.plan.last {
            add("last program", last.fingerprint());
        }
        add("first step", self.first_step().to_string());
        let data = match self.corpus.digest() {
            Ok(Digest { tokens, blake3 }) => format!("{tokens} tokens, {blake3}"),
            Err(error) => format!("unreadable: {error}"),
        };
        add("data", format!("{data}, {}", self.samples_of(self.first_step())));
        add("initial weights", self.weights_hash());
        fields
    }

    /// BLAKE3 of the weights that the run begins with; those drawn at random follow from the seed.
    fn weights_hash(&self) -> String {
        let Some(checkpoint) = &self.start else {
            return self.initial.as_ref().map_or("drawn".into(), |i| i.hash().to_string());
        };
        let mut hasher = blake3::Hasher::new();
        for shard in &checkpoint.manifest().shards {
            hasher.update(shard.blake3.as_bytes());
        }
        hasher.finalize().to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use chimera_core::comm::Endpoint;
    use chimera_core::engine::{handshake, run_threads};
    use chimera_core::fault::{Class, Fault};

    use super::*;
    use crate::settings::Layers;

    fn run(settings: Settings) -> Run {
        let settings = Settings {
            layers: Some(4),
            hidden: Some(8),
            heads: Some(2),
            context: Some(8),
            depth: Some(2),
            ..settings
        };
        Run::prepare(Layers { config: None, settings }.resolve().unwrap()).unwrap()
    }

    /// Rank 0 runs with the settings of `one`, rank 1 with those of `other`.
    fn meet(one: Settings, other: Settings) -> Result<(), Fault> {
        let runs = [run(one), run(other)];
        let met = run_threads::<(), ()>(2, |comm| {
            let run = &runs[comm.rank().index()];
            handshake(comm, &run.greeting(), Instant::now() + Duration::from_secs(60))
        });
        met.map(drop)
    }

    #[test]
    fn what_differs_is_told_field_by_field() {
        let other = Settings { micro_batches: Some(16), seed: Some(2), ..Settings::default() };
        let fault = meet(Settings::default(), other).unwrap_err();
        assert_eq!((fault.class, fault.class.code()), (Class::Mismatch, 10));
        let mut lines = fault.message.lines();
        assert_eq!(lines.next(), Some("the ranks are not of one run:"));
        let lines: Vec<&str> = lines.map(str::trim).collect();
        let named: Vec<_> = lines.iter().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        assert_eq!(named, ["micro-batches", "seed", "program", "data"], "{fault}");
        assert_eq!(lines[0], "micro-batches: rank 0 = 8, rank 1 = 16");
    }

    #[test]
    fn ranks_may_have_places_and_threads_of_their_own() {
        let other = Settings {
            threads: Some(3),
            out: Some("elsewhere".into()),
            timeout: Some(7.0),
            ..Settings::default()
        };
        assert_eq!(meet(Settings::default(), other), Ok(()));
    }

    #[test]
    fn every_key_that_is_named_is_one() {
        let keys = Settings::keys();
        assert!(OWN.iter().all(|key| keys.iter().any(|known| known == key)));
    }
}
