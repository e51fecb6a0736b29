//! The transports between workers, by name.

use std::str::FromStr;

use chimera_core::notation::by_name;

/// The transport between workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// MPI if a launcher started several processes, otherwise threads.
    Auto,
    /// Workers are threads of one process.
    Threads,
    /// Each worker is a process.
    Mpi,
    /// Each worker is a process with a CUDA GPU; tensors go over NCCL, everything else over MPI.
    Nccl,
}

impl Transport {
    /// All transports with their names on the command line.
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
