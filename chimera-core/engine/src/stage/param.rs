//! The parameters of a stage, and their initial values.

use std::collections::BTreeMap;
use std::sync::Arc;

use chimera_schedule::ids::StageId;

/// How the initial values of a tensor are drawn, from (seed, name) alone.
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
    /// Given values, row-major, one for each element.
    Values(Arc<[f32]>),
}

/// A linear layer `y = x W + bias` whose [operands](super::Stage::operands) a stage shows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinearLayer {
    /// Name of the bias, if there is one.
    pub bias: Option<String>,
    /// Whether the matrix is `[inputs, outputs]`, and not `[outputs, inputs]`.
    pub inputs_first: bool,
}

/// Why the names of parameters, each of a stage, cannot key checkpoints, if they cannot: each is of one stage, unless it is
/// [tied](Param::tied) and left out.
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
    /// Unique in the model, and independent of the number of stages; keys checkpoints.
    pub name: String,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether weight decay applies (matrices, not biases and norms).
    pub decay: bool,
    /// Whether other stages share this tensor, by its name, as the last and the first one do with a tied head; its gradient is
    /// then summed over the workers of all of them. [`Lowering::tied`](chimera_schedule::lower::Lowering::tied) names the stages, which
    /// share all of their tied tensors. In a stage that it does not name, a tied tensor is one of the stage's own.
    pub tied: bool,
    /// Whether its weights stay as they begin, by a learning rate of 0, whatever the rules for its name say. Its gradient is best
    /// left at zeros, which count in no norm.
    pub frozen: bool,
    /// Extents of the linear maps that lie beside each other in a matrix, along one of its two sides: one of a plain
    /// matrix, three of fused queries, keys and values. None of tables, norms and biases. Optimizers that take a matrix as
    /// a whole, such as Muon, read it.
    pub linear_maps: Vec<usize>,
    /// The linear layer whose matrix this is, if the stage shows its operands.
    pub shown: Option<LinearLayer>,
}

impl Param {
    /// A tensor of a stage, not tied; with weight decay, and a linear map, if it is a matrix.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>, init: Init) -> Param {
        let shape = shape.into();
        let linear_maps = if shape.len() == 2 { vec![shape[0]] } else { Vec::new() };
        let decay = shape.len() > 1;
        let (name, tied, frozen, shown) = (name.into(), false, false, None);
        Param { name, decay, shape, init, tied, frozen, linear_maps, shown }
    }

    /// This tensor as a matrix in which linear maps of these extents lie beside each other.
    pub fn fused(self, linear_maps: impl Into<Vec<usize>>) -> Param {
        Param { linear_maps: linear_maps.into(), ..self }
    }

    /// This tensor as the matrix of a linear layer whose operands the stage shows.
    pub fn shown(self, layer: LinearLayer) -> Param {
        Param { shown: Some(layer), ..self }
    }

    /// Inputs and outputs of the linear layer whose operands the stage shows.
    pub fn features(&self) -> Option<(usize, usize)> {
        match (&self.shown, &self.shape[..]) {
            (Some(layer), &[rows, columns]) if layer.inputs_first => Some((rows, columns)),
            (Some(_), &[rows, columns]) => Some((columns, rows)),
            _ => None,
        }
    }

    /// Rows and columns of each of its linear maps.
    pub fn map_extents(&self) -> Vec<[usize; 2]> {
        let &[rows, columns] = &self.shape[..] else { return Vec::new() };
        let extents = |extent: &usize| {
            if self.maps_are_rows() { [*extent, columns] } else { [rows, *extent] }
        };
        self.linear_maps.iter().map(extents).collect()
    }

    /// Whether its linear maps are rows of the matrix, one below the other; columns side by side otherwise.
    pub(crate) fn maps_are_rows(&self) -> bool {
        self.shape.first() == Some(&self.linear_maps.iter().sum())
    }

    /// Whether its linear maps fill one side of a matrix.
    pub(crate) fn fits_linear_maps(&self) -> bool {
        let n: usize = self.linear_maps.iter().sum();
        let is_filled = self.shape.len() == 2 && self.shape.contains(&n);
        self.linear_maps.is_empty() || is_filled
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
