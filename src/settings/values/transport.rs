//! How workers reach each other, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;

/// How workers reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// By MPI where a launcher started several processes, else as threads.
    Auto,
    /// They are threads of one process.
    Threads,
    /// Each is a process.
    Mpi,
    /// Each is a process with a GPU of CUDA; their tensors go over NCCL, all else over MPI.
    Nccl,
}

impl Transport {
    /// Every one with its name on the command line.
    pub const ALL: [(&'static str, Transport); 4] = [
        ("auto", Transport::Auto),
        ("threads", Transport::Threads),
        ("mpi", Transport::Mpi),
        ("nccl", Transport::Nccl),
    ];
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> Result<Transport, String> {
        by_name("transport", name, &Transport::ALL)
    }
}
