//! Candle's CUDA and Chimera's on emulated GPUs: tensors go from one to the other without a copy,
//! and candle trains stages of its modules.

mod emulated;
mod order;
mod stages;
mod tensors;

/// Seeds for the order in which streams work: 0 is as late as possible, others are random.
const SEEDS: [&str; 3] = ["0", "1", "2"];

#[test]
fn tensors_keep_their_place() {
    for test in ["f32_keeps_its_place", "bf16_keeps_its_place", "rows_keep_their_place"] {
        emulated::passes(&format!("tensors::{test}"), &[]);
    }
}

#[test]
fn what_cannot_be_taken_is_refused_in_words() {
    emulated::passes("tensors::refusals_say_why", &[]);
}

#[test]
fn memory_is_kept_and_given_back() {
    for seed in SEEDS {
        for pools in ["0", "1"] {
            let settings = [("EMULATED_SEED", seed), ("EMULATED_POOLS", pools)];
            emulated::passes("order::memory_lives_as_long_as_it_is_used", &settings);
        }
    }
}

#[test]
fn both_sides_wait_for_each_other() {
    for seed in SEEDS {
        emulated::passes("order::each_sees_what_the_other_wrote", &[("EMULATED_SEED", seed)]);
    }
    let forgotten = [("EMULATED_SEED", "0"), ("EMULATED_MISTAKE", "no-wait")];
    let (passed, _) = emulated::run("order::each_sees_what_the_other_wrote", &forgotten);
    assert!(!passed, "a forgotten wait is not found");
}

#[test]
fn candle_trains_its_modules_on_gpus() {
    for test in ["train_on_one_gpu", "train_on_two_gpus", "train_with_a_stream_per_thread"] {
        for seed in SEEDS {
            emulated::passes(&format!("stages::{test}"), &[("EMULATED_SEED", seed)]);
        }
    }
}
