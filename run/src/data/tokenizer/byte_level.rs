//! A `tokenizer.json` for tokens of bytes: bytes themselves, and GPT-2's.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

/// Returns a `tokenizer.json` of byte-pair encoding. Tokens come in the order of their ids; each
/// longer one merges two before it. `special` is a token after them.
pub(super) fn tokenizer_json(tokens: &[Vec<u8>], special: Option<&str>) -> String {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    let mut vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (letters(token), json!(id))).collect();
    vocab.extend(special.map(|special| (special.to_string(), json!(tokens.len()))));
    let merges = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    let merges: Vec<Value> = merges
        .filter_map(|(rank, token)| {
            let [a, b] = halves(token, rank, &ranks)?;
            Some(json!([letters(a), letters(b)]))
        })
        .collect();
    let added: Vec<Value> = special
        .map(|special| {
            json!({
                "id": tokens.len(), "content": special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .into_iter()
        .collect();
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let whole = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    });
    format!("{whole}\n")
}

/// Returns the two tokens that a token of this rank merges: those that the merges before it leave.
fn halves<'t>(
    token: &'t [u8],
    rank: usize,
    ranks: &HashMap<&[u8], usize>,
) -> Option<[&'t [u8]; 2]> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    while ends.len() > 3 {
        let merged = |nth: &usize| ranks.get(&token[ends[*nth]..ends[nth + 2]]).copied();
        let pairs = (0..ends.len() - 2).filter_map(|nth| Some((merged(&nth)?, nth)));
        let (_, nth) = pairs.filter(|(merged, _)| *merged < rank).min()?;
        ends.remove(nth + 1);
    }
    let [start, middle, end] = ends[..] else { return None };
    Some([&token[start..middle], &token[middle..end]])
}

/// Writes bytes in the letters of byte-level tokenizers: printable ones stand for themselves, the
/// others for letters from U+0100 on.
fn letters(token: &[u8]) -> String {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let letter = |byte: &u8| {
        let n_before = (0..*byte).filter(|byte| !is_printable(*byte)).count() as u32;
        let code = if is_printable(*byte) { u32::from(*byte) } else { 0x100 + n_before };
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    token.iter().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_merges_two_before_it() {
        let tokens: Vec<Vec<u8>> = ["a", "b", "c", " ", "bc", "abc", " abc"]
            .iter()
            .map(|token| token.as_bytes().to_vec())
            .collect();
        let text = tokenizer_json(&tokens, Some("<end>"));
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let merges = json!([["b", "c"], ["a", "bc"], ["\u{120}", "abc"]]);
        assert_eq!(json["model"]["merges"], merges);
        assert_eq!(json["model"]["vocab"]["\u{120}abc"], 6);
        assert_eq!(json["added_tokens"][0]["id"], 7);
        assert_eq!(
            (letters(b"\n~\xad"), letters(b"\x7f\xff")),
            ("\u{10a}~\u{143}".into(), "\u{121}\u{ff}".into())
        );
    }
}
