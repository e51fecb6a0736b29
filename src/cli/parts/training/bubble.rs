//! The bubble, split by cause, in reports.

use chimera_core::analyze::IdleTime;
use serde_json::{Map, Value};

/// Formats the causes that occur, largest first, in a line.
pub(crate) fn by_cause(what: &str, bubble: &IdleTime) -> String {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let mut causes = bubble.named();
    causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let seen = causes.iter().filter(|(_, share)| *share >= 5e-4);
    let seen: Vec<String> =
        seen.map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    match seen.len() {
        0 => format!("{what}: none"),
        _ => format!("{what}: {} = {}", percent(bubble.total()), seen.join(" + ")),
    }
}

/// Returns each cause with its share of the time of all workers.
pub(crate) fn causes(bubble: &IdleTime) -> Value {
    let named = bubble.named().into_iter();
    let named = named.map(|(name, share)| (name.replace(' ', "_"), share.into()));
    Value::Object(named.collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_in_order_of_size_and_small_ones_are_left_out() {
        let bubble = IdleTime { message: 0.05, sync: 0.2, other: 1e-5, ..IdleTime::default() };
        assert_eq!(
            by_cause("bubble", &bubble),
            "bubble: 25.0 % = step sync 20.0 % + message 5.0 %"
        );
        assert_eq!(by_cause("bubble", &IdleTime::default()), "bubble: none");
        assert_eq!(causes(&bubble)["step_sync"], 0.2);
    }
}
