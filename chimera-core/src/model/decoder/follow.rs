//! Going through a text token by token: what attention needs of the tokens before is kept, not computed again.

use super::{DecoderStage, Pass};
use crate::device::Result;
use crate::layers::Layers;
use crate::model::cache::KvCache;
use crate::model::config::{Cut, ModelConfig};
use crate::model::error::ModelError;
use crate::model::rope::RopeScaling;

/// The model without its head, for texts of at most `context` tokens that it [goes through](DecoderStage::follow) in
/// steps. `None` if it cannot: it is no decoder, or the frequencies of its rotary positions follow from the length of
/// the text, which changes all that came before.
///
/// # Errors
/// If there is no such model.
pub fn decoder<D: Layers>(
    device: D,
    config: &ModelConfig,
    context: usize,
) -> std::result::Result<Option<DecoderStage<D>>, ModelError> {
    let Some(form) = config.architecture.0.decoder(config) else { return Ok(None) };
    match form.rotary {
        Some((_, RopeScaling::Dynamic { original, .. })) if context as f64 > original => Ok(None),
        _ => DecoderStage::new(device, config, context, Cut::body(config)).map(Some),
    }
}

impl<D: Layers> DecoderStage<D> {
    /// What the blocks make of `ids`, which follow the tokens that `cache` has seen: `[ids.len(), hidden]`. `w` holds
    /// the tensors of the stage, and the cache has seen `ids` too afterwards. Nothing is dropped.
    ///
    /// # Panics
    /// If the stage has no embedding, or if the text is longer than its samples then.
    pub fn follow(
        &self,
        w: &[D::Tensor],
        ids: &[u32],
        cache: &mut KvCache<D::Tensor>,
    ) -> Result<D::Tensor> {
        assert!(self.cut.first, "tokens enter at the first stage");
        let device = &self.device;
        let rows = |table| device.rows(table, cache.len(), ids.len());
        let rotary = self.rotary.as_ref().map(rows).transpose()?;
        let mut x = match rotary {
            None => device.embedding(ids, ids.len(), &w[0], &rows(&w[1])?)?,
            Some(_) => self.embedded(w, ids, &self.whole())?,
        };
        let pass = Pass::following(device, self.attention, cache);
        let blocks = self.blocks_of(pass, rotary.as_ref());
        for (block, w) in self.cut.blocks.clone().zip(self.weights(w)) {
            x = blocks.forward(block, w, x)?.0;
        }
        cache.advance(ids.len());
        Ok(x)
    }
}
