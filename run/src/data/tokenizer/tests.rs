use std::fs;

use proptest::prelude::*;

use super::*;

/// A tokenizer of words, with `[UNK]` for all others.
pub(crate) const WORDS: &str = r#"{
    "version": "1.0", "truncation": {"direction": "Right", "max_length": 2,
    "strategy": "LongestFirst", "stride": 0}, "padding": null, "added_tokens": [],
    "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
    "decoder": null, "model": {"type": "WordLevel", "unk_token": "[UNK]",
    "vocab": {"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}}}"#;

fn read(content: &[u8]) -> Result<Tokenizer, String> {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, content).unwrap();
    let place = format!("{}/", folder.path().display());
    Tokenizer::read(&path).map_err(|e| e.to_string().replace(&place, ""))
}

#[test]
fn ids_of_gpt2() {
    // OpenAI's encoder returns the same ids.
    let ids = Tokenizer::Gpt2.encode("Hello world").unwrap();
    assert_eq!(ids, [15496, 995]);
    assert_eq!(Tokenizer::Gpt2.decode(&[50256, 60_000, 995]).unwrap(), "<|endoftext|> world");
    assert_eq!(Tokenizer::Gpt2.encode("<|endoftext|>").unwrap().len(), 7);
}

#[test]
fn a_file_says_what_is_a_token() {
    let words = read(WORDS.as_bytes()).unwrap();
    assert_eq!(words.vocab(), 8);
    assert_eq!(words.encode("pipe stage, worker").unwrap(), [1, 2, 0, 7]);
    assert_eq!(words.decode(&[2, 5, 1]).unwrap(), "stage pipe");
}

#[test]
fn hostile_files_are_refused() {
    let wide = WORDS.replace("7}", "4294967295}");
    let nested =
        |key: &str| format!("{{\"{key}\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let no_json = WORDS.replace("\"decoder\": null", "\"decoder\": Null");
    for (content, hint) in [
        ("", "tokenizer.json is no tokenizer.json: EOF"),
        ("{}", "is no tokenizer.json: "),
        (&WORDS[..200], "is no tokenizer.json: EOF"),
        (&wide, "it has ids of 16777216 and above"),
        (&nested("model"), "recursion limit"),
        (&nested("decoder"), "it is inconsistent"),
        (&no_json, "expected value"),
        ("{\"version\": \"1.0\", \"model\": {}}", "is no tokenizer.json: "),
    ] {
        let refusal = read(content.as_bytes()).unwrap_err();
        assert!(refusal.contains(hint) && refusal.len() < 400, "{hint}: {refusal}");
    }
    let empty = WORDS.replace(r#"{"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}"#, "{}");
    assert!(read(empty.as_bytes()).is_err());
    assert!(Tokenizer::named("gpt3").unwrap_err().to_string().contains("choose bytes, gpt2"));
    assert!(Tokenizer::named("none.json").unwrap_err().to_string().contains("No such file"));
    let sparse = tempfile::TempDir::new().unwrap();
    let path = sparse.path().join("tokenizer.json");
    if fs::File::create(&path).unwrap().set_len(1 << 40).is_ok() {
        assert!(Tokenizer::read(&path).unwrap_err().to_string().contains("is larger than"));
    }
}

/// The library panics on a token that is shorter than the part to strip from its ends.
#[test]
fn a_file_that_cannot_be_decoded_is_refused() {
    let strip = r#"{"type": "Strip", "content": "e", "start": 0, "stop": 9}"#;
    let file = WORDS.replace("\"pipe\"", "\"e\"");
    let words =
        read(file.replace("\"decoder\": null", &format!("\"decoder\": {strip}")).as_bytes());
    let words = words.unwrap();
    let refusal = words.decode(&[1]).unwrap_err().to_string();
    assert!(refusal.ends_with("its tokenizer.json is inconsistent"), "{refusal}");
    assert!(Stream::new(&words).push(&[1]).is_err());
    assert_eq!(words.encode("e").unwrap(), [1]);
}

/// Nine replacements of a letter by ten letters would make a billion letters from each.
#[test]
fn a_tokenizer_that_blows_texts_up_is_refused() {
    let step = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}"#;
    let steps = [step; 9].join(", ");
    let normalizer = format!(r#"{{"type": "Sequence", "normalizers": [{steps}]}}"#);
    let file = WORDS.replace("\"normalizer\": null", &format!("\"normalizer\": {normalizer}"));
    let words = read(file.as_bytes()).unwrap();
    let refusal = words.encode("pipe a stage").unwrap_err().to_string();
    assert!(refusal.ends_with("makes more than 64 bytes of each"), "{refusal}");
    assert_eq!(words.encode("pipe pipe").unwrap(), [1, 1], "there is nothing to replace");
    let decoder = format!(r#"{{"type": "Sequence", "decoders": [{steps}]}}"#);
    let file = WORDS.replace("\"decoder\": null", &format!("\"decoder\": {decoder}"));
    let refusal = read(file.as_bytes()).unwrap_err();
    assert!(refusal.contains("its decoder would make more than 64 bytes of one"), "{refusal}");
}

/// Each of these replacements makes a text longer, but none applies to the result of another.
#[test]
fn many_replacements_are_no_explosion() {
    let step = |n: usize| {
        format!(
            r#"{{"type": "Replace", "pattern": {{"String": "{}"}}, "content": "<|blank_{n}|>"}}"#,
            "_".repeat(n)
        )
    };
    let steps: Vec<String> = (2..30).rev().map(step).collect();
    let normalizer = format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, steps.join(", "));
    let file = WORDS.replace("\"normalizer\": null", &format!("\"normalizer\": {normalizer}"));
    let words = read(file.as_bytes()).unwrap();
    assert!(!words.encode(&"pipe____ ".repeat(10_000)).unwrap().is_empty());
}

#[test]
fn a_text_begins_as_the_template_says() {
    let template = |begins: u32| {
        let piece = |name: &str| format!(r#"{{"SpecialToken": {{"id": "{name}", "type_id": 0}}}}"#);
        let text = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
        let other = text.replace('A', "B");
        let special = |name: &str, id: u32| {
            format!(r#""{name}": {{"id": "{name}", "ids": [{id}], "tokens": ["{name}"]}}"#)
        };
        let template = format!(
            r#"{{"type": "TemplateProcessing", "single": [{}, {text}, {}], "pair": [{text}, {other}],
            "special_tokens": {{{}, {}}}}}"#,
            piece("pipe"),
            piece("stage"),
            special("pipe", begins),
            special("stage", 2),
        );
        let file =
            WORDS.replace("\"post_processor\": null", &format!("\"post_processor\": {template}"));
        read(file.as_bytes()).unwrap()
    };
    assert_eq!(template(1).beginning().unwrap(), [1], "tokens after it do not count");
    assert_eq!(template(1).encode("worker").unwrap(), [7]);
    let refusal = template(8).beginning().unwrap_err().to_string();
    assert!(refusal.ends_with("begins a text with id 8, which it lacks"), "{refusal}");
    assert!(read(WORDS.as_bytes()).unwrap().beginning().unwrap().is_empty());
    assert!(Tokenizer::Gpt2.beginning().unwrap().is_empty());
}

/// A text must not be cut at a blank within a token, nor at one that belongs to a token.
#[test]
fn added_tokens_are_not_torn() {
    let added = |id: u32, content: &str, takes: &str| {
        format!(
            r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false}}"#
        )
        .replace(&format!("\"{takes}\": false"), &format!("\"{takes}\": true"))
    };
    let tokens = [added(8, "New York", ""), added(9, "[R]", "rstrip"), added(10, "[L]", "lstrip")];
    let file = WORDS
        .replace("\"added_tokens\": []", &format!("\"added_tokens\": [{}]", tokens.join(", ")))
        .replace(
            "{\"type\": \"Whitespace\"}",
            r#"{"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"}"#,
        );
    let tokenizer = read(file.as_bytes()).unwrap();
    for line in ["New York ", "xxx\tNew York\t", "pipe [R] stage\t", "\tpipe\n[L]x"] {
        let text = line.repeat(200_000 / line.len());
        assert!(in_pieces(&tokenizer, &text) == tokenizer.encode(&text).unwrap(), "{line}");
    }
}

/// The ids of the pieces of a text.
fn in_pieces(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let pieces: Vec<TextPiece> = tokenizer.pieces(text, 0).collect();
    let texts: Vec<&str> = pieces.iter().map(TextPiece::text).collect();
    assert!(texts.concat() == text && pieces.len() > 2);
    pieces.iter().flat_map(|piece| tokenizer.encode_piece(*piece).unwrap()).collect()
}

/// The prefix that a tokenizer puts before a text, or before each part between added tokens, is not
/// put before each piece.
#[test]
fn ids_of_pieces_are_those_of_the_whole_text() {
    let prepend = r#"{"type": "Prepend", "prepend": "▁"}"#;
    let replace = r#"{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}"#;
    let strip = r#"{"type": "Strip", "strip_left": true, "strip_right": true}"#;
    let bytes = r#"{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}"#;
    let words = r#"{"type": "WhitespaceSplit"}"#;
    let digits = r#"{"type": "Digits", "individual_digits": true}"#;
    let normalizers =
        |all: &[&str]| format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, all.join(", "));
    let pre_tokenizers =
        |all: &[&str]| format!(r#"{{"type": "Sequence", "pretokenizers": [{}]}}"#, all.join(", "));
    let mut tokenizers = vec![
        of_letters(prepend, "null"),
        of_letters(&normalizers(&[prepend, replace]), "null"),
        of_letters(&normalizers(&[&normalizers(&[strip, prepend]), replace]), "null"),
        of_letters("null", bytes),
    ];
    for tokenizer in &tokenizers {
        // There is no boundary between words.
        for line in ["ab", " a\n"] {
            let text = line.repeat(132_000 / line.len());
            assert!(in_pieces(tokenizer, &text) == tokenizer.encode(&text).unwrap(), "{line:?}");
        }
    }
    for scheme in ["always", "first", "never"] {
        let metaspace = |split: bool| {
            format!(
                r#"{{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "{scheme}", "split": {split}}}"#
            )
        };
        let nested = pre_tokenizers(&[digits, &pre_tokenizers(&[&metaspace(true)])]);
        let of_words = pre_tokenizers(&[words, &metaspace(true)]);
        let all = [metaspace(true), metaspace(false), nested, of_words];
        tokenizers.extend(all.iter().map(|it| of_letters("null", it)));
    }
    for (n, tokenizer) in tokenizers.iter().enumerate() {
        for line in ["ab a\nb ab ", "<s>a ab\n", "b<s> a", "ab<s>\n", "aé é\né"] {
            let text = line.repeat(36_000 / line.len());
            let ids = in_pieces(tokenizer, &text);
            assert!(ids == tokenizer.encode(&text).unwrap(), "tokenizer {n}, {line:?}");
        }
    }
}

/// A tokenizer of a few letters.
fn of_letters(normalizer: &str, pre_tokenizer: &str) -> Tokenizer {
    let file = format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{{"id": 13, "content": "<s>",
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
        "normalizer": {normalizer}, "pre_tokenizer": {pre_tokenizer}, "post_processor": null, "decoder": null,
        "model": {{"type": "BPE", "unk_token": "?", "fuse_unk": true, "byte_fallback": false, "vocab": {{"?": 0,
        "▁": 1, "a": 2, "b": 3, "\n": 4, "▁a": 5, "ab": 6, "▁ab": 7, "▁▁": 8, "b▁": 9, "\nb": 10, "Ġ": 11, "Ġa": 12}},
        "merges": [["▁", "a"], ["a", "b"], ["▁", "ab"], ["▁", "▁"], ["b", "▁"], ["\n", "b"], ["Ġ", "a"]]}}}}"#
    );
    read(file.as_bytes()).unwrap()
}

/// A part of a text is cut at the same places as within the whole text.
#[test]
fn pieces_go_on_from_any_piece() {
    let tokenizer = read(WORDS.as_bytes()).unwrap();
    let text = "pipe stage, worker\n".repeat(10_000);
    let starts = |text: &str, start: usize| {
        let mut start = start;
        let pieces = tokenizer.pieces(text, start);
        let ends = pieces.map(|piece| {
            start += piece.text().len();
            start
        });
        ends.collect::<Vec<_>>()
    };
    let ends = starts(&text, 0);
    assert_eq!(starts(&text, ends[1]), ends[2..]);
    for len in [100_000, 100_001, 100_007] {
        let some = starts(&text[..len], 0);
        assert_eq!(some[..some.len() - 1], ends[..some.len() - 1], "{len}");
    }
}

/// GPT-2's own `tokenizer.json` must be accepted as `gpt2`, and one with further tokens instead of
/// the one without.
#[test]
fn ids_that_stand_for_other_texts_are_refused() {
    let file = |content: String| read(content.as_bytes()).unwrap();
    let words = file(WORDS.into());
    let other = file(WORDS.replace("\"pipe\": 1", "\"idle\": 1"));
    let wider = file(WORDS.replace("\"worker\": 7", "\"worker\": 7, \"idle\": 8"));
    for (model, data) in [
        (&words, &words),
        (&words, &wider),
        (&wider, &words),
        (&Tokenizer::Bytes, &Tokenizer::Bytes),
        (&Tokenizer::Gpt2, &Tokenizer::Gpt2),
    ] {
        assert!(model.check_data(data).is_ok());
    }
    let ids = (0..50_257).map(|id| (Tokenizer::Gpt2.decode(&[id]).unwrap(), id));
    // Ids that are not UTF-8 on their own share a name.
    let ids: std::collections::BTreeMap<_, _> = ids.collect();
    let vocabulary = serde_json::to_string(&ids).unwrap();
    let was = r#"{"[UNK]": 0, "pipe": 1, "stage": 2, "worker": 7}"#;
    let gpt2 = file(WORDS.replace(was, &vocabulary).replace("[UNK]", "a"));
    assert!(Tokenizer::Gpt2.check_data(&gpt2).is_ok());
    assert!(gpt2.check_data(&Tokenizer::Gpt2).is_ok());

    let refusal = |model: &Tokenizer, data| model.check_data(data).unwrap_err().to_string();
    assert_eq!(
        refusal(&words, &other),
        "the data is of another tokenizer than the model: id 1 is \"idle\" in the data and \"pipe\" for the \
         model: prepare the data with the model's tokenizer, `chimera prepare --tokenizer tokenizer.json`"
    );
    assert!(refusal(&Tokenizer::Bytes, &words).ends_with("--tokenizer bytes`"));
    assert!(refusal(&Tokenizer::Bytes, &Tokenizer::Gpt2).contains("id 0 is \"!\" in the data"));
    assert!(refusal(&Tokenizer::Gpt2, &words).ends_with("--tokenizer gpt2`"));
    assert!(refusal(&gpt2, &Tokenizer::Bytes).starts_with("the model was trained on tokens"));
}

#[test]
fn long_runs_are_encoded() {
    for text in [" ".repeat(3 << 20) + "x", "a".repeat(200_000), "\n".repeat(200_000)] {
        let ids = Tokenizer::Gpt2.encode(&text).unwrap();
        assert!(Tokenizer::Gpt2.decode(&ids).unwrap() == text);
    }
}

proptest! {
    #[test]
    fn text_comes_back(text in "\\PC*|(?s).*|[a-z \\n\\t]{0,400}") {
        for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab()));
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.clone());
        }
    }
}

/// The ids are the same, as Hugging Face's library computes them from the file.
#[cfg(all(feature = "tokenizers", feature = "tiktoken"))]
#[test]
fn tokens_of_bytes_are_those_of_their_own_file() {
    for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
        let content = tokenizer.to_json().expect("a vocabulary");
        let file = FileTokenizer::parse(&content).expect("a tokenizer");
        assert_eq!(file.vocab(), tokenizer.vocab());
        for text in
            ["In the beginning\n was  the Word,", "caf\u{e9} \u{1f600}\t\u{7f}", "don't 1234"]
        {
            let ids = tokenizer.encode(text).expect("ids");
            assert_eq!(file.encode(text).expect("ids"), ids, "{text}");
            assert_eq!(Tokenizer::File(file.clone()).decode(&ids).expect("text"), text);
        }
        assert_eq!(Tokenizer::File(file).to_json().expect("its own"), content);
    }
}
