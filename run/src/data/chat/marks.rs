//! Marks of answers: the `{% generation %}` blocks of a template write them into its text.

use std::ops::Range;

use anyhow::{Result, bail, ensure};

use super::ChatText;

/// Marks in a rendered text, for the begin and the end of an answer: characters of no language.
pub(super) const MARKS: [char; 2] = ['\u{f8f0}', '\u{f8f1}'];

/// Replaces `{% generation %}` and `{% endgeneration %}` by blocks that write marks. Returns `None`
/// if there are none.
pub(super) fn with_marks(template: &str) -> Option<String> {
    let mut marked = String::new();
    let mut rest = template;
    let mut is_marked = false;
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inside, after)) = tag.split_once("%}") else { break };
        let name = inside.trim_matches(['-', '+']).trim();
        let mark = match name {
            "generation" => Some(MARKS[0]),
            "endgeneration" => Some(MARKS[1]),
            _ => None,
        };
        marked += before;
        match mark {
            None => marked += &format!("{{%{inside}%}}"),
            Some(mark) => {
                // The outer ends keep what the tag says of the blanks beside it.
                let of = |end: Option<char>| end.filter(|end| "-+".contains(*end));
                let [first, last] = [inside.chars().next(), inside.chars().last()]
                    .map(|end| of(end).map(String::from).unwrap_or_default());
                marked += &format!("{{%{first} if true %}}{{{{ '{mark}' }}}}{{% endif {last}%}}");
                is_marked = true;
            }
        }
        rest = after;
    }
    marked += rest;
    is_marked.then_some(marked)
}

/// Takes the marks out of a text. What is between them are the answers.
pub(super) fn unmarked(marked: &str) -> Result<ChatText> {
    let mut text = String::new();
    let mut answers: Vec<Range<usize>> = Vec::new();
    let mut begin = None;
    for character in marked.chars() {
        match (character == MARKS[0], character == MARKS[1], begin) {
            (true, _, None) => begin = Some(text.len()),
            (_, true, Some(start)) => {
                answers.push(start..text.len());
                begin = None;
            }
            (false, false, _) => text.push(character),
            _ => bail!("its template begins or ends an answer twice"),
        }
    }
    ensure!(begin.is_none(), "its template does not end an answer");
    Ok(ChatText { text, answers })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_marks() {
        assert_eq!(with_marks("{% if a %}x{% endif %}"), None);
        let marked = with_marks("a{%- generation %}b{% endgeneration -%} c").unwrap();
        assert_eq!(
            marked,
            "a{%- if true %}{{ '\u{f8f0}' }}{% endif %}b{% if true %}{{ '\u{f8f1}' }}{% endif -%} c"
        );
        let found = unmarked("ab\u{f8f0}cd\u{f8f1}e\u{f8f0}\u{f8f1}").unwrap();
        assert_eq!(found, ChatText { text: "abcde".into(), answers: vec![2..4, 5..5] });
        for wrong in ["\u{f8f0}", "\u{f8f1}", "\u{f8f0}\u{f8f0}\u{f8f1}"] {
            assert!(unmarked(wrong).is_err());
        }
    }
}
