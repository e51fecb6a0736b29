//! A model cut into the stages of a program that only goes forward.

use std::sync::Arc;

use anyhow::Result;
use chimera_core::device::DeviceError;
use chimera_core::ids::StageId;
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, ModelConfig, cut};
use chimera_core::program::Program;
use chimera_core::stage::{Init, Micro, Output, Param, Stage};

use super::piece::Piece;
use super::{must_foresee, the_tensor};

/// A model that predicts the next token, cut into the stages of a program that only goes forward
/// ([`forward_only`](chimera_core::lower::forward_only)), for groups of workers.
pub struct Staged<'s> {
    pub(super) config: &'s ModelConfig,
    cuts: Vec<Cut>,
    tensors: Vec<(Param, Arc<[f32]>)>,
    pub(super) program: &'s Program,
    pub(super) width: usize,
}

impl<'s> Staged<'s> {
    /// Cuts a model for `width` groups of workers.
    ///
    /// # Errors
    /// If the model does not predict the next token, or has fewer layers than the program stages.
    pub fn new(
        config: &'s ModelConfig,
        tensors: Vec<(Param, Vec<f32>)>,
        program: &'s Program,
        width: usize,
    ) -> Result<Staged<'s>> {
        must_foresee(config)?;
        // The length of samples is only known with the samples.
        let whole = ModelConfig { end_of_text: None, ..config.clone() };
        let cuts = cut(&whole, whole.context, program.placement().n_stages())?;
        let tensors = tensors.into_iter().map(|(param, values)| (param, values.into())).collect();
        Ok(Staged { config, cuts, tensors, program, width })
    }

    /// Number of workers of all groups.
    pub fn n_ranks(&self) -> usize {
        self.program.placement().n_ranks(self.width)
    }

    /// Micro-batches of all groups in a step.
    pub(super) fn n_per_step(&self) -> u64 {
        self.width as u64 * u64::from(self.program.n_micro_batches())
    }

    /// Makes the parts of a stage.
    pub(super) fn parts<K: Layers>(&self, kernels: K, stage: StageId) -> Result<Parts<K>> {
        let config = self.config;
        let whole = self.cuts[stage.index()].clone();
        let piece = |cut| Piece { kernels: kernels.clone(), config: config.clone(), cut };
        let body = piece(Cut { last: false, ..whole.clone() });
        body.stage(1)?; // checks that the device has the layers
        let head = whole.last.then(|| piece(head_of(config)));
        let mut params = config.params(&body.cut);
        let n_of_body = params.len();
        let mut of_head = Vec::new();
        for param in head.iter().flat_map(|head| config.params(&head.cut)) {
            let known = params.iter().position(|other| other.name == param.name);
            of_head.push(known.unwrap_or(params.len()));
            if known.is_none() {
                params.push(param);
            }
        }
        for param in &mut params {
            let values = Init::Values(Arc::clone(the_tensor(&self.tensors, param)?));
            // Stages that share a tensor have a copy each.
            let name = format!("{stage}: {}", param.name);
            *param = Param { frozen: true, ..Param::new(name, param.shape.clone(), values) };
        }
        Ok(Parts { body, head, params, n_of_body, of_head })
    }
}

/// The parts of a stage: the last one has the head too. All parameters are frozen, and begin with the
/// weights of the model.
pub(super) struct Parts<K: Layers> {
    pub(super) body: Piece<K>,
    pub(super) head: Option<Piece<K>>,
    pub(super) params: Vec<Param>,
    /// Number of parameters of the body, which come first.
    n_of_body: usize,
    /// Index in `params` of each parameter of the head.
    of_head: Vec<usize>,
}

impl<K: Layers> Parts<K> {
    /// Returns the weights of the body, of all weights.
    pub(super) fn of_body<'w>(&self, w: &'w [K::Tensor]) -> &'w [K::Tensor] {
        &w[..self.n_of_body]
    }

    /// Returns the weights of the head, of all weights.
    pub(super) fn of_head(&self, w: &[K::Tensor]) -> Vec<K::Tensor> {
        self.of_head.iter().map(|at| w[*at].clone()).collect()
    }
}

/// Returns the final norm and the head, which are a piece of their own, because a long text needs the
/// logits of some rows only.
pub(super) fn head_of(config: &ModelConfig) -> Cut {
    Cut { blocks: config.layers..config.layers, first: false, last: true, ..Cut::default() }
}

/// A stage of a program that only goes forward: it keeps nothing for a backward.
pub(super) struct ForwardStage<K: Layers, W> {
    pub(super) parts: Parts<K>,
    pub(super) work: W,
}

/// The work of a stage in a program that only goes forward.
pub(super) trait Forward<K: Layers>: Send {
    /// True if it computes from the samples of micro-batches.
    const NEEDS_INPUTS: bool;

    /// Does the forward of a micro-batch with the parts of the stage and all their weights.
    ///
    /// # Errors
    /// If the device fails.
    fn forward(
        &self,
        parts: &Parts<K>,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<Output<K::Tensor>, DeviceError>;
}

impl<K: Layers, W: Forward<K>> Stage for ForwardStage<K, W> {
    type Tensor = K::Tensor;
    type Item = u32;
    type Saved = ();
    type Deferred = ();

    fn params(&self) -> &[Param] {
        &self.parts.params
    }

    fn needs_inputs(&self) -> bool {
        W::NEEDS_INPUTS
    }

    fn forward(
        &self,
        w: &[K::Tensor],
        micro: &Micro<'_>,
        x: Option<K::Tensor>,
    ) -> Result<(Output<K::Tensor>, ()), DeviceError> {
        Ok((self.work.forward(&self.parts, w, micro, x)?, ()))
    }

    // The program never asks for a backward.

    fn backward_input(
        &self,
        _: &[K::Tensor],
        _: &Micro<'_>,
        _: (),
        _: K::Tensor,
    ) -> Result<(Option<K::Tensor>, ()), DeviceError> {
        Ok((None, ()))
    }

    fn backward_weight(
        &self,
        _: &Micro<'_>,
        _: (),
        _: &mut [K::Tensor],
    ) -> Result<(), DeviceError> {
        Ok(())
    }
}
