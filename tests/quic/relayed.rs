//! Machines that reach only a relay: network namespaces, which only root can make.

use std::fs::{create_dir_all, read_to_string, write};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::command::{Running, start_with};
use crate::cut::ip;
use crate::hosted::host_by;
use crate::survives::{Going, Lab, assert_same_bits};
use crate::{CHIMERA, until};

/// Time in which nobody reaches the relay, while it is started again.
const AWAY: Duration = Duration::from_secs(1);

/// Machines with a link to a relay each, and with no way to one another.
pub(crate) struct Star {
    name: String,
    n: usize,
}

impl Star {
    pub(crate) fn new(name: &str, n: usize) -> Star {
        let star = Star { name: format!("{name}{}", std::process::id()), n };
        let center = star.center();
        ip(&format!("netns add {center}"));
        ip(&format!("-n {center} link set lo up"));
        // The center passes nothing on, whatever this machine does.
        ip(&format!("netns exec {center} sysctl -qw net.ipv4.ip_forward=0"));
        for at in 0..n {
            let host = star.host(at);
            ip(&format!("netns add {host}"));
            ip(&format!("-n {center} link add to{at} type veth peer name eth0 netns {host}"));
            ip(&format!("-n {center} addr add 10.79.{at}.1/24 dev to{at}"));
            ip(&format!("-n {center} link set to{at} up"));
            ip(&format!("-n {host} addr add 10.79.{at}.2/24 dev eth0"));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
            ip(&format!("-n {host} route add default via 10.79.{at}.1"));
        }
        star
    }

    fn center(&self) -> String {
        format!("{}-mid", self.name)
    }

    fn host(&self, at: usize) -> String {
        format!("{}-{at}", self.name)
    }

    /// A program on a machine; `None` is the center.
    fn program(&self, at: Option<usize>, program: &str) -> Command {
        let place = at.map_or_else(|| self.center(), |at| self.host(at));
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &place, program]);
        command
    }

    /// Starts a relay in the center, and returns it with the words that it prints.
    pub(crate) fn relay(&self, line: &str) -> (Running, String) {
        let relay = start_with(self.program(None, CHIMERA), &format!("relay {line}"));
        let stdout = relay.output.path().join("stdout");
        let mut words = None;
        until("the relay prints no line", || {
            let text = read_to_string(&stdout).unwrap_or_default();
            words = text.strip_prefix("chimera host ").map(|words| words.trim().to_string());
            words.is_some() && text.ends_with('\n')
        });
        (relay, words.expect("found"))
    }

    fn join(&self, at: usize, lab: &Lab, ticket: &str) -> Running {
        let cache = lab.folder.path().join(format!("on{at}"));
        create_dir_all(&cache).expect("a folder");
        let line = format!("join {ticket} --threads 1 --cache {}", cache.display());
        start_with(self.program(Some(at), CHIMERA), &line)
    }
}

impl Drop for Star {
    fn drop(&mut self) {
        for name in (0..self.n).map(|at| self.host(at)).chain([self.center()]) {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

/// Four machines train through a relay, which is started again meanwhile, with the bits of threads.
#[test]
#[ignore = "root makes the hosts"]
fn machines_that_reach_only_a_relay_train_together() {
    let star = Star::new("star", 4);
    let forwards = star.program(None, "cat").arg("/proc/sys/net/ipv4/ip_forward").output();
    assert_eq!(forwards.expect("a setting").stdout, b"0\n", "they reach each other");
    let lab = Lab::new("--schedule chimera --steps 200");
    let secret = lab.folder.path().join("secret");
    write(&secret, "a secret of the tests of relays\n").expect("a file");
    let options = format!("--key {}", secret.display());
    let (mut relay, words) = star.relay(&options);
    assert!(words.starts_with("--relay 10.79."), "{words}");
    let line = lab.line_of("relayed", &format!("--survive respawn --wait 3 {words}"));
    let (host, ticket) = host_by(star.program(Some(0), CHIMERA), &line);
    let members = (1..4).map(|at| star.join(at, &lab, &ticket)).collect();
    let going = Going::of(&lab, (host, ticket), members, "relayed");
    until("the steps do not come", || going.n_steps() >= 10);
    relay.child.kill().expect("it runs");
    let _ = relay.end();
    sleep(AWAY);
    let (mut relay, again) = star.relay(&options);
    assert_eq!(again, words, "its key follows from the secret");
    let seen = going.n_steps();
    until("no step after the relay came back", || going.n_steps() >= seen + 10);
    let (host, members, out) = going.end_struck();
    relay.child.kill().expect("it runs");
    drop(relay.end());
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert!(!host.stderr.contains(" is gone: "), "{}", host.stderr);
    assert_eq!(host.stderr.matches("  relayed ").count() % 3, 0, "{}", host.stderr);
    assert!(members.iter().all(|member| member.code == Some(0)), "{}", members[0].stderr);
    assert_same_bits(&out, &lab.undisturbed(4));
}
