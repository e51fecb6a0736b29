//! Ranks on two hosts: network namespaces of this machine, each with its own processes and host
//! name.
//!
//! A third namespace holds the network between them and the launcher, like the login node of a
//! cluster. All of them end with the chore.

use std::env::current_exe;
use std::fs::{Permissions, set_permissions, write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::faults::ulfm::command::strike_survivors;
use xtask::command::{install, read, run as run_command};
use xtask::mpi_library::{Built, build, launch};
use xtask::open_mpi_5::OpenMpi5;
use xtask::strike::{Blow, Case, Setting, Site};

/// Time in which the other host learns of a death.
const SOON: Duration = Duration::from_secs(5);
/// Long enough for busy machines.
const TIMEOUTS: &str = "--timeout 8 --start-timeout 60";
/// The namespaces of a host, which end with its first process.
const OWN: [&str; 6] = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];

/// Two hosts, and a network between them and the launcher.
const NETWORK: &str = include_str!("network.sh");

/// Starts a command on a host, as ssh would.
const AGENT: &str = include_str!("agent.sh");

/// Ranks on each host, the rank that fails, and the kind of failure.
const CASES: [([usize; 2], usize, Blow); 6] = [
    ([3, 1], 3, Blow::Kill), // the only rank on its host
    ([1, 3], 0, Blow::Kill), // all hosts are connected to it
    ([1, 3], 1, Blow::Kill), // its host is connected through it
    ([1, 3], 2, Blow::Kill),
    ([3, 1], 3, Blow::Stop),
    ([1, 3], 0, Blow::Stop),
];

/// A large number of ranks, which need a small model.
const N_MANY: &str = "64";
const MANY: &str = "--schedule dapple --width 8 --depth 8 --micro-batches 8 --layers 8 --hidden 16 --heads 2 \
     --context 16 --micro-batch-size 1 --threads 1 --steps 3 --start-timeout 600 --timeout 600";

/// Deaths that the others survive: of a rank on each host, and of two at once.
const SURVIVED: [&str; 4] = [
    "0 KILL at 3.5 FILE", "1 PANIC at 2.5 FILE", "3 KILL at 3.5 FILE",
    "0 KILL at 3.5 FILE;2 KILL at 3.5 FILE",
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The launcher, the command, and the command for Open MPI 5. Set when the chore has started
    /// itself again in its own namespaces
    #[arg(long, num_args = 3, hide = true)]
    within: Vec<String>,
}

/// Kills and stops ranks on two hosts, also if the others survive it, and trains with many ranks
/// there.
pub(crate) fn run(args: &Args) -> Result<()> {
    let [launcher, program, surviving] = args.within.as_slice() else { return enter() };
    let setup = TempDir::new()?;
    let mut network = Command::new("sh");
    read(network.args(["-ec", NETWORK])).context("the kernel makes no network of two hosts")?;
    let agent = setup.path().join("agent");
    write(&agent, AGENT)?;
    set_permissions(&agent, Permissions::from_mode(0o755))?;
    let (launcher, program) = (launcher.as_str(), Path::new(program));
    for (slots, rank, blow) in CASES {
        let environment = hosts(setup.path(), slots)?;
        let setting = Setting { soon: SOON, timeouts: TIMEOUTS, environment };
        let site = Site::build(launcher, program, setting)?;
        let case = Case { rank, blow, point: "at 3.5".into() };
        let ended = site.strike(&case).with_context(|| format!("{slots:?}: {case}"))?;
        let ended = ended.with_context(|| format!("{case} is never reached"))?;
        eprintln!("{slots:?} ranks: {case}: named after {:.2?}", ended.detections);
    }
    let open_mpi_5 = OpenMpi5::install()?;
    let hostfile = hosts_file(setup.path(), [2, 2])?;
    strike_survivors(&SURVIVED, || {
        let mut command = open_mpi_5.command("mpirun");
        command.args(["--with-ft", "ulfm", "--timeout", "100", "--hostfile"]).arg(&hostfile);
        command.args(["--prtemca", "plm_ssh_agent"]).arg(&agent);
        command.args(["--prtemca", "prte_leave_session_attached", "1"]); // a host ends with its daemon
        command.args(["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none", "-n", "4"]);
        command.arg(surviving);
        command
    })?;
    let data = setup.path().join("text");
    write(&data, "Many ranks train with few words. ".repeat(400))?;
    let mut many = launch(launcher, N_MANY, program);
    many.arg("train").args(MANY.split_whitespace()).arg("--data").arg(&data);
    many.arg("--out").arg(setup.path().join("many"));
    many.envs(hosts(setup.path(), [32, 32])?).env("MPIEXEC_TIMEOUT", "900");
    run_command(&mut many)
}

/// Starts the chore again in namespaces where it may change the network.
fn enter() -> Result<()> {
    if read(Command::new("ip").arg("-V")).is_err() {
        install(&["iproute2"])?;
    }
    read(Command::new("unshare").args(OWN).arg("true"))
        .context("two hosts need namespaces: run it as root, and in a container with privileges")?;
    let Built { launcher, program, .. } = build(false)?;
    let surviving = OpenMpi5::install()?.chimera()?;
    let mut within = Command::new("unshare");
    within.args(OWN).arg(current_exe()?).args(["hosts", "--within", &launcher]);
    run_command(within.arg(program).arg(surviving))
}

/// Environment variables with which Open MPI starts `slots` ranks on the hosts.
fn hosts(setup: &Path, slots: [usize; 2]) -> Result<Vec<(&'static str, PathBuf)>> {
    let file = hosts_file(setup, slots)?;
    Ok(vec![
        ("OMPI_MCA_orte_default_hostfile", file),
        ("OMPI_MCA_plm_rsh_agent", setup.join("agent")),
        ("OMPI_MCA_orte_leave_session_attached", "1".into()), // a host ends with its daemon
    ])
}

/// Writes the hosts file for launchers, with `slots` ranks for each host.
fn hosts_file(setup: &Path, slots: [usize; 2]) -> Result<PathBuf> {
    let file = setup.join("hosts");
    write(&file, format!("10.77.0.1 slots={}\n10.77.0.2 slots={}\n", slots[0], slots[1]))?;
    Ok(file)
}
