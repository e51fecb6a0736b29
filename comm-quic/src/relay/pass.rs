//! Keys of relays, and passes to their sessions.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};

use rustls::crypto::ring::default_provider;

use crate::QuicError;
use crate::key::digits;

/// Bytes of a relay's key, of the name of a session, and of the proof that the key made it.
const N_KEY: usize = 16;
pub(crate) const N_NONCE: usize = 8;
pub(crate) const N_TAG: usize = 16;

/// The key of a relay: whoever has it may begin sessions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RelayKey([u8; N_KEY]);

/// A relay as a host knows it: `HOST:PORT/KEY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RelayAddress {
    /// Its address.
    pub at: SocketAddr,
    /// Its key.
    pub key: RelayKey,
}

/// The right to a session at a relay. It does not tell the relay's key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    pub(crate) at: SocketAddr,
    pub(crate) nonce: [u8; N_NONCE],
    pub(crate) tag: [u8; N_TAG],
}

impl RelayKey {
    /// Makes a random key.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn random() -> Result<RelayKey, QuicError> {
        random().map(RelayKey)
    }

    /// Derives a key from a secret text.
    pub fn derived(secret: &str) -> RelayKey {
        let hash = blake3::derive_key("chimera relay 2026 key of a secret", secret.as_bytes());
        RelayKey(std::array::from_fn(|nth| hash[nth]))
    }

    /// Returns the proof that the key made a session's name.
    pub(super) fn tag(self, nonce: [u8; N_NONCE]) -> [u8; N_TAG] {
        let key = blake3::derive_key("chimera relay 2026 passes", &self.0);
        first(blake3::keyed_hash(&key, &nonce))
    }
}

impl Pass {
    /// The relay's address.
    pub fn address(&self) -> SocketAddr {
        self.at
    }
}

impl RelayAddress {
    /// Makes a pass to a new session.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn pass(&self) -> Result<Pass, QuicError> {
        let nonce = random()?;
        Ok(Pass { at: self.at, nonce, tag: self.key.tag(nonce) })
    }

    /// Reads `HOST:PORT/KEY`, and looks the host up if it is a name.
    ///
    /// # Errors
    /// If it is something else, or the name is unknown.
    pub fn read(text: &str) -> Result<RelayAddress, QuicError> {
        let wrong = |why: String| QuicError::Relay { at: text.into(), reason: why };
        let form = || wrong("write HOST:PORT/KEY, as `chimera relay` prints it".into());
        let (at, key) = text.trim().split_once('/').ok_or_else(form)?;
        let key = digits::read(key).and_then(|key| key.try_into().ok()).ok_or_else(form)?;
        let mut found = at.to_socket_addrs().map_err(|e| wrong(e.to_string()))?;
        let at = found.next().ok_or_else(|| wrong("the name has no address".into()))?;
        Ok(RelayAddress { at, key: RelayKey(key) })
    }
}

impl fmt::Display for RelayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.at, digits::written(&self.key.0))
    }
}

/// Keys are not printed by chance.
impl fmt::Debug for RelayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RelayKey(..)")
    }
}

/// Compares secrets in a time that does not depend on them.
pub(super) fn is_equal<const N: usize>(a: [u8; N], b: [u8; N]) -> bool {
    a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Returns the first bytes of a hash.
pub(super) fn first(hash: blake3::Hash) -> [u8; N_TAG] {
    std::array::from_fn(|nth| hash.as_bytes()[nth])
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], QuicError> {
    let mut bytes = [0; N];
    let filled = default_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| QuicError::Keys("the system gives no random numbers".into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for at in ["10.0.0.1:7100", "[::1]:1"] {
            let key = RelayKey::random().expect("a key");
            let relay = RelayAddress { at: at.parse().expect("an address"), key };
            assert_eq!(RelayAddress::read(&relay.to_string()).expect("its own"), relay);
        }
        for wrong in ["", "10.0.0.1:7100", "10.0.0.1:7100/", "10.0.0.1:7100/abc", "10.0.0.1/abc"] {
            assert!(RelayAddress::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pass_is_of_one_relay() {
        let at = "10.0.0.1:7100".parse().expect("an address");
        let [one, other] = ["one", "other"].map(RelayKey::derived);
        let pass = RelayAddress { at, key: one }.pass().expect("a pass");
        assert!(is_equal(one.tag(pass.nonce), pass.tag));
        assert!(!is_equal(other.tag(pass.nonce), pass.tag));
        assert_ne!(RelayAddress { at, key: one }.pass().expect("a pass").nonce, pass.nonce);
    }
}
