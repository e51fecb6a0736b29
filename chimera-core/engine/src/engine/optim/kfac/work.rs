//! K-FAC's work beside the training, as pieces of a program.

use chimera_schedule::effects::{OwnWork, Pieces};

use super::{FACTORS, Kfac, Side, blocks};
use crate::engine::optim::update_rule::UpdateRule;
use crate::stage::Param;

/// The kinds of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KfacPiece {
    /// Adds the operands of one backward to the factors.
    Factors,
    /// Computes an inverse.
    Inverse,
}

impl KfacPiece {
    const ALL: [KfacPiece; 2] = [KfacPiece::Factors, KfacPiece::Inverse];

    fn name(self) -> &'static str {
        match self {
            KfacPiece::Factors => "kfac factors",
            KfacPiece::Inverse => "kfac inverses",
        }
    }

    /// Returns the kind of the pieces of this work, if they belong to K-FAC.
    pub(crate) fn of(name: &str) -> Option<KfacPiece> {
        KfacPiece::ALL.into_iter().find(|piece| piece.name() == name)
    }
}

/// Returns K-FAC's work beside a training of stages with these parameters and `rows` rows per unit.
/// Also returns, by work and stage, the cost of a piece relative to a unit's forward through that
/// stage, by floating-point operations.
///
/// With a program that [includes this work](chimera_schedule::lower::fill), every step is as long
/// as one that takes factors: in the other steps the pieces do nothing.
pub fn kfac_work(stages: &[Vec<Param>], rows: f64) -> (Vec<OwnWork>, Vec<Vec<f64>>) {
    let n_inverses = |params: &Vec<Param>| 2 * params.iter().filter_map(Param::features).count();
    let most = stages.iter().map(n_inverses).max().unwrap_or(0) as u32;
    let pieces = [Pieces::OnBackward, Pieces::Anytime(most)];
    let works = KfacPiece::ALL.into_iter().zip(pieces);
    let works = works.map(|(piece, pieces)| OwnWork { name: piece.name().into(), pieces });
    let forwards = KfacPiece::ALL
        .map(|piece| stages.iter().map(|params| forwards(piece, params, rows)).collect());
    (works.collect(), forwards.into())
}

/// Cost of a piece on a stage, relative to a forward.
fn forwards(piece: KfacPiece, params: &[Param], rows: f64) -> f64 {
    let layers = || params.iter().filter(|param| param.features().is_some());
    let n_layers = layers().count() as f64;
    let forward: f64 = layers().map(|param| 2.0 * rows * param.n_elements() as f64).sum();
    if forward == 0.0 {
        return 0.0;
    }
    let elements = |param: &Param, side: Side| {
        let shape = Kfac.state_shape(param, FACTORS + side.index());
        shape.iter().product::<usize>() as f64
    };
    let cube = |n: usize| 2.0 * (n as f64).powi(3);
    let of_layer = |param: &Param| match piece {
        KfacPiece::Factors => {
            Side::BOTH.map(|side| 2.0 * rows * elements(param, side)).iter().sum::<f64>()
        }
        KfacPiece::Inverse => {
            let outputs: f64 = blocks(param).into_iter().map(cube).sum();
            outputs + param.features().map_or(0.0, |(inputs, _)| cube(inputs + 1))
        }
    };
    let all: f64 = layers().map(of_layer).sum();
    match piece {
        KfacPiece::Factors => all / forward,
        KfacPiece::Inverse => all / forward / (2.0 * n_layers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Init, LinearLayer};

    #[test]
    fn pieces_take_what_their_products_do() {
        let linear = LinearLayer { bias: None, inputs_first: true };
        let matrix = Param::new("w", [3, 5], Init::Zeros).shown(linear);
        let other = Param::new("table", [100, 3], Init::Zeros);
        let (works, forwards) = kfac_work(&[vec![matrix, other.clone()], vec![other]], 10.0);
        assert_eq!(works[1].pieces, Pieces::Anytime(2));
        let (factors, inverses) = ((16.0 + 25.0) / 15.0, (64.0 + 125.0) / 150.0 / 2.0);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(forwards[0][0], factors) && close(forwards[1][0], inverses), "{forwards:?}");
        assert_eq!([forwards[0][1], forwards[1][1]], [0.0; 2]);
    }
}
