//! Runs beside hostile peers: noise, replays, wrong keys, half and slow handshakes, at the host's port and
//! at a relay. `CHIMERA_HOSTILE_S` says for how many seconds at least (600):
//! `cargo test -p chimera-pipeline --test quic hostile_peers -- --ignored --nocapture`.

#[path = "hostile/peers.rs"]
mod peers;

use std::env;
use std::fs::{read_to_string, remove_dir_all};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use chimera::quic::Ticket;

use self::peers::{Attack, replaying};
use crate::command::{Running, start};
use crate::hosted::{host, member};
use crate::survives::{Lab, assert_same_bits};
use crate::until;

/// Steps of a run.
const STEPS: usize = 400;
/// Memory that a host or a relay may take beyond that of an undisturbed one, in kB.
const MOST_MORE: u64 = 96 << 10;
/// A run that does not end in this time hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// Every run must end with the bits of the undisturbed one, without a member that is lost, and the host
/// and the relay may take little more memory than without the attacks.
#[test]
#[ignore = "takes ten minutes"]
fn hostile_peers_do_not_disturb_a_run() {
    let seconds = env::var("CHIMERA_HOSTILE_S").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(600));
    let lab = Lab::new(&format!("--schedule chimera --steps {STEPS}"));
    let alone = lab.undisturbed(4);
    let mut relay = start("relay --listen 127.0.0.1:0");
    let words = relay_words(&relay);
    let calm = train(&lab, &words, &alone, None);
    let calm_relay = most_memory(&relay);
    println!("undisturbed: host {} kB, relay {calm_relay} kB", calm.most_kb);
    let (began, mut attacks) = (Instant::now(), Attack::default());
    for nth in 0.. {
        if began.elapsed() >= time {
            break;
        }
        let run = train(&lab, &words, &alone, Some(&mut attacks));
        println!(
            "run {nth}, {:.0} s: host {} kB, relay {} kB; so far {attacks}",
            began.elapsed().as_secs_f64(),
            run.most_kb,
            most_memory(&relay)
        );
        assert!(run.most_kb <= calm.most_kb + MOST_MORE, "the host's memory grows");
        assert!(most_memory(&relay) <= calm_relay + MOST_MORE, "the relay's memory grows");
        assert!(run.said.contains("refused 127.0.0."), "nobody was refused: {}", run.said);
    }
    assert!(relay.child.try_wait().expect("a child").is_none(), "the relay has ended");
    relay.child.kill().expect("it runs");
    let said = relay.end().stderr;
    assert!(!said.contains("panicked"), "{said}");
}

/// An ended run.
struct Trained {
    /// The most memory of the host, in kB.
    most_kb: u64,
    /// The words of the host.
    said: String,
}

/// Trains with three members: one has a link that replays its packets, and one reaches the host
/// through the relay.
fn train(lab: &Lab, words: &str, alone: &Path, attacks: Option<&mut Attack>) -> Trained {
    let name = "hostile";
    let line = lab.line_of(name, &format!("--survive respawn --wait 3 {words}"));
    let (mut host, text) = host(&line);
    let ticket: Ticket = text.parse().expect("a ticket");
    let by_relay = Ticket { addresses: Vec::new(), ..ticket.clone() };
    let replayed =
        Ticket { addresses: vec![replaying(ticket.addresses[0])], relay: None, ..ticket.clone() };
    let tickets = [text, by_relay.to_string(), replayed.to_string()];
    let members: Vec<Running> = tickets
        .iter()
        .zip(["a", "b", "c"])
        .map(|(ticket, name)| member(&lab.folder, name, ticket))
        .collect();
    let out = lab.folder.path().join(name);
    until("the run does not begin", || out.join("metrics.jsonl").exists());
    let mut most_kb = 0;
    thread::scope(|scope| {
        let mut begun = attacks.map(|attacks| attacks.begin(scope, &ticket));
        let deadline = Instant::now() + PATIENCE;
        while host.child.try_wait().expect("a child").is_none() {
            most_kb = most_kb.max(most_memory(&host));
            if Instant::now() >= deadline {
                begun.take();
                panic!("the run hangs");
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    let host = host.wait();
    assert_eq!(host.code, Some(0), "{}", host.stderr);
    assert!(!host.stderr.contains(" is gone: "), "{}", host.stderr);
    for member in members.into_iter().map(Running::wait) {
        assert_eq!(member.code, Some(0), "{}", member.stderr);
    }
    assert_same_bits(&out, alone);
    remove_dir_all(&out).expect("a run");
    Trained { most_kb, said: host.stderr }
}

/// Waits for the words by which a host uses a relay.
fn relay_words(relay: &Running) -> String {
    let stdout = relay.output.path().join("stdout");
    let mut words = None;
    until("the relay prints no line", || {
        let text = read_to_string(&stdout).unwrap_or_default();
        words = text.strip_prefix("chimera host ").map(|words| words.trim().to_string());
        words.is_some() && text.ends_with('\n')
    });
    words.expect("found")
}

/// Returns the most memory that a process has had, in kB; 0 after its end.
fn most_memory(of: &Running) -> u64 {
    let status = read_to_string(format!("/proc/{}/status", of.child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}
