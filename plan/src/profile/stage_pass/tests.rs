use std::collections::BTreeMap;

use chimera_core::model::{Architecture, Llama};

use super::*;

/// Returns layers and extents of all calls, by pass.
fn of(model: &ModelConfig, n_blocks: usize) -> Vec<(Half, Vec<(&'static str, Vec<usize>)>)> {
    let work = SizedPart {
        model,
        part: ModelPart::Block,
        n_blocks,
        sequence: 6,
        samples: 2,
        slices: 1,
        dropout: 0.1,
    };
    let each =
        calls(&work, 4).expect("a pass").into_iter().map(|HalfCalls { half, calls, .. }| {
            let mut calls: Vec<_> = calls.into_iter().map(|c| (c.layer, c.extents)).collect();
            calls.sort();
            (half, calls)
        });
    each.collect()
}

/// All slices together have the rows of whole sequences; each has attention of its own.
#[test]
fn slices_call_each_layer_on_their_rows() {
    for architecture in [Architecture::GPT2, Architecture::LLAMA] {
        let llama = (architecture == Architecture::LLAMA).then(|| Llama::usual(8, 2));
        let model = ModelConfig {
            architecture,
            layers: 1,
            hidden: 8,
            heads: 2,
            context: 6,
            vocab: 20,
            tied: false,
            llama,
            end_of_text: None,
        };
        let rows = |part, slices: usize| {
            let (n_blocks, sequence, samples) = (1, 6, 2);
            let work = SizedPart {
                model: &model,
                part,
                n_blocks,
                sequence,
                samples,
                slices,
                dropout: 0.0,
            };
            let mut by_half: BTreeMap<Half, Vec<Call>> = BTreeMap::new();
            for HalfCalls { half, calls, .. } in calls(&work, 4).expect("a pass") {
                by_half.entry(half).or_default().extend(calls);
            }
            let sum = |(half, calls): (Half, Vec<Call>)| {
                let of = |layer: &str| {
                    let its = calls.iter().filter(|call| call.layer == layer);
                    its.map(|call| call.extents[0]).sum::<usize>()
                };
                let n = calls.iter().filter(|call| call.layer.starts_with("attention")).count();
                (half, ["linear", "linear_dx", "linear_dw"].map(of), n)
            };
            by_half.into_iter().map(sum).collect::<Vec<_>>()
        };
        for part in ModelPart::ALL {
            let whole = rows(part, 1);
            let sliced = rows(part, 3);
            assert_eq!(whole.len(), sliced.len());
            for ((half, rows, n), (_, of_slices, n_of_slices)) in whole.into_iter().zip(sliced) {
                assert_eq!((of_slices, n_of_slices), (rows, 3 * n), "{architecture:?} {half:?}");
            }
        }
    }
}

#[test]
fn blocks_one_behind_the_other_call_what_each_calls() {
    for architecture in Architecture::ALL {
        let llama = (architecture == Architecture::LLAMA).then(|| Llama::usual(8, 2));
        let (layers, hidden, heads, context, vocab, tied) = (3, 8, 2, 6, 20, false);
        let model = ModelConfig {
            architecture,
            layers,
            hidden,
            heads,
            context,
            vocab,
            tied,
            llama,
            end_of_text: None,
        };
        for ((half, one), (_, three)) in of(&model, 1).into_iter().zip(of(&model, 3)) {
            let mut each = [one.clone(), one.clone(), one].concat();
            each.sort();
            assert_eq!(three, each, "{architecture:?} {half:?}");
            assert!(!three.is_empty());
        }
    }
}
