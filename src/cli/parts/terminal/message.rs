//! Errors and warnings in a form that is safe for a terminal: short, and without control
//! characters. They may quote a file from anywhere.

/// Characters between words, which are printed unchanged.
const BLANKS: [char; 3] = [' ', '\n', '\t'];
/// The middle of longer messages is cut.
const MAX_BYTES: usize = 6000;
/// Bytes kept at the end of such a message, which often says what to do.
const END_BYTES: usize = 1500;
/// The end of longer words is cut. A path may have 4,096 bytes, but rarely has a quarter of that.
const MAX_WORD: usize = 1000;
/// Characters kept of such a word.
const WORD_START: usize = 300;

/// Returns the message with long words and a long middle cut. Control characters are escaped, and
/// line breaks stay.
pub(crate) fn shown(message: &str) -> String {
    let words = message.split_inclusive(BLANKS);
    without_middle(words.map(short).collect())
}

/// Returns a word, or the beginning of a long one, with the blank after it.
fn short(word_and_blank: &str) -> String {
    let word = word_and_blank.trim_end_matches(BLANKS);
    let blank = &word_and_blank[word.len()..];
    let n_chars = word.chars().count();
    let n_kept = if n_chars > MAX_WORD { WORD_START } else { n_chars };
    let mut kept = String::new();
    for c in word.chars().take(n_kept) {
        if c.is_control() {
            kept.extend(c.escape_default());
        } else {
            kept.push(c);
        }
    }
    match n_chars - n_kept {
        0 => kept + blank,
        n => format!("{kept}… ({n} more characters){blank}"),
    }
}

/// Returns the beginning and the end of a text that is too long.
fn without_middle(text: String) -> String {
    if text.len() <= MAX_BYTES {
        return text;
    }
    let start = text.floor_char_boundary(MAX_BYTES - END_BYTES);
    let end = text.ceil_char_boundary(text.len() - END_BYTES);
    let n_left_out = text[start..end].chars().count();
    format!("{}… ({n_left_out} characters left out) …{}", &text[..start], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_lines_kept() {
        let message = "a\u{1b}]0;owned\u{7}b\u{9b}c\r\nrow 0  F\t0 é";
        assert_eq!(shown(message), "a\\u{1b}]0;owned\\u{7}b\\u{9b}c\\r\nrow 0  F\t0 é");
    }

    #[test]
    fn a_long_value_is_shortened_with_a_count() {
        let message = format!("`out` is \"{}\": choose another", "é".repeat(1_000_000));
        let short = shown(&message);
        assert!(short.starts_with("`out` is \"ééé") && short.len() < 1000, "{short}");
        assert!(short.ends_with("… (999703 more characters) choose another"), "{short}");
        let path = format!("cannot read /{}", "x".repeat(900));
        assert_eq!(shown(&path), path);
    }

    #[test]
    fn a_long_list_keeps_its_beginning_and_its_end() {
        let list: Vec<String> = (0..100_000).map(|n| format!("ö{n}")).collect();
        let short = shown(&format!("missing: {}: train first", list.join(", ")));
        assert!(short.len() < 8000, "{}", short.len());
        assert!(short.starts_with("missing: ö0, ö1, ") && short.ends_with("ö99999: train first"));
        assert!(short.contains(" characters left out) …"), "{short}");
    }

    #[test]
    fn escapes_count_too() {
        assert!(shown(&"\u{1b} ".repeat(100_000)).len() < 8000);
    }
}
