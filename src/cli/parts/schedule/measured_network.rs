//! Links and nodes as measured by `chimera comm bench`, for planning or simulating a job on them.

use std::path::Path;
use std::str::FromStr;

use chimera_core::analyze::Link;
use serde::{Deserialize, Serialize};

use crate::formats::files::text_regular;

/// Longer reports are refused before they are read.
const MAX_BYTES: u64 = 1 << 20;

/// A measured link.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MeasuredLink {
    /// Latency: the time of a message of 4 bytes.
    pub(crate) alpha_s: f64,
    /// Time per byte of a large message; 0 if size costs nothing.
    pub(crate) beta_s_per_byte: f64,
}

impl MeasuredLink {
    /// Returns the link, unless noise exceeded the measured values.
    ///
    /// # Errors
    /// A message, if a number makes no sense.
    pub(crate) fn sound(self) -> Result<Link, String> {
        let MeasuredLink { alpha_s: alpha, beta_s_per_byte: beta } = self;
        let is_sound = [alpha, beta].iter().all(|x| (0.0..=1e12).contains(x));
        is_sound.then_some(Link { alpha, beta }).ok_or_else(|| {
            format!(
                "`alpha_s` is {alpha} and `beta_s_per_byte` {beta}: measure again, with less noise"
            )
        })
    }
}

/// The part of a report that describes a whole network.
#[derive(Deserialize)]
struct NetworkReport {
    ranks_per_node: u32,
    inside: Option<MeasuredLink>,
    between: Option<MeasuredLink>,
}

/// Measured nodes and links.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct MeasuredNetwork {
    pub(crate) ranks_per_node: u32,
    /// The link between two ranks of a node, if a node had two.
    pub(crate) inside: Option<Link>,
    /// The link between two nodes, if there were two.
    pub(crate) between: Option<Link>,
}

impl FromStr for MeasuredNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<MeasuredNetwork, String> {
        let report: NetworkReport = read(Path::new(text))?;
        let link = |link: Option<MeasuredLink>| link.map(MeasuredLink::sound).transpose();
        let NetworkReport { ranks_per_node, inside, between } = report;
        match ranks_per_node {
            0 => Err("`ranks_per_node` is 0: measure again".into()),
            _ => Ok(MeasuredNetwork {
                ranks_per_node,
                inside: link(inside)?,
                between: link(between)?,
            }),
        }
    }
}

/// Reads a report of `chimera comm bench`.
///
/// # Errors
/// A message, if the file cannot be read or is not a report.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, String> {
    let file =
        text_regular(path, MAX_BYTES).map_err(|e| format!("the file cannot be read: {e}"))?;
    let file = file.ok_or_else(|| format!("longer than the limit of {MAX_BYTES} bytes"))?;
    serde_json::from_str(&file)
        .map_err(|e| format!("not what `chimera comm bench --json` prints: {e}"))
}
