//! Which replica owns which tensor of a bucket.

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

#[cfg(test)]
mod tests {
    use super::shared_out;

    #[test]
    fn owners_share_the_load() {
        assert_eq!(shared_out(&[10, 3, 3, 3, 2], 2), [0, 1, 1, 1, 1]);
        assert_eq!(shared_out(&[2, 3, 9, 3, 4], 2), [0, 1, 0, 1, 1]);
        assert_eq!(shared_out(&[5, 5], 1), [0, 0]);
        assert!(shared_out(&[], 3).is_empty());
    }
}
