//! Runs of a host that go on when members are killed, stopped, or leave.

use std::fs::read;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::command::{Ran, Running, chimera, folder};
use crate::hosted::{host, member, member_in};
use crate::{free_port, losses, options, start_rank, until};

/// Largest difference of a loss from another order of additions.
const APART: f64 = 1e-4;

/// A run of a host with members, and the same run in threads.
pub(crate) struct Lab {
    pub(crate) folder: TempDir,
    line: String,
}

/// A run that is going on.
pub(crate) struct Going<'l> {
    lab: &'l Lab,
    pub(crate) host: Running,
    ticket: String,
    pub(crate) members: Vec<Running>,
    pub(crate) out: PathBuf,
}

impl Lab {
    pub(crate) fn new(line: &str) -> Lab {
        Lab { folder: folder(), line: line.into() }
    }

    /// Starts a host and as many members.
    pub(crate) fn start(&self, n_members: usize, more: &str, strike: &str) -> Going<'_> {
        let name = "struck";
        let line = self.line_of(name, more);
        let (host, ticket) = host(&format!("{line} --wait {n_members}"));
        let strike = [("CHIMERA_STRIKE", strike)];
        let join = |nth: usize| member_in(&self.folder, &format!("m{nth}"), &ticket, &strike);
        let members = (0..n_members).map(join).collect();
        Going::of(self, (host, ticket), members, name)
    }

    /// The options of the run in the folder `name`.
    pub(crate) fn line_of(&self, name: &str, more: &str) -> String {
        options(&self.folder, name, &format!("{} {more}", self.line))
    }

    /// Trains in threads, and returns the folder of the run.
    pub(crate) fn undisturbed(&self, depth: usize) -> PathBuf {
        let line = options(&self.folder, "alone", &self.line);
        let alone = chimera(&format!("train {line} --depth {depth} --transport threads"));
        assert_eq!(alone.code, Some(0), "{}", alone.stderr);
        self.folder.path().join("alone")
    }
}

impl<'l> Going<'l> {
    pub(crate) fn of(
        lab: &'l Lab,
        (host, ticket): (Running, String),
        members: Vec<Running>,
        name: &str,
    ) -> Going<'l> {
        Going { lab, host, ticket, members, out: lab.folder.path().join(name) }
    }

    pub(crate) fn n_steps(&self) -> usize {
        steps_so_far(&self.out)
    }

    fn until_step(&self, step: usize) {
        until("the steps do not come", || self.n_steps() >= step);
    }

    fn until_said(&self, what: &str) {
        until(&format!("the host does not say `{what}`"), || self.has_said(what));
    }

    pub(crate) fn has_said(&self, what: &str) -> bool {
        let said = self.host.output.path().join("stderr");
        std::fs::read_to_string(&said).is_ok_and(|said| said.contains(what))
    }

    pub(crate) fn join(&mut self, name: &str) {
        self.members.push(member(&self.lab.folder, name, &self.ticket));
    }

    pub(crate) fn signal(&self, nth: usize, signal: Signal) {
        let pid = Pid::from_raw(self.members[nth].child.id() as i32);
        kill(pid, signal).expect("a member that runs");
    }

    pub(crate) fn end(self) -> (Ran, Vec<Ran>, PathBuf) {
        let host = self.host.wait();
        let members = self.members.into_iter().map(Running::wait).collect();
        (host, members, self.out)
    }
}

fn steps_so_far(out: &Path) -> usize {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
    text.lines().count()
}

pub(crate) fn assert_same_bits(a: &Path, b: &Path) {
    assert_eq!(losses(a), losses(b));
    let weights = |run: &Path| read(run.join("model/model.safetensors")).expect("weights");
    assert!(weights(a) == weights(b), "other weights");
}

/// With replicas nothing is lost, and the step of the death is computed again.
#[test]
fn a_newcomer_takes_the_place_of_a_killed_member_with_the_same_bits() {
    let lab = Lab::new("--schedule chimera --steps 120 --wire int8");
    let mut going = lab.start(3, "--survive respawn --save-every 40", "");
    going.until_step(10);
    going.signal(1, Signal::SIGKILL);
    going.until_said("is free: chimera join");
    going.join("newcomer");
    let (host, members, out) = going.end();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert!(host.stderr.contains("processes took the place of rank"), "{}", host.stderr);
    for (nth, member) in members.iter().enumerate() {
        assert_eq!(member.code.unwrap_or(-1), if nth == 1 { -1 } else { 0 }, "{}", member.stderr);
    }
    assert_same_bits(&out, &lab.undisturbed(4));
}

/// A machine that finds no free place waits for one.
#[test]
fn a_spare_machine_takes_the_next_free_place() {
    let lab = Lab::new("--schedule 1f1b --steps 120");
    let mut going = lab.start(1, "--survive respawn --shadow-every 3", "");
    going.until_step(10);
    going.join("spare");
    going.until_said("a machine waits until a place is free");
    going.join("needless");
    going.signal(0, Signal::SIGKILL);
    let (host, members, out) = going.end();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert!(members.iter().skip(1).all(|member| member.code == Some(0)), "{}", host.stderr);
    let needless = members.iter().filter(|ran| ran.stderr.contains("was not needed")).count();
    assert_eq!(needless, 1, "{}", members[1].stderr);
    assert_same_bits(&out, &lab.undisturbed(2));
}

/// The others go on, and a newcomer trains with them from the end of a step on.
#[test]
fn fewer_go_on_until_a_newcomer_comes() {
    let lab = Lab::new("--schedule chimera --steps 400 --lr 1e-4");
    let mut going = lab.start(3, "--survive narrow", "");
    going.until_step(10);
    going.signal(2, Signal::SIGKILL);
    going.until_said("of 4 ranks train on");
    let narrow = going.n_steps();
    going.until_step(narrow + 10);
    going.join("newcomer");
    let (host, members, out) = going.end();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert_eq!(members[3].code, Some(0), "{}", members[3].stderr);
    assert!(host.stderr.contains("processes took the place of rank"), "{}", host.stderr);
    let (struck, alone) = (losses(&out), losses(&lab.undisturbed(4)));
    assert_eq!(struck.len(), alone.len());
    let loss = |(_, loss, _): &(u64, String, String)| loss.parse::<f64>().expect("a number");
    let pairs = struck.iter().zip(&alone).map(|(a, b)| (loss(a) - loss(b)).abs());
    let apart = pairs.fold(0.0, f64::max);
    assert!(apart <= APART, "losses are {apart:e} apart");
}

/// A member that sleeps is gone for the others, and ends with the reason when it wakes.
#[test]
fn a_member_that_sleeps_is_replaced_and_ends_when_it_wakes() {
    let lab = Lab::new("--schedule chimera --steps 80");
    let mut going = lab.start(3, "--survive respawn", "");
    going.until_step(5);
    going.signal(0, Signal::SIGSTOP);
    going.until_said("is free: chimera join");
    going.join("newcomer");
    let asleep = going.n_steps();
    going.until_step(asleep + 2);
    going.signal(0, Signal::SIGCONT);
    let (host, members, out) = going.end();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert_eq!(members[0].code, Some(5), "{}", members[0].stderr);
    let said = &members[0].stderr;
    assert!(said.contains("gone on without this machine") && said.contains("join again"), "{said}");
    assert_same_bits(&out, &lab.undisturbed(4));
}

/// Members die at these points of a step, of a save and of the start; a spare takes each place.
#[cfg(debug_assertions)]
#[test]
fn deaths_at_any_point_cost_nothing() {
    let lab = Lab::new("--schedule chimera --steps 6 --save-every 2");
    let alone = lab.undisturbed(4);
    for strike in [
        "1 KILL at 0.3",
        "2 KILL at 2.4",
        "3 KILL at 3.7",
        "1 KILL at 4.9",
        "2 PANIC at 3.5",
        "2 KILL gather start 3",
        "1 KILL at 3.5;2 KILL at 4.1",
    ] {
        let file = lab.folder.path().join("struck-here");
        let points: Vec<_> =
            strike.split(';').map(|point| format!("{point} {}", file.display())).collect();
        let mut going = lab.start(3, "--survive respawn --resume auto", &points.join(";"));
        // Whoever comes first gets a place, and a member that came later would be struck as a spare.
        going.until_said("\n3 of 3 members\n");
        going.join("spare");
        going.join("other");
        let (host, _, out) = going.end_struck();
        assert_eq!(host.code, Some(0), "{strike}: {}", host.stderr);
        std::fs::remove_file(&file).expect("a member was struck");
        let n_gone = host.stderr.matches(" is gone: ").count();
        assert_eq!(n_gone, points.len(), "{strike}: {}", host.stderr);
        assert_same_bits(&out, &alone);
        std::fs::remove_dir_all(&out).expect("a run");
    }
}

impl Going<'_> {
    /// Like [`end`](Going::end), if members may panic.
    pub(crate) fn end_struck(self) -> (Ran, Vec<Ran>, PathBuf) {
        let host = self.host.wait();
        let members = self.members.into_iter().map(Running::end).collect();
        (host, members, self.out)
    }
}

/// Ranks of a cluster are started again by whoever started them.
#[test]
fn a_rank_of_a_cluster_is_started_again() {
    let lab = Lab::new("--schedule chimera --steps 120");
    let line =
        options(&lab.folder, "cluster", &format!("{} --depth 4 --survive respawn", lab.line));
    let port = free_port();
    let rank = |rank: usize| start_rank(&lab.folder, (rank, 4), port, &line);
    let mut ranks: Vec<_> = (0..4).map(rank).collect();
    let out = lab.folder.path().join("cluster");
    until("the steps do not come", || steps_so_far(&out) >= 10);
    ranks[2].child.kill().expect("killed");
    drop(ranks.remove(2).end());
    ranks.push(rank(2));
    for ran in ranks.into_iter().map(Running::wait) {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    assert_same_bits(&out, &lab.undisturbed(4));
}
