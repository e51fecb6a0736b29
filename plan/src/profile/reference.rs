//! The reference work: a fixed piece of work, timed when a profile is measured and again when it predicts a run.
//! Machines that are shared or hot change their speed within the hour. The ratio of the two times measures by how much.

use std::time::Instant;

use chimera_core::layers::Layers;
use chimera_core::model::{Architecture, ModelConfig};

use super::stage_pass::{ModelPart, Moments, PassError, ReadyStage, SizedPart};

/// Blocks of its model.
const N_BLOCKS: usize = 2;

/// The factor of speed from which on a prediction is doubted.
const MUCH: f64 = 1.3;

/// The times of the reference work when a profile was measured, and now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReferenceTime {
    /// Seconds of the reference work when the profile was measured.
    pub profiled: f64,
    /// Seconds now.
    pub now: f64,
}

impl ReferenceTime {
    /// Returns the factor by which the machine is slower now.
    pub fn ratio(&self) -> f64 {
        self.now / self.profiled
    }

    /// Returns a doubt if the machine is much faster or slower now, which more often comes from
    /// another program at either time than from another clock rate.
    pub fn doubt(&self) -> Option<String> {
        let ratio = self.ratio();
        if (1.0 / MUCH..=MUCH).contains(&ratio) {
            return None;
        }
        let (factor, how) = if ratio > 1.0 { (ratio, "slower") } else { (1.0 / ratio, "faster") };
        Some(format!(
            "the machine is {factor:.1} times {how} now than when the profile was measured, which may be off by as much: \
             measure again with `chimera profile` while the machine does nothing else"
        ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_much_faster_or_slower_machine_is_doubted() {
        let doubt = |profiled, now| ReferenceTime { profiled, now }.doubt();
        assert_eq!(doubt(1.0, 1.25), None);
        assert_eq!(doubt(1.25, 1.0), None);
        let slower = doubt(1.0, 2.0).expect("a doubt");
        assert!(slower.starts_with("the machine is 2.0 times slower now"), "{slower}");
        let faster = doubt(0.9, 0.3).expect("a doubt");
        assert!(faster.starts_with("the machine is 3.0 times faster now"), "{faster}");
    }
}
