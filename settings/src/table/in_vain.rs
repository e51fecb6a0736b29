//! Options that have no effect on a program with its own model, data and devices.

use super::headings::is_of_our_models;
use super::options::OPTIONS;
use crate::{Config, Origin};

/// Returns the options among `keys` that were set to something other than their defaults.
pub fn said_in_vain<'k>(config: &Config, keys: impl IntoIterator<Item = &'k str>) -> Vec<&'k str> {
    let is_said = |key: &str| {
        let said = config.value(key).map(|(_, origin)| origin.clone());
        matches!(said, Some(Origin::CommandLine | Origin::Program | Origin::File(..)))
    };
    let keys = keys.into_iter();
    keys.filter(|key| is_said(key) && config.unusual(key).is_some()).collect()
}

/// Lists the options about the built-in models, their stages, text or devices.
pub fn of_our_models() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().map(|option| option.name).filter(|key| is_of_our_models(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, Nothing, Settings};

    #[test]
    fn what_is_said_in_vain_is_not_what_holds_anyway() {
        let settings = Settings::default()
            .with("precision", "bf16")
            .with("preset", "tiny") // the default
            .with("hidden", 64)
            .with("depth", 2);
        let config = Layers { config: None, settings }.resolve(&Nothing).unwrap();
        assert_eq!(said_in_vain(&config, of_our_models()), ["hidden", "precision"]);
        assert_eq!(said_in_vain(&config, ["save", "report"]), [""; 0]);
    }
}
