//! The layout of a BERT's samples in [`Micro`], and the parts that stages read.
//!
//! The input of a sample is its length, the start of its second segment, the positions of its
//! predictions, and the ids of the whole sequence, padding last. Its target is the id at each of
//! these positions, and 0 if the second segment follows the first, or 1 if it is another text.
//! Every sample has the same number of predictions, so their mean over a batch is the mean over its
//! samples.

use chimera_engine::stage::Micro;

/// The sizes of every sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleShape {
    pub(super) sequence: usize,
    pub(super) predictions: usize,
}

/// Numbers before the positions: the length, and the start of the second segment.
const COUNTS: usize = 2;

/// Returns an unpadded sample's input: two halves as segments, the first positions predicted.
pub(super) fn unpadded(tokens: &[u32], predictions: usize) -> Vec<u32> {
    let counts: [u32; COUNTS] = [tokens.len() as u32, tokens.len() as u32 / 2];
    [&counts[..], &(0..predictions as u32).collect::<Vec<_>>(), tokens].concat()
}

impl SampleShape {
    pub(super) fn ids(self, micro: &Micro<'_>) -> Vec<u32> {
        let ids = self.samples(micro).flat_map(|sample| &sample[COUNTS + self.predictions..]);
        ids.copied().collect()
    }

    /// Returns the number of rows of each sample that are not padding.
    pub(super) fn lengths(self, micro: &Micro<'_>) -> Vec<u32> {
        self.samples(micro).map(|sample| sample[0]).collect()
    }

    /// Returns `[rows, 2]`, with a 1 in the column of the row's segment.
    pub(super) fn segments(self, micro: &Micro<'_>) -> Vec<f32> {
        let segments = self.samples(micro).flat_map(|sample| {
            let is_second = move |row| row >= sample[1] as usize && row < sample[0] as usize;
            (0..self.sequence).map(is_second)
        });
        segments.flat_map(|second| if second { [0.0, 1.0] } else { [1.0, 0.0] }).collect()
    }

    /// Returns the rows that are predicted.
    pub(super) fn predicted(self, micro: &Micro<'_>) -> Vec<u32> {
        let rows = self.samples(micro).enumerate().flat_map(|(n, sample)| {
            let first = (n * self.sequence) as u32;
            sample[COUNTS..][..self.predictions].iter().map(move |row| first + row)
        });
        rows.collect()
    }

    pub(super) fn first_rows(self, micro: &Micro<'_>) -> Vec<u32> {
        (0..self.samples(micro).len()).map(|n| (n * self.sequence) as u32).collect()
    }

    /// Returns the ids that are predicted, and the class of each sample's second segment.
    pub(super) fn targets(self, micro: &Micro<'_>) -> (Vec<u32>, Vec<u32>) {
        let samples = micro.target.chunks_exact(self.predictions + 1);
        let (ids, next): (Vec<_>, Vec<_>) =
            samples.map(|sample| sample.split_at(self.predictions)).unzip();
        (ids.concat(), next.concat())
    }

    fn samples<'m>(self, micro: &Micro<'m>) -> std::slice::ChunksExact<'m, u32> {
        micro.input.chunks_exact(COUNTS + self.predictions + self.sequence)
    }
}
