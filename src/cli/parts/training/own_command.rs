//! The command of this process.

use crate::run::launch::Launch;

/// Returns the command that trains as this process does.
pub(super) fn own_command() -> String {
    match Launch::found() {
        Some(Launch { launcher: "chimera host", n_ranks, .. }) => {
            format!("host --wait {}", n_ranks.saturating_sub(1))
        }
        _ => "train".into(),
    }
}
