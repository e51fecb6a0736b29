//! The work of a stage that continues texts.

use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use chimera_core::device::DeviceError;
use chimera_core::ids::StageId;
use chimera_core::layers::Layers;
use chimera_core::model::{DecoderStage, KvCache, decoder};
use chimera_core::stage::{Micro, Output};
use rand_chacha::ChaCha8Rng;

use super::draws::{OVERFLOWS, draws_of, next_id};
use super::piece::Piece;
use super::sampling::Sampling;
use super::staged::{Forward, ForwardStage, Parts, Staged};

/// A text that is being continued, as every rank knows it.
pub(super) struct GrownText {
    pub(super) ids: Vec<u32>,
    pub(super) goes_on: bool,
}

/// The tokens of a step, each with the index of its text.
pub(super) type DrawnTokens = Vec<(u32, u32)>;

/// The work of a stage that keeps the keys and values of its texts from step to step. The last one draws tokens.
pub(super) struct Decoded<'a, 'd, K: Layers> {
    model: &'a Staged<'d>,
    how: &'a Sampling,
    /// The most tokens that the next one follows from.
    window: usize,
    /// The stage for new tokens, if the model can keep keys and values.
    following: Option<DecoderStage<K>>,
    texts: Arc<Mutex<Vec<GrownText>>>,
    tokens: Arc<Mutex<DrawnTokens>>,
    /// By text.
    kept: Mutex<Vec<TextState<K::Tensor>>>,
}

/// The keys, values and draws that a stage keeps of a text.
struct TextState<T> {
    cache: KvCache<T>,
    rng: ChaCha8Rng,
}

/// The new tokens of a text that a stage computes: those that its cache lacks, or, beyond the window, all
/// of the window.
struct New {
    place: usize,
    ids: Vec<u32>,
    is_within: bool,
}

impl<'a, 'd, K: Layers> Decoded<'a, 'd, K> {
    /// Makes a stage. It reads the `texts` of its rank, and adds to the `tokens`.
    pub(super) fn new(
        (model, how, window): (&'a Staged<'d>, &'a Sampling, usize),
        kernels: K,
        stage: StageId,
        (texts, tokens): (&Arc<Mutex<Vec<GrownText>>>, &Arc<Mutex<DrawnTokens>>),
    ) -> Result<ForwardStage<K, Self>> {
        let parts = model.parts(kernels.clone(), stage)?;
        let following = decoder(kernels, model.config, window, parts.body.cut.clone())?;
        let kept = |place| TextState { cache: KvCache::new(), rng: draws_of(how.seed, place) };
        let kept = Mutex::new((0..locked(texts).len()).map(kept).collect());
        let (texts, tokens) = (Arc::clone(texts), Arc::clone(tokens));
        let work = Decoded { model, how, window, following, texts, tokens, kept };
        Ok(ForwardStage { parts, work })
    }

    /// Returns what is new of the texts of a group, those within the window first.
    fn new_of(&self, group: u64, kept: &[TextState<K::Tensor>]) -> Vec<New> {
        let texts = locked(&self.texts);
        let window = self.window;
        let n_groups = self.model.n_per_step() as usize;
        let of_group = texts.iter().enumerate().skip(group as usize).step_by(n_groups);
        let mut new: Vec<New> = of_group
            .filter(|(_, text)| text.goes_on)
            .map(|(place, GrownText { ids, .. })| {
                let is_within = self.following.is_some() && ids.len() <= window;
                let from = if is_within {
                    kept[place].cache.len()
                } else {
                    ids.len().saturating_sub(window)
                };
                New { place, ids: ids[from..].to_vec(), is_within }
            })
            .collect();
        new.sort_by_key(|new| !new.is_within);
        new
    }

    /// Runs the body on new tokens. Returns one row for each.
    fn rows(
        &self,
        body: &Piece<K>,
        w: &[K::Tensor],
        new: &[New],
        x: Option<K::Tensor>,
        kept: &mut [TextState<K::Tensor>],
    ) -> Result<K::Tensor, DeviceError> {
        let kernels = &body.kernels;
        let mut done = 0;
        let mut next = |n: usize| {
            done += n;
            x.as_ref().map(|x| kernels.rows(x, done - n, n)).transpose()
        };
        let mut rows = Vec::new();
        let within: Vec<&New> = new.iter().filter(|new| new.is_within).collect();
        if let Some(following) = self.following.as_ref().filter(|_| !within.is_empty()) {
            let ids: Vec<&[u32]> = within.iter().map(|new| new.ids.as_slice()).collect();
            let x = next(ids.iter().map(|ids| ids.len()).sum())?;
            let caches = within.iter().map(|new| take(&mut kept[new.place].cache)).collect();
            let (y, caches) = following.follow(w, &ids, x, caches)?;
            for (new, cache) in within.iter().zip(caches) {
                kept[new.place].cache = cache;
            }
            rows.push(y);
        }
        for New { ids, .. } in new.iter().filter(|new| !new.is_within) {
            rows.push(body.rows(w, ids, next(ids.len())?)?);
        }
        kernels.join(&rows.iter().collect::<Vec<_>>())
    }

    /// Draws the next token of each text from the rows of its new tokens.
    fn draw(
        &self,
        (head, w): (&Piece<K>, &[K::Tensor]),
        new: &[New],
        rows: &K::Tensor,
        kept: &mut [TextState<K::Tensor>],
    ) -> Result<(), DeviceError> {
        let logits = head.last_logits(w, rows, new.iter().map(|new| new.ids.len()))?;
        let by_text = logits.chunks_exact(self.model.config.vocab);
        for (New { place, .. }, logits) in new.iter().zip(by_text) {
            let id = next_id(logits, self.how, &mut kept[*place].rng);
            let id = id.ok_or_else(|| head.failed(OVERFLOWS.into()))?;
            locked(&self.tokens).push((*place as u32, id));
        }
        Ok(())
    }
}

impl<K: Layers> Forward<K> for Decoded<'_, '_, K> {
    const NEEDS_INPUTS: bool = false;

    fn forward(
        &self,
        parts: &Parts<K>,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<Output<K::Tensor>, DeviceError> {
        let mut kept = locked(&self.kept);
        let new = self.new_of(micro.sample, &kept);
        if new.is_empty() {
            // Nothing is left to say, but a message still goes to the next stage.
            return Ok(Output::Activation(parts.body.kernels.zeros(&[1, 1])?));
        }
        let rows = self.rows(&parts.body, parts.of_body(w), &new, x, &mut kept)?;
        if let Some(head) = &parts.head {
            self.draw((head, &parts.of_head(w)), &new, &rows, &mut kept)?;
        }
        Ok(Output::Activation(rows))
    }
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
