//! The parameters of a stage, and their initial values.

mod norms;
mod packing;

use std::collections::BTreeMap;
use std::sync::Arc;

use chimera_schedule::ids::StageId;
pub use norms::OutputNorms;

/// Initial values of a tensor, drawn from (seed, name) only.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Init {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// Uniform between minus this bound and this bound.
    Uniform(f64),
    /// Given values, row-major, one per element.
    Values(Arc<[f32]>),
    /// Norms of another parameter's initial weights.
    Norms(Box<OutputNorms>),
}

/// A linear layer `y = x W + bias` that a stage shows the [operands](super::Stage::operands) of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearLayer {
    /// Name of the bias, if there is one.
    pub bias: Option<String>,
    /// Whether the matrix has shape `[inputs, outputs]` instead of `[outputs, inputs]`.
    pub inputs_first: bool,
}

/// Returns why these names of parameters cannot key checkpoints, or `None` if they can. Each name
/// must belong to one stage; [tied](Param::tied) parameters are to be left out.
pub fn name_conflict<'n>(names: impl IntoIterator<Item = (StageId, &'n str)>) -> Option<String> {
    let mut known = BTreeMap::new();
    names.into_iter().find_map(|(stage, name)| {
        if name.is_empty() {
            return Some(format!(
                "a parameter of {stage} has no name, and checkpoints know parameters by their names: give it one, such as \
                 `{}.weight`",
                stage.0
            ));
        }
        let other = known.insert(name, stage)?;
        if other == stage {
            return Some(format!(
                "two parameters of {stage} are both `{name}`, and checkpoints know parameters by their names: give each a name \
                 of its own"
            ));
        }
        let (other, stage) = (other.0, stage.0);
        Some(format!(
            "a parameter of stage {other} and one of stage {stage} are both `{name}`, and checkpoints know parameters by their \
             names: give each a name of its own, such as `{stage}.{name}`, or, if it is one tensor that the stages share, set \
             `Param::tied` in both and name them in `Lowering::tied`, which a `run::Model` does by itself"
        ))
    })
}

/// One weight tensor of a stage.
#[derive(Clone, PartialEq, Debug)]
pub struct Param {
    /// Name, unique in the model and independent of the number of stages; keys checkpoints.
    pub name: String,
    /// Shape, row-major.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether weight decay applies (matrices, not biases and norms).
    pub decay: bool,
    /// Whether other stages share this tensor, by its name, as the first and last stage do with a
    /// tied head. Its gradient is then summed over the workers of all of them.
    /// [`Lowering::tied`](chimera_schedule::lower::Lowering::tied) lists the stages, which share
    /// all of their tied tensors. A tied tensor of a stage that is not listed belongs to that stage
    /// only.
    pub tied: bool,
    /// Whether the weights keep their initial values. A frozen parameter has no gradient, no
    /// optimizer state and no update, and counts in no norm.
    pub frozen: bool,
    /// Extents of the linear maps that lie side by side in a matrix, along one of its two
    /// dimensions: one for a plain matrix, three for fused queries, keys and values. Empty for
    /// tables, norms and biases. Read by optimizers that treat a matrix as a whole, such as Muon.
    pub linear_maps: Vec<usize>,
    /// The linear layer of this matrix, if the stage shows its operands.
    pub shown: Option<LinearLayer>,
    /// The packing of a frozen matrix that is held in fewer bits than f32.
    pub packing: Option<crate::device::Packing>,
}

impl Param {
    /// An untied tensor of a stage. If it is a matrix, it is one linear map; weight decay applies
    /// to all tensors with two or more dimensions.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, init: Init) -> Param {
        let shape = shape.into();
        let linear_maps = if shape.len() == 2 { vec![shape[0]] } else { Vec::new() };
        let decay = shape.len() > 1;
        let (name, tied, frozen, shown, packing) = (name.into(), false, false, None, None);
        Param { name, decay, shape, init, tied, frozen, linear_maps, shown, packing }
    }

    /// Declares the linear maps that lie side by side in this matrix, by their extents.
    pub fn fused(self, linear_maps: impl Into<Vec<usize>>) -> Param {
        Param { linear_maps: linear_maps.into(), ..self }
    }

    /// Marks this tensor as the matrix of a linear layer that the stage shows the operands of.
    pub fn shown(self, layer: LinearLayer) -> Param {
        Param { shown: Some(layer), ..self }
    }

    /// Numbers of inputs and outputs of the linear layer, if the stage shows its operands.
    pub fn features(&self) -> Option<(usize, usize)> {
        match (&self.shown, &self.shape[..]) {
            (Some(layer), &[rows, columns]) if layer.inputs_first => Some((rows, columns)),
            (Some(_), &[rows, columns]) => Some((columns, rows)),
            _ => None,
        }
    }

    /// Rows and columns of each linear map.
    pub fn map_extents(&self) -> Vec<[usize; 2]> {
        let &[rows, columns] = &self.shape[..] else { return Vec::new() };
        let extents = |extent: &usize| {
            if self.maps_are_rows() { [*extent, columns] } else { [rows, *extent] }
        };
        self.linear_maps.iter().map(extents).collect()
    }

    /// Returns true if the linear maps are stacked as rows; otherwise they lie side by side.
    pub(crate) fn maps_are_rows(&self) -> bool {
        self.shape.first() == Some(&self.linear_maps.iter().sum())
    }

    /// Returns true if the linear maps fill one dimension of a matrix, or there are none.
    pub(crate) fn fits_linear_maps(&self) -> bool {
        let n: usize = self.linear_maps.iter().sum();
        let is_filled = self.shape.len() == 2 && self.shape.contains(&n);
        self.linear_maps.is_empty() || is_filled
    }

    /// Shape of the parameter's gradient: empty if the parameter is frozen.
    pub fn gradient_shape(&self) -> Vec<usize> {
        if self.frozen { vec![0] } else { self.shape.clone() }
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_one_parameter() {
        let conflict = |names: &[(u16, &'static str)]| {
            name_conflict(names.iter().map(|(stage, name)| (StageId(*stage), *name)))
        };
        assert_eq!(conflict(&[(0, "0.weight"), (0, "0.bias"), (1, "1.weight")]), None);
        let why = conflict(&[(0, "weight"), (1, "bias"), (1, "weight")]).expect("a conflict");
        assert!(why.starts_with("a parameter of stage 0 and one of stage 1 are both `weight`"));
        assert!(
            why.contains("set `Param::tied` in both and name them in `Lowering::tied`"),
            "{why}"
        );
        let why = conflict(&[(0, "bias"), (1, "weight"), (1, "weight")]).expect("a conflict");
        assert!(why.starts_with("two parameters of stage 1 are both `weight`"), "{why}");
        let why = conflict(&[(2, "")]).expect("a conflict");
        assert!(why.starts_with("a parameter of stage 2 has no name"), "{why}");
    }
}
