//! Values of our options in other programs, with the word for them here.

/// Values by option; those without a word here have advice.
use super::text_rows::{TextRow, text_rows};

/// Returns the values by option. Those without a word here have advice.
fn rows() -> impl Iterator<Item = TextRow> {
    text_rows(include_str!("peer_values.txt"))
}

/// Returns the suggestion or advice for a value of another program.
pub fn meant(option: &str, value: &str) -> Option<&'static str> {
    let value = value.to_ascii_lowercase().replace('_', "-");
    rows().find(|row| row.section == option && row.names(&value)).map(|row| row.text)
}

#[cfg(test)]
mod tests {
    use toml::Value;

    use super::*;
    use crate::OPTIONS;
    use chimera_device::Device;

    /// A value that is valid here needs no tip, and a tip names one that is.
    #[test]
    fn tips_are_for_values_that_do_not_exist() {
        for TextRow { section: name, head, text: tip } in rows() {
            let option = OPTIONS.iter().find(|option| option.name == name).expect("an option");
            let holds = |word: &str| {
                let value = Value::String(word.into());
                let is_device = name != "device" || word.parse::<Device>().is_ok();
                is_device && option.kind.holds(&value) && option.read(&value).is_ok()
            };
            for word in head.split(' ') {
                assert!(!holds(word), "{name} {word}");
            }
            let named = tip.split('`').skip(1).step_by(2);
            for word in named.filter(|word| !word.contains("--") && *word != "preset") {
                assert!(holds(word), "{name}: {tip}");
            }
        }
    }
}
