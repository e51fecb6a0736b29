//! The part of a model that is trained.

use chimera_engine::stage::{Param, ParamPatterns};

use super::config::{Cut, Family, ModelConfig};
use super::lora::Lora;

/// The part of a model that is trained. The default is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Names of frozen parameters.
    pub freeze: ParamPatterns,
    /// Adapters, which are then all that is trained.
    pub lora: Option<Lora>,
}

impl Tuning {
    /// Adds adapters, and marks the parameters that are frozen.
    pub(super) fn apply(&self, family: &dyn Family, params: Vec<Param>) -> Vec<Param> {
        let mut params = match &self.lora {
            Some(lora) => lora.adapted(family, params),
            None => params,
        };
        params.iter_mut().for_each(|param| param.frozen |= self.freeze.matches(&param.name));
        params
    }
}

impl ModelConfig {
    /// Returns the part of the matrices of a stage that is trained, by their elements: the part of
    /// the work for weight gradients that is done.
    pub fn trained_part(&self, cut: &Cut) -> f64 {
        if cut.tuning == Tuning::default() {
            return 1.0;
        }
        let params = self.params(cut);
        let matrices = params.iter().filter(|param| param.shape.len() == 2);
        let sum = |params: &mut dyn Iterator<Item = &Param>| {
            params.map(|param| param.n_elements() as f64).sum::<f64>()
        };
        let trained = sum(&mut matrices.clone().filter(|param| !param.frozen));
        trained / sum(&mut { matrices }).max(1.0)
    }

    /// Returns the number of blocks at the start of the stage `cut` whose input gradients nobody
    /// needs: neither their weights are trained nor any before them.
    pub(super) fn n_idle_blocks(&self, cut: &Cut) -> usize {
        let is_frozen = |cut: &Cut| self.params(cut).iter().all(|param| param.frozen);
        let before = Cut { blocks: 0..cut.blocks.start, first: true, last: false, ..cut.clone() };
        if cut.tuning == Tuning::default() || !is_frozen(&before) {
            return 0;
        }
        cut.blocks.clone().take_while(|block| is_frozen(&cut.block(*block))).count()
    }

    /// Returns the tensors of the first block of the stage `cut` without adapters, or of block 0.
    pub(super) fn block_params(&self, cut: &Cut) -> Vec<Param> {
        let block = Cut { tuning: Tuning::default(), ..cut.block(cut.blocks.start) };
        self.params(&block)
    }
}

impl Cut {
    /// Returns one block.
    fn block(&self, block: usize) -> Cut {
        Cut { blocks: block..block + 1, first: false, last: false, ..self.clone() }
    }
}
