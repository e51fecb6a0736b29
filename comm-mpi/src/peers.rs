//! Which processes of this machine are still there.
//!
//! MPI 3 does not say that a peer has died: waits for it never end. The system does.

use std::fs::{read_link, read_to_string};

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

/// Peers of this machine that one rank looks at every time, and as many of the others, in turn: all are looked
/// after, and on a machine with many a look costs no more.
const N_AT_ONCE: usize = 8;

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

/// The peers that this rank looks after: those of the same machine, the next first.
#[derive(Default)]
pub(crate) struct Watched {
    peers: Vec<(Rank, Process)>,
}

impl Watched {
    /// Those of `all` that `me` looks after.
    pub(crate) fn of(me: Rank, all: &[Process]) -> Watched {
        let Some(own) = all.get(me.index()) else { return Watched { peers: Vec::new() } };
        let ranks = (0..all.len() as u32).map(Rank).zip(all);
        let (before, after): (Vec<_>, Vec<_>) = ranks
            .filter(|(rank, process)| *rank != me && process.machine == own.machine)
            .partition(|(rank, _)| *rank < me);
        let next = after.into_iter().chain(before);
        let peers = next.map(|(rank, process)| (rank, process.clone()));
        Watched { peers: if own.machine.is_empty() { Vec::new() } else { peers.collect() } }
    }

    /// Those that have ended.
    pub(crate) fn dead(&self) -> impl Iterator<Item = Rank> {
        self.missing(self.peers.iter())
    }

    /// Of the next peers, of those whose turn it is at the `nth` look, and of `suspects`, those that have ended.
    pub(crate) fn dead_at(&self, nth: usize, suspects: &[Rank]) -> impl Iterator<Item = Rank> {
        let (next, others) = self.peers.split_at(self.peers.len().min(N_AT_ONCE));
        let n_turns = others.len().div_ceil(N_AT_ONCE).max(1);
        let turn = others.chunks(N_AT_ONCE).nth(nth % n_turns).unwrap_or_default();
        let is_suspect = |peer: &&(Rank, Process)| suspects.contains(&peer.0);
        let looked_at = next.iter().chain(turn);
        let suspected = others.iter().filter(is_suspect).filter(|peer| !turn.contains(peer));
        self.missing(looked_at.chain(suspected))
    }

    fn missing<'p>(
        &self,
        peers: impl Iterator<Item = &'p (Rank, Process)>,
    ) -> impl Iterator<Item = Rank> {
        peers.filter(|(_, process)| !process.is_alive()).map(|(rank, _)| *rank)
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
    fn all_are_watched_the_next_few_at_every_look() {
        let dead = Process { machine: "m".into(), pid: 0, start: String::new() };
        let watched = Watched::of(Rank(17), &vec![dead; 30]);
        let at = |nth, suspects: &[u32]| -> Vec<u32> {
            let suspects: Vec<Rank> = suspects.iter().copied().map(Rank).collect();
            watched.dead_at(nth, &suspects).map(|rank| rank.0).collect()
        };
        let next: Vec<u32> = (18..26).collect();
        assert_eq!(at(0, &[]), [&next[..], &[26, 27, 28, 29, 0, 1, 2, 3]].concat());
        assert_eq!(at(2, &[18, 3]), [&next[..], &[12, 13, 14, 15, 16, 3]].concat());
        assert_eq!(at(3, &[3]), at(0, &[]));
        assert_eq!(watched.dead().count(), 29);
        let few = Watched::of(
            Rank(0),
            &watched.peers.iter().map(|(_, p)| p.clone()).take(3).collect::<Vec<_>>(),
        );
        assert_eq!(few.dead_at(7, &[]).map(|rank| rank.0).collect::<Vec<_>>(), [1, 2]);
    }
}
