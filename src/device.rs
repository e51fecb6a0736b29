//! The devices that workers compute on: the one place that knows which kinds there are, and which of them
//! this build has.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail, ensure};
use chimera_backend_cuda::Candle;
#[cfg(feature = "cuda")]
use chimera_backend_cuda::gpu::{Gpu, cuda::Cuda};
#[cfg(feature = "wgpu")]
use chimera_backend_wgpu::Wgpu;
use chimera_core::kernels::Kernels;
use chimera_core::names::by_name;

/// A device as `--device` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU through CUDA, by its number; without one, each worker takes the next.
    Cuda(Option<usize>),
    /// An adapter of wgpu, by its number; without one, each worker takes the next.
    Wgpu(Option<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let unknown =
            || format!("unknown device `{text}`: choose cpu, cuda, cuda:N, wgpu or wgpu:N");
        let (kind, number) = match text.split_once(':') {
            None => (text, None),
            Some((kind, number)) => (kind, Some(number.parse().map_err(|_| unknown())?)),
        };
        match kind {
            "cpu" if number.is_none() => Ok(Device::Cpu),
            "cuda" => Ok(Device::Cuda(number)),
            "wgpu" => Ok(Device::Wgpu(number)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, number) = match self {
            Device::Cpu => ("cpu", None),
            Device::Cuda(number) => ("cuda", *number),
            Device::Wgpu(number) => ("wgpu", *number),
        };
        match number {
            None => f.write_str(kind),
            Some(number) => write!(f, "{kind}:{number}"),
        }
    }
}

impl Device {
    /// The devices of the workers of a group of `depth`: one for all, or one each, separated by commas.
    ///
    /// # Errors
    /// If one is unknown or not in this build, or there are too many or too few.
    pub fn list(text: &str, depth: usize) -> Result<Vec<Device>> {
        let each = text.split(',').map(|name| name.trim().parse());
        let mut devices: Vec<Device> =
            each.collect::<Result<_, _>>().map_err(anyhow::Error::msg)?;
        if let [all] = devices[..] {
            devices = vec![all; depth];
        }
        ensure!(
            devices.len() == depth,
            "device `{text}` names {} devices for {depth} worker(s): name one for all, or one each",
            devices.len()
        );
        devices.iter().try_for_each(Device::is_built).map(|()| devices)
    }

    fn is_built(&self) -> Result<()> {
        let (is_built, feature) = match self {
            Device::Cpu => (true, "cpu"),
            Device::Cuda(_) => (cfg!(feature = "cuda"), "cuda"),
            Device::Wgpu(_) => (cfg!(feature = "wgpu"), "wgpu"),
        };
        ensure!(
            is_built,
            "device `{self}` is not in this build: install chimera with `--features {feature}`"
        );
        Ok(())
    }
}

/// What activations are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// f32, like everything else.
    F32,
    /// bf16; weights, their gradients, moments and sums stay f32.
    Bf16,
}

impl Precision {
    /// By name.
    pub const ALL: [(&'static str, Precision); 2] =
        [("f32", Precision::F32), ("bf16", Precision::Bf16)];
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        })
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Precision, String> {
        by_name("precision", name, &Precision::ALL)
    }
}

/// A device that is open. Clones share it.
#[derive(Clone, Debug)]
pub struct Opened {
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
    fn on<K: Kernels>(self, by_rank: &[K]) -> Self::Output;
}

impl Opened {
    /// The device in words.
    pub fn name(&self) -> String {
        match &self.kernels {
            Backend::Candle(kernels) => kernels.device(),
            #[cfg(feature = "cuda")]
            Backend::Cuda(kernels) => kernels.device(),
            #[cfg(feature = "wgpu")]
            Backend::Wgpu(kernels) => kernels.device(),
        }
    }

    /// Whether its tensors lie in the host's memory, which is then what can run out.
    pub fn is_host(&self) -> bool {
        self.device == Device::Cpu
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
    by_rank: Vec<Opened>,
}

impl Devices {
    /// Opens the devices of `width` groups whose workers have `devices`. Ranks of one device share it, but
    /// each has its own stream of a GPU of CUDA.
    pub fn open(devices: &[Device], width: usize, precision: Precision) -> Result<Devices> {
        let mut by_rank: Vec<Opened> = Vec::new();
        for (rank, device) in std::iter::repeat_n(devices, width).flatten().enumerate() {
            let device = numbered(*device, rank)?;
            let is_shared = !matches!(device, Device::Cuda(_));
            let found = by_rank.iter().find(|opened| is_shared && opened.device == device);
            let found = found.cloned();
            by_rank.push(found.map_or_else(|| open(device, precision), Ok)?);
        }
        Ok(Devices { by_rank })
    }

    /// Does `compute` on all of them.
    ///
    /// # Errors
    /// If their tensors cannot be exchanged.
    pub fn run<C: Compute>(&self, compute: C) -> Result<C::Output> {
        #[cfg(feature = "cuda")]
        if let Some(gpus) = self.cuda() {
            return Ok(compute.on(&gpus));
        }
        let Some(device) = self.one() else {
            bail!(
                "workers on several kinds of devices cannot exchange tensors: choose one for all"
            );
        };
        Ok(device.run(compute))
    }

    /// The same devices, which fill memory with what is no number before it is written, if they can.
    pub fn poisoned(&self) -> Devices {
        let poisoned = |opened: &Opened| Opened {
            device: opened.device,
            kernels: match opened.kernels.clone() {
                #[cfg(feature = "cuda")]
                Backend::Cuda(kernels) => Backend::Cuda(kernels.poisoned()),
                other => other,
            },
        };
        Devices { by_rank: self.by_rank.iter().map(poisoned).collect() }
    }

    /// What all have done and used, if they count.
    #[cfg(feature = "cuda")]
    pub fn usage(&self) -> Option<Usage> {
        let mut all = Usage::default();
        let mut devices: Vec<Device> = Vec::new();
        for (gpu, opened) in self.cuda()?.iter().zip(&self.by_rank) {
            let usage = gpu.driver().usage().ok()?;
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

    /// The streams of all ranks, if all are of CUDA.
    #[cfg(feature = "cuda")]
    fn cuda(&self) -> Option<Vec<Gpu<Cuda>>> {
        let gpu = |opened: &Opened| match &opened.kernels {
            Backend::Cuda(gpu) => Some(gpu.clone()),
            _ => None,
        };
        self.by_rank.iter().map(gpu).collect()
    }

    /// The device of all ranks, if it is one.
    pub fn one(&self) -> Option<&Opened> {
        let first = self.by_rank.first()?;
        self.by_rank.iter().all(|opened| opened.device == first.device).then_some(first)
    }

    /// That of each rank.
    pub fn by_rank(&self) -> &[Opened] {
        &self.by_rank
    }
}

/// What `--device` can name on this machine, in words, and what it would take for the others.
pub fn available() -> Vec<String> {
    let mut devices = vec![format!("cpu: {}", processor())];
    #[cfg(feature = "wgpu")]
    match wgpu::adapters() {
        Ok(adapters) => devices.extend(
            adapters
                .iter()
                .enumerate()
                .map(|(number, adapter)| format!("wgpu:{number}: {adapter}")),
        ),
        Err(none) => devices.push(format!("wgpu: {none}")),
    }
    let others = [Device::Cuda(None), Device::Wgpu(None)];
    let missing = others.iter().filter_map(|device| device.is_built().err());
    devices.extend(missing.map(|refusal| refusal.to_string()));
    devices
}

/// The processor's name, cores and vectors.
fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = known.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = named.map_or(std::env::consts::ARCH, |(_, name)| name);
    format!("{name}, {cores} core(s), {}; kernels in f32", vectors())
}

/// The widest vectors that kernels make use of.
fn vectors() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            "AVX-512"
        } else if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            "AVX2"
        } else {
            "SSE2"
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "no vectors"
    }
}

/// `device` with the number that this rank takes.
#[cfg_attr(
    not(any(feature = "cuda", feature = "wgpu")),
    expect(unused_variables, reason = "the CPU has no number")
)]
fn numbered(device: Device, rank: usize) -> Result<Device> {
    Ok(match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(None) => Device::Cuda(Some(rank % cuda::devices()?.len())),
        #[cfg(feature = "wgpu")]
        Device::Wgpu(None) => Device::Wgpu(Some(rank % wgpu::adapters()?.len())),
        other => other,
    })
}

fn open(device: Device, precision: Precision) -> Result<Opened> {
    device.is_built()?;
    ensure!(
        precision == Precision::F32 || matches!(device, Device::Cuda(_)),
        "precision bf16 is for CUDA alone, not for device `{device}`: choose f32"
    );
    let kernels = match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(number) => Backend::Cuda(cuda::open(number.unwrap_or(0), precision)?),
        #[cfg(feature = "wgpu")]
        Device::Wgpu(number) => Backend::Wgpu(wgpu::open(number.unwrap_or(0))?),
        _ => Backend::Candle(Candle::cpu()),
    };
    Ok(Opened { device, kernels })
}

#[cfg(feature = "cuda")]
mod cuda {
    //! GPUs of CUDA by number.

    use anyhow::{Result, anyhow, ensure};
    use chimera_backend_cuda::gpu::cuda::{Cuda, Device, devices as find};
    use chimera_backend_cuda::gpu::{Element, Gpu};
    use chimera_core::kernels::DeviceError;

    use super::Precision;

    /// All that there are.
    pub(super) fn devices() -> Result<Vec<Device>> {
        let devices = find().map_err(usage)?;
        ensure!(!devices.is_empty(), "this machine has no GPU that CUDA can use");
        Ok(devices)
    }

    /// A stream of its own on one.
    pub(super) fn open(number: usize, precision: Precision) -> Result<Gpu<Cuda>> {
        let activations = match precision {
            Precision::F32 => Element::F32,
            Precision::Bf16 => Element::Bf16,
        };
        let driver = Cuda::new(number, activations).map_err(usage)?;
        Ok(Gpu::new(driver, activations))
    }

    /// What a machine lacks before the start is a matter of its setup; only memory is not.
    fn usage(error: DeviceError) -> anyhow::Error {
        match error {
            DeviceError::OutOfMemory { .. } => error.into(),
            DeviceError::Failed { .. } => anyhow!("{error} (docs/gpu.md says what CUDA needs)"),
        }
    }
}

#[cfg(feature = "wgpu")]
mod wgpu {
    //! Adapters of wgpu by number.

    use anyhow::{Context, Result, ensure};
    use chimera_backend_wgpu::{Adapter, Options, Wgpu, adapters as find};

    /// All that there are.
    pub(super) fn adapters() -> Result<Vec<Adapter>> {
        let adapters = find();
        ensure!(
            !adapters.is_empty(),
            "wgpu finds no adapter: install the driver of the GPU, or without one a software Vulkan \
             (Debian: apt-get install mesa-vulkan-drivers)"
        );
        Ok(adapters)
    }

    /// Opens one.
    pub(super) fn open(number: usize) -> Result<Wgpu> {
        let adapters = adapters()?;
        let adapter = adapters.get(number).with_context(|| {
            let n = adapters.len();
            format!("there is no adapter wgpu:{number}: `chimera devices` lists the {n} there are")
        })?;
        Ok(adapter.open(Options::default())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (text, device) in [
            ("cpu", Device::Cpu),
            ("cuda", Device::Cuda(None)),
            ("wgpu", Device::Wgpu(None)),
            ("wgpu:3", Device::Wgpu(Some(3))),
        ] {
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        for text in ["", "gpu", "cpu:0", "wgpu:", "wgpu:-1", "cuda:x"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_device_serves_all_workers_or_each_has_its_own() {
        assert_eq!(Device::list("cpu", 3).unwrap(), [Device::Cpu; 3]);
        assert_eq!(Device::list("cpu, cpu", 2).unwrap(), [Device::Cpu; 2]);
        let refusal = Device::list("cpu,cpu", 3).unwrap_err().to_string();
        assert!(refusal.contains("2 devices for 3 worker(s)"), "{refusal}");
        assert!(Devices::open(&[Device::Cpu; 2], 2, Precision::F32).unwrap().one().is_some());
    }
}
