//! Sizes of the models and matrices that are measured.

use chimera_core::model::{Architecture, ModelConfig};

use crate::device::{Device, Kernels};

/// Size of what is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Takes seconds on any processor: shows that everything runs.
    Small,
    /// Large enough for a GPU to show its speed: GPT-2 with 124 million parameters.
    Full,
}

impl Size {
    /// The size that suits a device: GPUs with bf16 are those made for training.
    pub fn of(device: Device) -> Size {
        if device.has_streams::<Kernels>() { Size::Full } else { Size::Small }
    }
}

/// The dimensions of what is measured.
pub(super) struct Sizes {
    pub(super) model: ModelConfig,
    pub(super) micro_batch_size: usize,
    pub(super) steps: u64,
    /// Rows and columns of the matrices that show the device's best speed.
    pub(super) square: usize,
    /// Shortest time of one measurement, in seconds.
    pub(super) least: f64,
}

impl Size {
    pub(super) fn sizes(self) -> Sizes {
        let (layers, hidden, heads, context, vocab, micro_batch_size, steps, least) = match self {
            Size::Small => (4, 32, 2, 16, 64, 1, 4, 0.01),
            Size::Full => (12, 768, 12, 1024, 50304, 8, 12, 0.2),
        };
        let model = ModelConfig {
            architecture: Architecture::GPT2,
            layers,
            hidden,
            heads,
            context,
            vocab,
            tied: false,
            llama: None,
            end_of_text: None,
        };
        let square = if self == Size::Full { 8192 } else { 64 };
        Sizes { model, micro_batch_size, steps, square, least }
    }
}
