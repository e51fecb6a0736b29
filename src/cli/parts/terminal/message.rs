//! Errors and warnings as a terminal may show them: short, and without control characters. What they quote may come from a
//! file of anybody.

/// What stands between words, and is printed as it is.
const BLANKS: [char; 3] = [' ', '\n', '\t'];
/// Longer messages lose their middle.
const MAX_BYTES: usize = 6000;
/// Bytes that such a message keeps of its end, where it often says what to do.
const END_BYTES: usize = 1500;
/// Longer words lose their end. A path may have 4,096 bytes, and rarely has a quarter of them.
const MAX_WORD: usize = 1000;
/// Characters that such a word keeps.
const WORD_START: usize = 300;

/// The message without the end of long words and without a long middle. Control characters become escapes, and lines stay
/// lines.
pub(crate) fn shown(message: &str) -> String {
    let words = message.split_inclusive(BLANKS);
    without_middle(words.map(short).collect())
}

/// A word, or the beginning of a long one, with the blank after it.
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

/// The beginning and the end of a text that is too long.
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
