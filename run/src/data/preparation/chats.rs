//! Chats as documents, of which only the answers are targets.

use std::io::BufReader;
use std::ops::Range;
use std::path::Path;

use anyhow::{Error, Result, ensure};
use chimera_formats::files::open_regular;
use rayon::prelude::*;

use super::documents::JsonLines;
use super::writer::{BLOCK, Writer, ends_one};
use crate::data::DataError;
use crate::data::chat::{Chat, ChatTemplate};
use crate::data::tokenizer::Tokenizer;

/// The ids of a chat, each with whether it is a target.
type Encoded = Vec<(u32, bool)>;

impl Writer {
    /// Appends the chats of a JSONL file; returns the number of bytes of their texts.
    pub(super) fn encode_chats(
        &mut self,
        path: &Path,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        progress: &mut impl FnMut(u64),
    ) -> Result<u64> {
        let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
        let lines = BufReader::new(open_regular(path).map_err(unreadable)?);
        let mut lines = JsonLines::new(path, lines);
        let mut n_bytes = 0;
        loop {
            let before = lines.bytes;
            let some = lines.next(BLOCK)?;
            if some.is_empty() {
                return Ok(n_bytes);
            }
            let encoded = some.par_iter().map(|(line, json)| {
                encode(json, template, tokenizer).map_err(|error| DataError::Line {
                    path: path.to_path_buf(),
                    line: *line,
                    reason: format!("{error:#}"),
                })
            });
            for ((line, _), (bytes, ids)) in
                some.iter().zip(encoded.collect::<Result<Vec<_>, _>>()?)
            {
                n_bytes += bytes;
                let only_ids: Vec<u32> = ids.iter().map(|(id, _)| *id).collect();
                if let Some(end) = self.end_among(&only_ids) {
                    let reason = format!("its text has {}", ends_one(&tokenizer.decode(&[end])?));
                    return Err(
                        DataError::Line { path: path.to_path_buf(), line: *line, reason }.into()
                    );
                }
                self.begin_document()?;
                for (id, is_target) in ids {
                    self.push([id].into_iter(), is_target)?;
                }
                self.end_document()?;
            }
            progress(lines.bytes - before);
        }
    }
}

/// Returns the number of bytes of a chat's text, and its ids.
fn encode(json: &[u8], template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<(u64, Encoded)> {
    ensure!(json.trim_ascii_start().starts_with(b"{"), "no JSON object");
    let chat: Chat =
        serde_json::from_slice(json).map_err(|e| Error::msg(format!("no chat: {e}")))?;
    let chat = template.text(&chat)?;
    let mut encoded = Encoded::new();
    let mut before = 0;
    for (id, span) in tokenizer.encode_with_spans(&chat.text)? {
        // Some tokenizers cut blanks off, so that nothing is left of a token of blanks.
        let span = if span.is_empty() { before.min(span.start)..span.end } else { span };
        before = span.end;
        encoded.push((id, chat.answers.iter().any(|answer| is_in(&span, answer))));
    }
    Ok((chat.text.len() as u64, encoded))
}

/// Returns true if a token with this span belongs to an answer.
fn is_in(span: &Range<usize>, answer: &Range<usize>) -> bool {
    if span.is_empty() {
        answer.contains(&span.start)
    } else {
        span.start < answer.end && span.end > answer.start
    }
}

#[cfg(all(test, feature = "chat", feature = "tokenizers"))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The library gives each byte of a character the span of the whole of it.
    #[test]
    fn every_byte_of_an_answer_is_a_target() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, Tokenizer::Bytes.to_json().unwrap()).unwrap();
        let tokenizer = Tokenizer::read(&file).unwrap();
        let template = "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}\
             {% if add_generation_prompt %}<assistant>{% endif %}";
        let template = ChatTemplate::new(template, BTreeMap::new()).unwrap();
        let json = r#"{"messages": [{"role": "user", "content": "é"},
            {"role": "assistant", "content": "ok 😀"}, {"role": "user", "content": "é"}]}"#;
        let (n_bytes, ids) = encode(json.as_bytes(), &template, &tokenizer).unwrap();
        let n_before = "<user>é<assistant>".len();
        let answer = n_before..n_before + "ok 😀".len();
        assert_eq!(ids.len() as u64, n_bytes);
        for (nth, (_, is_target)) in ids.into_iter().enumerate() {
            assert_eq!(is_target, answer.contains(&nth), "{nth}");
        }
    }

    #[test]
    fn a_line_that_is_no_object_is_refused() {
        let template = ChatTemplate::new("", BTreeMap::new()).unwrap();
        let json = br#"[[{"role": "user", "content": "a"}], null]"#;
        let refusal = encode(json, &template, &Tokenizer::Bytes).unwrap_err().to_string();
        assert_eq!(refusal, "no JSON object");
    }

    #[test]
    fn a_token_without_a_span_is_where_it_starts() {
        let answer = 2..4;
        let found =
            [1..1, 2..2, 3..3, 4..4, 0..2, 1..3, 3..9, 4..5].map(|span| is_in(&span, &answer));
        assert_eq!(found, [false, true, true, false, false, true, true, false]);
    }
}
