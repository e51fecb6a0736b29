//! BERT samples: two segments of text, the second of which follows the first or is from elsewhere.
//! Some of their tokens are hidden (Devlin et al., 2018, sections 3.1 and A.2).
//!
//! A segment is any span of the text, not a sentence. All samples have the same number of
//! predictions, 15 % of their tokens. So the mean over the predictions of a batch is the mean over
//! its samples, however they are spread over workers. A tenth of the samples is shorter and ends in
//! padding, so that a model also learns from samples that are not full.

use std::io;
use std::path::PathBuf;

use chimera_core::model::ModelConfig;

use super::draw::Masking;
use super::tokenizer::Tokenizer;
use super::{Batch, DataError, Tokens, tokenizer_of};

/// A text that is only evaluated, all of it cut into samples.
#[derive(Debug)]
pub struct Pairs {
    tokens: Tokens,
    masking: Masking,
}

impl Pairs {
    /// Opens the data of `files` in order, for samples of `sequence` tokens.
    pub fn open(
        files: &[PathBuf],
        model: &ModelConfig,
        sequence: usize,
    ) -> Result<Pairs, DataError> {
        let mut tokens = Tokens::open(files)?;
        let masking = Masking::new(model, sequence, tokenizer_of(files)?.as_ref())?;
        masking.check(&mut tokens)?;
        let window = masking.window();
        if tokens.len() >= window {
            Ok(Pairs { tokens, masking })
        } else {
            Err(DataError::Pair { tokens: tokens.len(), window })
        }
    }

    /// Refuses data without a known tokenizer for a BERT whose tokenizer `own` has other special
    /// ids.
    ///
    /// # Errors
    /// [`DataError::OtherMarks`].
    pub fn check_model(&self, own: &Tokenizer) -> Result<(), DataError> {
        self.masking.check_model(own)
    }

    /// Number of samples, which are windows side by side.
    pub fn n_samples(&self) -> u64 {
        (self.tokens.len() / self.masking.window()) as u64
    }

    /// Number of masked tokens in a sample.
    pub fn n_masked(&self) -> usize {
        self.masking.predictions
    }

    /// Returns a batch of only sample number `sample`.
    pub fn sample(&self, seed: u64, sample: u64) -> io::Result<Batch> {
        let mut draw = self.masking.draw(seed, sample);
        let windows = [sample, draw.other(sample, self.n_samples())];
        let starts = windows.map(|window| window as usize * self.masking.window());
        let mut batch = Batch::default();
        draw.write(&self.tokens, starts, &mut batch)?;
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::model::{Architecture, Preset};

    use super::super::draw::LEAST_SEQUENCE;
    use super::super::special_tokens::Marks;
    use super::*;
    use crate::data::{Corpus, Tokens};

    const CONTEXT: usize = 40;
    const N_IDS: usize = 50_000;
    /// The ids that follow the last one of the text.
    const MARKS: Marks = Marks { pad: 50_000, cls: 50_001, sep: 50_002, mask: 50_003 };

    fn model() -> ModelConfig {
        let tiny = Preset::named("bert-tiny").unwrap().config.clone();
        ModelConfig { context: CONTEXT, vocab: N_IDS + 4, ..tiny }
    }

    /// A text in which every token is its own position.
    fn counting() -> Corpus {
        let ids: Vec<u32> = (0..N_IDS as u32).collect();
        let masking = Masking::new(&model(), CONTEXT, None).unwrap();
        let corpus = Corpus::from_tokens(Tokens::of_ids(&ids), masking.window()).unwrap();
        Corpus { masking: Some(masking), ..corpus }
    }

    /// The parts of a sample.
    struct Pair<'b> {
        length: usize,
        second: usize,
        places: &'b [u32],
        /// The ids, with the hidden ones restored.
        ids: Vec<u32>,
        seen: &'b [u32],
        is_strange: bool,
    }

    fn pairs(batch: &Batch) -> Vec<Pair<'_>> {
        let predictions = model().predictions(CONTEXT);
        let each = batch.samples().map(|(input, target)| {
            let (counts, rest) = input.split_at(2);
            let (places, seen) = rest.split_at(predictions);
            let mut ids = seen.to_vec();
            for (place, id) in places.iter().zip(target) {
                ids[*place as usize] = *id;
            }
            let is_strange = target[predictions] == 1;
            let (length, second) = (counts[0] as usize, counts[1] as usize);
            Pair { length, second, places, ids, seen, is_strange }
        });
        each.collect()
    }

    #[test]
    fn samples_are_two_segments_between_marks() {
        let batch = counting().batch(3, 0..1000).unwrap();
        let (mut short, mut strange) = (0, 0);
        for Pair { length, second, places, ids, seen, is_strange } in pairs(&batch) {
            assert_eq!((ids.len(), places.len()), (CONTEXT, 6));
            assert_eq!(
                (ids[0], ids[second - 1], ids[length - 1]),
                (MARKS.cls, MARKS.sep, MARKS.sep)
            );
            assert!(seen[length..].iter().all(|id| *id == MARKS.pad));
            let (a, b) = (&ids[1..second - 1], &ids[second..length - 1]);
            assert!(!a.is_empty() && !b.is_empty());
            for segment in [a, b] {
                assert!(segment.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{segment:?}");
            }
            assert_eq!(a[a.len() - 1] + 1 != b[0], is_strange);
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            short += usize::from(length < CONTEXT);
            strange += usize::from(is_strange);
        }
        assert!((60..140).contains(&short), "{short} of 1000 are short");
        assert!((440..560).contains(&strange), "{strange} of 1000 are strange");
    }

    #[test]
    fn four_of_five_hidden_tokens_are_masks_and_one_of_ten_is_itself() {
        let batch = counting().batch(3, 0..2000).unwrap();
        let [mut masks, mut same, mut others] = [0; 3];
        for Pair { places, ids, seen, .. } in pairs(&batch) {
            for (place, (is, was)) in seen.iter().zip(&ids).enumerate() {
                if places.contains(&(place as u32)) {
                    if *is == MARKS.mask {
                        masks += 1
                    } else if is == was {
                        same += 1
                    } else {
                        others += 1
                    }
                } else {
                    assert_eq!(is, was)
                }
                assert!(is == was || *is == MARKS.mask || (*is as usize) < N_IDS);
            }
        }
        assert_eq!(masks + same + others, 12_000);
        for (count, expected) in [(masks, 9600), (same, 1200), (others, 1200)] {
            assert!((count as i64 - expected).abs() < 180, "{masks} {same} {others}");
        }
    }

    #[test]
    fn a_sample_depends_on_seed_and_number_alone() {
        let corpus = counting();
        let batch = |seed, samples| corpus.batch(seed, samples).unwrap();
        let whole = batch(1, 20..32);
        let parts = [batch(1, 20..25), batch(1, 25..26), batch(1, 26..32)];
        assert_eq!(whole.input, parts.clone().map(|part| part.input).concat());
        assert_eq!(whole.target, parts.map(|part| part.target).concat());
        assert_ne!(whole, batch(2, 20..32));
        // The next epoch hides other tokens.
        let n = corpus.datasets[0].n_samples();
        assert_ne!(batch(1, 0..n).target, batch(1, n..2 * n).target);
    }

    #[test]
    fn validation_is_of_the_last_tenth() {
        let corpus = counting();
        let batch = corpus.validation(10).unwrap();
        assert_eq!(batch.n_samples, 10);
        for pair in pairs(&batch) {
            let text = pair.ids.iter().filter(|id| !MARKS.all().contains(id));
            assert!(text.into_iter().all(|id| *id as usize >= corpus.n_train()));
        }
        assert_eq!(batch, corpus.validation(10).unwrap());
    }

    #[test]
    fn a_model_without_room_is_refused() {
        let model = Preset::named("bert-tiny").unwrap().config.clone();
        let refusal = |model| {
            Masking::new(&model, model.context, Some(&Tokenizer::Bytes)).unwrap_err().to_string()
        };
        assert_eq!(
            refusal(ModelConfig { vocab: 259, ..model.clone() }),
            "the vocabulary has 259 ids, but a BERT needs 260: those of the text, and [PAD], [CLS], [SEP] and \
             [MASK]: choose vocab 260 or more"
        );
        assert_eq!(
            refusal(ModelConfig { context: 7, ..model.clone() }),
            "a BERT's samples are two segments and three marks: choose sequence 8 or more, not 7"
        );
        assert_eq!(model.architecture, Architecture::BERT);
    }

    #[test]
    fn the_least_context_has_room() {
        let corpus = |context| {
            let masking = Masking::new(&model(), context, None).unwrap();
            let ids: Vec<u32> = (0..300).collect();
            let corpus = Corpus::from_tokens(Tokens::of_ids(&ids), masking.window()).unwrap();
            Corpus { masking: Some(masking), ..corpus }
        };
        for context in LEAST_SEQUENCE..30 {
            let predictions = model().predictions(context);
            let batch = corpus(context).batch(1, 0..300).unwrap();
            assert_eq!(batch.input.len(), 300 * (2 + predictions + context));
            assert_eq!(batch.target.len(), 300 * (predictions + 1));
        }
    }
}
