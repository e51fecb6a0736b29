//! The digest that distinguishes the data of a run from other data.

use std::io;

use chimera_formats::checkpoint::Digest;

use super::Tokens;

/// Number of pieces of long data that are hashed. Each has `PIECE` ids.
const N_PIECES: usize = 1024;
const PIECE: usize = 1024;

/// Combines the digests of datasets, in order.
///
/// # Errors
/// See [`digest_of`].
pub(super) fn digest_of_all<'t>(
    datasets: impl IntoIterator<Item = &'t Tokens>,
) -> io::Result<Digest> {
    let mut each = datasets.into_iter().map(digest_of).collect::<io::Result<Vec<Digest>>>()?;
    if each.len() == 1 {
        return Ok(each.remove(0));
    }
    let (mut ids, mut targets) = (blake3::Hasher::new(), blake3::Hasher::new());
    for Digest { tokens, blake3, targets: of_one } in &each {
        ids.update(&tokens.to_le_bytes()).update(blake3.as_bytes());
        targets.update(&[0]).update(of_one.as_deref().unwrap_or_default().as_bytes());
    }
    let has_targets = each.iter().any(|digest| digest.targets.is_some());
    Ok(Digest {
        tokens: each.iter().map(|digest| digest.tokens).sum(),
        blake3: ids.finalize().to_string(),
        targets: has_targets.then(|| targets.finalize().to_string()),
    })
}

/// Hashes `tokens`, and which of them are targets. Of more than a million it only hashes
/// pieces, evenly spread from the first to the last, so data larger than memory takes no
/// longer.
///
/// # Errors
/// If a file can no longer be read, or now has an invalid id.
fn digest_of(tokens: &Tokens) -> io::Result<Digest> {
    let n = tokens.len();
    let start = |piece: usize| {
        if n <= N_PIECES * PIECE {
            piece * PIECE
        } else {
            (piece as u128 * (n - PIECE) as u128 / (N_PIECES - 1) as u128) as usize
        }
    };
    let (mut hasher, mut ids) = (blake3::Hasher::new(), Vec::with_capacity(PIECE));
    for start in (0..n.div_ceil(PIECE).min(N_PIECES)).map(start) {
        ids.clear();
        tokens.extend(&mut ids, start..n.min(start + PIECE))?;
        ids.iter().for_each(|id| {
            hasher.update(&id.to_le_bytes());
        });
    }
    let targets = tokens.are_targets().map(digest_of).transpose()?;
    let targets = targets.map(|digest| digest.blake3);
    Ok(Digest { tokens: n as u64, blake3: hasher.finalize().to_string(), targets })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(ids: &[u32]) -> Digest {
        digest_of(&Tokens::of_ids(ids)).unwrap()
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
    fn datasets_count_by_their_place_and_their_ends() {
        let of = |datasets: &[&[u32]]| {
            let tokens: Vec<Tokens> = datasets.iter().map(|ids| Tokens::of_ids(ids)).collect();
            digest_of_all(&tokens).unwrap()
        };
        assert_eq!(of(&[&[1, 2, 3]]), digest(&[1, 2, 3]));
        let mixed = of(&[&[1, 2], &[3]]);
        assert_eq!((mixed.tokens, &mixed.targets), (3, &None));
        for other in [of(&[&[1, 2, 3]]), of(&[&[3], &[1, 2]]), of(&[&[1], &[2, 3]])] {
            assert_ne!(mixed.blake3, other.blake3);
        }
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
