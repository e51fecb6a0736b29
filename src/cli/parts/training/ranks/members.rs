//! The members of a run that `chimera host` started, as a file of its folder lists them.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cli::parts::terminal::message::shown;
use crate::formats::files::text_regular;
use crate::run::MEMBERS;

/// The most bytes of the file.
const MAX_BYTES: u64 = 1 << 20;
/// The most characters of a member's words that are shown.
const MAX_SHOWN: usize = 40;

/// The machine of a rank.
#[derive(Serialize, Deserialize, Clone, PartialEq, Default, Debug)]
#[serde(default)]
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) name: String,
    /// System and processor.
    pub(crate) system: String,
    /// Address of the member, as the host sees it.
    pub(crate) address: Option<String>,
    pub(crate) device: String,
    /// CPU threads.
    pub(crate) threads: usize,
    /// FLOP/s in f32, measured when it joined, if it computes on a CPU.
    pub(crate) flops: Option<f64>,
    /// Round trip to the host in seconds, measured when it joined.
    pub(crate) round_trip_s: Option<f64>,
}

impl Member {
    /// Reads the members of a run; none if it has no such file.
    pub(crate) fn all_in(folder: &Path) -> Vec<Member> {
        let text = text_regular(&folder.join(MEMBERS), MAX_BYTES).ok().flatten();
        text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
    }

    /// Measured speed of the member, such as `93.1 GFLOP/s`.
    pub(crate) fn speed(&self) -> Option<String> {
        self.flops.map(|flops| format!("{:.1} GFLOP/s", flops / 1e9))
    }
}

/// Returns the words of a member as far as they are shown. They are not trusted.
pub(crate) fn word(text: &str) -> String {
    shown(text).chars().take(MAX_SHOWN).collect()
}
