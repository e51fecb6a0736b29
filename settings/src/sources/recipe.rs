//! The recipe of the command: defaults that train its smallest model well within two minutes.
//!
//! It holds for the preset [`PRESET`] with random weights. Other commands, and programs that call
//! this library, get the plain defaults of the table.

use std::path::Path;

use chimera_core::schedule::Shape;
use chimera_core::update::Update;
use toml::Value;

use super::follow::begins_with_model;
use super::origin::{Entries, text};
use crate::values::schedules::Named;
use crate::{OPTIONS, Origin, Outside};

/// The model that the recipe is for.
const PRESET: &str = "tiny";
/// Muon's learning rate, times the features of a token.
const MUON_RATE: f64 = 1.2;
/// The least number of micro-batches.
const LEAST_MICRO_BATCHES: i64 = 4;

/// Sets options that nobody gave. A resumed run takes them from its checkpoint, a new one from the
/// machine and from the recipe.
pub(crate) fn recipe(merged: &mut Entries, outside: &dyn Outside) {
    let resume = text(merged, "resume").map(str::to_owned);
    let out = text(merged, "out").map(Path::new).map(Path::to_path_buf);
    let before = |key: &str| outside.before(key, resume.as_deref()?, out.as_deref());
    let is_in_host_memory = is_on_cpu(merged);
    let width = whole(merged, "width");
    let workers = || outside.workers(width).filter(|_| is_in_host_memory).map(Value::Integer);
    if let Some(depth) = before("depth").or_else(workers) {
        set(merged, "depth", depth, Origin::Machine);
    }
    let is_for = text(merged, "preset") == Some(PRESET) && !begins_with_model(merged, outside);
    for option in OPTIONS.iter() {
        let Some(recipe) = option.recipe_value() else { continue };
        let chosen = || chosen(option.name, recipe, merged).filter(|_| is_for);
        if let Some(value) = before(option.name).or_else(chosen) {
            set(merged, option.name, value, Origin::Recipe);
        }
    }
    if is_for && text(merged, "optimizer") == Some("muon") {
        let rate = MUON_RATE / whole(merged, "hidden") as f64;
        set(merged, "lr", Value::Float(rate), Origin::Recipe);
    }
}

/// Returns the recipe's value of an option, if it suits the other settings.
fn chosen(key: &str, value: Value, merged: &Entries) -> Option<Value> {
    match key {
        // Only the CPU has the products of matrices that muon needs.
        "optimizer" => Some(value).filter(|_| is_on_cpu(merged)),
        "shard-optimizer" => Some(value).filter(|_| may_shard(merged)),
        "micro-batches" => {
            let twice = whole(merged, "depth").saturating_mul(2);
            Some(Value::Integer(twice.clamp(LEAST_MICRO_BATCHES, 1 << 20)))
        }
        _ => Some(value),
    }
}

/// Sets an option, unless it was given.
fn set(merged: &mut Entries, key: &'static str, value: Value, origin: Origin) {
    if merged.get(key).is_none_or(|(_, origin)| *origin == Origin::Default) {
        merged.insert(key, (value, origin));
    }
}

/// Returns true if all workers compute on the CPU.
fn is_on_cpu(merged: &Entries) -> bool {
    let devices = text(merged, "device").unwrap_or_default();
    devices.split(',').all(|device| device.trim() == "cpu")
}

/// Returns true if replicas may share muon's updates out, which are a large part of a small model's
/// step.
fn may_shard(merged: &Entries) -> bool {
    let sums_by_mpi = merged.get("mpi-allreduce").and_then(|(value, _)| value.as_bool());
    let name = text(merged, "schedule").map(str::parse);
    let is_synchronous = match name {
        Some(Ok(Named::Schedule(schedule))) => {
            let timetable = schedule.timetable(&Shape::new(2, 4));
            timetable.is_ok_and(|timetable| timetable.update == Update::Flush)
        }
        _ => true,
    };
    text(merged, "optimizer") == Some("muon")
        && text(merged, "survive") == Some("off")
        && text(merged, "border") == Some("step")
        && sums_by_mpi != Some(true)
        && is_synchronous
}

fn whole(merged: &Entries, key: &str) -> i64 {
    merged.get(key).and_then(|(value, _)| value.as_integer()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Config, Layers, Nothing};

    /// A machine with two cores, and the settings of a run before.
    struct TwoCores(&'static [(&'static str, &'static str)]);

    impl Outside for TwoCores {
        fn workers(&self, _: i64) -> Option<i64> {
            Some(2)
        }

        fn before(&self, option: &str, _: &str, _: Option<&Path>) -> Option<Value> {
            let (_, value) = self.0.iter().find(|(key, _)| *key == option)?;
            Some(value.parse().map_or_else(|_| (*value).into(), Value::Integer))
        }
    }

    fn config(options: &str, outside: &dyn Outside) -> Config {
        Layers::parse(options).expect("options").resolve_by_recipe(outside).expect("settings")
    }

    fn values(config: &Config, keys: &[&str]) -> Vec<String> {
        let value = |key: &&str| config.value(key).expect("a value").0.to_string();
        keys.iter().map(value).collect()
    }

    #[test]
    fn the_recipe_is_for_the_smallest_model_without_weights() {
        let keys = ["depth", "micro-batches", "micro-batch-size", "optimizer", "shard-optimizer"];
        let of = |options: &str| values(&config(options, &TwoCores(&[])), &keys);
        assert_eq!(of(""), ["2", "4", "2", "\"muon\"", "true"]);
        assert_eq!(of("--depth 4"), ["4", "8", "2", "\"muon\"", "true"]);
        assert_eq!(of("--micro-batches 6 --optimizer sgd"), ["2", "6", "2", "\"sgd\"", "false"]);
        assert_eq!(of("--preset gpt2-124m"), ["2", "8", "4", "\"adamw\"", "false"]);
        assert_eq!(of("--model llama"), ["2", "8", "4", "\"adamw\"", "false"]);
        let program = Layers::default().resolve(&TwoCores(&[])).expect("settings");
        assert_eq!(values(&program, &keys), ["4", "8", "4", "\"adamw\"", "false"]);
    }

    #[test]
    fn what_does_not_fit_the_recipe_gets_the_plain_default() {
        let optimizer = |options: &str| {
            values(&config(options, &TwoCores(&[])), &["depth", "optimizer", "shard-optimizer"])
        };
        assert_eq!(optimizer("--device cuda"), ["4", "\"adamw\"", "false"]);
        assert_eq!(optimizer("--device cpu,wgpu"), ["4", "\"adamw\"", "false"]);
        for options in [
            "--schedule pipedream-2bw",
            "--border free",
            "--mpi-allreduce true",
            "--survive respawn",
        ] {
            assert_eq!(optimizer(options), ["2", "\"muon\"", "false"], "{options}");
        }
    }

    #[test]
    fn a_resumed_run_keeps_the_recipe_of_its_checkpoint() {
        let run = TwoCores(&[("depth", "6"), ("optimizer", "adamw"), ("steps", "40")]);
        let keys = ["depth", "optimizer", "steps", "micro-batches"];
        let resumed = values(&config("--resume auto", &run), &keys);
        assert_eq!(resumed, ["6", "\"adamw\"", "40", "12"]);
        let fine_tuned = config("--resume auto", &TwoCores(&[("init", "model")]));
        assert_eq!(fine_tuned.training.lr, 0.04 / 96.0);
        let other = values(&config("--resume auto --depth 2 --steps 9", &run), &keys);
        assert_eq!(other, ["2", "\"adamw\"", "9", "4"]);
        let origin = config("", &run).value("depth").expect("a value").1.to_string();
        assert_eq!(origin, "default on this machine");
    }

    #[test]
    fn without_a_machine_there_are_four_workers() {
        assert_eq!(config("", &Nothing).schedule.depth, 4);
    }
}
