//! Ranks, started as by a user.

use std::process::Command;

/// The launcher for `n` ranks. It works for any user, also root in a container, and on few cores.
pub(crate) fn launcher(n: usize) -> Command {
    let launcher = std::env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command.args(["-n", &n.to_string()]).envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ]);
    command
}
