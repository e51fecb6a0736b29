//! Detects whether a launcher such as mpirun started this process as one of several.

mod declared;
mod over_quic;

use std::fmt;

use anyhow::{Result, bail};
use chimera_settings::{Survive, Transport};

use over_quic::over_quic;

/// The transports that a program has, besides threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Built {
    /// MPI.
    pub mpi: bool,
    /// NCCL.
    pub nccl: bool,
    /// QUIC.
    pub quic: bool,
}

/// The kinds of ranks, by their transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Threads of this process.
    Threads,
    /// Processes that a launcher has started, over MPI.
    Mpi,
    /// Processes on any network.
    Quic,
}

/// Returns the kind of ranks, and the reason for it. Ranks that are to `survive` deaths are
/// processes, and a replacement for a dead rank is started by itself.
///
/// # Errors
/// If the program lacks the transport; if ranks should survive deaths, and their transport cannot
/// replace them.
pub fn choose(transport: Transport, survive: Survive, built: Built) -> Result<(Over, String)> {
    if transport == Transport::Nccl && !built.nccl {
        bail!(
            "this build has no NCCL: build with `--features nccl,mpi`, or choose another transport"
        );
    }
    if transport == Transport::Quic {
        return over_quic(built);
    }
    choose_for(transport, survive, Launch::found(), built.mpi)
}

/// The reason for a transport that the user has chosen.
const AS_SAID: &str = "as --transport says";

fn choose_for(
    transport: Transport,
    survive: Survive,
    launch: Option<Launch>,
    has_mpi: bool,
) -> Result<(Over, String)> {
    let survives = survive != Survive::Off;
    if survives && (transport == Transport::Threads || launch.is_none()) {
        bail!(
            "survive is for ranks that are processes, and here they are threads: start them with `mpirun \
             --with-ft ulfm` of Open MPI 5, or leave survive out"
        );
    }
    let launched = launch.filter(|launch| launch.n_ranks > 1 || survives);
    let why = match (transport, &launched) {
        (Transport::Threads, _) => return Ok((Over::Threads, AS_SAID.into())),
        (Transport::Auto, None) => {
            return Ok((Over::Threads, "no launcher has started several processes".into()));
        }
        (Transport::Auto, Some(launch)) => launch.to_string(),
        _ => AS_SAID.to_string(),
    };
    if !has_mpi {
        let found = launched.map(|launch| format!("; found: {launch}")).unwrap_or_default();
        bail!(
            "this build has no MPI{found}: build with `--features mpi` (it needs an MPI library and \
             libclang), or choose --transport threads"
        );
    }
    Ok((Over::Mpi, why))
}

/// The variables that a launcher sets for the processes that it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Name of the launcher.
    pub launcher: &'static str,
    /// The variable that the launcher is recognised by.
    pub variable: &'static str,
    /// Processes of the job.
    pub n_ranks: u32,
    /// Rank of this process.
    pub rank: u32,
    /// Ranks on this machine, if the launcher says so.
    pub n_local: Option<u32>,
    /// Rank of this process on this machine, if the launcher says so.
    pub local: Option<u32>,
}

/// Launchers by their variables: number of ranks, rank, and both within this machine. The first launcher
/// whose number and rank are set counts: one that starts processes within an allocation of SLURM is closer
/// than SLURM. Numbers within this machine that it lacks come from another with the same number and rank.
const LAUNCHERS: [(&str, [&str; 4]); 3] = [
    (
        "Open MPI",
        [
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ],
    ),
    ("MPICH or PMI", ["PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"]),
    (
        "SLURM's srun",
        ["SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"],
    ),
];

impl Launch {
    /// Returns the launch that was [declared](Launch::declare) in this process, or that its
    /// environment describes.
    pub fn found() -> Option<Launch> {
        declared::get().or_else(|| Launch::of(|name| std::env::var(name).ok()))
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
        let rows = LAUNCHERS.into_iter();
        let mut all = rows.filter_map(|(launcher, names)| Launch::by(launcher, names, &variable));
        let mut closest = all.next()?;
        let this = (closest.n_ranks, closest.rank);
        // `srun --mpi=pmi2` sets PMI's size and rank. Only SLURM's variables say where ranks run.
        for other in all.filter(|other| (other.n_ranks, other.rank) == this) {
            closest.n_local = closest.n_local.or(other.n_local);
            closest.local = closest.local.or(other.local);
        }
        Some(closest)
    }

    /// Returns the launch that the variables of one launcher describe, if they are complete.
    fn by(
        launcher: &'static str,
        [size, rank, local_size, local_rank]: [&'static str; 4],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Launch> {
        let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
        let n_ranks = number(size)?;
        let rank = number(rank).filter(|rank| *rank < n_ranks)?;
        let n_local = variable(local_size).and_then(|sizes| on_each_machine(&sizes));
        let n_local = n_local.filter(|n| (1..=n_ranks).contains(n));
        let local = number(local_rank).filter(|local| *local < n_ranks);
        Some(Launch { launcher, variable: size, n_ranks, rank, n_local, local })
    }
}

/// Parses the number of ranks on each machine: a number, or SLURM's `4(x2)` for equal machines.
/// Returns `None` if machines differ.
fn on_each_machine(sizes: &str) -> Option<u32> {
    let size = sizes.trim();
    let size =
        size.strip_suffix(')').and_then(|size| size.split_once("(x")).map_or(size, |(n, _)| n);
    size.parse().ok()
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { launcher, variable, n_ranks, .. } = self;
        write!(f, "{launcher} says {variable}={n_ranks}")
    }
}

/// Returns the pairs of width and depth that make `n_ranks` ranks.
pub fn layouts(n_ranks: usize) -> Vec<(usize, usize)> {
    (1..=n_ranks).filter(|w| n_ranks.is_multiple_of(*w)).map(|w| (w, n_ranks / w)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &str) -> Option<Launch> {
        Launch::of(|name| {
            let pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.rev().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn launchers_are_told_apart() {
        let open_mpi = "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 \
                        OMPI_COMM_WORLD_LOCAL_RANK=1";
        let srun = "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_TASKS_PER_NODE=2(x2)";
        let found = launch(&format!("{srun} {open_mpi}")).expect("a launcher");
        assert_eq!((found.n_ranks, found.rank), (8, 3));
        assert_eq!((found.n_local, found.local), (Some(4), Some(1)));
        assert_eq!(found.to_string(), "Open MPI says OMPI_COMM_WORLD_SIZE=8");
        let found = launch(srun).expect("a launcher");
        assert_eq!((found.launcher, found.n_ranks, found.n_local), ("SLURM's srun", 4, Some(2)));
        for (sizes, n_local) in [("4", Some(4)), ("3,1", None), ("2(x3),1", None), ("(x2)", None)] {
            let srun =
                format!("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_TASKS_PER_NODE={sizes}");
            assert_eq!(launch(&srun).expect("a launcher").n_local, n_local, "{sizes}");
        }
        let found = launch("PMI_SIZE=2 PMI_RANK=1").expect("a launcher");
        assert_eq!((found.launcher, found.n_local), ("MPICH or PMI", None));
        for none in ["", "PMI_SIZE=2", "PMI_SIZE=2 PMI_RANK=2", "PMI_SIZE=x PMI_RANK=0"] {
            assert_eq!(launch(none), None, "{none}");
        }
    }

    #[test]
    fn what_pmi_lacks_within_a_machine_comes_from_slurm() {
        let pmi = "PMI_SIZE=4 PMI_RANK=3";
        let slurm = "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_STEP_TASKS_PER_NODE=2(x2) \
                     SLURM_LOCALID=1";
        let within = |variables: String| {
            let found = launch(&variables).expect("a launcher");
            assert_eq!(found.launcher, "MPICH or PMI", "{variables}");
            (found.n_local, found.local)
        };
        assert_eq!(within(format!("{pmi} {slurm}")), (Some(2), Some(1)));
        let hydra = format!("{pmi} MPI_LOCALNRANKS=4 MPI_LOCALRANKID=3");
        assert_eq!(within(format!("{hydra} {slurm}")), (Some(4), Some(3)));
        // SLURM may have started another process, which started this one.
        for other in ["SLURM_STEP_NUM_TASKS=8", "SLURM_PROCID=1"] {
            assert_eq!(within(format!("{pmi} {slurm} {other}")), (None, None), "{other}");
        }
    }

    #[test]
    fn auto_follows_the_launcher() {
        let launched = launch("PMI_SIZE=2 PMI_RANK=1");
        let chosen = |transport: Transport, launch: &Option<Launch>| {
            choose_for(transport, Survive::Off, launch.clone(), true).expect("there is MPI").0
        };
        assert_eq!(chosen(Transport::Auto, &launched), Over::Mpi);
        assert_eq!(chosen(Transport::Auto, &None), Over::Threads);
        assert_eq!(chosen(Transport::Auto, &launch("PMI_SIZE=1 PMI_RANK=0")), Over::Threads);
        assert_eq!(chosen(Transport::Mpi, &None), Over::Mpi);
        assert_eq!(chosen(Transport::Threads, &launched), Over::Threads);
        let refusal = choose_for(Transport::Auto, Survive::Off, launched, false)
            .expect_err("no MPI")
            .to_string();
        assert!(refusal.contains("found: MPICH or PMI says PMI_SIZE=2: build with"), "{refusal}");
        assert!(choose_for(Transport::Threads, Survive::Off, None, false).is_ok());
        let alone = launch("PMI_SIZE=1 PMI_RANK=0");
        let surviving = |launch| choose_for(Transport::Auto, Survive::Respawn, launch, true);
        let replacing = surviving(alone).expect("a process that takes another's place").0;
        assert_eq!(replacing, Over::Mpi);
        let refusal = surviving(None).expect_err("threads").to_string();
        assert!(refusal.contains("start them with `mpirun --with-ft ulfm`"), "{refusal}");
    }

    #[test]
    fn layouts_are_all_there_are() {
        assert_eq!(layouts(8), [(1, 8), (2, 4), (4, 2), (8, 1)]);
        assert_eq!(layouts(7), [(1, 7), (7, 1)]);
    }
}
