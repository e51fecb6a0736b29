//! What tells the data of a run from other data.

use std::io;

use super::Tokens;
use crate::formats::checkpoint::Digest;

/// Pieces of long data that are looked at, and the ids of each.
const N_PIECES: usize = 1024;
const PIECE: usize = 1024;

impl Digest {
    /// The digest of `tokens`. Of more than a million it hashes those of pieces that lie evenly from the first to the
    /// last, so data that is larger than memory takes no longer.
    ///
    /// # Errors
    /// If a file cannot be read any more, or now has an id that is none.
    pub fn of(tokens: &Tokens) -> io::Result<Digest> {
        let n = tokens.len();
        let start = |piece: usize| match n <= N_PIECES * PIECE {
            true => piece * PIECE,
            false => (piece as u128 * (n - PIECE) as u128 / (N_PIECES - 1) as u128) as usize,
        };
        let (mut hasher, mut ids) = (blake3::Hasher::new(), Vec::with_capacity(PIECE));
        for start in (0..n.div_ceil(PIECE).min(N_PIECES)).map(start) {
            ids.clear();
            tokens.extend(&mut ids, start..n.min(start + PIECE))?;
            ids.iter().for_each(|id| {
                hasher.update(&id.to_le_bytes());
            });
        }
        Ok(Digest { tokens: n as u64, blake3: hasher.finalize().to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(ids: &[u32]) -> Digest {
        Digest::of(&Tokens::of_ids(ids)).unwrap()
    }

    #[test]
    fn every_id_of_short_data_counts() {
        let ids: Vec<u32> = (0..5000).collect();
        for changed in [0, 1023, 1024, 2500, 4999] {
            let mut other = ids.clone();
            other[changed] += 1;
            assert_ne!(digest(&other), digest(&ids), "id {changed}");
        }
        assert_ne!(digest(&ids[..4999]), digest(&ids));
        assert_ne!(digest(&ids[1..]).blake3, digest(&ids[..4999]).blake3);
        assert_eq!(digest(&[]).tokens, 0);
    }

    #[test]
    fn long_data_is_looked_at_from_end_to_end() {
        let mut ids: Vec<u32> = (0..(N_PIECES * PIECE + 70_000) as u32).collect();
        let was = digest(&ids);
        *ids.last_mut().unwrap() = 7;
        assert_ne!(digest(&ids), was);
        ids.pop();
        assert_ne!(digest(&ids), was);
    }
}
