//! The adapters of this machine, and opening one.

use std::fmt;
use std::sync::Arc;

use wgpu::{
    Backends, DeviceDescriptor, DeviceType, Features, Instance, InstanceDescriptor, InstanceFlags,
};

use crate::Wgpu;
use crate::gpu::{Gpu, Limits, TIMESTAMPS};
use crate::stream::IN_PASSES;
use crate::tuning::{Product, Products, Target, Tuning};

/// The most bytes of immediates that a kernel takes.
const IMMEDIATE_BYTES: u32 = 128;

/// Returns the adapters for kernels, GPUs first, in the order of their command-line numbers.
pub fn adapters() -> Vec<Adapter> {
    find(InstanceFlags::empty())
}

/// Returns the adapters with their drivers' validation layers enabled, which report to `log`.
pub fn validated_adapters() -> Vec<Adapter> {
    find(InstanceFlags::VALIDATION)
}

fn find(flags: InstanceFlags) -> Vec<Adapter> {
    let backends = Backends::VULKAN | Backends::METAL | Backends::DX12;
    let instance = Instance::new(InstanceDescriptor {
        backends,
        flags,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let found = pollster::block_on(instance.enumerate_adapters(backends)).into_iter();
    let mut adapters: Vec<Adapter> = found.map(|inner| Adapter { inner }).collect();
    adapters.retain(Adapter::is_suitable);
    adapters.sort_by_key(|adapter| match adapter.inner.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    adapters
}

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct Adapter {
    inner: wgpu::Adapter,
}

/// Options for opening a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Fills every result with NaN first, which shows kernels that leave something out.
    pub poison: bool,
    /// Limits the bytes of a tensor that are bound at once, if the device allows more.
    pub max_binding: Option<u64>,
    /// Selects the kernels for this target, overriding the device's kind.
    pub target: Option<Target>,
    /// Selects the matrix products; by default the probably fastest on this kind of device.
    pub product: Option<Products>,
}

/// Features that are used if the device has them.
const OPTIONAL: Features = Features::SUBGROUP.union(TIMESTAMPS).union(IN_PASSES);

/// The reason why an adapter cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot open {adapter}: {reason}")]
pub struct OpenError {
    pub(crate) adapter: String,
    pub(crate) reason: String,
}

impl Adapter {
    /// Returns the model with its driver; adapters of one model round alike.
    pub fn model(&self) -> String {
        let info = self.inner.get_info();
        let (name, backend) = (&info.name, info.backend);
        format!("wgpu ({name}, {backend:?}, {} {})", info.driver, info.driver_info).to_lowercase()
    }

    /// Opens the device.
    pub fn open(&self, options: Options) -> Result<Wgpu, OpenError> {
        let (info, limits) = (self.inner.get_info(), self.inner.limits());
        let descriptor = DeviceDescriptor {
            label: Some("chimera"),
            required_features: Features::IMMEDIATES | (self.inner.features() & OPTIONAL),
            required_limits: limits.clone(),
            ..DeviceDescriptor::default()
        };
        let opened = pollster::block_on(self.inner.request_device(&descriptor));
        let opened =
            opened.map_err(|e| OpenError { adapter: info.name.clone(), reason: e.to_string() })?;
        let alignment = u64::from(limits.min_storage_buffer_offset_alignment);
        let most = limits.max_storage_buffer_binding_size;
        let most = options.max_binding.map_or(most, |bytes| most.min(bytes));
        let own = Limits {
            max_buffer: limits.max_buffer_size,
            max_binding: bindable(most, alignment),
            alignment,
            max_groups: limits.max_compute_workgroups_per_dimension,
        };
        let target = options.target.unwrap_or(Target::of(info.device_type));
        let tuning = Tuning::of(target, options.product, &self.inner);
        let name = format!("wgpu ({}, {:?})", info.name, info.backend).to_lowercase();
        let gpu = Gpu::new([name, self.model()], opened, own, tuning, options.poison);
        Ok(Wgpu { gpu: Arc::new(gpu) })
    }

    /// Returns the matrix products that it can run.
    pub fn products(&self) -> Vec<Product> {
        let all = Product::ALL.into_iter().map(|(_, product)| product);
        all.filter(|product| product.runs_on(&self.inner)).collect()
    }

    fn is_suitable(&self) -> bool {
        self.inner.features().contains(Features::IMMEDIATES)
            && self.inner.limits().max_immediate_size >= IMMEDIATE_BYTES
    }
}

/// Shows the adapter's model, its limits, and the kernels' choices for it.
impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (info, limits) = (self.inner.get_info(), self.inner.limits());
        let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
        let kind = match info.device_type {
            DeviceType::DiscreteGpu => "GPU",
            DeviceType::IntegratedGpu => "GPU that shares the processor's memory",
            DeviceType::VirtualGpu => "virtual GPU",
            DeviceType::Cpu => "software on the processor",
            DeviceType::Other => "device of an unknown kind",
        };
        writeln!(f, "{} ({kind})", info.name)?;
        writeln!(f, "  {:?}, driver {} {}", info.backend, info.driver, info.driver_info)?;
        writeln!(
            f,
            "  tensors up to {:.0} MiB, bound {:.0} MiB at once; workgroups of {} with {} KiB",
            mib(limits.max_buffer_size),
            mib(limits.max_storage_buffer_binding_size),
            limits.max_compute_invocations_per_workgroup,
            limits.max_compute_workgroup_storage_size >> 10,
        )?;
        let has = |name, feature| (name, self.inner.features().contains(feature));
        let features = [
            has("f16", Features::SHADER_F16),
            has("subgroups", Features::SUBGROUP),
            has("cooperative matrices", Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
            has("timestamps", Features::TIMESTAMP_QUERY),
        ];
        let features: Vec<_> = features.iter().filter(|f| f.1).map(|f| f.0).collect();
        let features =
            if features.is_empty() { "nothing more".into() } else { features.join(", ") };
        write!(f, "  offers {features}; kernels in f32")
    }
}

/// Returns the most bytes of an operand, if the device binds `most`: shaders count in 32 bits.
fn bindable(most: u64, alignment: u64) -> u64 {
    most.min(u64::from(u32::MAX)).max(2 * alignment) / 4 * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_is_counted_in_32_bits() {
        assert_eq!(bindable(48 << 30, 256), (1 << 32) - 4);
        assert_eq!(bindable(1 << 27, 256), 1 << 27);
        assert_eq!(bindable(1, 256), 512);
    }
}
