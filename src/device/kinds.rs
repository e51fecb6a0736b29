//! The table of the kinds of devices. Only this file matches on them.

use std::any::Any;

use anyhow::Result;

use super::backend::{Backend, Compute};
use super::precision::Precision;

/// Defines [`DeviceKind`] and [`Kernels`] from a table: a kind, its kernels, its name, its
/// precisions.
macro_rules! kinds {
    ($($(#[$in_build:meta])? $DeviceKind:ident($Kernels:ty), $name:literal, $precisions:expr;)+) => {
        /// A kind of device, in this build or not.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum DeviceKind {
            $($DeviceKind,)+
        }

        /// The kernels of an open device. Clones share it.
        #[derive(Clone, Debug)]
        pub(super) enum Kernels {
            $($(#[$in_build])? $DeviceKind($Kernels),)+
        }

        impl DeviceKind {
            pub(super) const ALL: &[DeviceKind] = &[$(DeviceKind::$DeviceKind),+];

            /// Kinds in this build.
            const BUILT: &[(DeviceKind, Built)] = &[$(
                $(#[$in_build])?
                (DeviceKind::$DeviceKind, Built {
                    has_streams: <$Kernels>::has_streams,
                    list: <$Kernels>::list,
                    number: <$Kernels>::number,
                    open: |number, precision| {
                        <$Kernels>::open(number, precision).map(Kernels::$DeviceKind)
                    },
                }),
            )+];

            /// The name for `--device`, and the feature that adds the kind to a build.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(DeviceKind::$DeviceKind => $name,)+
                }
            }

            /// The precisions that it can multiply, if the device at hand has the instructions.
            pub(super) fn precisions(self) -> &'static [Precision] {
                match self {
                    $(DeviceKind::$DeviceKind => &$precisions,)+
                }
            }
        }

        impl Kernels {
            pub(super) fn backend(&self) -> &dyn Backend {
                match *self {
                    $($(#[$in_build])? Kernels::$DeviceKind(ref kernels) => kernels,)+
                }
            }

            pub(super) fn poisoned(self) -> Kernels {
                match self {
                    $($(#[$in_build])? Kernels::$DeviceKind(kernels) => {
                        Kernels::$DeviceKind(kernels.poisoned())
                    })+
                }
            }

            pub(super) fn generic(self) -> Kernels {
                match self {
                    $($(#[$in_build])? Kernels::$DeviceKind(kernels) => {
                        Kernels::$DeviceKind(kernels.generic())
                    })+
                }
            }

            /// Runs `compute` with the kernels in `all` that are of the same kind as these: at
            /// least one.
            #[cfg_attr(not(any(feature = "candle", feature = "wgpu")), expect(unused_variables))]
            pub(super) fn run<'k, C: Compute>(
                &self,
                all: impl Iterator<Item = &'k Kernels>,
                compute: C,
            ) -> C::Output {
                match *self {
                    $($(#[$in_build])? Kernels::$DeviceKind(_) => {
                        let all: Vec<$Kernels> = all.filter_map(Kernels::of).cloned().collect();
                        compute.on(&all)
                    })+
                }
            }
        }
    };
}

kinds! {
    #[cfg(feature = "candle")]
    Cpu(chimera_backend_cpu::Candle), "cpu", [Precision::F32, Precision::Bf16];
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::CudaStream), "cuda", [Precision::F32, Precision::Tf32, Precision::Bf16];
    #[cfg(feature = "wgpu")]
    Wgpu(super::wgpu::Wgpu), "wgpu", [Precision::F32];
}

/// Functions that find and open devices of a kind in this build: see [`Backend`].
pub(super) struct Built {
    pub(super) has_streams: fn() -> bool,
    pub(super) list: fn() -> Result<Vec<String>>,
    pub(super) number: fn(usize) -> Result<Option<usize>>,
    pub(super) open: fn(usize, Precision) -> Result<Kernels>,
}

impl DeviceKind {
    /// Returns true if the device is the host itself: one device, whose tensors lie in the host's
    /// memory.
    pub(super) fn is_host(self) -> bool {
        self == DeviceKind::Cpu
    }

    /// Returns the functions that find and open its devices, if this build has it.
    pub(super) fn built(self) -> Option<&'static Built> {
        DeviceKind::BUILT.iter().find(|(kind, _)| *kind == self).map(|(_, built)| built)
    }
}

impl Kernels {
    /// Returns the kernels if they are of this type.
    pub(super) fn of<K: 'static>(&self) -> Option<&K> {
        (self.backend() as &dyn Any).downcast_ref()
    }
}
