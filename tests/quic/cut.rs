//! Members whose link is cut: hosts are network namespaces on one bridge, which only root can make.

use std::fs::create_dir_all;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::command::{Running, start_with};
use crate::hosted::host_by;
use crate::survives::{Going, Lab, assert_same_bits};
use crate::{CHIMERA, until};

/// Hosts on one bridge, which are removed when this is dropped.
pub(crate) struct Hosts {
    name: String,
    n: usize,
}

impl Hosts {
    pub(crate) fn new(name: &str, n: usize) -> Hosts {
        let hosts = Hosts { name: format!("{name}{}", std::process::id()), n };
        let net = hosts.net();
        ip(&format!("netns add {net}"));
        ip(&format!("-n {net} link add hosts type bridge"));
        ip(&format!("-n {net} link set hosts up"));
        for at in 0..n {
            let host = hosts.host(at);
            ip(&format!("netns add {host}"));
            ip(&format!("-n {net} link add to{at} type veth peer name eth0 netns {host}"));
            ip(&format!("-n {net} link set to{at} master hosts up"));
            ip(&format!("-n {host} addr add 10.78.0.{}/24 dev eth0", at + 1));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
        }
        hosts
    }

    fn net(&self) -> String {
        format!("{}-net", self.name)
    }

    fn host(&self, at: usize) -> String {
        format!("{}-{at}", self.name)
    }

    /// A command on a host.
    pub(crate) fn command(&self, at: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(at), CHIMERA]);
        command
    }

    /// Cuts the link of a host for some time.
    pub(crate) fn cut(&self, at: usize, time: Duration) {
        ip(&format!("-n {} link set to{at} down", self.net()));
        sleep(time);
        ip(&format!("-n {} link set to{at} up", self.net()));
    }

    pub(crate) fn join(&self, at: usize, lab: &Lab, ticket: &str) -> Running {
        let cache = lab.folder.path().join(format!("on{at}"));
        create_dir_all(&cache).expect("a folder");
        let line = format!("join {ticket} --threads 1 --cache {}", cache.display());
        start_with(self.command(at), &line)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let hosts = (0..self.n).map(|at| self.host(at)).chain([self.net()]);
        for host in hosts {
            let _ = Command::new("ip").args(["netns", "del", &host]).status();
        }
    }
}

pub(crate) fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status();
    assert!(status.is_ok_and(|status| status.success()), "ip {line}");
}

/// A cut that is shorter than the silence after which a machine counts as gone only takes time. After
/// a longer one another machine has the place, and the bits are those of the undisturbed run.
#[test]
#[ignore = "takes a minute, and root makes the hosts"]
fn links_that_are_cut_cost_no_finished_step() {
    let hosts = Hosts::new("cut", 5);
    let lab = Lab::new("--schedule chimera --steps 200");
    let alone = lab.undisturbed(4);
    let line = lab.line_of("cut", "--survive respawn --save-every 100 --wait 3");
    let (host, ticket) = host_by(hosts.command(0), &format!("{line} --listen 10.78.0.1:0"));
    let members = (1..4).map(|at| hosts.join(at, &lab, &ticket)).collect();
    let mut going = Going::of(&lab, (host, ticket.clone()), members, "cut");
    until("the steps do not come", || going.n_steps() >= 10);
    hosts.cut(1, Duration::from_secs(3));
    let seen = going.n_steps();
    until("no step after a short cut", || going.n_steps() >= seen + 10);
    let seen = going.n_steps();
    going.members.push(hosts.join(4, &lab, &ticket));
    hosts.cut(2, Duration::from_secs(20));
    assert!(going.n_steps() >= seen, "a finished step was lost");
    let (host, members, out) = going.end_struck();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert_eq!(host.stderr.matches(" is gone: ").count(), 1, "{}", host.stderr);
    assert_eq!(members[1].code, Some(5), "{}", members[1].stderr);
    assert_same_bits(&out, &alone);
}
