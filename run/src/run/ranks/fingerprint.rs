//! The run fingerprint: the values that must be equal on all ranks, field by field.

use chimera_core::engine::Fields;
use chimera_formats::checkpoint::Digest;
use chimera_settings::schedules::Named;
use chimera_settings::{Config, OPTIONS};

use crate::run::progress::watch::HeldOut;
use crate::run::resume::samples_hash;
use crate::run::{Beginning, Run, Subject};

/// Returns the version and the settings that must be equal on all ranks. [`Run::fingerprint`] adds
/// what follows from them.
pub(crate) fn settings(config: &Config) -> Fields {
    let mut fields: Fields = vec![("version".into(), env!("CARGO_PKG_VERSION").into())];
    let mut add = |name: &str, value: String| fields.push((name.into(), value));
    let is_named = !matches!(config.schedule.name, Named::File(_));
    for option in OPTIONS.iter() {
        if !option.is_own || option.name == "schedule" && is_named {
            let value = config.value(option.name).map(|(value, _)| value.to_string());
            add(option.name, value.unwrap_or_else(|| "none".into()));
        }
    }
    add("traced", config.output.trace.is_some().to_string()); // all ranks send their ops
    fields
}

impl<S: Subject> Run<S> {
    /// Returns the values that the ranks compare before the first step.
    pub(crate) fn fingerprint(&self) -> Fields {
        let config = self.config();
        let mut fields = settings(config);
        let mut add = |name: &str, value: String| fields.push((name.into(), value));
        add(
            "world",
            format!("{} groups of {} workers", config.schedule.width, config.schedule.depth),
        );
        add("program", self.program().fingerprint());
        if let Some(last) = &self.course.last {
            add("last program", last.fingerprint());
        }
        add("first step", self.first_step().to_string());
        let samples = self.samples_of(self.trained_step(self.first_step()));
        add(
            "data",
            match self.subject.digest() {
                Some(Ok(Digest { tokens, blake3, targets })) => {
                    let targets = targets.as_deref().unwrap_or("all");
                    format!("{tokens} tokens, {blake3}, targets {targets}, {samples}")
                }
                Some(Err(error)) => format!("unreadable: {error}, {samples}"),
                None => samples,
            },
        );
        add("validation data", self.held_out_hash());
        add("initial weights", self.weights_hash());
        fields.extend(self.subject.facts());
        let are_processors = config.devices.device.split(',').all(|name| name.trim() == "cpu");
        if let Some(way) = self.subject.bf16_products().filter(|_| are_processors) {
            let chosen = fields.iter_mut().find(|(name, _)| name == "bf16-products");
            chosen.into_iter().for_each(|(_, value)| *value = way.into());
        }
        fields
    }

    /// Returns BLAKE3 of the samples to validate with. Every rank reads its own copy of them.
    fn held_out_hash(&self) -> String {
        match self.subject.held_out(&self.course) {
            Ok(Some(HeldOut { data, n_samples })) => {
                format!("{n_samples} samples, {}", samples_hash::<S>(&*data, 0, n_samples))
            }
            Ok(None) => "none".into(),
            Err(error) => format!("unreadable: {error}"),
        }
    }

    /// Returns BLAKE3 of the initial weights; `drawn` if they are drawn at random, since they follow from the seed.
    pub(crate) fn weights_hash(&self) -> String {
        if let Some(Beginning { weights, .. }) = &self.joined {
            return weights.clone();
        }
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
    use chimera_settings::Layers;

    use crate::processor::CpuRun;
    use crate::run::machine::outside::OnDisk;

    fn run(options: &str) -> CpuRun {
        let small = "--layers 4 --hidden 8 --heads 2 --context 8 --depth 2";
        let layers = Layers::parse(&format!("{small} {options}")).unwrap();
        CpuRun::prepare(layers.resolve(&OnDisk).unwrap()).unwrap()
    }

    /// Runs rank 0 with the options of `one`, rank 1 with those of `other`.
    fn meet(one: &str, other: &str) -> Result<(), Fault> {
        let runs = [run(one), run(other)];
        let met = run_threads::<(), ()>(2, |comm| {
            let run = &runs[comm.rank().index()];
            handshake(comm, &run.fingerprint(), Instant::now() + Duration::from_secs(60))
        });
        met.map(drop)
    }

    #[test]
    fn what_differs_is_told_field_by_field() {
        let fault = meet("", "--micro-batches 16 --seed 2").unwrap_err();
        assert_eq!((fault.class, fault.class.code()), (Class::Mismatch, 10));
        let mut lines = fault.message.lines();
        assert_eq!(lines.next(), Some("the ranks are not of one run:"));
        let lines: Vec<&str> = lines.map(str::trim).collect();
        let named: Vec<_> = lines.iter().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        assert_eq!(named, ["micro-batches", "seed", "program", "data"], "{fault}");
        assert_eq!(lines[0], "micro-batches: rank 0 = 8, rank 1 = 16");
    }

    #[test]
    fn processors_of_one_run_multiply_bf16_in_one_way() {
        let dot = "--precision bf16 --bf16-products dot";
        let fault = meet("--precision bf16", dot).unwrap_err();
        let wanted = "bf16-products: rank 0 = fma, rank 1 = dot";
        assert_eq!(fault.message.lines().nth(1).map(str::trim), Some(wanted), "{fault}");
        assert_eq!(meet(dot, dot), Ok(()));
        assert_eq!(meet("--precision bf16", "--precision bf16 --bf16-products fma"), Ok(()));
    }

    #[test]
    fn ranks_may_have_places_and_threads_of_their_own() {
        assert_eq!(meet("", "--threads 3 --out elsewhere --timeout 7"), Ok(()));
    }
}
