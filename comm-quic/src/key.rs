//! Ed25519 keys, by which machines know each other.

pub(crate) mod digits;

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring::{default_provider, sign::any_eddsa_type};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};

use crate::QuicError;

/// Bytes of a key.
pub(crate) const N_BYTES: usize = 32;
/// A private key in PKCS #8 is these bytes and its seed (RFC 8410, section 7).
const PRIVATE: [u8; 16] = *b"\x30\x2e\x02\x01\x00\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
/// A public key as TLS sends it (RFC 7250) is these bytes and the key (RFC 8410, section 4).
const PUBLIC: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

/// A private key.
#[derive(Clone)]
pub struct Key([u8; N_BYTES]);

/// The public half of a [`Key`]: the owner of the private half can prove that it has it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PublicKey([u8; N_BYTES]);

impl Key {
    /// Makes a random key.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn random() -> Result<Key, QuicError> {
        let mut seed = [0; N_BYTES];
        let filled = default_provider().secure_random.fill(&mut seed);
        filled.map_err(|_| QuicError::Keys("the system gives no random numbers".into()))?;
        Ok(Key(seed))
    }

    /// Derives a key from a secret text; another `purpose` gives another key.
    pub fn derived(secret: &str, purpose: &str) -> Key {
        let context = format!("chimera quic 2026 {purpose}");
        Key(blake3::derive_key(&context, secret.as_bytes()))
    }

    pub(crate) fn from_bytes(seed: [u8; N_BYTES]) -> Key {
        Key(seed)
    }

    pub(crate) fn to_bytes(&self) -> [u8; N_BYTES] {
        self.0
    }

    /// Returns the public half.
    ///
    /// # Errors
    /// If the library rejects the key, which would be a bug.
    pub fn public(&self) -> Result<PublicKey, QuicError> {
        let certified = self.certified()?;
        let sent = certified.cert.first().and_then(PublicKey::of);
        sent.ok_or_else(|| QuicError::Keys("a key has an unknown form".into()))
    }

    /// Returns the key as TLS uses it.
    pub(crate) fn certified(&self) -> Result<Arc<CertifiedKey>, QuicError> {
        let der = PrivatePkcs8KeyDer::from([&PRIVATE[..], &self.0].concat());
        let signing = any_eddsa_type(&der).map_err(|e| QuicError::Keys(e.to_string()))?;
        let public = signing.public_key();
        let public = public.ok_or_else(|| QuicError::Keys("a key has no public half".into()))?;
        let sent = CertificateDer::from(public.as_ref().to_vec());
        Ok(Arc::new(CertifiedKey::new(vec![sent], signing)))
    }
}

impl PublicKey {
    /// Reads a key as TLS sends it.
    pub(crate) fn of(sent: &CertificateDer<'_>) -> Option<PublicKey> {
        let key = sent.strip_prefix(&PUBLIC[..])?;
        key.try_into().ok().map(PublicKey)
    }

    pub(crate) fn from_bytes(key: [u8; N_BYTES]) -> PublicKey {
        PublicKey(key)
    }

    pub(crate) fn to_bytes(self) -> [u8; N_BYTES] {
        self.0
    }
}

/// The first half of the key, in hexadecimal: enough to tell keys apart.
impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..N_BYTES / 2].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Private keys are not printed.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_gives_one_key_for_each_purpose() {
        let public = |secret, purpose| Key::derived(secret, purpose).public().expect("a key");
        assert_eq!(public("a", "host"), public("a", "host"));
        assert_ne!(public("a", "host"), public("a", "join"));
        assert_ne!(public("a", "host"), public("b", "host"));
        let random = || Key::random().and_then(|key| key.public()).expect("a key");
        assert_ne!(random(), random());
    }
}
