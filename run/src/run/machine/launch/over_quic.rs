//! The choice of QUIC.

use super::{AS_SAID, Built, Over};
use anyhow::{Result, bail};

/// Returns that ranks are processes over QUIC, and the reason.
pub(super) fn over_quic(built: Built) -> Result<(Over, String)> {
    if !built.quic {
        bail!("this build has no QUIC: build with `--features quic`, or choose another transport");
    }
    Ok((Over::Quic, AS_SAID.into()))
}

#[cfg(test)]
mod tests {
    use chimera_settings::{Survive, Transport};

    use super::*;
    use crate::run::launch::choose;

    #[test]
    fn quic_is_chosen_on_request_if_it_is_there() {
        let chosen = |built, survive| {
            let built = Built { mpi: false, nccl: false, quic: built };
            choose(Transport::Quic, survive, built).map_err(|e| e.to_string())
        };
        assert_eq!(chosen(true, Survive::Off), Ok((Over::Quic, AS_SAID.into())));
        let refusal = chosen(false, Survive::Off).expect_err("it is not there");
        assert!(refusal.contains("build with `--features quic`"), "{refusal}");
        assert_eq!(chosen(true, Survive::Narrow), Ok((Over::Quic, AS_SAID.into())));
    }
}
