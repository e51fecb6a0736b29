//! `chimera relay`: passes packets on between machines that cannot reach one another.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use chimera_comm_quic::{
    Limits, Relay as QuicRelay, RelayAddress, RelayEvent, RelayKey, addresses,
};
use clap::Args;
use clap::ValueHint::FilePath;

use super::train::ranks::secret_in;
use crate::cli::parts::terminal::console::{print, tell};

/// Members of a run: a host, those that `chimera host` may wait for, and machines that come meanwhile.
const MAX_MEMBERS: usize = 320;
/// Bytes per second of a Mbit/s.
const MBIT: f64 = 1e6 / 8.0;

/// Passes packets on between machines that cannot reach one another
///
/// Run it on a machine that all of them reach, and give `chimera host` what it prints. The packets are
/// encrypted from end to end, and this machine has no key of theirs. It sees which addresses send how
/// much and when. Ends by Ctrl-C.
#[derive(Args)]
pub(crate) struct Relay {
    /// Address and UDP port to listen at
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7100")]
    listen: SocketAddr,
    /// File with a secret for the relay's key [default: a random key]
    #[arg(long, value_name = "FILE", value_hint = FilePath)]
    key: Option<PathBuf>,
    /// The most runs at a time
    #[arg(long, value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    runs: u32,
    /// The most Mbit/s of a run; packets beyond are dropped
    #[arg(long, value_name = "MBIT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
}

impl Relay {
    pub(crate) fn run(self) -> Result<()> {
        let key = match &self.key {
            Some(file) => RelayKey::derived(&secret_in(file, "--key")?),
            None => RelayKey::random()?,
        };
        let rate = f64::from(self.rate) * MBIT;
        let limits = Limits { n_sessions: self.runs as usize, n_members: MAX_MEMBERS, rate };
        let relay = QuicRelay::open(self.listen, key, limits)?;
        let listening = relay.address()?;
        let at = if listening.ip().is_unspecified() {
            addresses(listening.port()).first().copied().unwrap_or(listening)
        } else {
            listening
        };
        print(format!("chimera host --relay {}\n", RelayAddress { at, key }))?;
        tell(format!(
            "listening at UDP port {}; others may reach this machine by another address",
            listening.port()
        ));
        Ok(relay.run(|event| tell(line(event)))?)
    }
}

fn line(event: RelayEvent) -> String {
    match event {
        RelayEvent::Began { n_sessions } => format!("a run has come; there are {n_sessions} now"),
        RelayEvent::Ended { n_members, n_bytes, n_dropped } => format!(
            "a run has gone: {n_members} members, {:.1} MB passed on, {:.1} MB dropped",
            n_bytes as f64 / 1e6,
            n_dropped as f64 / 1e6
        ),
    }
}
