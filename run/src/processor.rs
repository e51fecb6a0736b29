//! A program whose only device is the reference, for tests of runs.

use std::any::Any;

use anyhow::Result;
use chimera_core::comm::{Comm, CommError, Host};
use chimera_core::device::reference::Reference;
use chimera_core::engine::Patience;
use chimera_core::fault::{Class, Fault};
use chimera_core::ids::Rank;
use chimera_device::{
    AnyKernels, Backend, Bf16Products, Built, Compute, Device, DeviceKind, Numbers, OpenDevice,
    OpenedBy, Precision,
};

use crate::run::{DirectTransport, OnTransport, Run, Transformer};

/// A run on the reference, which stands for the processor.
pub(crate) type CpuRun = Run<Transformer<Cpu>>;

/// The loops of the reference, which round nothing, and the way in which they stand for bf16.
#[derive(Clone, Debug)]
pub(crate) struct Cpu(Reference, Option<&'static str>);

impl OpenedBy<Cpu> for Device {}

impl Backend for Cpu {
    fn list() -> Result<Vec<String>> {
        Ok(vec!["cpu".into()])
    }

    fn number(_: usize) -> Result<Option<usize>> {
        Ok(None)
    }

    fn open(_: usize, numbers: Numbers) -> Result<Cpu> {
        let way = match numbers.bf16_products {
            Bf16Products::Amx => "amx",
            Bf16Products::Dot => "dot",
            Bf16Products::Auto | Bf16Products::Fma => "fma",
        };
        Ok(Cpu(Reference, (numbers.precision == Precision::Bf16).then_some(way)))
    }

    fn kernels(&self) -> &dyn Any {
        &self.0
    }

    fn name(&self) -> String {
        "cpu".into()
    }

    fn model(&self) -> String {
        "cpu".into()
    }

    fn bf16_products(&self) -> Option<&'static str> {
        self.1
    }
}

impl AnyKernels for Cpu {
    fn built(kind: DeviceKind) -> Option<Built<Cpu>> {
        let built = Built {
            has_streams: Cpu::has_streams,
            list: Cpu::list,
            number: Cpu::number,
            open: Cpu::open,
        };
        (kind == DeviceKind::Cpu).then_some(built)
    }

    fn backend(&self) -> &dyn Backend {
        self
    }

    fn poisoned(self) -> Cpu {
        self
    }

    fn generic(self) -> Cpu {
        self
    }

    fn run<'k, C: Compute>(&self, all: impl Iterator<Item = &'k Cpu>, compute: C) -> C::Output {
        let all: Vec<Reference> = all.map(|cpu| cpu.0).collect();
        compute.on(&all)
    }
}

impl DirectTransport for Cpu {
    fn direct(_: Option<&OpenDevice<Cpu>>, rank: Rank) -> Result<String, Fault> {
        Err(Fault::new(Class::Usage, rank, "tests have no direct transport"))
    }

    fn over_direct<W: OnTransport>(
        _: &OpenDevice<Cpu>,
        comm: &mut dyn Comm<Host>,
        _: Patience,
        _: impl Fn() -> Option<CommError> + Send + 'static,
        _: W,
    ) -> Result<W::Output, Fault> {
        Err(Fault::new(Class::Usage, comm.rank(), "tests have no direct transport"))
    }
}
