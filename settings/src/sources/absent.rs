//! Options of other programs that do not exist here, each with advice.

use crate::values::text_rows::{TextRow, text_rows};

/// Returns the rows of names that do not exist here. Advice names our options with their dashes.
pub(super) fn rows() -> impl Iterator<Item = TextRow> {
    text_rows(include_str!("absent.txt"))
}

/// Returns advice for the name of another program's option that does not exist here.
pub fn absent(name: &str) -> Option<&'static str> {
    rows().find(|row| row.names(name)).map(|row| row.text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, OPTIONS};

    #[test]
    fn what_is_no_option_says_what_to_do() {
        for (words, hint) in [
            ("--tp 2", "no tensor parallelism"),
            ("--tensor-model-parallel-size 2", "no tensor parallelism"),
            ("--global-batch-size 512", "choose these"),
            ("--batch-size 4", "choose these"),
            ("--epochs 3", "choose `steps`"),
            ("--gpus 2", "mpirun or srun"),
            ("--bf16", "choose `precision bf16`"),
            ("--checkpoint x", "`save-every` saves checkpoints"),
        ] {
            let refusal = Layers::parse(words).unwrap_err().to_string();
            assert!(refusal.contains(hint), "{refusal}");
        }
    }

    #[test]
    fn advice_names_options_that_exist() {
        const OF_THE_COMMAND: [&str; 3] = ["config", "verbose", "tokenizer"];
        for TextRow { text: hint, .. } in rows() {
            for option in hint.split("--").skip(1) {
                let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
                let name = option.split(|c| !is_name(c)).next().unwrap_or_default();
                let is_known = OPTIONS.iter().any(|option| option.name == name);
                assert!(is_known || OF_THE_COMMAND.contains(&name), "{hint}: {name}");
            }
        }
    }
}
