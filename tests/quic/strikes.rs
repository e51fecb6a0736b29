//! Members that are killed, that sleep and whose links are cut, in random order: hosts are network
//! namespaces, which only root can make. `CHIMERA_STRIKES` says how often, and `CHIMERA_SEED` when:
//! `cargo test -p chimera-pipeline --test quic random_strikes -- --ignored --nocapture`.

use std::collections::VecDeque;
use std::env;
use std::fs::remove_dir_all;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::command::{Ran, Running};
use crate::cut::Hosts;
use crate::hosted::host_by;
use crate::survives::{Going, Lab, assert_same_bits};

/// Steps of a run, and the most between two strikes.
const STEPS: usize = 300;
const BETWEEN: usize = 50;
/// Members of a run, and machines for them and those that take their places.
const N_MEMBERS: usize = 3;
const N_MACHINES: usize = 7;
/// A silence after which a member still has its place, and one after which it has lost it.
const SHORT: Duration = Duration::from_secs(3);
const LONG: Duration = Duration::from_secs(13);
/// A run that does not end in this time hangs.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Strike {
    Kill,
    /// Kills a member, and then the machine that takes its place.
    KillTwice,
    /// SIGSTOP, and SIGCONT after some time.
    Sleep(Duration),
    /// No packet passes for some time.
    Cut(Duration),
    /// The host sleeps for a short time, or its link is cut.
    SleepOfHost,
    CutOfHost,
}

impl Strike {
    fn random(random: &mut ChaCha8Rng) -> Strike {
        match random.random_range(0..12) {
            0..3 => Strike::Kill,
            3..5 => Strike::KillTwice,
            5 => Strike::Sleep(SHORT),
            6 => Strike::Sleep(LONG),
            7..9 => Strike::Cut(SHORT),
            9 => Strike::Cut(LONG),
            10 => Strike::SleepOfHost,
            _ => Strike::CutOfHost,
        }
    }

    /// Returns true if the member loses its place.
    fn is_lasting(self) -> bool {
        matches!(self, Strike::Kill | Strike::KillTwice | Strike::Sleep(LONG) | Strike::Cut(LONG))
    }
}

/// A run of a host with members on machines of their own.
struct Struck<'l> {
    lab: &'l Lab,
    hosts: &'l Hosts,
    going: Going<'l>,
    ticket: String,
    /// Machines without a member.
    free: VecDeque<usize>,
    /// The number and machine of each member that has a place, or waits for one.
    seated: Vec<(usize, usize)>,
    /// Members that may end with an error.
    struck: Vec<usize>,
    said: Vec<String>,
}

/// Each run must end with the bits of the undisturbed one, and no finished step may be lost.
#[test]
#[ignore = "takes minutes, and root makes the hosts"]
fn random_strikes_cost_no_finished_step() {
    let number = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
    let (n, seed) = (number("CHIMERA_STRIKES").unwrap_or(100), number("CHIMERA_SEED").unwrap_or(1));
    let hosts = Hosts::new("strike", 1 + N_MACHINES);
    let (mut n_struck, mut failures) = (0, Vec::new());
    for nth in 0.. {
        if n_struck >= n {
            break;
        }
        let (schedule, more) = match nth % 3 {
            2 => ("--schedule 1f1b", "--shadow-every 3"),
            _ => ("--schedule chimera", ""),
        };
        let mut random = ChaCha8Rng::seed_from_u64(seed.wrapping_mul(1000) + nth);
        let lab = Lab::new(&format!("{schedule} --steps {STEPS}"));
        let mut run = Struck::start(&lab, &hosts, more);
        let lost = run.strike(&mut random, (n - n_struck) as usize);
        n_struck += run.said.len() as u64;
        let said = run.said.join(", ");
        println!("run {nth} ({schedule}): {n_struck} of {n} strikes: {said}");
        if let Err(why) = lost.and_then(|()| run.end()) {
            println!("FAILED: {why}");
            failures.push(format!("run {nth} of seed {seed} ({schedule}; {said}): {why}"));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

impl<'l> Struck<'l> {
    fn start(lab: &'l Lab, hosts: &'l Hosts, more: &str) -> Struck<'l> {
        let line = lab.line_of("struck", &format!("--survive respawn --save-every 100 {more}"));
        let line = format!("{line} --wait {N_MEMBERS} --listen 10.78.0.1:0");
        let (host, ticket) = host_by(hosts.command(0), &line);
        let going = Going::of(lab, (host, ticket.clone()), Vec::new(), "struck");
        let free = (1..=N_MACHINES).collect();
        let (seated, struck, said) = (Vec::new(), Vec::new(), Vec::new());
        let mut run = Struck { lab, hosts, going, ticket, free, seated, struck, said };
        for _ in 0..N_MEMBERS {
            run.join();
        }
        run
    }

    /// A machine joins. Returns the number of its member.
    fn join(&mut self) -> usize {
        let at = self.free.pop_front().expect("a free machine");
        self.going.members.push(self.hosts.join(at, self.lab, &self.ticket));
        let member = self.going.members.len() - 1;
        self.seated.push((member, at));
        member
    }

    /// Strikes members until the run ends, at most `most` times.
    fn strike(&mut self, random: &mut ChaCha8Rng, most: usize) -> Result<(), String> {
        let (mut seen, mut at) = (0, random.random_range(1..BETWEEN));
        let mut moved = Instant::now();
        while self.going.host.child.try_wait().expect("a child").is_none() {
            sleep(Duration::from_millis(2));
            let n_steps = self.going.n_steps();
            if n_steps < seen {
                return Err(format!("{seen} steps were finished, and now there are {n_steps}"));
            }
            if n_steps > seen {
                (seen, moved) = (n_steps, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                return Err(format!("no step after {seen}: {}", self.host_says()));
            }
            if n_steps < at || self.said.len() >= most || n_steps + 5 > STEPS {
                continue;
            }
            at = n_steps + 1 + random.random_range(0..BETWEEN);
            self.strike_one(random, n_steps);
            moved = Instant::now();
        }
        Ok(())
    }

    fn strike_one(&mut self, random: &mut ChaCha8Rng, n_steps: usize) {
        let strike = Strike::random(random);
        let (member, machine) = self.seated[random.random_range(0..N_MEMBERS)];
        self.said.push(format!("{strike:?} at {n_steps}"));
        if strike.is_lasting() {
            self.struck.push(member);
            self.seated.retain(|(other, _)| *other != member);
            // The newcomer waits for the place, or comes when it is free.
            if random.random_bool(0.5) {
                self.join();
            }
        }
        match strike {
            Strike::Kill => self.going.signal(member, Signal::SIGKILL),
            Strike::KillTwice => {
                self.going.signal(member, Signal::SIGKILL);
                sleep(Duration::from_millis(random.random_range(0..300)));
                self.come();
                sleep(Duration::from_millis(random.random_range(0..2500)));
                let (newcomer, at) = self.seated.pop().expect("a newcomer");
                self.struck.push(newcomer);
                let pid = Pid::from_raw(self.going.members[newcomer].child.id() as i32);
                let _ = kill(pid, Signal::SIGKILL); // it may have ended
                self.free.push_back(at);
            }
            Strike::Sleep(time) => {
                self.going.signal(member, Signal::SIGSTOP);
                sleep(time);
                self.going.signal(member, Signal::SIGCONT);
            }
            Strike::Cut(time) => self.hosts.cut(machine, time),
            Strike::SleepOfHost => {
                let host = Pid::from_raw(self.going.host.child.id() as i32);
                kill(host, Signal::SIGSTOP).expect("a host that runs");
                sleep(SHORT);
                kill(host, Signal::SIGCONT).expect("a host that sleeps");
            }
            Strike::CutOfHost => self.hosts.cut(0, SHORT),
        }
        if strike.is_lasting() {
            self.free.push_back(machine);
            self.come();
        }
    }

    /// Lets a machine join, unless as many as needed are there or wait.
    fn come(&mut self) {
        let has_ended = self.going.host.child.try_wait().expect("a child").is_some();
        if self.seated.len() < N_MEMBERS && !has_ended {
            self.join();
        }
    }

    fn host_says(&self) -> String {
        let said = self.going.host.output.path().join("stderr");
        std::fs::read_to_string(said).unwrap_or_default()
    }

    /// Waits for the end of all, and compares the bits.
    fn end(self) -> Result<(), String> {
        let Struck { going, struck, lab, .. } = self;
        let out = going.out.clone();
        let host = going.host.wait();
        let ended = going.members.into_iter().map(Running::end).enumerate();
        let ended: Vec<(usize, Ran)> = ended.collect();
        if host.code != Some(0) {
            return Err(format!("the host ends with {:?}: {}", host.code, host.stderr));
        }
        for (member, ran) in &ended {
            let is_expected = ran.code == Some(0) || struck.contains(member);
            if !is_expected || ran.stderr.contains("panicked") {
                let (code, said) = (ran.code, &ran.stderr);
                return Err(format!(
                    "member {member} ends with {code:?}: {said}; host: {}",
                    host.stderr
                ));
            }
        }
        assert_same_bits(&out, &lab.undisturbed(1 + N_MEMBERS));
        remove_dir_all(&out).map_err(|error| error.to_string())
    }
}
