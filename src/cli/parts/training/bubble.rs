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

/// Formats the causes that occur in a line of plain words, largest first.
pub(crate) fn in_plain_words(what: &str, bubble: &IdleTime) -> String {
    let mut causes = bubble.named();
    causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let seen = causes.iter().filter(|(_, share)| *share >= 5e-4);
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

    #[test]
    fn each_cause_has_plain_words() {
        let bubble = IdleTime { message: 0.05, sync: 0.2, ..IdleTime::default() };
        let wanted = "bubble of the last step: workers were idle for 25.0 %: 20.0 % waiting for the other workers to end the \
                      step, 5.0 % waiting for messages on their way";
        assert_eq!(in_plain_words("last step", &bubble), wanted);
        assert_eq!(in_plain_words("step", &IdleTime::default()), "bubble of the step: none");
        let other = plain("other");
        let named = IdleTime::default().named();
        let plain: Vec<&str> = named.iter().map(|(cause, _)| plain(cause)).collect();
        assert_eq!(plain.iter().filter(|words| **words == other).count(), 1, "{plain:?}");
    }
}
