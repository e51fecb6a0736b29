//! The tensors and FLOPs of a model of any architecture.

use chimera_engine::stage::Param;

use super::config::{Cut, ModelConfig, Objective, Selection};

impl ModelConfig {
    /// Returns the number of parameters; a tied table counts once.
    pub fn n_params(&self) -> u64 {
        self.architecture.0.n_params(self)
    }

    /// Returns the tensors of the stage `cut`, in the order in which it holds them.
    pub fn params(&self, cut: &Cut) -> Vec<Param> {
        let family = self.architecture.0;
        cut.tuning.apply(family, family.params(self, cut))
    }

    /// Returns the floating-point operations of one sample's forward pass through `cut`: matrix
    /// products and attention. A multiply-add counts as two, and attention counts without the
    /// savings of causality.
    pub fn forward_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let head = if cut.last { self.head_flops(sequence) } else { 0.0 };
        cut.blocks.len() as f64 * self.block_flops(sequence) + head
    }

    /// Returns the model's floating-point operations per token, in samples of `sequence` tokens,
    /// forward and backward. They are `6 N + 6 L d (T + 1)` for a GPT with L layers, d features and
    /// T tokens per sample, of which a token sees `(T + 1) / 2` on average. N counts the parameters
    /// that multiply: a table of embeddings is only looked up, while the head counts, tied or not.
    /// Recomputation does not count. (Chowdhery et al., PaLM, 2022, appendix B, count `12 L d T`,
    /// as if attention were not causal.) A BERT sees all tokens and predicts few, so it counts as
    /// three times its forward pass.
    pub fn flops_per_token(&self, sequence: usize) -> f64 {
        if self.objective() == Objective::MaskedTokens {
            let whole = Cut::whole(self);
            return 3.0 * self.forward_flops(&whole, sequence) / sequence as f64;
        }
        let family = self.architecture.0;
        let (layers, hidden) = (self.layers as f64, self.hidden as f64);
        let looked_up = family.n_positions(self) + if self.tied { 0 } else { self.vocab };
        let products = self.n_params() as f64 - looked_up as f64 * hidden;
        6.0 * products + 12.0 * layers * self.mixed() as f64 * self.mean_visible(sequence)
    }

    /// Returns the forward FLOPs that selective recomputation repeats: the product into the MLP of
    /// each block, or all of the blocks whose inputs only are kept, and the pooler and transform of
    /// a BERT's heads.
    pub fn selective_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let family = self.architecture.0;
        let [_, into_mlp] = family.block_products(self);
        let heads = if cut.last { family.selective_head_flops(self, sequence) } else { 0.0 };
        let blocks = match cut.selection {
            Selection::Dear => cut.blocks.len() as f64 * sequence as f64 * 2.0 * into_mlp,
            all => all.n_inputs(cut.blocks.len()) as f64 * self.block_flops(sequence),
        };
        blocks + heads
    }

    /// Returns the part of a sample's forward FLOPs that grows along its `sequence` tokens, as
    /// [`SliceGrowth`](chimera_schedule::costs::SliceGrowth) counts it: attention, unless a window
    /// limits what tokens see.
    pub fn growing_flops(&self, cut: &Cut, sequence: usize) -> f64 {
        let visible = |tokens: usize| self.architecture.0.visible(self, tokens) as f64;
        // The second half of the tokens sees more than the first by twice its excess over the mean.
        let more = 2.0 * (visible(sequence) - visible(sequence / 2));
        cut.blocks.len() as f64 * sequence as f64 * 4.0 * more * self.mixed() as f64
    }

    /// Returns the forward FLOPs of one block for a sample of `sequence` tokens.
    pub(super) fn block_flops(&self, sequence: usize) -> f64 {
        let family = self.architecture.0;
        let [products, _] = family.block_products(self);
        let visible = family.visible(self, sequence) as f64;
        sequence as f64 * (2.0 * products + 4.0 * visible * self.mixed() as f64)
    }

    /// Returns the mean number of tokens that a token sees under a causal mask, itself included.
    fn mean_visible(&self, sequence: usize) -> f64 {
        let (visible, sequence) =
            (self.architecture.0.visible(self, sequence) as f64, sequence as f64);
        // The first tokens see one token, two, and so on; the others see the maximum.
        (visible * (visible + 1.0) / 2.0 + (sequence - visible) * visible) / sequence
    }

    /// Returns the forward FLOPs of the head for a sample of `sequence` tokens.
    pub(super) fn head_flops(&self, sequence: usize) -> f64 {
        self.architecture.0.head_flops(self, sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Architecture, Llama, cut};
    use super::*;

    fn config() -> ModelConfig {
        let architecture = Architecture::GPT2;
        ModelConfig {
            architecture,
            layers: 3,
            hidden: 100,
            heads: 5,
            context: 7,
            vocab: 11,
            tied: false,
            llama: None,
            end_of_text: None,
        }
    }

    /// Returns these sizes for any architecture.
    fn config_of(architecture: Architecture, tied: bool) -> ModelConfig {
        let is_llama = architecture == Architecture::LLAMA;
        let llama = Llama { kv_heads: 1, qkv_bias: true, ..Llama::usual(100, 5) };
        ModelConfig { architecture, tied, llama: is_llama.then_some(llama), ..config() }
    }

    /// Returns a Llama whose heads together have more features than the model.
    fn wide_heads() -> ModelConfig {
        let model = config_of(Architecture::LLAMA, true);
        let llama = Llama { head_dim: Some(32), ..model.llama.unwrap() };
        ModelConfig { llama: Some(llama), ..model }
    }

    #[test]
    fn the_count_is_the_sum_of_the_tensors() {
        for architecture in Architecture::ALL {
            for tied in [false, true] {
                let config = config_of(architecture, tied);
                is_counted(&config);
            }
        }
        is_counted(&wide_heads());
    }

    /// Attention sees all earlier tokens, or a window of them.
    #[test]
    fn work_grows_along_a_sequence_by_what_tokens_see() {
        let model = |window| {
            let llama = Llama { window, ..Llama::usual(100, 5) };
            let llama = Some(llama);
            ModelConfig { llama, context: 64, ..config_of(Architecture::LLAMA, false) }
        };
        let of = |window| {
            let model = model(window);
            let (whole, half) = (Cut::whole(&model), 32.0 * 3.0);
            // A token mixes 100 features of each token that it sees, and computes its score from as
            // many.
            model.growing_flops(&whole, 64) / (2.0 * half * 4.0 * 100.0)
        };
        assert_eq!(
            [None, Some(64), Some(48), Some(32), Some(8)].map(of),
            [64.0, 64.0, 32.0, 0.0, 0.0]
        );
    }

    fn is_counted(config: &ModelConfig) {
        let params = config.params(&cut(config, 7, 1).unwrap()[0]);
        let sum: usize = params.iter().map(Param::n_elements).sum();
        assert_eq!(sum as u64, config.n_params());
        assert!(params.iter().all(|p| !p.tied));
    }

    #[test]
    fn a_tied_table_is_on_the_first_and_the_last_stage() {
        let names = ["wte.weight", "embeddings.word_embeddings.weight", "embed_tokens.weight"];
        for (architecture, name) in Architecture::ALL.into_iter().zip(names) {
            let config = config_of(architecture, true);
            let stages: Vec<_> =
                cut(&config, 7, 3).unwrap().iter().map(|cut| config.params(cut)).collect();
            let table = |stage: usize| stages[stage].iter().find(|p| p.tied);
            assert_eq!(table(0), stages[0].first());
            assert_eq!(table(1), None);
            assert_eq!(table(2), table(0));
            assert_eq!(table(0).unwrap().name, name);
        }
    }

    #[test]
    fn work_is_counted_per_sample() {
        let config = config();
        let whole = Cut::whole(&config);
        let per_token = 3.0 * (24.0 * 1e4 + 4.0 * 5.0 * 100.0) + 2.0 * 100.0 * 11.0;
        assert_eq!(config.forward_flops(&whole, 5), 5.0 * per_token);
        // One of five tokens is predicted, through a transform; pooler and classes have one row.
        let bert = ModelConfig { architecture: Architecture::BERT, ..config };
        assert_eq!(bert.predictions(5), 1);
        let blocks = 5.0 * 3.0 * (24.0 * 1e4 + 4.0 * 5.0 * 100.0);
        let heads = 2.0 * 100.0 * (100.0 + 11.0) + 2.0 * 100.0 * 102.0;
        assert_eq!(bert.forward_flops(&whole, 5), blocks + heads);
    }

    /// Counted by hand: 5 query heads of 20 features, one for keys and values, an MLP of 288.
    #[test]
    fn work_of_a_llama_is_that_of_its_products() {
        let model = config_of(Architecture::LLAMA, true);
        let whole = Cut::whole(&model);
        let products = 100.0 * (100.0 + 2.0 * 20.0) + 100.0 * 100.0 + 3.0 * 100.0 * 288.0;
        let per_token = 3.0 * (2.0 * products + 4.0 * 5.0 * 100.0) + 2.0 * 100.0 * 11.0;
        assert_eq!(model.forward_flops(&whole, 5), 5.0 * per_token);
        assert_eq!(model.selective_flops(&whole, 5), 5.0 * 3.0 * 2.0 * (2.0 * 100.0 * 288.0));
        // Norms and biases count as in other models; of five tokens, each sees 1, 2, 2, 2 and 2.
        let window = Llama { window: Some(2), ..model.llama.unwrap() };
        let windowed = ModelConfig { llama: Some(window), ..model.clone() };
        let vectors = 3.0 * (2.0 * 100.0 + 140.0) + 100.0;
        let counted = 3.0 * products + 100.0 * 11.0 + vectors;
        let attention = |seen: f64| 3.0 * 12.0 * 100.0 * seen;
        assert_eq!(windowed.flops_per_token(5), 6.0 * counted + attention(9.0 / 5.0));
        assert_eq!(model.flops_per_token(5), 6.0 * counted + attention(15.0 / 5.0));
        // Five heads of 32 features, and one each of keys and values, from and to 100 features.
        let model = wide_heads();
        let products = 100.0 * 7.0 * 32.0 + 160.0 * 100.0 + 3.0 * 100.0 * 288.0;
        let per_token = 3.0 * (2.0 * products + 4.0 * 5.0 * 160.0) + 2.0 * 100.0 * 11.0;
        assert_eq!(model.forward_flops(&whole, 5), 5.0 * per_token);
        let vectors = 3.0 * (2.0 * 100.0 + 7.0 * 32.0) + 100.0;
        let counted = 3.0 * products + 100.0 * 11.0 + vectors;
        assert_eq!(model.flops_per_token(5), 6.0 * counted + 3.0 * 12.0 * 160.0 * 15.0 / 5.0);
    }

    /// Counted by hand from the products of a block, the head and attention.
    #[test]
    fn flops_are_those_of_all_products() {
        let model = ModelConfig {
            architecture: Architecture::GPT2,
            layers: 3,
            hidden: 8,
            heads: 2,
            context: 5,
            vocab: 11,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let block = 8.0 * 24.0 + 8.0 * 8.0 + 2.0 * 8.0 * 32.0;
        let vectors = 3.0 * (13.0 * 8.0) + 2.0 * 8.0; // biases and norms
        let products = 2.0 * (3.0 * block + 8.0 * 11.0 + vectors);
        // Query by key, and weight by value: the five tokens see 1, 2, 3, 4 and 5.
        let attention = 3.0 * 2.0 * (2.0 * (15.0 / 5.0) * 8.0);
        assert_eq!(model.flops_per_token(5), 3.0 * (products + attention));
        let tied = ModelConfig { tied: true, ..model.clone() };
        assert_eq!(tied.flops_per_token(5), model.flops_per_token(5));
        // One of five tokens is predicted, through a transform; pooler and classes: one row.
        let bert = ModelConfig { architecture: Architecture::BERT, ..model };
        let blocks = 5.0 * 2.0 * 3.0 * block + 5.0 * 3.0 * 2.0 * (2.0 * 5.0 * 8.0);
        let heads = 2.0 * (8.0 * 8.0 + 8.0 * 11.0) + 2.0 * (8.0 * 8.0 + 8.0 * 2.0);
        assert_eq!(bert.flops_per_token(5), 3.0 * (blocks + heads) / 5.0);
    }
}
