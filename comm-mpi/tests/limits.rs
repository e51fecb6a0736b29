//! A message that is longer than its receiver expects ends the run without using up the receiver's
//! memory.

use std::env;
use std::process::{Command, exit};
use std::time::{Duration, Instant};

use chimera_comm_mpi::Mpi;
use chimera_core::comm::{Comm, Endpoint, Host, Process, Tag, all_gather};
use chimera_core::ids::Rank;

/// The number of elements in 68 MiB.
const LONG: usize = 17 << 20;
const TAG: Tag = Tag::private(0, 0);

#[test]
fn a_message_longer_than_expected_is_refused() {
    let told = ranks_that_expect(0);
    let refusal =
        "rank 0 sent something unreadable: it has 68.0 MiB, but at most 64.0 MiB are expected";
    assert!(told.contains(refusal), "{told}");
}

#[test]
fn a_long_message_that_is_expected_is_taken() {
    let told = ranks_that_expect(LONG);
    assert!(told.contains(&format!("taken: {LONG}")), "{told}");
}

/// Runs two ranks, the second of which expects tensors of `n` elements. Returns their output.
fn ranks_that_expect(n: usize) -> String {
    let launcher = env::var("MPIRUN").unwrap_or_else(|_| "mpirun".into());
    let mut command = Command::new(launcher);
    command.args(["-n", "2"]).arg(env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", "as_rank", "--nocapture"]).envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("EXPECTED", &n.to_string()),
    ]);
    let output = command.output().expect("a launcher");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
#[ignore = "one of the ranks that the tests above start"]
fn as_rank() {
    let patience = Duration::from_secs(60);
    let mut mpi = Mpi::start(patience, |_| {}).expect("MPI starts");
    let expected = env::var("EXPECTED").expect("a number").parse().expect("a number");
    mpi.control().expect_tensors(expected);
    let deadline = Instant::now() + patience;
    if mpi.rank() == Rank(0) {
        let host = Host::new([LONG], vec![1.5; LONG]);
        mpi.send(Rank(1), TAG, host).expect("sent");
        let _ = all_gather(&mut mpi, &[], deadline); // until the other rank has polled
        exit(0)
    }
    match mpi.recv(Rank(0), TAG, deadline) {
        Ok(host) => {
            println!("taken: {}", host.data.len());
            let _ = all_gather(&mut mpi, &[], deadline);
        }
        Err(error) => {
            println!("{error}");
            mpi.abort(&error.into_fault(Rank(1)));
        }
    }
    exit(0) // MPI cannot be finalized after a refused message
}
