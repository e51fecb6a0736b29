//! Trains neural networks too large for one device by pipelining them over many.
//!
//! This crate gathers what users need under one name: the schedules, the proof, the simulator, the
//! drawings and the engine of [`core`], and the kernels of the devices in this build. It also has
//! the parts of the `chimera` command that other programs may want: settings, data and tokenizers,
//! evaluation, checkpoints, and Hugging Face's formats.

#[cfg(feature = "cli")]
pub mod cli;
pub mod device;
pub mod run;
pub mod transport;

#[cfg(feature = "candle")]
pub use chimera_backend_cpu as candle;
#[cfg(feature = "cuda")]
pub use chimera_backend_cuda as cuda;
#[cfg(feature = "wgpu")]
pub use chimera_backend_wgpu as wgpu;
#[cfg(feature = "mpi")]
pub use chimera_comm_mpi as mpi;
#[cfg(feature = "nccl")]
pub use chimera_comm_nccl as nccl;
#[cfg(feature = "quic")]
pub use chimera_comm_quic as quic;
pub use chimera_core as core;
pub use chimera_formats as formats;
pub use chimera_plan::{plan, profile};
pub use chimera_run::{data, observe};
pub use chimera_settings as settings;
