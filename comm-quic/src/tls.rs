//! TLS 1.3 with raw public keys (RFC 7250): each end knows the keys of the other before they connect,
//! so there are no certificates, names or authorities.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, ServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring::default_provider,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::version::TLS13;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::QuicError;
use crate::key::{Key, PublicKey};

/// The purpose of a connection, as TLS negotiates it (ALPN).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A machine asks for a place, and fetches what it needs.
    Join,
    /// Messages between two ranks.
    Rank,
}

impl Purpose {
    const ALL: [Purpose; 2] = [Purpose::Join, Purpose::Rank];

    fn name(self) -> &'static [u8] {
        match self {
            Purpose::Join => b"chimera-join/1",
            Purpose::Rank => b"chimera-rank/1",
        }
    }
}

/// Keys that may connect, each for one purpose. May change at any time.
#[derive(Clone, Default)]
pub(crate) struct Admitted(Arc<RwLock<HashMap<PublicKey, Purpose>>>);

impl Admitted {
    pub(crate) fn set(&self, keys: impl IntoIterator<Item = (PublicKey, Purpose)>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = keys.into_iter().collect();
    }

    pub(crate) fn purpose(&self, key: &PublicKey) -> Option<Purpose> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }
}

/// Returns the settings of the end that is connected to, with its `key`.
pub(crate) fn server(key: &Key, admitted: &Admitted) -> Result<ServerConfig, QuicError> {
    let verifier = Verifier { of: Of::Admitted(admitted.clone()), provider: default_provider() };
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let mut config = builder
        .with_protocol_versions(&[&TLS13])
        .map_err(keys)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key.certified()?)));
    config.alpn_protocols = Purpose::ALL.map(|purpose| purpose.name().to_vec()).to_vec();
    config.session_storage = Arc::new(NoServerSessionStorage {}); // every connection proves its key
    config.send_tls13_tickets = 0;
    let config = QuicServerConfig::try_from(config).map_err(keys)?;
    Ok(ServerConfig::with_crypto(Arc::new(config)))
}

/// Returns the settings of the end that connects with its `key` to one whose key is `peer`.
pub(crate) fn client(
    key: &Key,
    peer: PublicKey,
    purpose: Purpose,
) -> Result<ClientConfig, QuicError> {
    let verifier = Verifier { of: Of::One(peer), provider: default_provider() };
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let own = AlwaysResolvesClientRawPublicKeys::new(key.certified()?);
    let mut config = builder
        .with_protocol_versions(&[&TLS13])
        .map_err(keys)?
        .dangerous() // the library's word for keys without authorities; `Verifier` pins them
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![purpose.name().to_vec()];
    config.resumption = Resumption::disabled();
    let config = QuicClientConfig::try_from(config).map_err(keys)?;
    Ok(ClientConfig::new(Arc::new(config)))
}

/// Returns the proven key of the other end, and what it connected for.
pub(crate) fn identity(connection: &Connection) -> Option<(PublicKey, Purpose)> {
    let sent = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    let data = connection.handshake_data()?.downcast::<HandshakeData>().ok()?;
    let name = data.protocol?;
    let purpose = Purpose::ALL.into_iter().find(|purpose| purpose.name() == name)?;
    Some((PublicKey::of(sent.first()?)?, purpose))
}

fn keys(error: impl fmt::Display) -> QuicError {
    QuicError::Keys(error.to_string())
}

/// Accepts known keys only. The signature proves that the other end has the private half.
struct Verifier {
    of: Of,
    provider: CryptoProvider,
}

/// The keys that an end accepts.
enum Of {
    One(PublicKey),
    Admitted(Admitted),
}

impl Verifier {
    fn check(&self, sent: &CertificateDer<'_>) -> Result<(), Error> {
        let key = PublicKey::of(sent).ok_or(CertificateError::BadEncoding)?;
        let is_known = match &self.of {
            Of::One(known) => key == *known,
            Of::Admitted(admitted) => admitted.purpose(&key).is_some(),
        };
        if is_known { Ok(()) } else { Err(CertificateError::ApplicationVerificationFailure.into()) }
    }

    fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.provider.signature_verification_algorithms
    }

    /// The answer to signatures of TLS 1.2, which no end here speaks.
    fn refuse_tls12() -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 has raw keys here".into()))
    }

    fn verify(
        &self,
        message: &[u8],
        sent: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(sent.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, self.algorithms())
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        sent: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(sent).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verifier::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        sent: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, sent, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        sent: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(sent).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Verifier::refuse_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        sent: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, sent, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
