//! Sums over the rows or columns of matrices: embedding and linear layers.

use crate::device::conformance::Outcome;
use crate::device::conformance::trials::{Trials, trial};
use crate::device::reference::Tensor;
use crate::layers::{Embed, Layers, Layout, Linear};

/// `[samples, context, vocab, hidden]`
const EMBEDDINGS: [[usize; 4]; 4] = [[1, 1, 1, 1], [3, 5, 7, 9], [4, 1, 3, 130], [2, 65, 257, 33]];

pub(super) fn embedding<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [samples, context, vocab, hidden] in EMBEDDINGS {
        let ids = trials.classes(samples * context, vocab as u32);
        let tokens = trials.normal(&[vocab, hidden]);
        let positions = trials.normal(&[context + 2, hidden]);
        trial!(trials, format!("{samples} x {context}"), [tokens, positions], [], |device| [
            device.embedding(&ids, context, tokens, positions)?
        ]);
    }
    Ok(())
}

pub(super) fn embedding_dw<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [samples, context, vocab, hidden] in EMBEDDINGS {
        let ids = trials.classes(samples * context, vocab as u32);
        let dy = trials.normal(&[samples * context, hidden]);
        let d_tokens = trials.normal(&[vocab, hidden]);
        let d_positions = trials.normal(&[context + 2, hidden]);
        trial!(trials, format!("{samples} x {context}"), [dy], [d_tokens, d_positions], |device| {
            device.embedding_dw(&ids, context, dy, d_tokens, d_positions)?;
            []
        });
    }
    Ok(())
}

/// `[rows, inputs, outputs]`
const LINEARS: [[usize; 3]; 9] = [
    [1, 1, 1],
    [1, 7, 5],
    [9, 1, 4],
    [6, 13, 1],
    [16, 16, 16],
    [3, 64, 130],
    [130, 257, 33],
    [65, 48, 257],
    [1030, 3, 5],
];

fn matrix<D: Layers>(trials: &mut Trials<'_, D>, layout: Layout, io: [usize; 2]) -> Tensor {
    let [inputs, outputs] = io;
    trials.normal(&match layout {
        Layout::InOut => [inputs, outputs],
        Layout::OutIn => [outputs, inputs],
    })
}

pub(super) fn linear<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let x = trials.normal(&[rows, inputs]);
            let w = matrix(trials, layout, [inputs, outputs]);
            let bias = trials.normal(&[outputs]);
            let residual = trials.normal(&[rows, outputs]);
            let label = |extras| format!("{layout:?}{extras}");
            trial!(trials, label(""), [x, w], [], |device| [
                device.linear(x, w, layout, None, None)?
            ]);
            trial!(trials, label(" with bias"), [x, w, bias], [], |device| {
                [device.linear(x, w, layout, Some(bias), None)?]
            });
            trial!(trials, label(" with residual"), [x, w, residual], [], |device| {
                [device.linear(x, w, layout, None, Some(residual))?]
            });
            trial!(trials, label(" with both"), [x, w, bias, residual], [], |device| [
                device.linear(x, w, layout, Some(bias), Some(residual))?
            ]);
        }
    }
    Ok(())
}

pub(super) fn linear_dx<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let dy = trials.normal(&[rows, outputs]);
            let w = matrix(trials, layout, [inputs, outputs]);
            trial!(trials, format!("{layout:?}"), [dy, w], [], |device| [
                device.linear_dx(dy, w, layout)?
            ]);
        }
    }
    Ok(())
}

pub(super) fn linear_dw<D: Layers>(trials: &mut Trials<'_, D>) -> Outcome {
    for [rows, inputs, outputs] in LINEARS {
        for layout in [Layout::InOut, Layout::OutIn] {
            let x = trials.normal(&[rows, inputs]);
            let dy = trials.normal(&[rows, outputs]);
            let dw = matrix(trials, layout, [inputs, outputs]);
            let d_bias = trials.normal(&[outputs]);
            trial!(trials, format!("{layout:?}"), [x, dy], [dw], |device| {
                device.linear_dw(x, dy, layout, dw, None)?;
                []
            });
            trial!(trials, format!("{layout:?} with bias"), [x, dy], [dw, d_bias], |device| {
                device.linear_dw(x, dy, layout, dw, Some(d_bias))?;
                []
            });
        }
    }
    Ok(())
}
