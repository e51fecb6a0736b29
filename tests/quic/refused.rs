//! Command lines that ranks over QUIC refuse before they wait for anybody.

use std::fs::write;

use crate::command::{chimera, folder};
use crate::{options, start_ranks, wait};

#[test]
fn what_is_missing_is_said() {
    let folder = folder();
    let ticket = folder.path().join("short");
    write(&ticket, "short").expect("a file");
    let place = "--rank 0 --world 2 --rendezvous 127.0.0.1:1";
    for (more, said) in [
        ("--transport quic", "give --rank and --world, or start it with torchrun"),
        ("--transport quic --rank 2 --world 2", "--world 2 has ranks 0 to 1"),
        ("--transport quic --rank 0 --world 2 --rendezvous host", "add a port"),
        (&format!("--transport quic {place}"), "needs a secret that all ranks share"),
        (
            &format!("--transport quic {place} --ticket {}", ticket.display()),
            "has 5 bytes, and needs 16",
        ),
        (&format!("--transport quic {place} --ticket no/where"), "--ticket no/where"),
        (place, "add --transport quic"),
    ] {
        let ran = chimera(&format!("train {}", options(&folder, "refused", more)));
        assert!(ran.code.is_some_and(|code| code != 0), "{more}");
        assert!(ran.stderr.contains(said), "{more}: {}", ran.stderr);
        assert!(!folder.path().join("refused").exists(), "{more}");
    }
    for (line, said) in [
        ("join chimera1abc", "this is not a ticket"),
        ("host --wait 2 --depth 2", "choose --wait 1"),
        ("host --wait 0", "0 is not in 1..=255"),
    ] {
        let ran = chimera(line);
        assert!(ran.code.is_some_and(|code| code != 0), "{line}");
        assert!(ran.stderr.contains(said), "{line}: {}", ran.stderr);
    }
}

#[test]
fn ranks_of_unlike_settings_end_together() {
    let folder = folder();
    let line = options(&folder, "unlike", "--depth 3 --steps 5");
    let all = wait(start_ranks(&folder, 2, &line));
    assert!(all.iter().all(|ran| ran.code == Some(2)), "{}", all[0].stderr);
    assert!(all[0].stderr.contains("there are 2 ranks"), "{}", all[0].stderr);
}
