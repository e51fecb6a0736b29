//! Members that come, move, leave, and pretend.

use super::*;
use crate::relay::RelayAddress;

const RATE: f64 = 1e6;
const LIMITS: Limits = Limits { n_sessions: 2, n_members: 3, rate: RATE };

struct Lab {
    key: RelayKey,
    sessions: Sessions,
    now: Instant,
}

impl Lab {
    fn new() -> Lab {
        let (key, now) = (RelayKey::derived("a relay"), Instant::now());
        Lab { key, sessions: Sessions::new(key, LIMITS, [7; 32], now), now }
    }

    /// The wish of a member of a new session.
    fn wanted(&self, id: u8) -> Wanted {
        let relay = RelayAddress { at: address(0), key: self.key };
        let pass = relay.pass().expect("a pass");
        let (id, claim) = (Id([id, 0, 0, 0, 1]), [id; N_CLAIM]);
        Wanted { nonce: pass.nonce, tag: pass.tag, id, claim }
    }

    fn enter(&mut self, from: SocketAddr, wanted: &Wanted) -> Option<FromRelay> {
        let FromRelay::Prove(claim, proof) = self.sessions.prove(from, wanted, self.now) else {
            unreachable!("a question is answered by a proof");
        };
        assert_eq!(claim, wanted.claim);
        self.sessions.enter((from, None), wanted, proof, self.now)
    }

    fn route(&mut self, from: SocketAddr, to: &Wanted) -> Option<(SocketAddr, Id)> {
        let routed = self.sessions.route(from, to.id, 1000, self.now);
        routed.map(|(at, _, of)| (at, of))
    }
}

fn address(nth: u16) -> SocketAddr {
    SocketAddr::new([10, 0, 0, 1].into(), 7000 + nth)
}

/// The wish of another member of the same session.
fn other(of: &Wanted, id: u8) -> Wanted {
    Wanted { id: Id([id, 0, 0, 0, 1]), claim: [id; N_CLAIM], ..*of }
}

fn entered(wanted: &Wanted) -> Option<FromRelay> {
    Some(FromRelay::Entered(wanted.claim))
}

fn refused(wanted: &Wanted, why: Refusal) -> Option<FromRelay> {
    Some(FromRelay::Refused(wanted.claim, Some(why)))
}

#[test]
fn members_of_a_session_reach_each_other_and_nobody_else() {
    let mut lab = Lab::new();
    let (a, elsewhere) = (lab.wanted(1), lab.wanted(3));
    let b = other(&a, 2);
    for (nth, wanted) in [(1, &a), (2, &b), (3, &elsewhere)] {
        assert_eq!(lab.enter(address(nth), wanted), entered(wanted));
    }
    assert_eq!(lab.route(address(1), &b), Some((address(2), a.id)));
    assert_eq!(lab.route(address(2), &a), Some((address(1), b.id)));
    assert_eq!(lab.route(address(1), &elsewhere), None);
    assert_eq!(lab.route(address(3), &a), None);
    assert_eq!(lab.route(address(9), &a), None, "it is no member");
}

#[test]
fn nothing_is_stored_without_a_proof_and_a_pass() {
    let mut lab = Lab::new();
    let wanted = lab.wanted(1);
    assert_eq!(lab.sessions.enter((address(1), None), &wanted, [0; N_PROOF], lab.now), None);
    let FromRelay::Prove(_, proof) = lab.sessions.prove(address(1), &wanted, lab.now) else {
        unreachable!("a question is answered by a proof");
    };
    assert_eq!(
        lab.sessions.enter((address(2), None), &wanted, proof, lab.now),
        None,
        "of another address"
    );
    let late = lab.now + PROOF_VALID * 2;
    assert_eq!(lab.sessions.enter((address(1), None), &wanted, proof, late), None, "it is old");
    let forged = Wanted { tag: [0; 16], ..wanted };
    assert_eq!(lab.enter(address(1), &forged), refused(&forged, Refusal::WrongPass));
    assert_eq!((lab.sessions.n_sessions(), lab.sessions.places.len()), (0, 0));
    let soon = lab.now + PROOF_VALID;
    assert_eq!(lab.sessions.enter((address(1), None), &wanted, proof, soon), entered(&wanted));
}

#[test]
fn a_member_keeps_its_id_at_another_address() {
    let mut lab = Lab::new();
    let a = lab.wanted(1);
    let b = other(&a, 2);
    lab.enter(address(1), &a);
    lab.enter(address(2), &b);
    assert_eq!(lab.enter(address(3), &a), entered(&a));
    assert_eq!(lab.route(address(2), &a), Some((address(3), b.id)));
    assert_eq!(lab.route(address(1), &b), None, "nobody is there any more");
    let thief = Wanted { claim: [9; N_CLAIM], ..a };
    assert_eq!(lab.enter(address(4), &thief), refused(&thief, Refusal::Taken));
    assert_eq!(lab.route(address(2), &a), Some((address(3), b.id)));
}

#[test]
fn sessions_members_and_rates_have_limits() {
    let mut lab = Lab::new();
    let (a, last, more) = (lab.wanted(1), lab.wanted(1), lab.wanted(1));
    for nth in 1..=3 {
        assert!(matches!(
            lab.enter(address(nth), &other(&a, nth as u8)),
            Some(FromRelay::Entered(_))
        ));
    }
    let fourth = other(&a, 4);
    assert_eq!(lab.enter(address(4), &fourth), refused(&fourth, Refusal::TooManyMembers));
    assert_eq!(lab.enter(address(5), &last), entered(&last));
    assert_eq!(lab.enter(address(6), &more), refused(&more, Refusal::TooManySessions));
    let sent = |lab: &mut Lab| {
        (0..1000).filter(|_| lab.route(address(1), &other(&a, 2)).is_some()).count()
    };
    assert_eq!(sent(&mut lab), 65, "a burst");
    lab.now += Duration::from_millis(100);
    assert_eq!(sent(&mut lab), 100, "what the rate adds");
}

#[test]
fn whoever_does_not_ask_is_forgotten() {
    let mut lab = Lab::new();
    let a = lab.wanted(1);
    let b = other(&a, 2);
    lab.enter(address(1), &a);
    lab.enter(address(2), &b);
    lab.route(address(1), &b);
    lab.now += TO_ASK / 2;
    lab.enter(address(1), &a);
    lab.now += TO_ASK / 2;
    assert_eq!(lab.sessions.sweep(lab.now), []);
    assert_eq!(lab.route(address(1), &b), None);
    lab.now += TO_ASK;
    let ended = Ended { n_members: 2, n_bytes: 1000, n_dropped: 0 };
    assert_eq!(lab.sessions.sweep(lab.now), [ended]);
    assert_eq!((lab.sessions.n_sessions(), lab.sessions.places.len()), (0, 0));
}
