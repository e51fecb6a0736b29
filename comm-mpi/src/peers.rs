//! Which ranks' processes have ended.
//!
//! MPI 3 does not say that a peer has died: waits for it never end. The system says so of the processes of this host,
//! and [connections](crate::links) of those of other hosts.

use std::collections::HashMap;
use std::fs::{read_link, read_to_string};

use chimera_core::ids::Rank;
use serde::{Deserialize, Serialize};

use crate::handles::Handle;
use crate::links::Links;

/// A process, so that its peers can look after it.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(crate) struct Process {
    /// The running system and its namespace of processes; empty if that is unknown.
    host: String,
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
        let host = match (boot, space) {
            (Ok(boot), Ok(space)) => format!("{} {}", boot.trim(), space.display()),
            _ => String::new(),
        };
        Process { host, pid, start: start(pid).unwrap_or_default() }
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

/// The first rank of each rank's host. A process whose host is unknown is alone on it.
pub(crate) fn firsts(all: &[Process]) -> Vec<Rank> {
    let mut known = HashMap::new();
    let first = |(rank, process): (Rank, &Process)| match process.host.as_str() {
        "" => rank,
        host => *known.entry(host.to_owned()).or_insert(rank),
    };
    (0..).map(Rank).zip(all).map(first).collect()
}

/// Sees which ranks' processes have ended.
#[derive(Default)]
pub(crate) struct Watched {
    /// Processes of this host.
    handles: Vec<(Rank, Handle)>,
    /// Processes of this host for which the system has no handle: they are looked up by their numbers.
    listed: Vec<(Rank, Process)>,
    /// To other hosts, if there are any.
    links: Option<Links>,
}

impl Watched {
    /// Watches the processes on the host of `me` among `all`, and the others by `links`.
    pub(crate) fn of(me: Rank, all: &[Process], links: Option<Links>) -> Watched {
        let mut watched = Watched { links, ..Watched::default() };
        let firsts = firsts(all);
        for ((rank, process), first) in (0..).map(Rank).zip(all).zip(&firsts) {
            if rank != me && firsts.get(me.index()) == Some(first) {
                watched.watch(rank, process);
            }
        }
        watched
    }

    fn watch(&mut self, rank: Rank, process: &Process) {
        match Handle::open(process.pid) {
            // It was there before the handle was opened and is there after it, so the handle is its own.
            Some(handle) if process.is_alive() => self.handles.push((rank, handle)),
            _ => self.listed.push((rank, process.clone())),
        }
    }

    /// The ranks whose processes have ended, those of this host first.
    pub(crate) fn ended(&self) -> Vec<Rank> {
        let have_ended = Handle::have_ended(self.handles.iter().map(|(_, handle)| handle));
        let handled = self.handles.iter().zip(have_ended).filter(|(_, has_ended)| *has_ended);
        let listed = self.listed.iter().filter(|(_, process)| !process.is_alive());
        let mut ended: Vec<_> = handled.map(|((rank, _), _)| *rank).collect();
        ended.extend(listed.map(|(rank, _)| *rank));
        let elsewhere = self.links.iter().flat_map(Links::ended);
        let elsewhere: Vec<_> = elsewhere.filter(|rank| !ended.contains(rank)).collect();
        ended.extend(elsewhere);
        ended
    }

    /// Lets the ranks of other hosts know who has died.
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
        child.kill().expect("killed");
        wait_for_end(&watched);
        wait_for_end(&by_number);
        child.wait().expect("buried");
        assert_eq!((watched.ended(), by_number.ended()), (vec![Rank(0)], vec![Rank(0)]));
        // It is too late for a handle.
        assert_eq!(Watched::of(Rank(1), &[other, me.clone()], None).ended(), [Rank(0)]);
        assert!(me.is_alive() && !Process { start: "1".into(), ..me }.is_alive());
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
