//! The table of the kinds of devices in this build. Only this file matches on them.

use chimera_device::{AnyKernels, Backend, Built, Compute, DeviceKind};

/// Defines [`Kernels`] from a table: a kind, its file's type, and the layers that it computes with.
macro_rules! kinds {
    ($($(#[$in_build:meta])? $DeviceKind:ident($Kernels:ty), $Layers:ty;)+) => {
        /// The kernels of an open device. Clones share it.
        #[derive(Clone, Debug)]
        pub enum Kernels {
            $(
                #[doc = concat!("Those of kind ", stringify!($DeviceKind), ".")]
                $(#[$in_build])?
                $DeviceKind($Kernels),
            )+
        }

        impl AnyKernels for Kernels {
            fn built(kind: DeviceKind) -> Option<Built<Kernels>> {
                match kind {
                    $($(#[$in_build])? DeviceKind::$DeviceKind => Some(Built {
                        has_streams: <$Kernels>::has_streams,
                        list: <$Kernels>::list,
                        number: <$Kernels>::number,
                        open: |number, numbers| {
                            <$Kernels>::open(number, numbers).map(Kernels::$DeviceKind)
                        },
                    }),)+
                    #[allow(unreachable_patterns, reason = "a build may have all kinds")]
                    _ => None,
                }
            }

            fn backend(&self) -> &dyn Backend {
                match *self {
                    $($(#[$in_build])? Kernels::$DeviceKind(ref kernels) => kernels,)+
                }
            }

            fn poisoned(self) -> Kernels {
                match self {
                    $($(#[$in_build])? Kernels::$DeviceKind(kernels) => {
                        Kernels::$DeviceKind(kernels.poisoned())
                    })+
                }
            }

            fn generic(self) -> Kernels {
                match self {
                    $($(#[$in_build])? Kernels::$DeviceKind(kernels) => {
                        Kernels::$DeviceKind(kernels.generic())
                    })+
                }
            }

            #[cfg_attr(not(any(feature = "candle", feature = "wgpu")), expect(unused_variables))]
            fn run<'k, C: Compute>(
                &self,
                all: impl Iterator<Item = &'k Kernels>,
                compute: C,
            ) -> C::Output {
                match *self {
                    $($(#[$in_build])? Kernels::$DeviceKind(_) => {
                        let all: Vec<$Layers> = all.filter_map(Kernels::of).cloned().collect();
                        compute.on(&all)
                    })+
                }
            }
        }
    };
}

kinds! {
    #[cfg(feature = "candle")]
    Cpu(super::cpu::Cpu), chimera_backend_cpu::Candle;
    #[cfg(feature = "cuda")]
    Cuda(super::cuda::CudaStream), super::cuda::CudaGpu;
    #[cfg(feature = "wgpu")]
    Wgpu(super::wgpu::WgpuAdapter), chimera_backend_wgpu::Wgpu;
}
