//! Continuation of texts, token by token.

use anyhow::{Context, Result};
use chimera_core::layers::Layers;
use chimera_core::model::{DecoderStage, KvCache, decoder};
use rand_chacha::ChaCha8Rng;

use super::draws::{OVERFLOWS, draws_of, next_id};
use super::sampling::Sampling;
use super::{CausalLm, Weighted, check_prompt};

/// A text that is being continued.
struct GrowingText<T> {
    ids: Vec<u32>,
    rng: ChaCha8Rng,
    goes_on: bool,
    /// The keys and values that each stage keeps of it.
    caches: Vec<KvCache<T>>,
}

impl<T> GrowingText<T> {
    /// Returns the tokens that no stage has seen.
    fn new_ids(&self) -> &[u32] {
        &self.ids[self.caches.first().map_or(0, KvCache::len)..]
    }
}

impl<K: Layers> CausalLm<K> {
    /// Continues `prompt` by at most `count` tokens, the same for the same seed. `drawn` gets each
    /// token at once and returns whether the text goes on.
    ///
    /// Each token follows from at most a window of the tokens before it. As long as the text is
    /// within the window, keys and values are kept from one token to the next. Beyond it positions
    /// change with every token, and each token takes a forward pass over the window.
    ///
    /// # Errors
    /// If the prompt is empty, or has an id that the model does not know, or the model overflows.
    pub fn sample(
        &self,
        prompt: &[u32],
        count: usize,
        how: &Sampling,
        mut drawn: impl FnMut(u32) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        Ok(self.sample_all(&[prompt], count, how, |_, id| drawn(id))?.concat())
    }

    /// [Continues](CausalLm::sample) several prompts side by side: the weights are read once for the next token of all.
    /// The draws of a text follow from the seed and from its index among the prompts. `drawn` gets the index too.
    ///
    /// # Errors
    /// If a prompt is empty, or has an id that the model does not know, or the model overflows.
    pub fn sample_all(
        &self,
        prompts: &[&[u32]],
        count: usize,
        how: &Sampling,
        mut drawn: impl FnMut(usize, u32) -> Result<bool>,
    ) -> Result<Vec<Vec<u32>>> {
        let window = how.window_of(self.config.context);
        let stages = self.body.iter().map(|Weighted { piece, .. }| {
            decoder(piece.kernels.clone(), &self.config, window, piece.cut.clone())
        });
        let stages: Option<Vec<DecoderStage<K>>> = stages.collect::<Result<_, _>>()?;
        let mut texts = Vec::new();
        for (place, prompt) in prompts.iter().enumerate() {
            check_prompt(&self.config, prompt)?;
            let rng = draws_of(how.seed, place);
            let caches = self.body.iter().map(|_| KvCache::new()).collect();
            texts.push(GrowingText { ids: prompt.to_vec(), rng, goes_on: true, caches });
        }
        for _ in 0..count {
            for (place, logits) in self.next(stages.as_deref(), window, &mut texts)? {
                let text = &mut texts[place];
                let id = next_id(&logits, how, &mut text.rng).context(OVERFLOWS)?;
                text.ids.push(id);
                text.goes_on = drawn(place, id)?;
            }
            if texts.iter().all(|text| !text.goes_on) {
                break;
            }
        }
        Ok(texts.into_iter().map(|text| text.ids).collect())
    }

    /// Returns the logits for the next token of each text that goes on, with the index of the text.
    fn next(
        &self,
        stages: Option<&[DecoderStage<K>]>,
        window: usize,
        texts: &mut [GrowingText<K::Tensor>],
    ) -> Result<Vec<(usize, Vec<f32>)>> {
        let going = texts.iter_mut().enumerate().filter(|(_, text)| text.goes_on);
        let (mut kept, beyond): (Vec<_>, Vec<_>) =
            going.partition(|(_, text)| stages.is_some() && text.ids.len() <= window);
        let mut all = Vec::new();
        for (place, text) in beyond {
            let from = text.ids.len().saturating_sub(window);
            all.push((place, self.logits(&text.ids[from..], 1)?));
        }
        if let Some(stages) = stages.filter(|_| !kept.is_empty()) {
            let logits = self.follow(stages, &mut kept)?;
            let places = kept.iter().map(|(place, _)| *place);
            all.extend(places.zip(logits.chunks_exact(self.config.vocab).map(<[f32]>::to_vec)));
        }
        Ok(all)
    }

    /// Returns the logits after the last token of each text. The stages only process the new tokens.
    fn follow(
        &self,
        stages: &[DecoderStage<K>],
        texts: &mut [(usize, &mut GrowingText<K::Tensor>)],
    ) -> Result<Vec<f32>> {
        let new: Vec<Vec<u32>> = texts.iter().map(|(_, text)| text.new_ids().to_vec()).collect();
        let ids: Vec<&[u32]> = new.iter().map(Vec::as_slice).collect();
        let x = self.through(|nth, stage, x| {
            let caches = texts.iter_mut().map(|(_, text)| std::mem::take(&mut text.caches[nth]));
            let (y, caches) = stages[nth].follow(&stage.weights, &ids, x, caches.collect())?;
            for ((_, text), cache) in texts.iter_mut().zip(caches) {
                text.caches[nth] = cache;
            }
            Ok(y)
        })?;
        let Weighted { piece, weights } = &self.head;
        Ok(piece.last_logits(weights, &x, ids.iter().map(|ids| ids.len()))?)
    }
}
