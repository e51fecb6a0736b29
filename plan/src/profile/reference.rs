//! The reference work: a fixed piece of work, timed when a profile is measured and again when it predicts a run.
//! Machines that are shared or hot change their speed within the hour. The ratio of the two times measures by how much.

use std::time::Instant;

use chimera_core::layers::Layers;
use chimera_core::model::{Architecture, ModelConfig};

use super::stage_pass::{ModelPart, Moments, PassError, ReadyStage, SizedPart};

/// Blocks of its model.
const N_BLOCKS: usize = 2;

/// The times of the reference work when a profile was measured, and now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReferenceTime {
    /// Seconds when the profile was measured.
    pub profiled: f64,
    /// Seconds now.
    pub now: f64,
}

impl ReferenceTime {
    /// Returns the factor by which everything takes longer now.
    pub fn ratio(&self) -> f64 {
        self.now / self.profiled
    }
}

/// A training of some blocks of a GPT-2: products, and updates that memory limits.
pub(super) struct ReferenceWork<K: Layers>(ReadyStage<K>, Moments<K>);

impl<K: Layers> ReferenceWork<K> {
    pub(super) fn new(device: &K) -> Result<ReferenceWork<K>, PassError> {
        let model = ModelConfig {
            architecture: Architecture::GPT2,
            layers: N_BLOCKS,
            hidden: 256,
            heads: 4,
            context: 64,
            vocab: 256,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let work = SizedPart {
            model: &model,
            part: ModelPart::Block,
            n_blocks: N_BLOCKS,
            sequence: 64,
            samples: 4,
            slices: 1,
            dropout: 0.0,
        };
        Ok(ReferenceWork(ReadyStage::new(device, &work, true)?, Moments::new(device, &work)?))
    }

    /// Does it once, and returns the seconds.
    pub(super) fn time(&mut self) -> Result<f64, PassError> {
        let start = Instant::now();
        let ReferenceWork(stage, moments) = self;
        let mut grads = stage.zeros()?;
        let (_, passed) = stage.forward()?;
        stage.backward(passed, &mut grads)?;
        stage.update(&grads, moments)?;
        Ok(start.elapsed().as_secs_f64())
    }
}
