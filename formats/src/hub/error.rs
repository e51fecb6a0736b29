//! The reasons why a model cannot be fetched from a hub.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::HubName;

/// A model, and the address of the hub that should have it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The model.
    pub name: Arc<HubName>,
    /// The address, such as `https://huggingface.co`.
    pub endpoint: Arc<str>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.endpoint)
    }
}

/// The reason why a model cannot be fetched from a hub, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// This build has no client.
    #[error(
        "there is no folder {0}, and this build fetches no models: download it and name its folder, or \
         build with `--features hub`"
    )]
    NoClient(HubName),
    /// The hub may not be asked, and the cache lacks the model.
    #[error(
        "{0}: there is no such folder, the cache {1} lacks this model, and HF_HUB_OFFLINE forbids to fetch \
         it: unset that, or download the model and name its folder"
    )]
    Offline(HubName, String),
    /// No answer came.
    #[error(
        "{0}: the hub does not answer ({1}), and no folder has this name: check the network and \
         HF_ENDPOINT, or download the model elsewhere and name its folder"
    )]
    Away(Source, String),
    /// The hub has no such model, or does not show it.
    #[error("{0}: there is no such model, and no such folder here: check the name, {1}")]
    NoModel(Source, Token),
    /// The model has no such branch, tag or commit.
    #[error(
        "{from}: the model has no revision `{}`: name one of its branches, tags or commits",
        from.name.revision()
    )]
    NoRevision {
        /// The model.
        from: Source,
    },
    /// The reader has no access.
    #[error(
        "{from}: not everyone may read it (status {status}): accept its terms at {}/{}, {token}",
        from.endpoint, from.name.repository()
    )]
    Denied {
        /// The model.
        from: Source,
        /// The status of the answer.
        status: u16,
        /// Presence of a token.
        token: Token,
    },
    /// Any other answer.
    #[error("{0}: {1}: try again later, or download the model elsewhere and name its folder")]
    Answer(Source, String),
    /// The model has no weights that are read here.
    #[error(
        "{0}: it has neither model.safetensors nor its index{1}: choose another model or revision"
    )]
    NoWeights(Source, String),
    /// The model lacks a file.
    #[error("{0}: it has no {1}: choose another model or revision")]
    NoFile(Source, String),
    /// The connection ended within a file.
    #[error(
        "{from}: the connection ended after {has} of {} bytes of {file} ({reason}): the same command goes on \
         from there",
        of.map_or("unknown".into(), |of| of.to_string())
    )]
    Cut {
        /// The model.
        from: Source,
        /// The file.
        file: String,
        /// Bytes in the cache.
        has: u64,
        /// Bytes of the file.
        of: Option<u64>,
        /// The cause.
        reason: String,
    },
    /// A file differs from the answer of the hub about it.
    #[error(
        "{from}: {file} came damaged, and was removed: {what}: the same command fetches it again"
    )]
    Damaged {
        /// The model.
        from: Source,
        /// The file.
        file: String,
        /// The difference.
        what: String,
    },
    /// The cache cannot be used.
    #[error("cannot {what} {}, in the cache for models of a hub (HF_HUB_CACHE)", path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// The attempt.
        what: &'static str,
        /// The cause.
        #[source]
        reason: io::Error,
    },
    /// No folder for a cache is known.
    #[error("no folder is known to keep models of a hub in: set HF_HOME or HF_HUB_CACHE")]
    NoCache,
    /// The certificates of this machine cannot be used.
    #[error("no certificates to check {0} with: {1}: name a file of them by SSL_CERT_FILE")]
    NoCertificates(String, String),
}

/// Presence of an access token in a request; displays as advice about it.
#[derive(Clone, Copy, Debug)]
pub struct Token(
    /// True if a token was sent.
    pub bool,
);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 {
            "and whether the token of HF_TOKEN or of the token file may read it"
        } else {
            "or set HF_TOKEN to a token that may read it"
        })
    }
}
