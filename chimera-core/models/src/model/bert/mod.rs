//! BERT as pipeline stages (Devlin et al., 2018): bidirectional attention, post-norm blocks, and
//! the two pre-training heads. `sample.rs` describes the layout of samples in a micro-batch.

mod block;
mod embedding;
mod head;
mod sample;
mod saved;
mod tensors;

use std::ops::Range;

use chimera_engine::device::Result;
use chimera_engine::layers::{Attention, Layers, Layout, Mask};
use chimera_engine::stage::{
    DynMovable, DynSelective, DynSizes, DynSplittable, Micro, Output, Param, Stage,
};
use sample::SampleShape;

use super::block::deferred::Deferred;
use super::block::kept::Kept;
use super::block::pass::Pass;
use super::config::{self, Cut, DropoutRate, ModelConfig, Objective};
use super::error::ModelError;

pub use saved::{BertDeferred, BertSaved, BertSelected};

/// The epsilon of BERT's layer norms.
const EPSILON: f64 = 1e-12;

/// One stage of a BERT on the device of `D`.
#[derive(Clone, Debug)]
pub struct BertStage<D> {
    device: D,
    cut: Cut,
    heads: usize,
    hidden: usize,
    form: SampleShape,
    dropout: DropoutRate,
    params: Vec<Param>,
    /// Index of the decoder's matrix: the word table itself if it is tied and on this stage.
    decoder: usize,
}

impl<D: Layers> BertStage<D> {
    /// Returns the stage `cut` of `config`, for samples of `sequence` tokens, `predictions` of
    /// which are predicted: usually [`ModelConfig::predictions`] of `sequence`, which is at most
    /// `config.context`.
    pub fn new(
        device: D,
        config: &ModelConfig,
        sequence: usize,
        predictions: usize,
        cut: Cut,
    ) -> std::result::Result<Self, ModelError> {
        config.check_sequence(sequence)?;
        let params = config.params(&cut);
        // A stage without a layer has no tensor, and no decoder that would be read.
        let last = params.len().saturating_sub(1);
        let decoder = if config.tied && cut.first { 0 } else { last };
        let form = SampleShape { sequence, predictions };
        let (heads, hidden, dropout) = (config.heads, config.hidden, DropoutRate::default());
        Ok(Self { device, cut, heads, hidden, form, dropout, params, decoder })
    }

    /// Sets training's dropout on the embedding and the blocks' outputs to the residual stream.
    pub fn with_dropout(self, rate: f64, seed: u64) -> Self {
        Self { dropout: DropoutRate { rate, seed }, ..self }
    }

    fn pass<'p>(&'p self, lengths: &'p [u32], micro: &Micro<'_>) -> Pass<'p, D> {
        let (mask, context) = (Mask::Lengths(lengths), self.form.sequence);
        let attention = Attention { mask, ..Attention::causal(self.heads, context) };
        Pass::new(&self.device, attention, self.dropout, micro)
    }

    /// Returns the range of the blocks' tensors.
    fn blocks(&self) -> Range<usize> {
        let start = if self.cut.first { embedding::TENSORS } else { 0 };
        start..start + self.cut.blocks.len() * block::TENSORS
    }

    fn head<'w>(&self, w: &'w [D::Tensor]) -> head::HeadWeights<'w, D::Tensor> {
        let tensors = w[self.blocks().end..].first_chunk().expect("tensors of the heads");
        head::HeadWeights { tensors, decoder: &w[self.decoder] }
    }

    fn embedding<'w>(&self, w: &'w [D::Tensor]) -> &'w [D::Tensor; embedding::TENSORS] {
        w.first_chunk().expect("tensors of the embedding")
    }

    /// Runs the input through the blocks. Returns the last output and the saved activations.
    fn through(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(D::Tensor, BertSaved<D::Tensor>)> {
        let (device, lengths) = (&self.device, self.form.lengths(micro));
        let pass = self.pass(&lengths, micro);
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let (mut x, embedding) = match x {
            Some(x) => (x, None),
            None => {
                let (x, saved) = embedding::forward(&pass, self.embedding(w), self.form, micro)?;
                (x, Some(saved))
            }
        };

        let mut blocks = Vec::with_capacity(self.cut.blocks.len());
        let weights = w[self.blocks()].as_chunks().0;
        for (block, w) in self.cut.blocks.clone().zip(weights) {
            let (y, saved) = block::forward(&pass, block, w, x)?;
            blocks.push(saved);
            x = y;
        }
        let head =
            |x| head::restore(device, &self.head(w), head::select(device, self.form, micro, x)?);
        let head = self.cut.last.then(|| head(&x)).transpose()?;
        Ok((x, BertSaved { embedding, blocks, head }))
    }
}

/// The properties that all BERTs share.
pub(super) struct Family;

impl config::Family for Family {
    fn name(&self) -> &'static str {
        "bert"
    }

    fn title(&self) -> &'static str {
        "BERT"
    }

    fn objective(&self) -> Objective {
        Objective::MaskedTokens
    }

    fn n_params(&self, config: &ModelConfig) -> u64 {
        tensors::n_params(config)
    }

    fn params(&self, config: &ModelConfig, cut: &Cut) -> Vec<Param> {
        tensors::params(config, cut)
    }

    fn head_flops(&self, config: &ModelConfig, sequence: usize) -> f64 {
        tensors::head_flops(config, sequence)
    }

    /// Counts the products of pooler and transform.
    fn selective_head_flops(&self, config: &ModelConfig, sequence: usize) -> f64 {
        2.0 * (config.hidden as f64).powi(2) * (1 + self.predictions(sequence)) as f64
    }

    fn predictions(&self, sequence: usize) -> usize {
        ((3 * sequence + 10) / 20).max(1)
    }

    fn sample(&self, tokens: &[u32], next: u32) -> (Vec<u32>, Vec<u32>) {
        let predictions = self.predictions(tokens.len());
        let predicted = tokens.iter().take(predictions).copied();
        (sample::unpadded(tokens, predictions), predicted.chain([next % 2]).collect())
    }
}

pub(super) fn stage<D: Layers>(
    device: D,
    config: &ModelConfig,
    sequence: usize,
    dropout: DropoutRate,
    cut: Cut,
) -> std::result::Result<BertStage<D>, ModelError> {
    let predictions = config::Family::predictions(&Family, sequence);
    Ok(BertStage { dropout, ..BertStage::new(device, config, sequence, predictions, cut)? })
}

impl<D: Layers> Stage for BertStage<D> {
    type Tensor = D::Tensor;
    type Item = u32;
    type Saved = Kept<BertSaved<D::Tensor>, BertSelected<D::Tensor>>;
    type Deferred = BertDeferred<D::Tensor>;

    fn params(&self) -> &[Param] {
        &self.params
    }

    /// Every stage has to know the padding.
    fn needs_inputs(&self) -> bool {
        true
    }

    fn forward(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<(Output<D::Tensor>, Self::Saved)> {
        let (device, (x, saved)) = (&self.device, self.through(w, micro, x)?);
        let Some(head) = &saved.head else {
            return Ok((Output::Activation(x), Kept::Whole(saved)));
        };
        let output = head::output(device, &self.head(w), self.form, micro, head)?;
        Ok((output, Kept::Whole(saved)))
    }

    fn recompute(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        x: Option<D::Tensor>,
    ) -> Result<Self::Saved> {
        Ok(Kept::Whole(self.through(w, micro, x)?.1))
    }

    fn backward_input(
        &self,
        w: &[D::Tensor],
        micro: &Micro<'_>,
        saved: Self::Saved,
        mut dy: D::Tensor,
    ) -> Result<(Option<D::Tensor>, BertDeferred<D::Tensor>)> {
        let saved = saved.whole();
        let lengths = self.form.lengths(micro);
        let pass = self.pass(&lengths, micro);
        let mut head = None;
        if let Some(saved) = saved.head {
            let (dx, deferred) =
                head::backward_input(&pass, &self.head(w), self.form, micro, saved, dy)?;
            head = Some(deferred);
            dy = dx;
        }

        let mut blocks = Vec::with_capacity(saved.blocks.len());
        let weights = w[self.blocks()].as_chunks().0.iter();
        let of_blocks = self.cut.blocks.clone().zip(weights.zip(saved.blocks));
        for (block, (w, saved)) in of_blocks.rev() {
            let (dx, deferred) = block::backward_input(&pass, block, w, saved, dy)?;
            blocks.push(deferred);
            dy = dx;
        }

        match saved.embedding {
            None => Ok((Some(dy), BertDeferred { head, blocks, embedding: None })),
            Some(saved) => {
                let embedding = embedding::backward_input(&pass, self.embedding(w), saved, dy)?;
                Ok((None, BertDeferred { head, blocks, embedding: Some(embedding) }))
            }
        }
    }

    fn backward_weight(
        &self,
        micro: &Micro<'_>,
        deferred: BertDeferred<D::Tensor>,
        into: &mut [D::Tensor],
    ) -> Result<()> {
        let (device, end) = (&self.device, self.blocks().end);
        if let Some(deferred) = deferred.head {
            let tensors = into[end..].first_chunk_mut().expect("tensors of the heads");
            let linear = head::backward_weight(device, deferred, tensors)?;
            let places = [self.decoder, end + head::TENSORS - 1];
            let [decoder, bias] = into.get_disjoint_mut(places).expect("two tensors");
            linear.add(device, Layout::OutIn, decoder, Some(bias))?;
        }
        let blocks = into[self.blocks()].as_chunks_mut().0;
        for (into, deferred) in blocks.iter_mut().rev().zip(deferred.blocks) {
            block::backward_weight(device, deferred, into)?;
        }
        if let Some(deferred) = deferred.embedding {
            let tensors = into.first_chunk_mut().expect("tensors of the embedding");
            embedding::backward_weight(device, self.form, micro, deferred, &self.params, tensors)?;
        }
        Ok(())
    }

    fn operands(&self, deferred: &BertDeferred<D::Tensor>) -> Vec<[D::Tensor; 2]> {
        deferred.blocks.iter().rev().flat_map(Deferred::operands).collect()
    }

    fn selective(&self) -> Option<&DynSelective<'_, Self>> {
        Some(self)
    }

    fn splittable(&self) -> Option<&DynSplittable<'_, Self>> {
        Some(self)
    }

    fn movable(&self) -> Option<&DynMovable<'_, Self>> {
        Some(self)
    }

    fn sizes(&self) -> Option<&DynSizes<'_, Self>> {
        Some(self)
    }
}
