//! How much of what the device can do a training makes use of.

use chimera_core::model::{Architecture, Cut, ModelConfig};

/// Floating-point operations of the model for one token, forward and backward: `6 N + 6 L d (T + 1)` for a
/// GPT of N parameters that multiply (a table of embeddings is only looked up; the head counts, tied or not), L
/// layers, d features and T tokens per sample, of which a token sees `(T + 1) / 2` on average. Recomputation does
/// not count. (Chowdhery et al., PaLM, 2022, appendix B, count `12 L d T`, as if attention were not causal.) A BERT
/// sees all tokens and predicts few, so it takes three times what its forward pass does.
pub fn flops_per_token(model: &ModelConfig) -> f64 {
    if model.architecture == Architecture::Bert {
        let whole = Cut::whole(model);
        return 3.0 * model.forward_flops(&whole, model.context) / model.context as f64;
    }
    let [layers, hidden, context, vocab] =
        [model.layers, model.hidden, model.context, model.vocab].map(|n| n as f64);
    let looked_up = (context + if model.tied { 0.0 } else { vocab }) * hidden;
    6.0 * (model.n_params() as f64 - looked_up) + 6.0 * layers * hidden * (context + 1.0)
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
        // Query by key, and weight by value: the five tokens see 1, 2, 3, 4 and 5.
        let attention = 3.0 * 2.0 * (2.0 * (15.0 / 5.0) * 8.0);
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
