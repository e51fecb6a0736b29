//! Open devices with their kernels.

use anyhow::{Context, Error, Result, bail, ensure};
use chimera_core::device::DeviceError;
use chimera_core::engine::Optimizer;
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;
use chimera_core::model::{Cut, DropoutRate, ModelConfig, stage};

use super::Device;
use super::backend::{Compute, Usage};
use super::kernels::AnyKernels;
use super::numbers::Numbers;

/// An open device. Clones share it.
#[derive(Clone, Debug)]
pub struct OpenDevice<K> {
    device: Device,
    kernels: K,
}

impl<K: AnyKernels> OpenDevice<K> {
    /// Opens `device` for the `local`-th process or thread of this machine, which takes the next
    /// device if it has no number.
    pub fn open(
        device: Device,
        local: usize,
        numbers: impl Into<Numbers>,
    ) -> Result<OpenDevice<K>> {
        open(device.numbered::<K>(local)?, numbers.into())
    }

    /// Describes the device in words.
    pub fn name(&self) -> String {
        self.kernels.backend().name()
    }

    /// Describes the device without its number: devices of one model return the same bits for the
    /// same call.
    pub fn model(&self) -> String {
        self.kernels.backend().model()
    }

    /// Returns the [way](super::Bf16Products) in which the host multiplies bf16, if it does.
    pub fn bf16_products(&self) -> Option<&'static str> {
        self.kernels.backend().bf16_products()
    }

    /// Returns true if the device is the host itself.
    pub fn is_host(&self) -> bool {
        self.device.is_host()
    }

    /// Returns true if its tensors lie in the host's memory, as those of a GPU emulated in software
    /// do.
    pub fn uses_host_memory(&self) -> bool {
        self.is_host() || self.kernels.backend().uses_host_memory()
    }

    /// Free bytes of its own memory, if it reports them.
    pub fn free_bytes(&self) -> Option<u64> {
        self.kernels.backend().free_bytes()
    }

    /// Returns its kernels if they are of this type.
    pub fn kernels<T: 'static>(&self) -> Option<&T> {
        self.kernels.of()
    }

    /// Runs `compute` on it.
    pub fn run<C: Compute>(&self, compute: C) -> C::Output {
        self.kernels.run(std::iter::once(&self.kernels), compute)
    }
}

fn open<K: AnyKernels>(device: Device, numbers: Numbers) -> Result<OpenDevice<K>> {
    let built = device.built::<K>()?;
    device.check(numbers.precision)?;
    let kernels = (built.open)(device.number.unwrap_or(0), numbers)?;
    Ok(OpenDevice { device, kernels })
}

/// Creates a stage with a model's first block, on samples of one token.
struct MakesStage<'m>(&'m ModelConfig);

impl Compute for MakesStage<'_> {
    type Output = Result<()>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        let cut = Cut { blocks: 0..1, first: false, last: false, ..Cut::default() };
        for kernels in by_rank.iter().take(1) {
            stage(kernels.clone(), self.0, 1, DropoutRate::default(), cut.clone())?;
        }
        Ok(())
    }
}

/// Checks that an optimizer has what it needs.
struct ChecksOptimizer<'o>(&'o Optimizer);

impl Compute for ChecksOptimizer<'_> {
    type Output = Result<(), String>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        by_rank.iter().try_for_each(|kernels| self.0.check(kernels))
    }
}

/// Checks whether devices measure the time of each kernel.
struct AsksForKernelTimes;

impl Compute for AsksForKernelTimes {
    type Output = Result<bool, DeviceError>;

    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output {
        for kernels in by_rank {
            if !kernels.clock()?.is_some_and(|clock| clock.can_time_kernels()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The open devices of some ranks of this process.
#[derive(Clone, Debug)]
pub struct Devices<K> {
    /// The first rank of this process.
    first: usize,
    by_rank: Vec<OpenDevice<K>>,
}

impl<K: AnyKernels> Devices<K> {
    /// Opens the devices of `width` groups whose workers have `devices`. Ranks share the device
    /// that they have in common, but each has its own stream of a CUDA GPU.
    pub fn open(
        devices: &[Device],
        width: usize,
        numbers: impl Into<Numbers>,
    ) -> Result<Devices<K>> {
        let numbers = numbers.into();
        let mut by_rank: Vec<OpenDevice<K>> = Vec::new();
        for (rank, device) in std::iter::repeat_n(devices, width).flatten().enumerate() {
            let device = device.numbered::<K>(rank)?;
            let is_shared =
                |opened: &&OpenDevice<K>| opened.device == device && !device.has_streams::<K>();
            let found = by_rank.iter().find(is_shared).cloned();
            by_rank.push(found.map_or_else(|| open(device, numbers), Ok)?);
        }
        Ok(Devices { first: 0, by_rank })
    }

    /// Returns each device once, with the ranks that share it.
    pub fn shared(&self) -> Vec<(&OpenDevice<K>, Vec<usize>)> {
        let mut all: Vec<(&OpenDevice<K>, Vec<usize>)> = Vec::new();
        for (rank, opened) in (self.first..).zip(&self.by_rank) {
            match all.iter_mut().find(|(other, _)| other.device == opened.device) {
                Some((_, ranks)) => ranks.push(rank),
                None => all.push((opened, vec![rank])),
            }
        }
        all
    }

    /// Returns true if tensors on `device` lie in the host's memory, as far as open devices report
    /// it.
    pub fn uses_host_memory(&self, device: Device) -> bool {
        let is_it = |opened: &&OpenDevice<K>| opened.device.is_of(device);
        device.is_host() || self.by_rank.iter().filter(is_it).any(OpenDevice::uses_host_memory)
    }

    /// Returns each device once, with a stream of one of its ranks.
    pub fn each_once(&self) -> Devices<K> {
        let by_rank = self.shared().into_iter().map(|(opened, _)| opened.clone()).collect();
        Devices { by_rank, ..*self }
    }

    /// The device of a single rank, whose peers are other processes.
    pub fn only(rank: Rank, opened: OpenDevice<K>) -> Devices<K> {
        Devices { first: rank.index(), by_rank: vec![opened] }
    }

    /// Returns true if ranks can exchange tensors without copying them to the host.
    pub fn share_tensors(&self) -> bool {
        self.by_rank.first().is_some_and(|first| {
            self.by_rank.iter().all(|opened| opened.device.shares_tensors::<K>(first.device))
        })
    }

    /// Runs `compute` on all of them.
    ///
    /// # Errors
    /// If they do not [share tensors](Devices::share_tensors).
    pub fn run<C: Compute>(&self, compute: C) -> Result<C::Output> {
        match self.by_rank.first() {
            Some(first) if self.share_tensors() => {
                let all = self.by_rank.iter().map(|opened| &opened.kernels);
                Ok(first.kernels.run(all, compute))
            }
            _ => bail!("workers on several devices do not share tensors"),
        }
    }

    /// Refuses a model if a device lacks its layers.
    ///
    /// # Errors
    /// Names the device and the model.
    pub fn check_model(&self, model: &ModelConfig) -> Result<()> {
        for (opened, _) in self.shared() {
            opened.run(MakesStage(model))?;
        }
        Ok(())
    }

    /// Refuses an optimizer that needs something that a device does not have.
    ///
    /// # Errors
    /// Names the optimizer and the device.
    pub fn check_optimizer(&self, optimizer: &Optimizer) -> Result<()> {
        for (opened, _) in self.shared() {
            opened.run(ChecksOptimizer(optimizer)).map_err(Error::msg)?;
        }
        Ok(())
    }

    /// Refuses devices that do not measure the time of each of their kernels.
    ///
    /// # Errors
    /// Names the device.
    pub fn check_kernel_times(&self) -> Result<()> {
        for (opened, _) in self.shared() {
            let device = opened.device;
            ensure!(
                opened.run(AsksForKernelTimes)?,
                "trace-kernels: device `{device}` does not report the times of its kernels, and \
                 CUDA devices do: leave it out, or choose device cuda"
            );
        }
        Ok(())
    }

    /// Creates the files that activations are moved to, so that a run without room for them is
    /// refused before its first step.
    ///
    /// # Errors
    /// Names the folder.
    pub fn open_offload_files(&self) -> Result<()> {
        for opened in &self.by_rank {
            opened.kernels.backend().open_offload_file().with_context(|| {
                format!(
                    "offload: cannot make a file for activations in {}: TMPDIR sets the folder",
                    std::env::temp_dir().display()
                )
            })?;
        }
        Ok(())
    }

    /// Makes devices fill memory with NaN before it is written, if they can.
    pub fn poisoned(&self) -> Devices<K> {
        self.with(K::poisoned)
    }

    /// Makes devices use kernels that run on any of their kind, where they have others for some
    /// chips.
    pub fn generic(&self) -> Devices<K> {
        self.with(K::generic)
    }

    fn with(&self, change: fn(K) -> K) -> Devices<K> {
        let changed = |opened: &OpenDevice<K>| OpenDevice {
            device: opened.device,
            kernels: change(opened.kernels.clone()),
        };
        Devices { by_rank: self.by_rank.iter().map(changed).collect(), ..*self }
    }

    /// Sums the usage of all devices, if they count it.
    pub fn usage(&self) -> Option<Usage> {
        let mut all = Usage::default();
        let mut devices: Vec<Device> = Vec::new();
        for opened in &self.by_rank {
            let usage = opened.kernels.backend().usage()?;
            all.n_launches += usage.n_launches;
            all.n_waits += usage.n_waits;
            all.peak_bytes = all.peak_bytes.max(usage.peak_bytes);
            if !devices.contains(&opened.device) {
                devices.push(opened.device);
                all.reserved_bytes += usage.reserved_bytes;
            }
        }
        Some(all)
    }

    /// Resets the peaks.
    pub fn reset_peak(&self) {
        self.by_rank.iter().for_each(|opened| opened.kernels.backend().reset_peak());
    }

    /// Peak bytes of each rank so far, if they are counted.
    pub fn peaks(&self) -> Option<Vec<u64>> {
        self.by_rank.iter().map(|opened| opened.kernels.backend().held_peak()).collect()
    }

    /// Returns the device that all ranks share, if there is only one.
    pub fn one(&self) -> Option<&OpenDevice<K>> {
        let first = self.by_rank.first()?;
        self.by_rank.iter().all(|opened| opened.device == first.device).then_some(first)
    }

    /// The device of each rank of this process.
    pub fn by_rank(&self) -> &[OpenDevice<K>] {
        &self.by_rank
    }

    /// The model of each rank's device, with the way in which it multiplies bf16.
    pub fn models(&self) -> Vec<String> {
        let model = |opened: &OpenDevice<K>| match opened.bf16_products() {
            Some(way) => format!("{} with bf16-products {way}", opened.model()),
            None => opened.model(),
        };
        self.by_rank.iter().map(model).collect()
    }
}
