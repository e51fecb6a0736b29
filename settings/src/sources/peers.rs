//! Names of our options in other programs: HF Trainer, Accelerate, DeepSpeed, axolotl, litgpt,
//! Megatron-LM, torchtitan and nanoGPT. Each means the same there.

use crate::OPTIONS;

/// Returns each option with its other names.
fn rows() -> impl Iterator<Item = (&'static str, std::str::Split<'static, char>)> {
    let rows = include_str!("peers.txt").lines().filter_map(|line| line.split_once(": "));
    rows.map(|(own, names)| (own, names.split(' ')))
}

/// Returns the other names of an option.
pub(crate) fn names(option: &str) -> impl Iterator<Item = &'static str> {
    rows().filter(move |(own, _)| *own == option).flat_map(|(_, names)| names)
}

/// Returns our name of an option from its name in another program.
pub fn own_name(name: &str) -> Option<&'static str> {
    let own = OPTIONS.iter().find(|option| names(option.name).any(|other| other == name));
    own.map(|option| option.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layers;
    use crate::sources::absent;

    #[test]
    fn every_name_stands_for_one_option() {
        let own = OPTIONS.iter().map(|option| option.name);
        let others = rows().flat_map(|(_, names)| names);
        let absent = absent::rows().flat_map(|row| row.head.split(' '));
        let mut all: Vec<&str> = own.chain(others.chain(absent)).collect();
        let n_names = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n_names);
        assert!(rows().all(|(own, _)| OPTIONS.iter().any(|option| option.name == own)));
    }

    #[test]
    fn other_names_are_read() {
        for (words, own) in [
            ("--pp 8", "--depth 8"),
            ("--dp 2", "--width 2"),
            ("--pipeline-model-parallel-size 8", "--depth 8"),
            ("--gradient-accumulation-steps 4", "--micro-batches 4"),
            ("--num-layers 2 --hidden-size 8", "--layers 2 --hidden 8"),
            ("--num-attention-heads 2 --seq-length 8", "--heads 2 --sequence 8"),
            ("--num-query-groups 2 --ffn-hidden-size 8", "--kv-heads 2 --mlp-hidden 8"),
            ("--rotary-base 5e5 --rms-norm-eps 1e-6", "--rope-theta 5e5 --norm-eps 1e-6"),
            ("--max-position-embeddings 8 --seq-len 4", "--context 8 --sequence 4"),
            ("--block-size 8 --n-embd 4", "--context 8 --hidden 4"),
            ("--train-iters 5 --lr-warmup-iters 2", "--steps 5 --warmup 2"),
            ("--max-steps 5 --clip-grad 2", "--steps 5 --clip 2"),
            ("--grad-clip 2 --dtype bf16", "--clip 2 --precision bf16"),
            ("--activation-checkpoint full --save-interval 3", "--recompute full --save-every 3"),
        ] {
            assert_eq!(Layers::parse(words).unwrap(), Layers::parse(own).unwrap(), "{words}");
        }
    }
}
