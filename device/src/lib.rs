//! The devices that workers compute on, by their names, and the interface of their kernels.
//!
//! A program that opens devices has a table of its kinds of kernels, which implements
//! [`AnyKernels`]; [`OpenDevice`] and [`Devices`] are the open devices of that table.

mod backend;
mod core_share;
mod host;
mod kernels;
mod kind;
mod numbers;
mod open;
mod precision;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};

pub use backend::{Backend, Compute, Usage};
pub use core_share::CoreWatch;
pub use host::{NoThread, machine, n_cores, start_threads, thread_pool};
pub use kernels::{AnyKernels, Built, OpenedBy};
pub use kind::DeviceKind;
pub use numbers::{Bf16Products, Numbers};
pub use open::{Devices, OpenDevice};
pub use precision::Precision;

/// A device as `--device` names it: a kind, and a number within that kind. Without a number each
/// worker takes the next device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    kind: DeviceKind,
    number: Option<usize>,
}

impl Device {
    /// Example names of devices.
    pub const EXAMPLES: &[&str] = &["cpu", "cuda", "cuda:0", "wgpu", "wgpu:0"];
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Device, String> {
        let unknown = || format!("unknown device `{text}`: choose {}", choices());
        let (name, number) = match text.split_once(':') {
            None => (text, None),
            Some((name, number)) => (name, Some(number.parse().map_err(|_| unknown())?)),
        };
        let is_named =
            |kind: &&DeviceKind| kind.name() == name && !(kind.is_host() && number.is_some());
        let kind = *DeviceKind::ALL.iter().find(is_named).ok_or_else(unknown)?;
        Ok(Device { kind, number })
    }
}

/// Lists all names that a device can have.
fn choices() -> String {
    let names = DeviceKind::ALL.iter().map(|kind| match (kind.name(), kind.is_host()) {
        (name, true) => name.to_string(),
        (name, false) => format!("{name}, {name}:N"),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    names.rsplit_once(", ").map_or(names.clone(), |(first, last)| format!("{first} or {last}"))
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        self.number.map_or(Ok(()), |number| write!(f, ":{number}"))
    }
}

impl Device {
    /// The processor.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, number: None };

    /// Parses the devices of the workers of a group of `depth`: one for all, or one each, separated
    /// by commas.
    ///
    /// # Errors
    /// If a device is unknown or not in this build, or there are too many or too few.
    pub fn list<K: AnyKernels>(text: &str, depth: usize) -> Result<Vec<Device>> {
        let devices = Device::named(text, depth)?;
        devices.iter().try_for_each(|device| device.built::<K>().map(drop)).map(|()| devices)
    }

    /// Parses a list of devices, which need not be in this build.
    ///
    /// # Errors
    /// If a device is unknown, or there are too many or too few.
    pub fn named(text: &str, depth: usize) -> Result<Vec<Device>> {
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

    /// Returns true if the device is the host itself, whose memory holds its tensors.
    pub fn is_host(self) -> bool {
        self.kind.is_host()
    }

    /// Returns true if devices of this kind can multiply in this precision. A CPU must have the
    /// instructions for bf16.
    pub fn has(self, precision: Precision) -> bool {
        self.kind.precisions().contains(&precision)
    }

    /// Refuses a precision that the device does not have.
    ///
    /// # Errors
    /// Names the device, and the devices that have others.
    pub fn check(self, precision: Precision) -> Result<()> {
        ensure!(
            self.has(precision),
            "device `{self}` has no precision {precision}: CUDA has tf32 and bf16, CPUs have bf16; \
             choose f32"
        );
        Ok(())
    }

    /// Names the model of the device, without its number.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn model_name<K: AnyKernels>(self) -> Result<String> {
        if self.is_host() {
            Ok(self.kind.name().into())
        } else {
            Ok(OpenDevice::<K>::open(self, 0, Precision::F32)?.model())
        }
    }

    /// Returns the device with the number for the `local`-th worker of a machine, unless it has a
    /// number.
    ///
    /// # Errors
    /// If it has none, and devices of its kind are not in this build or not on this machine.
    pub fn numbered<K: AnyKernels>(self, local: usize) -> Result<Device> {
        let number = match self.number {
            None => (self.built::<K>()?.number)(local)?,
            given => given,
        };
        Ok(Device { number, ..self })
    }

    /// Returns true if `named` can stand for this device: same kind, and the same number or none.
    fn is_of(self, named: Device) -> bool {
        self.kind == named.kind && (named.number.is_none() || self.number == named.number)
    }

    /// Returns true if each rank has a stream of its own, so that tensors can move between devices
    /// of this kind.
    pub fn has_streams<K: AnyKernels>(self) -> bool {
        K::built(self.kind).is_some_and(|built| (built.has_streams)())
    }

    /// Returns true if ranks on this device and on `other` can exchange tensors without copying
    /// them to the host.
    fn shares_tensors<K: AnyKernels>(self, other: Device) -> bool {
        self == other || (self.kind == other.kind && self.has_streams::<K>())
    }

    /// Describes what `--device` can name of this kind on this machine, or why there is nothing.
    pub fn listing<K: AnyKernels>(self) -> Vec<String> {
        let found = self.built::<K>().map(|built| (built.list)());
        match found {
            Ok(found) => found.unwrap_or_else(|none| vec![format!("{}: {none}", self.kind.name())]),
            Err(refusal) => vec![refusal.to_string()],
        }
    }

    fn built<K: AnyKernels>(self) -> Result<Built<K>> {
        K::built(self.kind).with_context(|| {
            let feature = self.kind.name();
            format!(
                "device `{self}` is not in this build: install chimera with `--features {feature}`"
            )
        })
    }
}

/// Describes what `--device` can name on this machine, and what the other kinds would need.
pub fn available<K: AnyKernels>() -> Vec<String>
where
    Device: OpenedBy<K>,
{
    let mut kinds = DeviceKind::ALL.to_vec();
    kinds.sort_by_key(|kind| K::built(*kind).is_none());
    kinds.into_iter().flat_map(|kind| Device { kind, number: None }.listing::<K>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        for (text, kind, number) in [
            ("cpu", DeviceKind::Cpu, None),
            ("cuda", DeviceKind::Cuda, None),
            ("wgpu", DeviceKind::Wgpu, None),
            ("wgpu:3", DeviceKind::Wgpu, Some(3)),
        ] {
            let device = Device { kind, number };
            assert_eq!(text.parse(), Ok(device));
            assert_eq!(device.to_string(), text);
        }
        for text in ["", "gpu", "cpu:0", "wgpu:", "wgpu:-1", "cuda:x"] {
            let refusal = text.parse::<Device>().expect_err(text);
            assert!(refusal.ends_with("choose cpu, cuda, cuda:N, wgpu or wgpu:N"), "{refusal}");
        }
    }

    #[test]
    fn a_name_without_a_number_stands_for_every_device_of_its_kind() {
        let device = |name: &str| name.parse::<Device>().expect(name);
        let is_of = |a, b| device(a).is_of(device(b));
        assert!(is_of("wgpu:1", "wgpu") && is_of("wgpu:1", "wgpu:1") && is_of("cpu", "cpu"));
        assert!(!is_of("wgpu:1", "wgpu:0") && !is_of("wgpu:1", "cuda"));
    }

    #[test]
    fn one_device_serves_all_workers_or_each_has_its_own() {
        assert_eq!(Device::named("cpu", 3).unwrap(), [Device::CPU; 3]);
        assert_eq!(Device::named("cpu, cpu", 2).unwrap(), [Device::CPU; 2]);
        let refusal = Device::named("cpu,cpu", 3).unwrap_err().to_string();
        assert!(refusal.contains("2 devices for 3 worker(s)"), "{refusal}");
    }
}
