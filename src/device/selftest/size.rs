//! How large what is measured is.

use chimera_core::model::{Architecture, ModelConfig};

use crate::device::Device;

/// How large what is measured is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// Done in seconds on any processor: it shows that everything runs.
    Small,
    /// What a GPU needs to show its speed: GPT-2 with 124 million parameters.
    Full,
}

impl Size {
    /// The size that suits a device: GPUs with bf16 are the ones made for training.
    pub fn of(device: Device) -> Size {
        if device.has_streams() { Size::Full } else { Size::Small }
    }
}

/// Sizes of what is measured.
pub(super) struct Sizes {
    pub(super) model: ModelConfig,
    pub(super) micro_batch_size: usize,
    pub(super) steps: u64,
    /// Rows and columns of matrices that show what the device can do at best.
    pub(super) square: usize,
    /// Seconds that one measurement takes at least.
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
