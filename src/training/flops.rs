//! How much of what the device can do a training makes use of.

use std::time::Instant;

use anyhow::Result;
use chimera_backend_cuda::Candle;
use chimera_core::kernels::{Kernels, Layout};
use chimera_core::model::{Architecture, Cut, ModelConfig};

/// Floating-point operations of the model for one token, forward and backward: `6 N + 12 L d T`, for N
/// parameters that multiply (a table of embeddings is only looked up; the head counts, tied or not), L
/// layers, d features and T tokens per sample. Recomputation does not count. (Chowdhery et al., PaLM, 2022,
/// appendix B, where attention counts as if it were not causal.) The heads of a BERT see few tokens: three
/// times what its forward pass takes.
pub fn flops_per_token(model: &ModelConfig) -> f64 {
    if model.architecture == Architecture::Bert {
        let whole = Cut::whole(model);
        return 3.0 * model.forward_flops(&whole, model.context) / model.context as f64;
    }
    let [layers, hidden, context, vocab] =
        [model.layers, model.hidden, model.context, model.vocab].map(|n| n as f64);
    let looked_up = (context + if model.tied { 0.0 } else { vocab }) * hidden;
    6.0 * (model.n_params() as f64 - looked_up) + 12.0 * layers * hidden * context
}

/// Floating-point operations per second of matrix products on `n_threads` threads of the CPU, measured in
/// some milliseconds: on one thread, since all at once would wait for whatever else the machine does.
pub fn measured_peak(n_threads: usize) -> Result<f64> {
    const SIZE: usize = 512;
    let kernels = Candle::cpu();
    let values: Vec<f32> = (0..SIZE * SIZE).map(|i| (i % 7) as f32).collect();
    let matrix = kernels.upload(&[SIZE, SIZE], &values)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let product = || -> Result<f64> {
        let start = Instant::now();
        kernels.linear(&matrix, &matrix, Layout::InOut, None, None)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let seconds = pool.install(|| {
        (0..10).try_fold(f64::INFINITY, |best, _| product().map(|took| best.min(took)))
    })?;
    Ok(n_threads as f64 * 2.0 * (SIZE as f64).powi(3) / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, from the products of a block, the head and attention.
    #[test]
    fn flops_are_those_of_all_products() {
        let model = ModelConfig {
            architecture: Architecture::Gpt2,
            layers: 3,
            hidden: 8,
            heads: 2,
            context: 5,
            vocab: 11,
            tied: false,
        };
        let block = 8.0 * 24.0 + 8.0 * 8.0 + 2.0 * 8.0 * 32.0;
        let vectors = 3.0 * (13.0 * 8.0) + 2.0 * 8.0; // biases and norms
        let products = 2.0 * (3.0 * block + 8.0 * 11.0 + vectors);
        let attention = 3.0 * 2.0 * (2.0 * 5.0 * 8.0);
        assert_eq!(flops_per_token(&model), 3.0 * (products + attention));
        let tied = ModelConfig { tied: true, ..model.clone() };
        assert_eq!(flops_per_token(&tied), flops_per_token(&model));
        // One of the five tokens is predicted, through a transform; pooler and classes are one row.
        let bert = ModelConfig { architecture: Architecture::Bert, ..model };
        let blocks = 5.0 * 2.0 * 3.0 * block + 5.0 * 3.0 * 2.0 * (2.0 * 5.0 * 8.0);
        let heads = 2.0 * (8.0 * 8.0 + 8.0 * 11.0) + 2.0 * (8.0 * 8.0 + 8.0 * 2.0);
        assert_eq!(flops_per_token(&bert), 3.0 * (blocks + heads) / 5.0);
    }
}
