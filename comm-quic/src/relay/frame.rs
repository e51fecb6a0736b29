//! Datagrams between a relay and the members of its sessions. The first byte is the kind.
//!
//! A member asks for its place, gets a proof of its address, and shows it. All answers are shorter than
//! the questions, so a forged address makes the relay send less than it receives. Members ask again
//! every few seconds, which keeps their place, and finds a new address or a new relay.

use super::id::{Id, N_ID};
use super::pass::{N_NONCE, N_TAG};

/// Bytes of a claim: a member has its id while it shows the same one.
pub(super) const N_CLAIM: usize = 8;
/// Bytes of the proof of an address.
pub(super) const N_PROOF: usize = 16;
/// Bytes in front of a datagram that is carried.
pub(super) const N_HEAD: usize = 1 + N_ID;

const ASK: u8 = 1;
const PROVE: u8 = 2;
const ENTER: u8 = 3;
const ENTERED: u8 = 4;
const REFUSED: u8 = 5;
const CARRY: u8 = 6;

/// A member's wish for a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wanted {
    pub(super) nonce: [u8; N_NONCE],
    pub(super) tag: [u8; N_TAG],
    pub(super) id: Id,
    pub(super) claim: [u8; N_CLAIM],
}

/// The reason why a member gets no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Its pass is for another relay, or none.
    WrongPass = 1,
    /// There are as many sessions as the relay takes.
    TooManySessions = 2,
    /// There are as many members as a session takes.
    TooManyMembers = 3,
    /// Another member has the id.
    Taken = 4,
}

/// A datagram of a member.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum ToRelay {
    Ask(Wanted),
    Enter(Wanted, [u8; N_PROOF]),
    /// The rest of the datagram is for this member.
    Carry(Id),
}

/// A datagram of a relay. Answers have the claim of the member that asked, which strangers do not know.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum FromRelay {
    Prove([u8; N_CLAIM], [u8; N_PROOF]),
    Entered([u8; N_CLAIM]),
    Refused([u8; N_CLAIM], Option<Refusal>),
    /// The rest of the datagram is of this member.
    Carry(Id),
}

impl Refusal {
    const ALL: [Refusal; 4] =
        [Refusal::WrongPass, Refusal::TooManySessions, Refusal::TooManyMembers, Refusal::Taken];

    pub(super) fn in_words(self) -> &'static str {
        match self {
            Refusal::WrongPass => "its key is another one: copy all of what `chimera relay` prints",
            Refusal::TooManySessions => "it has as many runs as it takes",
            Refusal::TooManyMembers => "the run has as many members as it takes",
            Refusal::Taken => "another machine has the id of this one",
        }
    }
}

/// Returns the beginning of a datagram to a member, or of one.
pub(super) fn head(id: Id) -> [u8; N_HEAD] {
    let Id([a, b, c, d, e]) = id;
    [CARRY, a, b, c, d, e]
}

impl Wanted {
    fn after(self, kind: u8) -> Vec<u8> {
        [&[kind][..], &self.nonce, &self.tag, &self.id.0, &self.claim].concat()
    }

    fn read(rest: &mut &[u8]) -> Option<Wanted> {
        Some(Wanted {
            nonce: take(rest)?,
            tag: take(rest)?,
            id: Id(take(rest)?),
            claim: take(rest)?,
        })
    }
}

impl ToRelay {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            ToRelay::Ask(wanted) => wanted.after(ASK),
            ToRelay::Enter(wanted, proof) => [wanted.after(ENTER), proof.to_vec()].concat(),
            ToRelay::Carry(id) => head(*id).to_vec(),
        }
    }

    pub(super) fn read(datagram: &[u8]) -> Option<ToRelay> {
        let (kind, mut rest) = datagram.split_first()?;
        let read = match *kind {
            CARRY => return take(&mut rest).map(|id| ToRelay::Carry(Id(id))),
            ASK => ToRelay::Ask(Wanted::read(&mut rest)?),
            ENTER => ToRelay::Enter(Wanted::read(&mut rest)?, take(&mut rest)?),
            _ => return None,
        };
        rest.is_empty().then_some(read)
    }
}

impl FromRelay {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            FromRelay::Prove(claim, proof) => [&[PROVE][..], claim, proof].concat(),
            FromRelay::Entered(claim) => [&[ENTERED][..], claim].concat(),
            FromRelay::Refused(claim, why) => {
                [&[REFUSED][..], claim, &[why.map_or(0, |why| why as u8)]].concat()
            }
            FromRelay::Carry(id) => head(*id).to_vec(),
        }
    }

    pub(super) fn read(datagram: &[u8]) -> Option<FromRelay> {
        let (kind, mut rest) = datagram.split_first()?;
        let read = match *kind {
            CARRY => return take(&mut rest).map(|id| FromRelay::Carry(Id(id))),
            PROVE => FromRelay::Prove(take(&mut rest)?, take(&mut rest)?),
            ENTERED => FromRelay::Entered(take(&mut rest)?),
            REFUSED => {
                let (claim, [why]) = (take(&mut rest)?, take(&mut rest)?);
                let why = Refusal::ALL.into_iter().find(|refusal| *refusal as u8 == why);
                FromRelay::Refused(claim, why)
            }
            _ => return None,
        };
        rest.is_empty().then_some(read)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_read_as_they_were_written_and_others_are_not_read() {
        let (id, claim, proof) = (Id([1, 2, 3, 4, 5]), [6; N_CLAIM], [7; N_PROOF]);
        let wanted = Wanted { nonce: [8; N_NONCE], tag: [9; N_TAG], id, claim };
        let questions = [ToRelay::Ask(wanted), ToRelay::Enter(wanted, proof), ToRelay::Carry(id)];
        let refused = Refusal::ALL.map(|why| FromRelay::Refused(claim, Some(why)));
        let answers =
            [FromRelay::Prove(claim, proof), FromRelay::Entered(claim), FromRelay::Carry(id)];
        for question in questions {
            let bytes = question.to_bytes();
            assert_eq!(ToRelay::read(&bytes).as_ref(), Some(&question));
            assert!((0..bytes.len()).all(|n| ToRelay::read(&bytes[..n]).is_none()));
            let longer = [&bytes[..], &[0]].concat();
            let is_carried = matches!(question, ToRelay::Carry(_));
            assert_eq!(ToRelay::read(&longer).is_some(), is_carried);
        }
        for answer in answers.into_iter().chain(refused) {
            let bytes = answer.to_bytes();
            assert_eq!(FromRelay::read(&bytes).as_ref(), Some(&answer));
            assert!((0..bytes.len()).all(|n| FromRelay::read(&bytes[..n]).is_none()));
            let asked = ToRelay::Ask(wanted).to_bytes();
            assert!(bytes.len() < asked.len(), "an answer is shorter than a question");
        }
        for kind in [0, 7, 255] {
            assert_eq!(ToRelay::read(&[kind; 64]), None);
            assert_eq!(FromRelay::read(&[kind; 64]), None);
        }
    }
}
