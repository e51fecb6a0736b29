//! The table of the kinds of devices: their names and their precisions. Programs have kernels for
//! some of them.

use super::precision::Precision;

/// A kind of device, in this build or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
    /// GPUs through Vulkan, Metal or DX12.
    Wgpu,
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Wgpu];

    /// The name for `--device`, and the feature that adds the kind to a build.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Wgpu => "wgpu",
        }
    }

    /// The precisions that it can multiply, if the device at hand has the instructions.
    pub fn precisions(self) -> &'static [Precision] {
        match self {
            DeviceKind::Cpu => &[Precision::F32, Precision::Bf16],
            DeviceKind::Cuda => &[Precision::F32, Precision::Tf32, Precision::Bf16],
            DeviceKind::Wgpu => &[Precision::F32],
        }
    }

    /// Returns true if the device is the host itself: one device, whose tensors lie in the host's
    /// memory.
    pub fn is_host(self) -> bool {
        self == DeviceKind::Cpu
    }
}
