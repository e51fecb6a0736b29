//! Chats as documents, of which only the answers are targets.

use std::io::BufReader;
use std::ops::Range;
use std::path::Path;

use anyhow::{Error, Result};
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
    let chat: Chat =
        serde_json::from_slice(json).map_err(|e| Error::msg(format!("no chat: {e}")))?;
    let chat = template.text(&chat)?;
    let mut encoded = Encoded::new();
    // Blanks may be cut off where a token ends, so that the next one seems to end before it.
    let mut start = 0;
    for (id, end) in tokenizer.encode_with_ends(&chat.text)? {
        let end = end.max(start);
        let is_in = |answer: &Range<usize>| start < answer.end && end > answer.start;
        encoded.push((id, chat.answers.iter().any(is_in)));
        start = end;
    }
    Ok((chat.text.len() as u64, encoded))
}
