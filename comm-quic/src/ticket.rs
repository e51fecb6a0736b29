//! Tickets: what a machine needs to join a run, as one word.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::QuicError;
use crate::key::{Key, N_BYTES, PublicKey, digits};
use crate::relay::{N_NONCE, N_TAG, Pass};

/// The beginning of every ticket, with its version.
const PREFIX: &str = "chimera1";
/// Bytes that find a mistyped ticket.
const N_CHECK: usize = 4;
/// The most addresses of a host.
const MAX_ADDRESSES: usize = 16;
/// The first byte of a relay, after which its address and the pass follow.
const RELAY: u8 = 1;

/// A right to join a run, and the way to its host. Whoever has it can join until it expires.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The host's key.
    pub host: PublicKey,
    /// The key by which a member proves that it has the ticket.
    pub join: Key,
    /// Expiry of the ticket, in seconds since 1970.
    pub expires: u64,
    /// Addresses of the host.
    pub addresses: Vec<SocketAddr>,
    /// A session at a relay, by which members may reach the host and each other.
    pub relay: Option<Pass>,
}

impl Ticket {
    /// Returns whether the ticket has expired, by this machine's clock. The host decides by its own.
    pub fn has_expired(&self) -> bool {
        now() >= self.expires
    }

    /// Returns the time of expiry of a ticket that is valid for `time` from now on.
    pub fn expiry(time: Duration) -> u64 {
        now().saturating_add(time.as_secs())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [self.host.to_bytes(), self.join.to_bytes()].concat();
        bytes.extend(self.expires.to_le_bytes());
        self.addresses.iter().take(MAX_ADDRESSES).for_each(|address| put(&mut bytes, *address));
        if let Some(relay) = &self.relay {
            bytes.push(RELAY);
            put(&mut bytes, relay.at);
            bytes.extend([&relay.nonce[..], &relay.tag].concat());
        }
        let check = blake3::hash(&bytes);
        bytes.extend(&check.as_bytes()[..N_CHECK]);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Ticket> {
        let (mut rest, check) = bytes.split_at_checked(bytes.len().checked_sub(N_CHECK)?)?;
        if blake3::hash(rest).as_bytes()[..N_CHECK] != *check {
            return None;
        }
        let host = PublicKey::from_bytes(*rest.split_off(..N_BYTES)?.as_array()?);
        let join = Key::from_bytes(*rest.split_off(..N_BYTES)?.as_array()?);
        let expires = u64::from_le_bytes(*rest.split_off(..8)?.as_array()?);
        let (mut addresses, mut relay) = (Vec::new(), None);
        while let Some(family) = rest.split_off_first() {
            if *family != RELAY {
                addresses.push(take(*family, &mut rest)?);
                continue;
            }
            let at = take(*rest.split_off_first()?, &mut rest)?;
            let nonce = *rest.split_off(..N_NONCE)?.as_array()?;
            relay = Some(Pass { at, nonce, tag: *rest.split_off(..N_TAG)?.as_array()? });
        }
        let is_usable = !addresses.is_empty() || relay.is_some();
        let is_usable = is_usable && addresses.len() <= MAX_ADDRESSES;
        is_usable.then_some(Ticket { host, join, expires, addresses, relay })
    }
}

/// Writes an address after its family.
fn put(bytes: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => bytes.extend([&[4][..], &ip.octets()].concat()),
        IpAddr::V6(ip) => bytes.extend([&[6][..], &ip.octets()].concat()),
    }
    bytes.extend(address.port().to_le_bytes());
}

/// Reads an address of a family.
fn take(family: u8, rest: &mut &[u8]) -> Option<SocketAddr> {
    let ip: IpAddr = match family {
        4 => (*rest.split_off(..4)?.as_array::<4>()?).into(),
        6 => (*rest.split_off(..16)?.as_array::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_le_bytes(*rest.split_off(..2)?.as_array()?)))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", digits::written(&self.to_bytes()))
    }
}

impl FromStr for Ticket {
    type Err = QuicError;

    fn from_str(text: &str) -> Result<Ticket, QuicError> {
        let text = text.trim().to_ascii_lowercase(); // some programs send capitals
        let bytes = text.strip_prefix(PREFIX).and_then(digits::read).ok_or(QuicError::NoTicket)?;
        Ticket::from_bytes(&bytes).ok_or(QuicError::NoTicket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(addresses: &[&str]) -> Ticket {
        let host = Key::derived("a", "host").public().expect("a key");
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        Ticket { host, join: Key::derived("a", "join"), expires: 1 << 33, addresses, relay: None }
    }

    #[test]
    fn a_ticket_survives_being_written_down() {
        for addresses in [&["10.0.0.1:7000"][..], &["[fe80::1]:1", "1.2.3.4:65535"]] {
            let written = ticket(addresses).to_string();
            let read: Ticket = written.parse().expect("a ticket");
            assert_eq!(read.to_string(), written);
            let read: Ticket = written.to_ascii_uppercase().parse().expect("a ticket");
            assert_eq!(read.to_string(), written);
            assert_eq!(read.addresses, ticket(addresses).addresses);
            assert_eq!((read.host, read.expires), (ticket(addresses).host, 1 << 33));
            for at in ["10.0.0.9:7100", "[fe80::9]:1"] {
                let at = at.parse().expect("an address");
                let relay = Some(Pass { at, nonce: [1; N_NONCE], tag: [2; N_TAG] });
                let written = Ticket { relay, ..ticket(addresses) }.to_string();
                let read: Ticket = written.parse().expect("a ticket");
                assert_eq!((read.relay, read.addresses), (relay, ticket(addresses).addresses));
            }
        }
    }

    #[test]
    fn a_mistyped_ticket_is_refused() {
        let written = ticket(&["10.0.0.1:7000"]).to_string();
        for at in PREFIX.len()..written.len() - 1 {
            let mut wrong = written.clone().into_bytes();
            wrong[at] = if wrong[at] == b'a' { b'b' } else { b'a' };
            let wrong = String::from_utf8(wrong).expect("text");
            assert!(wrong.parse::<Ticket>().is_err(), "{wrong}");
            assert!(written[..at].parse::<Ticket>().is_err());
        }
        for none in ["", "chimera1", "chimera2abc", "a b", "chimera1é"] {
            assert!(none.parse::<Ticket>().is_err(), "{none}");
        }
    }

    #[test]
    fn a_ticket_expires() {
        let mut ticket = ticket(&["10.0.0.1:7000"]);
        assert!(!ticket.has_expired());
        ticket.expires = Ticket::expiry(Duration::ZERO);
        assert!(ticket.has_expired());
    }
}
