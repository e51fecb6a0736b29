//! The requests that a hub answers: the files of a revision, what a file is, and its bytes.

use std::fs::read_to_string;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body, Error, RequestBuilder};

use super::HubName;
use super::error::{HubError, Source, Token};
use super::name::is_commit;
use super::place::{home, said};

/// The hub that is asked by default.
const HUB: &str = "https://huggingface.co";
/// A connection must be made within this time, and any answer and piece of a file must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longer lists of files are refused.
const MAX_LISTING: u64 = 16 << 20;
/// Redirects on the hub itself that are followed, such as to the new name of a model.
const MAX_MOVES: usize = 5;

/// A hub that is asked for one model.
pub(super) struct Client {
    agent: Agent,
    token: Option<String>,
    from: Source,
}

/// A revision of a model: its commit and the names of its files.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
}

/// The answer of the hub about a file.
pub(super) struct Remote {
    /// The name of its content in the cache: a hash of it, if the hub is one.
    pub(super) etag: String,
    pub(super) bytes: Option<u64>,
}

impl Client {
    pub(super) fn new(name: &HubName) -> Result<Client, HubError> {
        let endpoint = said("HF_ENDPOINT").unwrap_or_else(|| HUB.into());
        let endpoint = endpoint.trim_end_matches('/').to_string();
        let tls = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(certificates(&endpoint)?);
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost) // never to the hosts of files
            .timeout_connect(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .tls_config(tls.build())
            .user_agent(concat!("chimera/", env!("CARGO_PKG_VERSION")));
        let from = Source { name: Arc::new(name.clone()), endpoint: endpoint.into() };
        Ok(Client { agent: config.build().into(), token: token(), from })
    }

    /// The model and the address of the hub.
    pub(super) fn source(&self) -> &Source {
        &self.from
    }

    /// Asks for the files of the revision.
    pub(super) fn listing(&self) -> Result<Listing, HubError> {
        #[derive(Deserialize)]
        struct Answer {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let Source { name, endpoint } = &self.from;
        let (repository, revision) = (name.repository(), name.revision().replace('/', "%2F"));
        let url = format!("{endpoint}/api/models/{repository}/revision/{revision}");
        let answer = self.with_token(self.agent.get(url)).call().map_err(|e| self.away(&e))?;
        let mut answer = self.accepted(answer, None)?;
        let text = answer.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
        let text = text.map_err(|e| self.away(&e))?;
        let no_hub = |why: &str| {
            HubError::Answer(self.from.clone(), format!("this is not the answer of a hub ({why})"))
        };
        let answer: Answer = serde_json::from_slice(&text).map_err(|e| no_hub(&e.to_string()))?;
        if !is_commit(&answer.sha) {
            return Err(no_hub("`sha` is no commit"));
        }
        let files = answer.siblings.into_iter().map(|file| file.rfilename).collect();
        Ok(Listing { commit: answer.sha, files })
    }

    /// Asks what a file is. Redirects are followed on the hub itself: what it says of a file comes
    /// with the redirect to the host of the content.
    pub(super) fn remote(&self, commit: &str, file: &str) -> Result<Remote, HubError> {
        let mut url = self.url(commit, file);
        let mut moves = 0;
        let answer = loop {
            let request =
                self.with_token(self.agent.head(&url)).header("Accept-Encoding", "identity");
            let request = request.config().max_redirects(0).build();
            let answer = request.call().map_err(|e| self.away(&e))?;
            let moved = header(&answer, "location").filter(|_| answer.status().is_redirection());
            match moved.filter(|to| to.starts_with('/') && !to.starts_with("//")) {
                Some(path) if moves < MAX_MOVES => url = format!("{}{path}", self.origin()),
                _ => break answer,
            }
            moves += 1;
        };
        let is_elsewhere = answer.status().is_redirection();
        let answer = if is_elsewhere { answer } else { self.accepted(answer, Some(file))? };
        let etag = header(&answer, "x-linked-etag").or_else(|| header(&answer, "etag"));
        let etag = etag.unwrap_or("").trim_start_matches("W/").trim_matches('"').to_string();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if etag.is_empty() || etag.len() > 128 || !etag.bytes().all(is_plain) {
            let why = format!("it does not say the ETag of {file}, as a hub does");
            return Err(HubError::Answer(self.from.clone(), why));
        }
        let length = header(&answer, "content-length").filter(|_| !is_elsewhere);
        let bytes = header(&answer, "x-linked-size").or(length).and_then(|text| text.parse().ok());
        Ok(Remote { etag, bytes })
    }

    /// Asks for the bytes of a file from the byte `start` on. The answer may begin at 0 all the same,
    /// with status 200.
    pub(super) fn content(
        &self,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<Response<Body>, HubError> {
        let request = self.with_token(self.agent.get(self.url(commit, file)));
        let request = request.header("Accept-Encoding", "identity");
        let request = match start {
            0 => request,
            start => request.header("Range", format!("bytes={start}-")),
        };
        let answer = request.call().map_err(|e| self.away(&e))?;
        if answer.status() == 416 { Ok(answer) } else { self.accepted(answer, Some(file)) }
    }

    fn url(&self, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.from.endpoint, self.from.name.repository())
    }

    /// Returns the scheme and the host of the hub.
    fn origin(&self) -> &str {
        let endpoint = &self.from.endpoint;
        let host = endpoint.find("://").map_or(0, |at| at + 3);
        let end = endpoint[host..].find('/').map_or(endpoint.len(), |at| host + at);
        &endpoint[..end]
    }

    fn with_token<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    fn away(&self, error: &Error) -> HubError {
        HubError::Away(self.from.clone(), error.to_string())
    }

    /// Refuses an answer without the content: about a file, or about the model.
    fn accepted(
        &self,
        answer: Response<Body>,
        file: Option<&str>,
    ) -> Result<Response<Body>, HubError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let (from, token) = (self.from.clone(), Token(self.token.is_some()));
        let code = header(&answer, "x-error-code").unwrap_or("");
        Err(match (status.as_u16(), code, file) {
            (_, "RevisionNotFound", _) => HubError::NoRevision { from },
            // A hub does not tell strangers that a model exists.
            (401, "RepoNotFound", _) | (401, "", None) => HubError::NoModel(from, token),
            (status @ (401 | 403), ..) => HubError::Denied { from, status, token },
            (404, "EntryNotFound", Some(file)) | (404, "", Some(file)) => {
                HubError::NoFile(from, file.to_string())
            }
            (404, ..) => HubError::NoModel(from, token),
            (status @ (500.. | 429), ..) => {
                HubError::Answer(from, format!("it answers with status {status}"))
            }
            (status, ..) => HubError::Answer(from, format!("it refuses with status {status}")),
        })
    }
}

/// Returns the text of a header.
pub(super) fn header<'a>(answer: &'a Response<Body>, key: &str) -> Option<&'a str> {
    answer.headers().get(key)?.to_str().ok()
}

/// Returns the token of the user: of the environment, or of the file that `hf auth login` writes.
fn token() -> Option<String> {
    let named = said("HF_TOKEN").or_else(|| said("HUGGING_FACE_HUB_TOKEN"));
    let in_file = || {
        let file = said("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home()?.join("token")));
        let token = read_to_string(file?).ok()?;
        Some(token.trim().to_string()).filter(|token| !token.is_empty())
    };
    named.or_else(in_file)
}

/// Returns the certificates that this machine trusts.
fn certificates(endpoint: &str) -> Result<RootCerts, HubError> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() && endpoint.starts_with("https:") {
        let why = found.errors.first().map_or("this machine has none".into(), |e| e.to_string());
        return Err(HubError::NoCertificates(endpoint.to_string(), why));
    }
    let certs = found.certs.iter().map(|cert| Certificate::from_der(cert).to_owned());
    Ok(RootCerts::new_with_certs(&certs.collect::<Vec<_>>()))
}
