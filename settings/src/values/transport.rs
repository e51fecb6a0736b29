//! The transports between workers, by name.

use chimera_core::named_values;

named_values! {
    /// The transport between workers.
    pub enum Transport: "transport" {
        /// MPI if a launcher started several processes, otherwise threads.
        Auto = "auto",
        /// Workers are threads of one process.
        Threads = "threads",
        /// Each worker is a process.
        Mpi = "mpi",
        /// Each worker is a process with a CUDA GPU; tensors go over NCCL, everything else over MPI.
        Nccl = "nccl",
        /// Each worker is a process, on machines that any network connects; messages are encrypted.
        Quic = "quic",
    }
}
