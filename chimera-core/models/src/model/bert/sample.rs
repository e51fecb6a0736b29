//! How the samples of a BERT lie in [`Micro`]: what the stages read of them.
//!
//! The input of a sample is its length, the start of its second segment, the positions of its predictions, and
//! as many ids as the sequence has, padding last. Its target is the id at each of these positions, and
//! whether the second segment is another text than what follows the first (1) or what follows it (0).
//! Every sample has as many predictions, so their mean over a batch is the mean over its samples.

use chimera_engine::stage::Micro;

/// The extents of every sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleShape {
    pub(super) sequence: usize,
    pub(super) predictions: usize,
}

/// Numbers before the positions: length and start of the second segment.
const COUNTS: usize = 2;

/// The input of a sample without padding: the second segment is from the middle on, and the first positions are
/// predicted.
pub(super) fn unpadded(tokens: &[u32], predictions: usize) -> Vec<u32> {
    let counts: [u32; COUNTS] = [tokens.len() as u32, tokens.len() as u32 / 2];
    [&counts[..], &(0..predictions as u32).collect::<Vec<_>>(), tokens].concat()
}

impl SampleShape {
    /// The ids of all rows.
    pub(super) fn ids(self, micro: &Micro<'_>) -> Vec<u32> {
        let ids = self.samples(micro).flat_map(|sample| &sample[COUNTS + self.predictions..]);
        ids.copied().collect()
    }

    /// How many rows of each sample are no padding.
    pub(super) fn lengths(self, micro: &Micro<'_>) -> Vec<u32> {
        self.samples(micro).map(|sample| sample[0]).collect()
    }

    /// `[rows, 2]`: a 1 in the column of the row's segment.
    pub(super) fn segments(self, micro: &Micro<'_>) -> Vec<f32> {
        let segments = self.samples(micro).flat_map(|sample| {
            let is_second = move |row| row >= sample[1] as usize && row < sample[0] as usize;
            (0..self.sequence).map(is_second)
        });
        segments.flat_map(|second| if second { [0.0, 1.0] } else { [1.0, 0.0] }).collect()
    }

    /// The rows that are predicted.
    pub(super) fn predicted(self, micro: &Micro<'_>) -> Vec<u32> {
        let rows = self.samples(micro).enumerate().flat_map(|(n, sample)| {
            let first = (n * self.sequence) as u32;
            sample[COUNTS..][..self.predictions].iter().map(move |row| first + row)
        });
        rows.collect()
    }

    /// The first row of every sample.
    pub(super) fn first_rows(self, micro: &Micro<'_>) -> Vec<u32> {
        (0..self.samples(micro).len()).map(|n| (n * self.sequence) as u32).collect()
    }

    /// The ids that are predicted, and the class of each sample's second segment.
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
