//! Detection of ranks whose processes have ended.
//!
//! MPI 3 does not report the death of a peer: waits for it never end. The system reports the end of
//! processes on this host, and [connections](crate::detection::links) the end of those on other hosts.

use std::collections::HashMap;
use std::fs::{read_link, read_to_string};
use std::io;

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

use crate::detection::handles::{Handle, kill};
use crate::detection::links::Links;

/// The identity of a process, so that its peers can watch it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Process {
    /// The running system and its process namespace; empty if unknown.
    host: String,
    pid: u32,
    /// Start time, which distinguishes it from a later process of the same number.
    start: String,
}

impl Process {
    pub(crate) fn me() -> Process {
        let pid = std::process::id();
        let boot = read_to_string("/proc/sys/kernel/random/boot_id");
        let space = read_link("/proc/self/ns/pid");
        let host = match (boot, space) {
            (Ok(boot), Ok(space)) => format!("{} {}", boot.trim(), space.display()),
            _ => String::new(),
        };
        Process { host, pid, start: start(pid).unwrap_or_default() }
    }

    /// Returns true if it is known to have ended.
    fn has_ended(&self) -> bool {
        self.state() == ProcessState::Ended
    }

    /// Returns true if it is known to live: a process of the same number may be a later one.
    fn is_alive(&self) -> bool {
        matches!(self.state(), ProcessState::Alive(_)) && !self.start.is_empty()
    }

    /// Returns true if a signal has stopped it.
    fn is_stopped(&self) -> bool {
        self.state() == ProcessState::Alive('T')
    }

    /// Returns its current state in the system.
    fn state(&self) -> ProcessState {
        match stat(self.pid) {
            // Without a start time, the process of this number counts as the one.
            Ok(Some((_, start))) if !self.start.is_empty() && start != self.start => {
                ProcessState::Ended
            }
            Ok(Some((letter, _))) => ProcessState::Alive(letter),
            Ok(None) => ProcessState::Ended,
            Err(error) => ProcessState::of_error(&error),
        }
    }
}

/// The state of a process, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ProcessState {
    /// The process lives, in the state of this letter.
    Alive(char),
    /// The process has ended, reaped or not.
    Ended,
    /// The system could not be asked.
    Unknown,
}

impl ProcessState {
    /// Returns the state that an error of reading a process's file implies.
    ///
    /// Only two errors mean an end; others, such as too many open files, are the caller's.
    fn of_error(error: &io::Error) -> ProcessState {
        const NO_SUCH_PROCESS: i32 = 3; // ESRCH
        let is_gone = error.kind() == io::ErrorKind::NotFound
            || error.raw_os_error() == Some(NO_SUCH_PROCESS);
        if is_gone { ProcessState::Ended } else { ProcessState::Unknown }
    }
}

/// Returns the start time of the living process `pid`, if it can be read.
fn start(pid: u32) -> Option<String> {
    stat(pid).ok()?.map(|(_, start)| start)
}

/// Returns fields 3 and 22 of proc(5): state and start time; `None` if `pid` has ended.
fn stat(pid: u32) -> io::Result<Option<(char, String)>> {
    let text = read_to_string(format!("/proc/{pid}/stat"))?;
    let unreadable = || io::Error::from(io::ErrorKind::InvalidData);
    // The name, in parentheses, may hold anything.
    let (_, fields) = text.rsplit_once(')').ok_or_else(unreadable)?;
    let mut fields = fields.split_whitespace();
    let letter = fields.next().and_then(|state| state.chars().next()).ok_or_else(unreadable)?;
    let start = fields.nth(18).ok_or_else(unreadable)?;
    Ok((!matches!(letter, 'Z' | 'X')).then(|| (letter, start.to_owned())))
}

/// Returns the first rank on each rank's host. Unknown hosts have one rank each.
pub(crate) fn firsts(all: &[Process]) -> Vec<Rank> {
    let mut known = HashMap::new();
    let first = |(rank, process): (Rank, &Process)| match process.host.as_str() {
        "" => rank,
        host => *known.entry(host.to_owned()).or_insert(rank),
    };
    (0..).map(Rank).zip(all).map(first).collect()
}

/// Watches which ranks' processes have ended, and ends evicted ones on this host.
#[derive(Default)]
pub(crate) struct Watched {
    /// The first rank of each rank's host.
    firsts: Vec<Rank>,
    /// Processes of this host.
    handles: Vec<(Rank, Handle)>,
    /// Processes of this host without a handle, which are looked up by number.
    listed: Vec<(Rank, Process)>,
    /// All other processes of this host.
    local: Vec<(Rank, Process)>,
    /// Connections to other hosts, if there are any.
    links: Option<Links>,
}

impl Watched {
    /// Watches the processes on the host of `me` directly, and the others through `links`.
    pub(crate) fn of(me: Rank, all: &[Process], links: Option<Links>) -> Watched {
        let mut watched = Watched { links, ..Watched::default() };
        let firsts = firsts(all);
        for ((rank, process), first) in (0..).map(Rank).zip(all).zip(&firsts) {
            if rank != me && firsts.get(me.index()) == Some(first) {
                watched.watch(rank, process);
                watched.local.push((rank, process.clone()));
            }
        }
        watched.firsts = firsts;
        watched
    }

    /// Returns the other ranks on the host of `rank`.
    pub(crate) fn neighbours(&self, rank: Rank) -> Vec<Rank> {
        let first = self.firsts.get(rank.index());
        let ranks = (0..).map(Rank).zip(&self.firsts);
        let beside = ranks.filter(|(other, of)| Some(*of) == first && *other != rank);
        beside.map(|(other, _)| other).collect()
    }

    /// Returns the ranks that have their host to themselves.
    pub(crate) fn alone(&self) -> Vec<Rank> {
        let ranks = (0..self.firsts.len() as u32).map(Rank);
        ranks.filter(|rank| self.neighbours(*rank).is_empty()).collect()
    }

    /// Ends the process of a rank on this host.
    pub(crate) fn kill(&self, rank: Rank) {
        if let Some((_, handle)) = self.handles.iter().find(|(of, _)| *of == rank) {
            handle.kill();
        } else if let Some((_, process)) = self.listed.iter().find(|(of, _)| *of == rank)
            && process.is_alive()
        {
            kill(process.pid);
        }
    }

    /// Returns the ranks of this host that a signal has stopped.
    pub(crate) fn stopped(&self) -> Vec<Rank> {
        let stopped = self.local.iter().filter(|(_, process)| process.is_stopped());
        stopped.map(|(rank, _)| *rank).collect()
    }

    fn watch(&mut self, rank: Rank, process: &Process) {
        match Handle::open(process.pid) {
            // The process lived before and after the handle was opened, so the handle is its own.
            Some(handle) if process.is_alive() => self.handles.push((rank, handle)),
            _ => self.listed.push((rank, process.clone())),
        }
    }

    /// Returns the ranks whose processes have ended, those of this host first.
    pub(crate) fn ended(&self) -> Vec<Rank> {
        let have_ended = Handle::have_ended(self.handles.iter().map(|(_, handle)| handle));
        let handled = self.handles.iter().zip(have_ended).filter(|(_, has_ended)| *has_ended);
        let listed = self.listed.iter().filter(|(_, process)| process.has_ended());
        let mut ended: Vec<_> = handled.map(|((rank, _), _)| *rank).collect();
        ended.extend(listed.map(|(rank, _)| *rank));
        let elsewhere = self.links.iter().flat_map(Links::ended);
        let elsewhere: Vec<_> = elsewhere.filter(|rank| !ended.contains(rank)).collect();
        ended.extend(elsewhere);
        ended
    }

    /// Reports deaths to the ranks of other hosts.
    pub(crate) fn tell(&self, dead: &[Rank]) {
        if let Some(links) = &self.links {
            links.tell(dead);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Waits until `watched` sees that rank 0 has ended.
    fn wait_for_end(watched: &Watched) {
        while watched.ended().is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(watched.ended(), [Rank(0)]);
    }

    #[test]
    fn a_dead_process_is_noticed_even_before_it_is_buried() {
        let me = Process::me();
        if me.host.is_empty() {
            return; // not Linux
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
        let pid = child.id();
        let other = Process { pid, start: start(pid).expect("alive"), ..me.clone() };
        let elsewhere = Process { host: "x".into(), pid: 1, start: String::new() };
        let watched = Watched::of(Rank(1), &[other.clone(), me.clone(), elsewhere], None);
        let by_number = Watched { listed: vec![(Rank(0), other.clone())], ..Watched::default() };
        assert_eq!((watched.ended(), by_number.ended()), (vec![], vec![]));
        assert_eq!(watched.handles.len() + watched.listed.len(), 1);
        assert_eq!(watched.neighbours(Rank(0)), [Rank(1)]);
        assert_eq!(watched.alone(), [Rank(2)]);
        assert_eq!(watched.stopped(), []);
        let stop = Command::new("kill").args(["-STOP", &pid.to_string()]).status();
        assert!(stop.is_ok_and(|status| status.success()));
        while watched.stopped().is_empty() {
            std::thread::yield_now();
        }
        watched.kill(Rank(0));
        wait_for_end(&watched);
        wait_for_end(&by_number);
        child.wait().expect("buried");
        assert_eq!((watched.ended(), by_number.ended()), (vec![Rank(0)], vec![Rank(0)]));
        // The process has ended, so it gets no handle.
        assert_eq!(Watched::of(Rank(1), &[other, me.clone()], None).ended(), [Rank(0)]);
        assert!(me.is_alive() && !Process { start: "1".into(), ..me }.is_alive());
    }

    #[test]
    fn a_process_without_a_handle_is_ended_by_its_number() {
        let me = Process::me();
        if me.host.is_empty() {
            return; // not Linux
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("a process");
        let pid = child.id();
        let other = Process { pid, start: start(pid).expect("alive"), ..me };
        let watched = Watched { listed: vec![(Rank(0), other)], ..Watched::default() };
        watched.kill(Rank(0));
        wait_for_end(&watched);
        child.wait().expect("buried");
    }

    /// Errors of the caller, such as too many open files, say nothing about the process.
    #[test]
    fn only_a_missing_process_has_ended() {
        let of = |code| ProcessState::of_error(&io::Error::from_raw_os_error(code));
        let [enoent, esrch] = [2, 3];
        assert_eq!([enoent, esrch].map(of), [ProcessState::Ended; 2]);
        let [eio, enomem, eacces, enfile, emfile] = [5, 12, 13, 23, 24];
        assert_eq!([eio, enomem, eacces, enfile, emfile].map(of), [ProcessState::Unknown; 5]);
    }

    #[test]
    fn a_process_of_unknown_start_is_neither_dead_nor_known_to_live() {
        let me = Process::me();
        if me.host.is_empty() {
            return; // not Linux
        }
        let me = Process { start: String::new(), ..me };
        assert!(!me.has_ended() && !me.is_alive());
    }

    /// Another process may have the number of one that has ended.
    #[test]
    fn a_number_is_not_enough() {
        let me = Process::me();
        if me.host.is_empty() {
            return; // not Linux
        }
        let earlier = Process { start: "1".into(), ..me.clone() };
        assert_eq!(Watched::of(Rank(1), &[earlier, me], None).ended(), [Rank(0)]);
    }

    #[test]
    fn each_host_has_a_first_rank() {
        let on = |host: &str| Process { host: host.into(), pid: 1, start: String::new() };
        let all = ["a", "b", "b", "", "a", ""].map(on);
        assert_eq!(firsts(&all), [0, 1, 1, 3, 0, 5].map(Rank));
    }
}
