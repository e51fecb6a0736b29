//! Which replica owns which tensor of a bucket, and which rows of it it adds up.

use std::ops::Range;

/// Bytes below which a slice is not worth a message of its own.
const LEAST_BYTES: usize = 4096;

/// Rows of a tensor, and the replica that adds up their gradients.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Slice {
    pub(crate) rows: Range<usize>,
    /// As an index into the replicas.
    pub(crate) owner: usize,
}

/// The owner of each tensor of these sizes, as an index into the replicas: largest first, each to the least
/// loaded.
pub(crate) fn shared_out(sizes: &[usize], n_members: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    let mut loads = vec![0; n_members];
    let mut owners = vec![0; sizes.len()];
    for i in by_size {
        let least = (0..n_members).min_by_key(|&m| loads[m]).unwrap_or(0);
        loads[least] += sizes[i];
        owners[i] = least;
    }
    owners
}

/// The slices of each of these tensors (rows, and bytes of one) if the replicas share them evenly: all tensors one
/// behind the other, the first replica has the first share of all bytes, up to the nearest place for a cut. Small
/// tensors stay whole.
pub(crate) fn slices(tensors: &[(usize, usize)], n_members: usize) -> Vec<Vec<Slice>> {
    let total: usize = tensors.iter().map(|(rows, width)| rows * width).sum();
    let (mut owner, mut before) = (0, 0);
    let of = |&(rows, width): &(usize, usize)| {
        let unit = LEAST_BYTES.div_ceil(width.max(1)).clamp(1, rows.max(1));
        let unit_bytes = unit * width.max(1);
        // The last unit has the rows that are over.
        let cut = |owner: usize| {
            let end = (total * (owner + 1) / n_members).saturating_sub(before);
            let units = (end + unit_bytes / 2) / unit_bytes;
            if units < rows / unit { units * unit } else { rows }
        };
        let (mut slices, mut start) = (Vec::new(), 0);
        loop {
            let end = cut(owner);
            if end > start || rows == 0 {
                slices.push(Slice { rows: start..end, owner });
            }
            if end == rows {
                break;
            }
            (start, owner) = (end, owner + 1);
        }
        before += rows * width;
        slices
    };
    tensors.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn owners_share_the_load() {
        assert_eq!(shared_out(&[10, 3, 3, 3, 2], 2), [0, 1, 1, 1, 1]);
        assert_eq!(shared_out(&[2, 3, 9, 3, 4], 2), [0, 1, 0, 1, 1]);
        assert_eq!(shared_out(&[5, 5], 1), [0, 0]);
        assert!(shared_out(&[], 3).is_empty());
    }

    fn of(slices: &[Slice]) -> Vec<(usize, Range<usize>)> {
        slices.iter().map(|slice| (slice.owner, slice.rows.clone())).collect()
    }

    #[test]
    fn slices_are_shares_in_order() {
        let halves = slices(&[(100, 4096), (300, 4096)], 2);
        assert_eq!(of(&halves[0]), [(0, 0..100)]);
        assert_eq!(of(&halves[1]), [(0, 0..100), (1, 100..300)]);
        // A unit has two rows here, and one more at the end; a bias lies where its middle does.
        let thirds = slices(&[(9, 3000), (700, 4), (8, 3000)], 3);
        assert_eq!(of(&thirds[0]), [(0, 0..6), (1, 6..9)]);
        assert_eq!(of(&thirds[1]), [(1, 0..700)]);
        assert_eq!(of(&thirds[2]), [(1, 0..2), (2, 2..8)]);
        assert_eq!(of(&slices(&[(1000, 4)], 128)[0]), [(63, 0..1000)]);
        assert_eq!(of(&slices(&[(0, 4), (0, 0)], 2)[1]), [(0, 0..0)]);
    }

    proptest! {
        #[test]
        fn slices_cover_all_rows_once_and_are_balanced(
            tensors in prop::collection::vec((1usize..5000, 1usize..9000), 1..6),
            n_members in 1usize..40,
        ) {
            let mut loads = vec![0; n_members];
            let mut owner = 0;
            for (slices, (rows, width)) in slices(&tensors, n_members).iter().zip(&tensors) {
                let mut start = 0;
                for slice in slices {
                    prop_assert!(slice.rows.start == start && slice.owner >= owner);
                    prop_assert!(slices.len() == 1 || slice.rows.len() * width >= LEAST_BYTES);
                    (start, owner) = (slice.rows.end, slice.owner);
                    loads[owner] += slice.rows.len() * width;
                }
                prop_assert_eq!(start, *rows);
            }
            let total: usize = loads.iter().sum();
            // A cut is off by no more than half a tensor that is hardly two slices, at either end.
            let off = 2 * LEAST_BYTES.max(9000);
            prop_assert!(loads.iter().all(|load| *load <= total / n_members + off), "{loads:?}");
        }
    }
}
