//! Members that are killed and stopped at random.

use std::fs::remove_dir_all;
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::Signal;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::survives::{Going, Lab, assert_same_bits};

/// Steps of a run, and the most between two blows.
const STEPS: usize = 300;
const BETWEEN: usize = 60;
/// Of this many blows one stops a member instead of killing it.
const STOPS: u32 = 8;
/// Time after which a member that sleeps is gone for the others.
const GONE: Duration = Duration::from_secs(9);

/// `CHIMERA_KILLS` says how often a member is struck in all runs together, and `CHIMERA_SEED` when.
/// Each run must end with the bits of the undisturbed one, and no finished step may be lost.
#[test]
#[ignore = "takes ten minutes"]
fn random_kills_cost_no_finished_step() {
    strike_runs(number("CHIMERA_KILLS").unwrap_or(100), (STOPS, GONE));
}

/// `CHIMERA_SLEEPS` says how often a member sleeps for a minute, and `CHIMERA_SEED` when. It ends
/// when it wakes.
#[test]
#[ignore = "takes four minutes"]
fn sleeps_of_a_minute_cost_no_finished_step() {
    strike_runs(number("CHIMERA_SLEEPS").unwrap_or(3), (1, Duration::from_secs(60)));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Strikes members of runs until there were `n_kills` blows. `stops` has the number of blows of which
/// one stops a member, and the time until it wakes.
fn strike_runs(n_kills: u64, stops: (u32, Duration)) {
    let mut random = ChaCha8Rng::seed_from_u64(number("CHIMERA_SEED").unwrap_or(1));
    let lab = Lab::new(&format!("--schedule chimera --steps {STEPS}"));
    let alone = lab.undisturbed(4);
    let (mut n_struck, mut n_stopped, mut n_runs) = (0, 0, 0);
    while n_struck < n_kills {
        let mut going = lab.start(3, "--survive respawn --save-every 100", "");
        let struck = strike(&mut going, &mut random, n_kills - n_struck, stops);
        (n_struck, n_stopped, n_runs) = (n_struck + struck.0, n_stopped + struck.1, n_runs + 1);
        let (host, _, out) = going.end_struck();
        assert_eq!(host.code, Some(0), "{}", host.stderr);
        assert_same_bits(&out, &alone);
        remove_dir_all(&out).expect("a run");
        println!("{n_struck} of {n_kills} struck, {n_stopped} of them stopped, in {n_runs} runs");
    }
}

/// Strikes members of a run until it ends. Returns the number of blows, and of those that stop.
fn strike(
    going: &mut Going<'_>,
    random: &mut ChaCha8Rng,
    most: u64,
    (stops, sleeps): (u32, Duration),
) -> (u64, u64) {
    let (mut n_struck, mut n_stopped, mut seen) = (0, 0, 0);
    let mut at = random.random_range(0..BETWEEN);
    let mut seated: Vec<usize> = vec![0, 1, 2];
    while going.host.child.try_wait().expect("a child").is_none() {
        sleep(Duration::from_millis(2));
        let n_steps = going.n_steps();
        assert!(n_steps >= seen, "a finished step was lost");
        seen = n_steps;
        if n_steps < at || n_struck >= most || n_steps + 5 > STEPS {
            continue;
        }
        at = n_steps + 1 + random.random_range(0..BETWEEN);
        going.join(&format!("spare{n_struck}"));
        let nth = random.random_range(0..seated.len());
        let is_stop = random.random_ratio(1, stops);
        going.signal(seated[nth], if is_stop { Signal::SIGSTOP } else { Signal::SIGKILL });
        if is_stop {
            sleep(sleeps); // it is gone for the others by now
            going.signal(seated[nth], Signal::SIGCONT);
        }
        seated[nth] = going.members.len() - 1;
        n_struck += 1;
        n_stopped += u64::from(is_stop);
    }
    (n_struck, n_stopped)
}
