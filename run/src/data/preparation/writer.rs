//! The writer of a file of token ids.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use chimera_formats::files::open_regular;
use rayon::prelude::*;

use super::documents::{BYTE_ORDER_MARK, Document, Documents};
use super::parameters::{Preparation, STANDARD_INPUT};
use super::prepared::Ends;
use super::prepared_files::PartFile;
use crate::data::DataError;
use crate::data::tokenizer::{TextPiece, Tokenizer, TokenizerError};
use crate::data::width::Width;

/// Bytes of text that are encoded at once, by all threads.
pub(super) const BLOCK: u64 = 4 << 20;

/// Writes the file of ids.
pub(super) struct Writer {
    file: PartFile,
    width: Width,
    n_tokens: u64,
    /// Ids before each document.
    beginning: Vec<u32>,
    /// The id after each document, if there are documents.
    end_of_text: Option<u32>,
    n_documents: u64,
    /// The file that marks targets, if there is one.
    targets: Option<Targets>,
}

/// The unfinished file that marks which ids are targets.
struct Targets {
    file: PartFile,
    n: u64,
}

impl Writer {
    pub(super) fn new(
        file: PartFile,
        width: Width,
        (beginning, end_of_text): (Vec<u32>, Option<u32>),
        targets: Option<PartFile>,
    ) -> Writer {
        let targets = targets.map(|file| Targets { file, n: 0 });
        Writer { file, width, n_tokens: 0, beginning, end_of_text, n_documents: 0, targets }
    }

    /// Appends the ids of a text; returns the number of encoded bytes.
    pub(super) fn encode(
        &mut self,
        path: &Path,
        tokenizer: &Tokenizer,
        progress: &mut impl FnMut(u64),
    ) -> Result<u64> {
        let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
        let mut text = open(path).map_err(unreadable)?;
        // The last finished piece is kept, because the tokens of the next bytes depend on it.
        let (mut left, mut n_kept, mut done) = (Vec::new(), 0, 0);
        let mut mark = 0;
        let (mut is_first, mut is_last) = (true, false);
        while !is_last {
            let n = text.by_ref().take(BLOCK).read_to_end(&mut left).map_err(unreadable)? as u64;
            is_last = n < BLOCK;
            // With this tokenizer bytes are tokens without any change, so that a file and its
            // prepared form are the same data.
            if is_first
                && !matches!(tokenizer, Tokenizer::Bytes)
                && left.starts_with(BYTE_ORDER_MARK)
            {
                left.drain(..BYTE_ORDER_MARK.len());
                mark = BYTE_ORDER_MARK.len() as u64;
                done += mark;
            }
            is_first = false;
            let last = match tokenizer {
                Tokenizer::Bytes => {
                    if let Some(at) = left.iter().position(|byte| self.ends(*byte)) {
                        let at = done + at as u64;
                        bail!("byte {at} of {} {}", path.display(), ENDS_ONE);
                    }
                    self.push(left.iter().map(|byte| u32::from(*byte)), true)?;
                    left.len()..left.len()
                }
                _ => {
                    let start = done - n_kept as u64;
                    self.encode_text(path, tokenizer, &left, start, n_kept, is_last)?
                }
            };
            done += (last.end - n_kept) as u64;
            n_kept = last.len();
            left.drain(..last.start);
            progress(n);
        }
        Ok(done - mark)
    }

    /// Appends the ids of the bytes of a text from `start` on, of which the first `n_kept` are
    /// done. Returns the range of the last finished piece. The rest ends where the next bytes may
    /// change a token.
    fn encode_text(
        &mut self,
        path: &Path,
        tokenizer: &Tokenizer,
        bytes: &[u8],
        start: u64,
        n_kept: usize,
        is_last: bool,
    ) -> Result<Range<usize>> {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) if e.error_len().is_none() && !is_last => {
                std::str::from_utf8(&bytes[..e.valid_up_to()])?
            }
            Err(e) => {
                let position = start + e.valid_up_to() as u64;
                return Err(DataError::NotText { path: path.to_path_buf(), position }.into());
            }
        };
        let mut pieces: Vec<TextPiece> = tokenizer.pieces(text, n_kept).collect();
        if !is_last {
            pieces.pop();
        }
        let encoded = pieces.par_iter().map(|piece| tokenizer.encode_piece(*piece));
        let mut last = 0..n_kept;
        for (piece, ids) in pieces.iter().zip(encoded.collect::<Result<Vec<_>, TokenizerError>>()?)
        {
            last = last.end..last.end + piece.text().len();
            if let Some(end) = self.end_among(&ids) {
                let end = tokenizer.decode(&[end])?;
                let at = start + (last.start + piece.text().find(&end).unwrap_or(0)) as u64;
                bail!("byte {at} of {} begins {}", path.display(), ends_one(&end));
            }
            self.push(ids.into_iter(), true)?;
        }
        Ok(last)
    }

    /// Appends the documents of a JSONL file; returns the number of bytes of their texts and
    /// prompts.
    pub(super) fn encode_lines(
        &mut self,
        path: &Path,
        how: &Preparation,
        tokenizer: &Tokenizer,
        progress: &mut impl FnMut(u64),
    ) -> Result<u64> {
        let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
        let lines = BufReader::new(open_regular(path).map_err(unreadable)?);
        let prompt = how.prompt_field.as_deref();
        let mut documents = Documents::new(path, prompt, &how.field, lines);
        let mut n_bytes = 0;
        loop {
            let before = documents.lines.bytes;
            let some = documents.next(BLOCK)?;
            if some.is_empty() {
                return Ok(n_bytes);
            }
            n_bytes += some.iter().map(Document::n_bytes).sum::<u64>();
            let encoded = some.par_iter().map(|document| {
                let prompt = document
                    .prompt
                    .as_deref()
                    .map_or(Ok(Vec::new()), |text| tokenizer.encode(text));
                Ok((document.line, prompt?, tokenizer.encode(&document.text)?))
            });
            for (line, prompt, text) in encoded.collect::<Result<Vec<_>, TokenizerError>>()? {
                if let Some(end) = self.end_among(&prompt).or_else(|| self.end_among(&text)) {
                    let reason = match tokenizer {
                        Tokenizer::Bytes => format!("a byte of its text {ENDS_ONE}"),
                        _ => format!("its text has {}", ends_one(&tokenizer.decode(&[end])?)),
                    };
                    return Err(DataError::Line { path: path.to_path_buf(), line, reason }.into());
                }
                self.begin_document()?;
                self.push(prompt.into_iter(), false)?;
                self.push(text.into_iter(), true)?;
                self.end_document()?;
            }
            progress(documents.lines.bytes - before);
        }
    }

    /// Returns true if a byte of a text is the one that ends documents.
    fn ends(&self, byte: u8) -> bool {
        self.end_of_text == Some(byte.into())
    }

    /// Returns the token that ends documents, if a text contains it.
    pub(super) fn end_among(&self, ids: &[u32]) -> Option<u32> {
        self.end_of_text.filter(|end| ids.contains(end))
    }

    /// Begins a document. If prompts are not to be predicted, neither is what comes before them.
    pub(super) fn begin_document(&mut self) -> Result<()> {
        let are_targets = self.targets.is_none();
        self.push(self.beginning.clone().into_iter(), are_targets)
    }

    pub(super) fn end_document(&mut self) -> Result<()> {
        self.n_documents += 1;
        self.push(self.end_of_text.into_iter(), true)
    }

    /// Returns the number of documents and the token after each; `None` if there are none.
    pub(super) fn documents(&self) -> Option<Ends> {
        let ends = |token| Ends { token, documents: self.n_documents };
        self.end_of_text.map(ends)
    }

    /// Number of targets, if they are marked.
    pub(super) fn n_targets(&self) -> Option<u64> {
        self.targets.as_ref().map(|targets| targets.n)
    }

    pub(super) fn push(&mut self, ids: impl Iterator<Item = u32>, are_targets: bool) -> Result<()> {
        for id in ids {
            let bytes = id.to_le_bytes();
            self.file.write(&bytes[..self.width.bytes()])?;
            self.n_tokens += 1;
            if let Some(Targets { file, n }) = &mut self.targets {
                file.write(&[are_targets.into()])?;
                *n += u64::from(are_targets);
            }
        }
        Ok(())
    }

    /// Returns the number of ids, which are then on disk.
    pub(super) fn finish(self) -> Result<u64> {
        ensure!(self.n_tokens > 0, "the texts have no tokens");
        if let Some(Targets { file, n }) = self.targets {
            ensure!(n > 0, "the texts have only tokens of prompts");
            file.finish()?;
        }
        self.file.finish()?;
        Ok(self.n_tokens)
    }
}

fn open(text: &Path) -> io::Result<Box<dyn Read>> {
    if text == Path::new(STANDARD_INPUT) {
        Ok(Box::new(io::stdin()))
    } else {
        Ok(Box::new(open_regular(text)?))
    }
}

/// The error for a byte of a text that also ends documents.
const ENDS_ONE: &str = "is the byte that ends each document: take it out, or choose a --tokenizer, \
whose end of a text is an id of its own";

/// The error for a token of a text that also ends documents.
pub(super) fn ends_one(token: &str) -> String {
    format!(
        "the token that ends each document, `{token}`: take it out, or name another with --end-of-text"
    )
}
