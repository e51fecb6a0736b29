//! Tensors go from candle's CUDA to ours and back without a copy, on an emulated GPU.
//!
//! Candle's own kernels are not emulated: candle uploads, copies and downloads here, and the kernels are ours.

mod emulated;
mod order;
mod tensors;

/// Orders in which streams do their work: as late as possible, and drawn.
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
