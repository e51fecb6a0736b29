//! Processing texts token by token, with a KV cache instead of recomputing earlier tokens.

use chimera_engine::device::Result;
use chimera_engine::layers::Layers;

use super::{DecoderStage, Pass};
use crate::model::block::cache::{KvCache, Texts};
use crate::model::config::{Cut, ModelConfig};
use crate::model::error::ModelError;
use crate::model::rope::RopeScaling;

/// Returns a stage of the model without its head, for texts of at most `context` tokens that it
/// [processes](DecoderStage::follow) in steps. Returns `None` if it cannot: it is not a decoder, or
/// the frequencies of its rotary positions depend on the length of the text, which changes all
/// earlier results.
///
/// # Errors
/// If there is no such model.
pub fn decoder<D: Layers>(
    device: D,
    config: &ModelConfig,
    context: usize,
    cut: Cut,
) -> std::result::Result<Option<DecoderStage<D>>, ModelError> {
    let Some(form) = config.architecture.0.decoder(config) else { return Ok(None) };
    match form.rotary {
        Some((_, RopeScaling::Dynamic { original, .. })) if context as f64 > original => Ok(None),
        _ => DecoderStage::new(device, config, context, cut).map(Some),
    }
}

impl<D: Layers> DecoderStage<D> {
    /// Runs the blocks on `ids`, the new tokens of each text, which follow those that its cache has
    /// seen. Returns one row for each, `[all new tokens, hidden]`, and the caches, which have then
    /// seen them too. `x` is the previous stage's output for them, and `None` at the first. `w`
    /// holds the tensors of the stage. Nothing is dropped.
    ///
    /// # Panics
    /// If there are not as many caches as texts, if `x` is given at the first stage or missing at
    /// another, or if a text is then longer than its samples.
    pub fn follow(
        &self,
        w: &[D::Tensor],
        ids: &[&[u32]],
        x: Option<D::Tensor>,
        caches: Vec<KvCache<D::Tensor>>,
    ) -> Result<(D::Tensor, Vec<KvCache<D::Tensor>>)> {
        assert_eq!(ids.len(), caches.len(), "each text has a cache");
        assert_eq!(x.is_none(), self.cut.first, "only the first stage has no x");
        let device = &self.device;
        let rows: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        let places = |table: &D::Tensor| {
            let places = caches.iter().zip(&rows);
            let parts = places.map(|(cache, &n)| device.rows(table, cache.len(), n));
            let parts = parts.collect::<Result<Vec<_>>>()?;
            device.join(&parts.iter().collect::<Vec<_>>())
        };
        let rotary = self.rotary.as_ref().map(places).transpose()?;
        let mut x = match (x, &rotary) {
            (Some(x), _) => x,
            (None, None) => {
                let ids = ids.concat();
                device.embedding(&ids, ids.len(), &w[0], &places(&w[1])?)?
            }
            (None, Some(_)) => self.embedded(w, &ids.concat(), &self.whole())?,
        };
        let pass = Pass::following(device, self.attention, Texts { rows, caches });
        let blocks = self.blocks_of(pass, rotary.as_ref());
        for (block, w) in self.cut.blocks.clone().zip(self.weights(w)) {
            x = blocks.forward(block, w, x)?.0;
        }
        Ok((x, blocks.pass.into_caches()))
    }
}
