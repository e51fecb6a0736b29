//! The bubble, split by cause, in reports.

use chimera_core::analyze::IdleTime;
use serde_json::{Map, Value};

/// Formats the causes that occur in a line of plain words, largest first.
pub(crate) fn in_plain_words(what: &str, bubble: &IdleTime) -> String {
    let seen = bubble.largest().into_iter();
    let seen: Vec<String> =
        seen.map(|(name, share)| format!("{:.1} % {}", 100.0 * share, plain(name))).collect();
    match seen.len() {
        0 => format!("bubble of the {what}: none"),
        _ => {
            let total = 100.0 * bubble.total();
            format!("bubble of the {what}: workers were idle for {total:.1} %: {}", seen.join(", "))
        }
    }
}

/// Describes what an idle worker waits for.
fn plain(cause: &'static str) -> &'static str {
    match cause {
        "activation" => "waiting for earlier stages",
        "gradient" => "waiting for gradients of later stages",
        "message" => "waiting for messages on their way",
        "order" => "in which another order of ops would have had work",
        "reduction" => "summing gradients over replicas",
        "move" => "moving activations",
        "step sync" => "waiting for the other workers to end the step",
        _ => "waiting for a core, or for the engine",
    }
}

/// Returns each cause with its share of the time of all workers.
pub(crate) fn causes(bubble: &IdleTime) -> Value {
    let named = bubble.named().into_iter();
    let named = named.map(|(name, share)| (name.replace(' ', "_"), share.into()));
    Value::Object(named.collect::<Map<_, _>>())
}
