//! The devices that workers compute on: the one place that knows which kinds there are, and which of them
//! this build has.

#[cfg(feature = "cuda")]
mod cuda;
mod listing;
mod opened;
pub mod selftest;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, ensure};
use chimera_core::notation::by_name;

pub use listing::available;
pub use opened::{Compute, Devices, OpenDevice, Usage};

/// A device as `--device` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The processor.
    Cpu,
    /// A GPU through CUDA, by its number; without one, each worker takes the next.
    Cuda(Option<usize>),
    /// An adapter of wgpu, by its number; without one, each worker takes the next of the first one's model.
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
        let devices = Device::named(text, depth)?;
        devices.iter().try_for_each(Device::is_built).map(|()| devices)
    }

    /// Parses a list of devices, in this build or not.
    pub(crate) fn named(text: &str, depth: usize) -> Result<Vec<Device>> {
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
        Ok(devices)
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

    /// Bytes of an element of an activation.
    pub fn activation_bytes(self) -> u64 {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }

    /// Refuses it where `device` has no such numbers.
    pub fn check(self, device: Device) -> Result<()> {
        ensure!(
            self == Precision::F32 || matches!(device, Device::Cuda(_)),
            "precision bf16 is for CUDA alone, not for device `{device}`: choose f32"
        );
        Ok(())
    }
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
