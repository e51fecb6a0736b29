//! Machines that have the ticket, and do not keep to the rules.

use std::net::Ipv4Addr;
use std::sync::Mutex;

use tokio::time::Instant;

use super::*;
use crate::dial::{Dial, dial};
use crate::net::runtime;
use crate::rendezvous::open;
use crate::tls::Purpose;
use crate::{Host, Key, Ticket, join};

const PATIENCE: Duration = Duration::from_secs(60);

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn keep(warning: &str) {
    WARNINGS.lock().expect("no panic").push(warning.into());
}

/// Whoever asks for a place in other words is named and dropped, and the next machine is heard.
#[test]
fn nonsense_instead_of_a_wish_is_refused() {
    let (key, member) = (Key::random().expect("a key"), Key::random().expect("a key"));
    let peer = key.public().expect("its half");
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let mut host = Host::open(at, key, &member, None, keep).expect("it listens");
    let addresses = vec![host.address().expect("bound")];
    let stranger = open(at, Key::random().expect("a key"), None, |_| {}).expect("a socket");
    let say = async |words: &[u8]| {
        let (purpose, addresses) = (Purpose::Join, &*addresses);
        let to = Dial { peer, purpose, meeting: 0, addresses, by_relay: false };
        let there = dial(&stranger.endpoint, &member, to, Instant::now() + PATIENCE).await;
        let there = there.expect("it has the ticket");
        let (mut send, _recv) = there.open_bi().await.expect("it is heard");
        let _ = send.write_all(words).await; // the host may not read to the end
        let _ = send.finish();
        assert!(timeout(PATIENCE, there.closed()).await.is_ok(), "it is not dropped");
    };
    let deep = "[".repeat(MAX_HELLO - 1);
    let nonsense =
        [&b""[..], b"{}", b"null", &[0xff; 1000], deep.as_bytes(), &[b' '; MAX_HELLO + 1]];
    for words in nonsense {
        runtime().expect("threads").block_on(say(words));
    }
    let ticket =
        Ticket { host: peer, join: member.clone(), expires: u64::MAX, addresses, relay: None };
    std::thread::scope(|scope| {
        scope.spawn(|| join(&ticket, Wish::default(), PATIENCE, PATIENCE, |_| {}));
        let guest = host.next(PATIENCE).expect("it listens").expect("a guest");
        host.refuse(guest, "it was only a test").expect("threads");
    });
    let warnings = WARNINGS.lock().expect("no panic");
    assert!(warnings.len() >= nonsense.len(), "{warnings:?}");
    assert!(
        warnings.iter().all(|warning| warning.starts_with("refused 127.0.0.1:")),
        "{warnings:?}"
    );
}
