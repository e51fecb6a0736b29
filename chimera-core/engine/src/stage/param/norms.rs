//! Initial values that are norms of another parameter's weights.

use std::ops::Range;

use super::Param;

/// The Euclidean norms of some outputs' weights in the matrix of a linear layer, as the matrix is
/// held: if it is packed, those of the values that it stands for.
#[derive(Clone, PartialEq, Debug)]
pub struct OutputNorms {
    /// The matrix, which must be [shown](Param::shown) as that of a linear layer.
    pub matrix: Param,
    /// The outputs, of which there is one value each.
    pub outputs: Range<usize>,
    /// Whether values are squares of norms.
    pub is_squared: bool,
}

impl OutputNorms {
    /// Returns the values for these weights of the matrix, row-major.
    pub fn of(&self, weights: Vec<f32>) -> Vec<f32> {
        let weights = self.matrix.held_values(weights);
        let (n_inputs, n_outputs) = self.matrix.features().unwrap_or_default();
        let is_inputs_first = self.matrix.shown.as_ref().is_some_and(|layer| layer.inputs_first);
        let square = |output: usize| -> f64 {
            let places = (0..n_inputs).map(|input| {
                if is_inputs_first { input * n_outputs + output } else { output * n_inputs + input }
            });
            places.map(|place| f64::from(weights[place]).powi(2)).sum()
        };
        let squares = self.outputs.clone().map(square);
        squares.map(|square| if self.is_squared { square } else { square.sqrt() } as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Init, LinearLayer};
    use super::*;
    use crate::device::WeightFormat;

    #[test]
    fn norms_are_of_the_outputs_in_either_layout() {
        let values = vec![3.0, 4.0, 6.0, 8.0, 0.0, 1.0];
        for (shape, inputs_first, squares) in
            [([3, 2], false, [100.0, 1.0]), ([2, 3], true, [16.0, 37.0])]
        {
            let layer = LinearLayer { bias: None, inputs_first };
            let matrix = Param::new("w", shape, Init::Zeros).shown(layer);
            let norms = OutputNorms { matrix, outputs: 1..3, is_squared: true };
            assert_eq!(norms.of(values.clone()), squares);
            let roots = OutputNorms { is_squared: false, ..norms }.of(values.clone());
            assert_eq!(roots, squares.map(f32::sqrt));
        }
    }

    #[test]
    fn norms_of_packed_weights_are_of_what_they_stand_for() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
        let layer = LinearLayer { bias: None, inputs_first: false };
        let plain = Param { frozen: true, ..Param::new("w", [2, 32], Init::Zeros).shown(layer) };
        let packed = plain.clone().packed(WeightFormat::Nf4, vec![2]);
        let held = packed.held_values(values.clone());
        assert_ne!(held, values);
        let norms = |matrix| OutputNorms { matrix, outputs: 0..2, is_squared: false };
        assert_eq!(norms(packed).of(values), norms(plain).of(held));
    }
}
