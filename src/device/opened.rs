//! Devices that are open, with the kernels of each.

use anyhow::{Result, bail};
use chimera_backend_candle::Candle;
#[cfg(feature = "cuda")]
use chimera_backend_candle::gpu::{Gpu, cuda::Cuda};
#[cfg(feature = "wgpu")]
use chimera_backend_wgpu::Wgpu;
use chimera_core::device::Device as _;
use chimera_core::ids::Rank;
use chimera_core::layers::Layers;

#[cfg(feature = "cuda")]
use super::cuda;
#[cfg(feature = "wgpu")]
use super::wgpu;
use super::{Device, Precision};

/// A device that is open. Clones share it.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// With its number.
    device: Device,
    kernels: Backend,
}

#[derive(Clone, Debug)]
enum Backend {
    Candle(Candle),
    #[cfg(feature = "cuda")]
    Cuda(Gpu<Cuda>),
    #[cfg(feature = "wgpu")]
    Wgpu(Wgpu),
}

/// What devices that count have done and used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Layers and matrix products started.
    pub n_launches: u64,
    /// Times that the host waited for a device.
    pub n_waits: u64,
    /// The most bytes in use on a device so far.
    pub peak_bytes: u64,
    /// Bytes that all devices hold for use, so that they need not be allocated.
    pub reserved_bytes: u64,
}

/// What is done on a device, whatever its kernels are.
pub trait Compute {
    /// What comes of it.
    type Output;

    /// Does it, with the kernels of each rank: at least one.
    fn on<K: Layers>(self, by_rank: &[K]) -> Self::Output;
}

impl OpenDevice {
    /// Opens `device` for the `local`-th process or thread of this machine, which without a number takes the next.
    pub fn open(device: Device, local: usize, precision: Precision) -> Result<OpenDevice> {
        open(numbered(device, local)?, precision)
    }

    /// The device in words.
    pub fn name(&self) -> String {
        match &self.kernels {
            Backend::Candle(kernels) => kernels.name(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(kernels) => kernels.name(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(kernels) => kernels.name(),
        }
    }

    /// What it is, whatever its number: the same call gives the same bits on devices of one model.
    pub fn model(&self) -> String {
        match &self.kernels {
            Backend::Candle(_) => "cpu".into(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(kernels) => {
                let name = kernels.name(); // begins with the number
                format!("cuda {}", name.split_once(' ').map_or("", |(_, model)| model))
            }
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(kernels) => kernels.model().into(),
        }
    }

    /// Whether its tensors lie in the host's memory, which is then what can run out.
    pub fn is_host(&self) -> bool {
        self.device == Device::Cpu
    }

    /// Bytes of its own memory that nobody uses, if it says so.
    pub fn free_bytes(&self) -> Option<u64> {
        match &self.kernels {
            #[cfg(feature = "cuda")]
            Backend::Cuda(gpu) => gpu.driver().free_bytes().ok(),
            _ => None,
        }
    }

    /// Its kernels, if it is a GPU of CUDA.
    #[cfg(feature = "nccl")]
    pub fn cuda(&self) -> Option<&Gpu<Cuda>> {
        match &self.kernels {
            Backend::Cuda(gpu) => Some(gpu),
            _ => None,
        }
    }

    /// Does `compute` on it.
    pub fn run<C: Compute>(&self, compute: C) -> C::Output {
        match &self.kernels {
            Backend::Candle(kernels) => compute.on(std::slice::from_ref(kernels)),
            #[cfg(feature = "cuda")]
            Backend::Cuda(kernels) => compute.on(std::slice::from_ref(kernels)),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(kernels) => compute.on(std::slice::from_ref(kernels)),
        }
    }
}

/// The devices of some ranks of this process, open.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The first rank that is of this process.
    first: usize,
    by_rank: Vec<OpenDevice>,
}

impl Devices {
    /// Opens the devices of `width` groups whose workers have `devices`. Ranks of one device share it, but
    /// each has its own stream of a GPU of CUDA.
    pub fn open(devices: &[Device], width: usize, precision: Precision) -> Result<Devices> {
        let mut by_rank: Vec<OpenDevice> = Vec::new();
        for (rank, device) in std::iter::repeat_n(devices, width).flatten().enumerate() {
            let device = numbered(*device, rank)?;
            let is_shared = !matches!(device, Device::Cuda(_));
            let found = by_rank.iter().find(|opened| is_shared && opened.device == device);
            let found = found.cloned();
            by_rank.push(found.map_or_else(|| open(device, precision), Ok)?);
        }
        Ok(Devices { first: 0, by_rank })
    }

    /// Each device once, with the ranks that share it.
    pub fn shared(&self) -> Vec<(&OpenDevice, Vec<usize>)> {
        let mut all: Vec<(&OpenDevice, Vec<usize>)> = Vec::new();
        for (rank, opened) in (self.first..).zip(&self.by_rank) {
            match all.iter_mut().find(|(other, _)| other.device == opened.device) {
                Some((_, ranks)) => ranks.push(rank),
                None => all.push((opened, vec![rank])),
            }
        }
        all
    }

    /// Device of one rank alone, whose peers are other processes.
    pub fn only(rank: Rank, opened: OpenDevice) -> Devices {
        Devices { first: rank.index(), by_rank: vec![opened] }
    }

    /// Whether ranks can hand each other tensors as they are.
    pub fn share_tensors(&self) -> bool {
        #[cfg(feature = "cuda")]
        if self.cuda().is_some() {
            return true;
        }
        self.one().is_some()
    }

    /// Does `compute` on all of them.
    ///
    /// # Errors
    /// If they do not [share tensors](Devices::share_tensors).
    pub fn run<C: Compute>(&self, compute: C) -> Result<C::Output> {
        #[cfg(feature = "cuda")]
        if let Some(gpus) = self.cuda() {
            return Ok(compute.on(&gpus));
        }
        let Some(device) = self.one() else {
            bail!("workers on several devices do not share tensors");
        };
        Ok(device.run(compute))
    }

    /// Makes devices fill memory with values that are not numbers before it is written, if they can.
    pub fn poisoned(&self) -> Devices {
        let poisoned = |opened: &OpenDevice| OpenDevice {
            device: opened.device,
            kernels: match opened.kernels.clone() {
                #[cfg(feature = "cuda")]
                Backend::Cuda(kernels) => Backend::Cuda(kernels.poisoned()),
                other => other,
            },
        };
        Devices { by_rank: self.by_rank.iter().map(poisoned).collect(), ..*self }
    }

    /// What all have done and used, if they count.
    #[cfg(feature = "cuda")]
    pub fn usage(&self) -> Option<Usage> {
        let mut all = Usage::default();
        let mut devices: Vec<Device> = Vec::new();
        for (gpu, opened) in self.cuda()?.iter().zip(&self.by_rank) {
            let usage = gpu.driver().usage().ok()?;
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

    /// What all have done and used, if they count.
    #[cfg(not(feature = "cuda"))]
    pub fn usage(&self) -> Option<Usage> {
        None
    }

    /// Lets peaks begin anew.
    pub fn reset_peak(&self) {
        #[cfg(feature = "cuda")]
        for gpu in self.cuda().into_iter().flatten() {
            let reset = gpu.driver().reset_peak();
            let _ = reset; // a device that fails shows it elsewhere
        }
    }

    /// The most bytes that each rank has held so far, if they are counted.
    #[cfg(feature = "cuda")]
    pub fn peaks(&self) -> Option<Vec<u64>> {
        Some(self.cuda()?.iter().map(|gpu| gpu.driver().held_peak()).collect())
    }

    /// The most bytes that each rank has held so far, if they are counted.
    #[cfg(not(feature = "cuda"))]
    pub fn peaks(&self) -> Option<Vec<u64>> {
        None
    }

    /// The streams of all ranks, if all are of CUDA.
    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<Vec<Gpu<Cuda>>> {
        let gpu = |opened: &OpenDevice| match &opened.kernels {
            Backend::Cuda(gpu) => Some(gpu.clone()),
            _ => None,
        };
        self.by_rank.iter().map(gpu).collect()
    }

    /// The device of all ranks, if it is one.
    pub fn one(&self) -> Option<&OpenDevice> {
        let first = self.by_rank.first()?;
        self.by_rank.iter().all(|opened| opened.device == first.device).then_some(first)
    }

    /// Device of each rank of this process.
    pub fn by_rank(&self) -> &[OpenDevice] {
        &self.by_rank
    }

    /// The model of each rank's.
    pub fn models(&self) -> Vec<String> {
        self.by_rank.iter().map(OpenDevice::model).collect()
    }
}

/// `device` with the number that the `local`-th of a machine takes.
#[cfg_attr(
    not(any(feature = "cuda", feature = "wgpu")),
    expect(unused_variables, reason = "the processor is one")
)]
fn numbered(device: Device, local: usize) -> Result<Device> {
    Ok(match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(None) => Device::Cuda(Some(local % cuda::count()?)),
        #[cfg(feature = "wgpu")]
        Device::Wgpu(None) => Device::Wgpu(Some(wgpu::in_turn(local)?)),
        other => other,
    })
}

fn open(device: Device, precision: Precision) -> Result<OpenDevice> {
    device.is_built()?;
    precision.check(device)?;
    let kernels = match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(number) => Backend::Cuda(cuda::open(number.unwrap_or(0), precision)?),
        #[cfg(feature = "wgpu")]
        Device::Wgpu(number) => Backend::Wgpu(wgpu::open(number.unwrap_or(0))?),
        _ => Backend::Candle(Candle::cpu()),
    };
    Ok(OpenDevice { device, kernels })
}
