//! A check of a device's matrix products: `c = a b` if `c v = a (b v)` for a random vector
//! (Freivalds, 1977). The host needs only the time of reading the matrices. Integers keep all sums
//! exact, so one wrong element shows.

use chimera_core::device::Result;
use chimera_core::layers::Layers;

/// A matrix of small integers.
pub(crate) struct Integers {
    rows: usize,
    columns: usize,
    elements: Vec<f32>,
}

impl Integers {
    /// Returns integers up to 8 of either sign: sums of 2^17 products of two are exact in f32.
    pub(crate) fn some(rows: usize, columns: usize, seed: u64) -> Integers {
        let elements = (0..rows * columns).map(|i| (random(i, seed) % 17) as f32 - 8.0).collect();
        Integers { rows, columns, elements }
    }

    pub(crate) fn upload<K: Layers>(&self, k: &K) -> Result<K::Tensor> {
        k.upload(&[self.rows, self.columns], &self.elements)
    }

    /// Multiplies the matrix by a vector.
    pub(crate) fn times(&self, v: &[i64]) -> Vec<i64> {
        let row = |row: &[f32]| row.iter().zip(v).map(|(x, v)| *x as i64 * v).sum();
        self.elements.chunks(self.columns).map(row).collect()
    }

    /// Multiplies the transposed matrix by a vector.
    pub(crate) fn across_times(&self, v: &[i64]) -> Vec<i64> {
        let mut sums = vec![0; self.columns];
        for (row, v) in self.elements.chunks(self.columns).zip(v) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x as i64 * v);
        }
        sums
    }
}

/// Returns true if `product`, of this many columns, is the matrix that `times` multiplies by.
pub(crate) fn checked<K: Layers>(
    k: &K,
    product: &K::Tensor,
    columns: usize,
    times: impl Fn(&[i64]) -> Vec<i64>,
) -> Result<bool> {
    let elements = k.download(product)?;
    let v: Vec<i64> = (0..columns).map(|i| (random(i, 0) >> 44) as i64).collect();
    let is_exact = elements.iter().all(|x| x.fract() == 0.0 && x.abs() <= (1 << 24) as f32);
    let product = Integers { rows: elements.len() / columns, columns, elements };
    Ok(is_exact && product.times(&v) == times(&v))
}

/// Returns number `i` of a sequence (Steele et al., 2014, SplitMix).
fn random(i: usize, seed: u64) -> u64 {
    let mut z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed << 32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use chimera_core::device::Device;
    use chimera_core::device::reference::Reference;
    use chimera_core::layers::{Layout, Linear};

    use super::{Integers, checked};

    #[test]
    fn one_wrong_element_shows() {
        let k = Reference;
        let (a, b) = (Integers::some(5, 7, 1), Integers::some(7, 4, 2));
        let c = k.linear(&a.upload(&k).unwrap(), &b.upload(&k).unwrap(), Layout::InOut, None, None);
        let right = k.download(&c.unwrap()).unwrap();
        let is_right = |c: &[f32]| {
            checked(&k, &k.upload(&[5, 4], c).unwrap(), 4, |v| a.times(&b.times(v))).unwrap()
        };
        assert!(is_right(&right));
        for (at, wrong) in (0..20).flat_map(|at| [1.0, 0.5, f32::NAN].map(|by| (at, by))) {
            let mut c = right.clone();
            c[at] += wrong;
            assert!(!is_right(&c), "{at} is off by {wrong}");
        }
    }
}
