//! Which processes of this machine are still there.
//!
//! MPI 3 does not say that a peer has died: waits for it never end. The system does.

use std::fs::{read_link, read_to_string};

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

/// Peers of this machine that one rank looks after: enough that each is seen by others, few enough that
/// looking costs nothing on a machine with many.
const MAX_WATCHED: usize = 8;

/// A process, so that its peers can look after it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Process {
    /// The running system and its namespace of processes; empty if that is unknown.
    machine: String,
    pid: u32,
    /// When it began, which tells it from a later one of the same number.
    start: String,
}

impl Process {
    /// This process.
    pub(crate) fn me() -> Process {
        let pid = std::process::id();
        let boot = read_to_string("/proc/sys/kernel/random/boot_id");
        let space = read_link("/proc/self/ns/pid");
        let machine = match (boot, space) {
            (Ok(boot), Ok(space)) => format!("{} {}", boot.trim(), space.display()),
            _ => String::new(),
        };
        Process { machine, pid, start: start(pid).unwrap_or_default() }
    }

    fn is_alive(&self) -> bool {
        start(self.pid).is_some_and(|start| start == self.start)
    }
}

/// When the living process `pid` began.
fn start(pid: u32) -> Option<String> {
    let text = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned) // field 22 of proc(5)
}

/// The peers that this rank looks after.
pub(crate) struct Watched {
    peers: Vec<(Rank, Process)>,
}

impl Watched {
    /// Those of the same machine that follow `me` among `all`.
    pub(crate) fn of(me: Rank, all: &[Process]) -> Watched {
        let Some(own) = all.get(me.index()) else { return Watched { peers: Vec::new() } };
        let ranks = (0..all.len() as u32).map(Rank).zip(all);
        let (before, after): (Vec<_>, Vec<_>) = ranks
            .filter(|(rank, process)| *rank != me && process.machine == own.machine)
            .partition(|(rank, _)| *rank < me);
        let next = after.into_iter().chain(before).take(MAX_WATCHED);
        let peers = next.map(|(rank, process)| (rank, process.clone()));
        Watched { peers: if own.machine.is_empty() { Vec::new() } else { peers.collect() } }
    }

    /// Those that have ended.
    pub(crate) fn dead(&self) -> impl Iterator<Item = Rank> {
        self.peers.iter().filter(|(_, process)| !process.is_alive()).map(|(rank, _)| *rank)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_dead_process_is_noticed_even_before_it_is_buried() {
        let me = Process::me();
        if me.machine.is_empty() {
            return; // not Linux
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
        let pid = child.id();
        let other = Process { pid, start: start(pid).expect("alive"), ..me.clone() };
        let elsewhere = Process { machine: "x".into(), pid: 1, start: String::new() };
        let watched = Watched::of(Rank(1), &[other.clone(), me.clone(), elsewhere]);
        assert_eq!(watched.peers, [(Rank(0), other)]);
        assert_eq!(watched.dead().next(), None);
        child.kill().expect("killed");
        while watched.dead().next().is_none() {
            std::thread::yield_now();
        }
        child.wait().expect("buried");
        assert_eq!(watched.dead().collect::<Vec<_>>(), [Rank(0)]);
        assert!(me.is_alive() && !Process { start: "1".into(), ..me }.is_alive());
    }

    #[test]
    fn the_next_few_are_watched() {
        let me = Process { machine: "m".into(), pid: 1, start: "1".into() };
        let all = vec![me; 20];
        let of = |rank| Watched::of(Rank(rank), &all).peers.into_iter().map(|(r, _)| r.0);
        assert_eq!(of(0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(of(17).collect::<Vec<_>>(), [18, 19, 0, 1, 2, 3, 4, 5]);
    }
}
