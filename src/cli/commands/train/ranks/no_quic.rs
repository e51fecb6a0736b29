//! Replaces `quic` in a build without QUIC, which refuses that transport before.

use anyhow::{Result, bail};

use super::Train;
use crate::settings::Config;

pub(super) fn run(_: &Train, _: Result<Config>, why: &str) -> Result<()> {
    bail!("this build has no QUIC ({why})")
}
