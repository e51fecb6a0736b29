//! Names of tensors, here and there. Layouts are equal: GPT-2's own projections (`Conv1D`) are
//! `[in, out]`, and so are ours.

/// What precedes the name of a tensor of the body, in a model with a head.
const BODY: &str = "transformer.";
/// The only tensor outside of the body.
const HEAD: &str = "lm_head.weight";
/// Constants that older versions saved beside the weights: the causal mask, and what it masks with.
const CONSTANTS: [&str; 2] = [".attn.bias", ".attn.masked_bias"];

/// Our name of a tensor, or `None` if it is no weight.
pub(super) fn from_hf(name: &str) -> Option<&str> {
    let is_constant = CONSTANTS.iter().any(|constant| name.ends_with(constant));
    (!is_constant).then(|| name.strip_prefix(BODY).unwrap_or(name))
}

/// The name of a tensor in a model with a head.
pub(crate) fn to_hf(name: &str) -> String {
    if name == HEAD { name.to_owned() } else { format!("{BODY}{name}") }
}

#[cfg(test)]
mod tests {
    use chimera_core::model::{Cut, Gpt2Config};

    use super::*;

    #[test]
    fn every_name_comes_back() {
        let config =
            Gpt2Config { layers: 11, hidden: 4, heads: 1, context: 2, vocab: 3, tied: false };
        let params = config.params(&Cut { blocks: 0..11, first: true, last: true });
        for param in params {
            assert_eq!(from_hf(&to_hf(&param.name)), Some(param.name.as_str()));
            assert_eq!(from_hf(&param.name), Some(param.name.as_str()));
        }
        assert_eq!(to_hf("h.10.attn.c_attn.bias"), "transformer.h.10.attn.c_attn.bias");
        assert_eq!(to_hf(HEAD), HEAD);
    }

    #[test]
    fn masks_are_no_weights() {
        assert_eq!(from_hf("h.0.attn.bias"), None);
        assert_eq!(from_hf("transformer.h.0.attn.masked_bias"), None);
    }
}
