//! Tickets: what a machine needs to join a run, as one word.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::QuicError;
use crate::key::{Key, N_BYTES, PublicKey};

/// Digits of five bits (RFC 4648, in lower case).
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// The beginning of every ticket, with its version.
const PREFIX: &str = "chimera1";
/// Bytes that find a mistyped ticket.
const N_CHECK: usize = 4;
/// The most addresses of a host.
const MAX_ADDRESSES: usize = 16;

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
        for address in self.addresses.iter().take(MAX_ADDRESSES) {
            match address.ip() {
                IpAddr::V4(ip) => bytes.extend([&[4][..], &ip.octets()].concat()),
                IpAddr::V6(ip) => bytes.extend([&[6][..], &ip.octets()].concat()),
            }
            bytes.extend(address.port().to_le_bytes());
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
        let mut addresses = Vec::new();
        while let Some(family) = rest.split_off_first() {
            let ip: IpAddr = match family {
                4 => (*rest.split_off(..4)?.as_array::<4>()?).into(),
                6 => (*rest.split_off(..16)?.as_array::<16>()?).into(),
                _ => return None,
            };
            let port = u16::from_le_bytes(*rest.split_off(..2)?.as_array()?);
            addresses.push(SocketAddr::new(ip, port));
        }
        let is_usable = (1..=MAX_ADDRESSES).contains(&addresses.len());
        is_usable.then_some(Ticket { host, join, expires, addresses })
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        let (mut bits, mut n_bits) = (0u32, 0);
        let bytes = self.to_bytes();
        let padding = (5 - bytes.len() * 8 % 5) % 5;
        for byte in bytes {
            (bits, n_bits) = (bits << 8 | u32::from(byte), n_bits + 8);
            while n_bits >= 5 {
                n_bits -= 5;
                write!(f, "{}", char::from(DIGITS[(bits >> n_bits & 31) as usize]))?;
            }
        }
        match padding {
            0 => Ok(()),
            n => write!(f, "{}", char::from(DIGITS[(bits << n & 31) as usize])),
        }
    }
}

impl FromStr for Ticket {
    type Err = QuicError;

    fn from_str(text: &str) -> Result<Ticket, QuicError> {
        let text = text.trim().to_ascii_lowercase(); // some programs send capitals
        let digits = text.strip_prefix(PREFIX).ok_or(QuicError::NoTicket)?;
        let (mut bits, mut n_bits, mut bytes) = (0u32, 0, Vec::new());
        for digit in digits.bytes().take(1 << 10) {
            let five = DIGITS.iter().position(|d| *d == digit);
            (bits, n_bits) = (bits << 5 | five.ok_or(QuicError::NoTicket)? as u32, n_bits + 5);
            if n_bits >= 8 {
                n_bits -= 8;
                bytes.push((bits >> n_bits) as u8);
            }
        }
        Ticket::from_bytes(&bytes).ok_or(QuicError::NoTicket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(addresses: &[&str]) -> Ticket {
        let host = Key::derived("a", "host").public().expect("a key");
        let addresses = addresses.iter().map(|a| a.parse().expect("an address")).collect();
        Ticket { host, join: Key::derived("a", "join"), expires: 1 << 33, addresses }
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
