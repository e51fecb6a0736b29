//! The table of models as Hugging Face writes them.

use chimera_core::model::Architecture;

use super::format::HfFormat;
use super::{bert, gpt2};

/// All formats. A `config.json` without `model_type` is of the first.
pub(super) const FORMATS: [&HfFormat; Architecture::ALL.len()] = [&gpt2::FORMAT, &bert::FORMAT];

/// The format of an architecture, which stands where the architecture does.
pub(super) fn format(architecture: Architecture) -> &'static HfFormat {
    let at = Architecture::ALL.iter().position(|other| *other == architecture);
    FORMATS[at.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_stand_where_their_architectures_do() {
        let names = Architecture::ALL.map(Architecture::name);
        assert_eq!(FORMATS.map(|format| format.model_type), names);
    }
}
