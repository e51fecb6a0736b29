//! The bound on the length of a run's messages. A longer message ends the run, so the bound must
//! hold for every tensor that ranks send.

use super::prepare;

/// The longest tensor of a run with these options, whose hidden width is 16.
fn longest(options: &str) -> usize {
    let model = "--layers 8 --hidden 16 --heads 2 --context 16 --vocab 512 --threads 1";
    prepare(&format!("{model} --schedule 1f1b {options}")).longest_tensor()
}

/// The inner activation of a layer's MLP is four times as wide as the activations between stages.
#[test]
fn saved_activations_that_another_rank_keeps_are_bounded() {
    let options = "--depth 4 --micro-batches 8 --micro-batch-size 64";
    let inner = 64 * 16 * (4 * 16);
    assert!(longest(options) < inner);
    assert!(longest(&format!("{options} --bpipe")) >= inner);
}

/// Each linear layer of a transformer block has a factor of its inputs and a bias, and one of its
/// outputs.
#[test]
fn factors_of_kfac_are_bounded_with_the_gradients() {
    let options = "--depth 2 --width 2 --micro-batches 2 --micro-batch-size 1";
    let layers = [(16, 48), (16, 16), (16, 64), (64, 16)];
    let squares = layers.map(|(inputs, outputs)| (inputs + 1usize).pow(2) + outputs * outputs);
    let of_block: usize = squares.iter().sum();
    let [adamw, kfac] = ["adamw", "kfac"].map(|it| longest(&format!("{options} --optimizer {it}")));
    assert!(kfac >= adamw + of_block, "{kfac} {adamw}");
}
