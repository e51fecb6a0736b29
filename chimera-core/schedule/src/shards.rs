//! Shard assignment: the replica that owns each part of the gradients, by whole tensors or even
//! shares.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Shares are cut at multiples of this many elements: 4 KiB of f32. Below that the cost of a
/// message outweighs its bytes.
pub const UNIT: usize = 1024;

/// The owner of each tensor with these sizes, as an index into the replicas: largest first, each to
/// the least loaded.
pub fn assign_whole(sizes: &[usize], n_members: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|&i| Reverse(sizes[i]));
    // The first of several that are least loaded.
    let mut loads: BinaryHeap<_> = (0..n_members).map(|member| Reverse((0, member))).collect();
    let mut owners = vec![0; sizes.len()];
    for i in by_size {
        if let Some(mut least) = loads.peek_mut() {
            let Reverse((load, member)) = &mut *least;
            *load += sizes[i];
            owners[i] = *member;
        }
    }
    owners
}

/// Cuts `n` into `n_shares` even shares that end at multiples of `unit`. The last share may be
/// smaller, or empty.
pub fn even_shares(n: usize, n_shares: usize, unit: usize) -> Vec<Range<usize>> {
    let cut = |share: usize| {
        let exact = (n as u128 * share as u128).div_ceil(n_shares as u128) as usize;
        exact.next_multiple_of(unit).min(n)
    };
    (0..n_shares).map(|share| cut(share)..cut(share + 1)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn owners_share_the_load() {
        assert_eq!(assign_whole(&[10, 3, 3, 3, 2], 2), [0, 1, 1, 1, 1]);
        assert_eq!(assign_whole(&[2, 3, 9, 3, 4], 2), [0, 1, 0, 1, 1]);
        assert_eq!(assign_whole(&[5, 5], 1), [0, 0]);
        assert!(assign_whole(&[], 3).is_empty());
    }

    #[test]
    fn shares_are_cut_at_units() {
        assert_eq!(even_shares(4000, 2, 10), [0..2000, 2000..4000]);
        assert_eq!(even_shares(16, 3, 10), [0..10, 10..16, 16..16]);
        assert_eq!(even_shares(5, 2, 10), [0..5, 5..5]);
        assert_eq!(even_shares(0, 2, 10), [0..0, 0..0]);
    }

    proptest! {
        /// Every tensor goes to the first of those that own least so far, as a search of all
        /// members finds it.
        #[test]
        fn each_tensor_goes_to_the_least_loaded(
            mut sizes in prop::collection::vec(0usize..20, 0..60),
            n_members in 1usize..40,
        ) {
            sizes.sort_unstable_by_key(|size| Reverse(*size));
            let mut loads = vec![0; n_members];
            for (size, owner) in sizes.iter().zip(assign_whole(&sizes, n_members)) {
                let least = (0..n_members).min_by_key(|&member| loads[member]);
                prop_assert_eq!(Some(owner), least);
                loads[owner] += size;
            }
        }

        #[test]
        fn shares_cover_all_elements_once_and_are_even(
            n in 0usize..5_000_000,
            n_shares in 1usize..1100,
        ) {
            let shares = even_shares(n, n_shares, UNIT);
            let mut start = 0;
            for share in &shares {
                prop_assert_eq!(share.start, start);
                start = share.end;
                prop_assert!(share.len() <= n / n_shares + 2 * UNIT, "{share:?}");
            }
            prop_assert_eq!((start, shares.len()), (n, n_shares));
        }
    }
}
