//! The table of the kinds of devices, and the one place that matches on them.

use std::any::Any;

use anyhow::Result;
use chimera_backend_candle::Candle;

use super::backend::{Backend, Compute};
use super::precision::Precision;

/// Makes [`Kind`] and [`Kernels`] of a table: a kind, its kernels, its name, its precisions.
macro_rules! kinds {
    ($($(#[$in_build:meta])? $Kind:ident($Kernels:ty), $name:literal, $precisions:expr;)+) => {
        /// A kind of device, in this build or not.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Kind {
            $($Kind,)+
        }

        /// The kernels of an open device. Clones share it.
        #[derive(Clone, Debug)]
        pub(super) enum Kernels {
            $($(#[$in_build])? $Kind($Kernels),)+
        }

        impl Kind {
            pub(super) const ALL: &[Kind] = &[$(Kind::$Kind),+];

            /// Kinds in this build.
            const BUILT: &[(Kind, Built)] = &[$(
                $(#[$in_build])?
                (Kind::$Kind, Built {
                    has_streams: <$Kernels>::has_streams,
                    list: <$Kernels>::list,
                    number: <$Kernels>::number,
                    open: |number, precision| {
                        <$Kernels>::open(number, precision).map(Kernels::$Kind)
                    },
                }),
            )+];

            /// The name for `--device`, and of the feature that puts the kind into a build.
            pub(super) fn name(self) -> &'static str {
                match self {
                    $(Kind::$Kind => $name,)+
                }
            }

            /// What activations can be made of.
            pub(super) fn precisions(self) -> &'static [Precision] {
                match self {
                    $(Kind::$Kind => &$precisions,)+
                }
            }
        }

        impl Kernels {
            pub(super) fn backend(&self) -> &dyn Backend {
                match self {
                    $($(#[$in_build])? Kernels::$Kind(kernels) => kernels,)+
                }
            }

            pub(super) fn poisoned(self) -> Kernels {
                match self {
                    $($(#[$in_build])? Kernels::$Kind(kernels) => {
                        Kernels::$Kind(kernels.poisoned())
                    })+
                }
            }

            /// Does `compute` with the kernels in `all` that are of the kind of these: at least one.
            pub(super) fn run<'k, C: Compute>(
                &self,
                all: impl Iterator<Item = &'k Kernels>,
                compute: C,
            ) -> C::Output {
                match self {
                    $($(#[$in_build])? Kernels::$Kind(_) => {
                        let all: Vec<$Kernels> = all.filter_map(Kernels::of).cloned().collect();
                        compute.on(&all)
                    })+
                }
            }
        }
    };
}

kinds! {
    Cpu(Candle), "cpu", [Precision::F32];
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::Stream), "cuda", [Precision::F32, Precision::Bf16];
    #[cfg(feature = "wgpu")]
    Wgpu(super::wgpu::Wgpu), "wgpu", [Precision::F32];
}

/// How devices of a kind in this build are found and opened: see [`Backend`].
pub(super) struct Built {
    pub(super) has_streams: fn() -> bool,
    pub(super) list: fn() -> Result<Vec<String>>,
    pub(super) number: fn(usize) -> Result<Option<usize>>,
    pub(super) open: fn(usize, Precision) -> Result<Kernels>,
}

impl Kind {
    /// Whether it is the host itself: one device, whose tensors lie in the host's memory.
    pub(super) fn is_host(self) -> bool {
        self == Kind::Cpu
    }

    /// How its devices are found and opened, if this build has it.
    pub(super) fn built(self) -> Option<&'static Built> {
        Kind::BUILT.iter().find(|(kind, _)| *kind == self).map(|(_, built)| built)
    }
}

impl Kernels {
    /// The kernels, if they are of this type.
    pub(super) fn of<K: 'static>(&self) -> Option<&K> {
        (self.backend() as &dyn Any).downcast_ref()
    }
}
