//! The random choices that turn a window of text into a BERT sample.

use std::io;

use chimera_core::model::ModelConfig;
use rand::seq::index;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::preparation::prepared::beside;
use super::special_tokens::{MARKS, Marks};
use super::tokenizer::Tokenizer;
use super::{Batch, DataError, Tokens};

/// Special tokens of a sample: one before the segments, and one after each.
const N_MARKS: usize = 3;
/// The shortest sample: two segments of one token each, even in a sample of half the length.
pub(super) const LEAST_SEQUENCE: usize = 8;
/// Fraction of the samples that are shorter.
const SHORT: f64 = 0.1;

/// Turns windows of text into samples.
#[derive(Clone, Debug)]
pub(super) struct Masking {
    pub(super) marks: Marks,
    /// Ids of the text are below this.
    pub(super) n_ids: usize,
    /// Number of all ids, including special ones.
    vocab: usize,
    /// Whether the tokenizer is known, so that the special ids are not a guess.
    is_known: bool,
    pub(super) sequence: usize,
    pub(super) predictions: usize,
}

impl Masking {
    /// Prepares samples of `sequence` tokens, from texts of `tokenizer`. If the tokenizer is
    /// unknown, the last ids of the model are the special ones.
    pub(super) fn new(
        model: &ModelConfig,
        sequence: usize,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Masking, DataError> {
        let vocab = model.vocab;
        let unknown = || Marks::after(vocab.saturating_sub(MARKS));
        let marks = tokenizer.map_or_else(unknown, Marks::of);
        let n_ids = tokenizer.map_or(marks.pad as usize, Tokenizer::vocab);
        let needed = marks.vocab(n_ids);
        if needed > vocab {
            return Err(DataError::Marks { vocab, needed });
        }
        if sequence < LEAST_SEQUENCE {
            return Err(DataError::Sequence { sequence, least: LEAST_SEQUENCE });
        }
        let (is_known, predictions) = (tokenizer.is_some(), model.predictions(sequence));
        Ok(Masking { marks, n_ids, vocab, is_known, sequence, predictions })
    }

    /// Refuses data without a known tokenizer for a model whose tokenizer has other special ids.
    pub(super) fn check_model(&self, own: &Tokenizer) -> Result<(), DataError> {
        match Marks::known(own).filter(|known| !self.is_known && *known != self.marks) {
            Some(known) => Err(DataError::OtherMarks { used: self.marks.all(), own: known.all() }),
            None => Ok(()),
        }
    }

    /// Refuses ids that are not text.
    pub(super) fn check(&self, tokens: &mut Tokens) -> Result<(), DataError> {
        let &Masking { n_ids, vocab, is_known, .. } = self;
        tokens.check(n_ids).map_err(|error| match error {
            DataError::Vocabulary { path, position, id, .. } if is_known => {
                let reason = format!(
                    "its tokenizer has {n_ids} ids, but token {position} of the data has id {id}: prepare the \
                     data again"
                );
                DataError::Prepared { path: beside(&path), reason }
            }
            DataError::Vocabulary { path, position, id, highest, .. } => {
                DataError::MarksVocabulary { path, position, id, vocab, highest }
            }
            other => other,
        })
    }

    /// Number of text tokens in a sample.
    pub(super) fn window(&self) -> usize {
        self.sequence - N_MARKS
    }

    /// Returns the random choices of one sample.
    pub(super) fn draw(&self, seed: u64, sample: u64) -> Draw<'_> {
        Draw::new(self, seed, sample)
    }
}

/// The random choices of one sample, in this order.
pub(super) struct Draw<'m> {
    masking: &'m Masking,
    rng: ChaCha8Rng,
}

impl<'m> Draw<'m> {
    pub(super) fn new(masking: &'m Masking, seed: u64, sample: u64) -> Draw<'m> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(sample);
        Draw { masking, rng }
    }

    /// Chooses the window of the second segment: with probability 1/2 `window` itself, otherwise
    /// any other of `n_windows`.
    pub(super) fn other(&mut self, window: u64, n_windows: u64) -> u64 {
        let further = self.rng.random_range(1..n_windows.max(2));
        if self.rng.random_bool(0.5) { window } else { (window + further) % n_windows.max(1) }
    }

    /// Appends a sample: the first segment from the window that begins at the first of `starts`,
    /// the second from the window at the other, which may be the same.
    pub(super) fn write(
        mut self,
        tokens: &Tokens,
        starts: [usize; 2],
        batch: &mut Batch,
    ) -> io::Result<()> {
        let window = self.masking.window();
        let mut text = Vec::with_capacity(2 * window);
        for start in starts {
            tokens.extend(&mut text, start..start + window)?;
        }
        let (text, other) = text.split_at(window);
        let Masking { marks, sequence, predictions, .. } = *self.masking;
        let rng = &mut self.rng;
        let len = if rng.random_bool(SHORT) {
            rng.random_range(text.len() / 2..=text.len())
        } else {
            text.len()
        };
        let first = rng.random_range(len / 4..=len - len / 4).clamp(1, len - 1);
        let mut ids = vec![marks.cls];
        ids.extend(&text[..first]);
        ids.push(marks.sep);
        ids.extend(&other[first..len]);
        ids.push(marks.sep);

        let mut places = index::sample(rng, len, predictions.min(len)).into_vec();
        places.sort_unstable();
        // One special token comes before the first segment, and two before the second.
        let places: Vec<usize> =
            places.into_iter().map(|i| if i < first { i + 1 } else { i + 2 }).collect();
        let hidden: Vec<u32> = places.iter().map(|place| ids[*place]).collect();
        for place in &places {
            ids[*place] = self.hide(ids[*place]);
        }

        batch.n_samples += 1;
        batch.input.extend([ids.len() as u32, first as u32 + 2]);
        batch.input.extend(places.iter().map(|place| *place as u32));
        batch.input.extend(&ids);
        batch.input.extend((ids.len()..sequence).map(|_| marks.pad));
        batch.target.extend(hidden);
        batch.target.push(u32::from(text != other));
        Ok(())
    }

    /// Returns the replacement of a token that is to be predicted: usually the mask, sometimes any
    /// token, and sometimes the token itself, because real texts have no masks.
    fn hide(&mut self, id: u32) -> u32 {
        match self.rng.random_range(0..10) {
            0..8 => self.masking.marks.mask,
            8 => self.any(),
            _ => id,
        }
    }

    /// Draws any id of the text.
    fn any(&mut self) -> u32 {
        let marks = self.masking.marks.all();
        let n_ids = self.masking.n_ids.max(1) as u32;
        let drawn = self.rng.random_range(0..n_ids);
        // Take the next id that is not special; there is one unless the text has no other.
        let after = (0..n_ids).map(|i| (drawn + i) % n_ids);
        after.take(marks.len() + 1).find(|id| !marks.contains(id)).unwrap_or(drawn)
    }
}
