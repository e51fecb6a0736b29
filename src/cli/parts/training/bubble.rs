//! The bubble, split by cause, in JSON.

use chimera_core::analyze::IdleTime;
use serde_json::{Map, Value};

/// Returns each cause with its share of the time of all workers.
pub(crate) fn causes(bubble: &IdleTime) -> Value {
    let named = bubble.named().into_iter();
    let named = named.map(|(name, share)| (name.replace(' ', "_"), share.into()));
    Value::Object(named.collect::<Map<_, _>>())
}
