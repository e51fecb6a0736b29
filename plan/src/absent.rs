//! A program whose only device is a processor that cannot be opened, for tests of plans.

use anyhow::{Result, bail};
use chimera_device::{AnyKernels, Backend, Built, Compute, Device, DeviceKind, OpenedBy};

/// Kernels of which there are none.
#[derive(Clone, Debug)]
pub(crate) enum Absent {}

impl OpenedBy<Absent> for Device {}

impl AnyKernels for Absent {
    fn built(kind: DeviceKind) -> Option<Built<Absent>> {
        let open = |_, _| -> Result<Absent> { bail!("no device is here") };
        let built =
            Built { has_streams: || false, list: || Ok(Vec::new()), number: |_| Ok(None), open };
        (kind == DeviceKind::Cpu).then_some(built)
    }

    fn backend(&self) -> &dyn Backend {
        match *self {}
    }

    fn poisoned(self) -> Absent {
        self
    }

    fn generic(self) -> Absent {
        self
    }

    fn run<'k, C: Compute>(&self, _: impl Iterator<Item = &'k Absent>, _: C) -> C::Output {
        match *self {}
    }
}
