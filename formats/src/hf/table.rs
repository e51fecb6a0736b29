//! The table of Hugging Face's model formats.

use chimera_core::model::Architecture;

use super::format::HfFormat;
use super::{bert, gpt2, llama};

/// All formats. A `config.json` without `model_type` is of the first.
pub(super) const FORMATS: [&HfFormat; Architecture::ALL.len()] =
    [&gpt2::FORMAT, &bert::FORMAT, &llama::FORMAT];

/// Returns the format of an architecture, which has the same position in its table.
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
        assert_eq!(FORMATS.map(|format| format.model_types[0]), names);
    }
}
