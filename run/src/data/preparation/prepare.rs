//! Preparation of data: from text to a file of token ids.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use chimera_device::start_threads;
use chimera_formats::files::open_regular;
use rayon::prelude::*;

use super::documents::{self, BYTE_ORDER_MARK, Content, Document, Documents, Text};
use super::prepared::{Ends, MAX_BYTES, Prepared, Source, is_prepared};
use super::prepared_files::{PartFile, PreparedFiles};
use crate::data::DataError;
use crate::data::tokenizer::{TextPiece, Tokenizer, TokenizerError};
use crate::data::width::Width;

/// Bytes of text that are encoded at once, by all threads.
const BLOCK: u64 = 4 << 20;
/// The field with the text in the lines of a JSONL file, unless another is named.
pub const TEXT_FIELD: &str = "text";
/// The name of standard input among the texts.
pub const STANDARD_INPUT: &str = "-";

/// Parameters for turning text into token ids.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// `bytes`, `gpt2`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// The field with the text in the lines of a JSONL file.
    pub field: String,
    /// The field with a prompt, which comes before the text and whose tokens are not targets.
    pub prompt_field: Option<String>,
    /// Token after each document, if not the tokenizer's usual one. If it is set, a file is a
    /// document too.
    pub end_of_text: Option<String>,
    /// Whether the tokens that the tokenizer puts before a text come before each document. If so, a
    /// file is a document too.
    pub begin_of_text: bool,
}

/// Writes the token ids of `texts`, one after another (`-` is standard input), to `out`. Next to it
/// goes a description with the tokenizer and its vocabulary, and a copy of the tokenizer if it is a
/// file. Calls `progress` with the number of bytes of text after every few bytes.
///
/// A line of a `.jsonl` file and a file of a folder are documents, each followed by the end-of-text
/// token. If there are any, every file is one. If there are prompts, a further file marks the
/// tokens that are targets.
///
/// The ids are u16, or u32 if the name ends in `.u32.bin`. The data is either complete or absent.
/// Data that exists, or that another process is writing, is refused.
pub fn prepare(
    texts: &[PathBuf],
    how: &Preparation,
    out: &PreparedFiles,
    mut progress: impl FnMut(u64),
) -> Result<Prepared> {
    start_threads()?;
    ensure!(
        how.prompt_field.as_ref() != Some(&how.field),
        "the text and the prompt before it cannot both be in field `{}`: choose another --field or --prompt-field",
        how.field
    );
    let n_inputs = texts.iter().filter(|path| **path == Path::new(STANDARD_INPUT)).count();
    ensure!(
        n_inputs < 2,
        "standard input (-) is named {n_inputs} times, but exists only once: name it once"
    );
    let tokenizer = Tokenizer::named(&how.tokenizer)?;
    // Folders and patterns also find files that a dead process left.
    let texts: Vec<PathBuf> = texts.iter().filter(|path| !out.is_part(path)).cloned().collect();
    let mut files = documents::texts(&texts)?;
    let has_lines = files.iter().any(|text| text.content == Content::Lines);
    ensure!(
        how.field == TEXT_FIELD || has_lines,
        "--field is for .jsonl files, but none of the texts is one: name one, or leave --field out"
    );
    ensure!(
        how.prompt_field.is_none() || has_lines,
        "prompts need .jsonl files, but none of the texts is one: name one, or leave --prompt-field out"
    );
    let is_left = |path: &Path| out.is_part(path) || out.is_beside(path);
    files.retain(|text| text.path == texts[text.argument] || !is_left(&text.path));
    let has_documents = how.end_of_text.is_some()
        || how.begin_of_text
        || files.iter().any(|text| text.content != Content::Text);
    if has_documents {
        // A text without an end would be part of the next document.
        let whole = files.iter_mut().filter(|text| text.content == Content::Text);
        whole.for_each(|text| text.content = Content::Document);
    }
    let end_of_text = has_documents.then(|| tokenizer.end_of_text(how.end_of_text.as_deref()));
    let end_of_text = end_of_text.transpose()?;
    let beginning = if how.begin_of_text { tokenizer.beginning()? } else { Vec::new() };
    ensure!(
        !how.begin_of_text || !beginning.is_empty(),
        "the tokenizer puts nothing before a text: leave --begin-of-text out"
    );
    ensure!(
        end_of_text.is_none_or(|end| !beginning.contains(&end)),
        "the tokenizer begins a text with the token that ends one: leave --begin-of-text out, or name another with \
         --end-of-text"
    );
    let (width, vocab) = (Width::of(out.data()), tokenizer.vocab());
    let place = out.data().display();
    ensure!(
        width != Width::U8,
        "the name {place} must end in .bin, or in .u32.bin for ids of four bytes"
    );
    ensure!(
        vocab <= width.n_ids(),
        "the tokenizer has {vocab} ids, too many for two bytes: choose a name that ends in \
         .u32.bin instead of {place}"
    );
    let has_targets = how.prompt_field.is_some();
    let longest = {
        let documents = end_of_text.map(|token| Ends { token, documents: u64::MAX });
        let targets = has_targets.then_some(u64::MAX);
        Prepared::new(&tokenizer, u64::MAX, documents, targets, sources(&texts, u64::MAX)).text()?
    };
    ensure!(
        longest.len() as u64 <= MAX_BYTES,
        "the description of {place} would need more than {MAX_BYTES} bytes for the names of {} texts: name their \
         folder instead",
        texts.len()
    );
    for Text { path, content, .. } in &files {
        ensure!(
            !out.is_beside(path),
            "{} has the name of a file that belongs to {place}, so it is not a text: choose another --out",
            path.display()
        );
        check(path, *content)?;
    }
    let written = out.begin(has_targets).and_then(|(ids, targets)| {
        let mut writer = Writer::new(ids, width, (beginning, end_of_text), targets);
        let mut sources = sources(&texts, 0);
        for Text { path, content, argument } in &files {
            if *content == Content::Document {
                writer.begin_document()?;
            }
            let bytes = match content {
                Content::Lines => writer.encode_lines(path, how, &tokenizer, &mut progress)?,
                _ => writer.encode(path, &tokenizer, &mut progress)?,
            };
            if bytes == 0 && *content == Content::Text {
                return Err(DataError::Empty { path: path.clone() }.into());
            }
            if *content == Content::Document {
                writer.end_document()?;
            }
            sources[*argument].bytes += bytes;
        }
        let (documents, n_targets) = (writer.documents(), writer.n_targets());
        let prepared = Prepared::new(&tokenizer, writer.finish()?, documents, n_targets, sources);
        out.publish(&prepared, tokenizer.content())?;
        Ok(prepared)
    });
    if written.is_err() {
        out.discard();
    }
    written
}

/// Total bytes of `texts`, if that is known before they are read.
pub fn n_bytes(texts: &[PathBuf]) -> Option<u64> {
    let size = |text: &Text| text.path.metadata().ok().filter(|it| it.is_file()).map(|it| it.len());
    documents::texts(texts).ok()?.iter().map(size).sum()
}

/// Describes the texts as they were named, each with its number of bytes.
fn sources(texts: &[PathBuf], bytes: u64) -> Vec<Source> {
    texts.iter().map(|path| Source { path: path.display().to_string(), bytes }).collect()
}

/// Refuses files that are not text, and an empty text that is not a document: a document may be
/// empty.
fn check(path: &Path, content: Content) -> Result<(), DataError> {
    if path == Path::new(STANDARD_INPUT) {
        return Ok(());
    }
    let path = path.to_path_buf();
    if is_prepared(&path) {
        let reason = "it is already prepared: train on it, or name its source texts";
        return Err(DataError::Prepared { path, reason: reason.into() });
    }
    match path.metadata() {
        Err(reason) => Err(DataError::Unreadable { path, reason }),
        Ok(metadata) if !metadata.is_file() => Err(DataError::NotAFile { path }),
        Ok(metadata) if metadata.len() == 0 && content == Content::Text => {
            Err(DataError::Empty { path })
        }
        Ok(_) => Ok(()),
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
fn ends_one(token: &str) -> String {
    format!(
        "the token that ends each document, `{token}`: take it out, or name another with --end-of-text"
    )
}

/// Writes the file of ids.
struct Writer {
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
    fn new(
        file: PartFile,
        width: Width,
        (beginning, end_of_text): (Vec<u32>, Option<u32>),
        targets: Option<PartFile>,
    ) -> Writer {
        let targets = targets.map(|file| Targets { file, n: 0 });
        Writer { file, width, n_tokens: 0, beginning, end_of_text, n_documents: 0, targets }
    }

    /// Appends the ids of a text; returns the number of encoded bytes.
    fn encode(
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
    fn encode_lines(
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
            let before = documents.bytes;
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
            progress(documents.bytes - before);
        }
    }

    /// Returns true if a byte of a text is the one that ends documents.
    fn ends(&self, byte: u8) -> bool {
        self.end_of_text == Some(byte.into())
    }

    /// Returns the token that ends documents, if a text contains it.
    fn end_among(&self, ids: &[u32]) -> Option<u32> {
        self.end_of_text.filter(|end| ids.contains(end))
    }

    /// Begins a document. If prompts are not to be predicted, neither is what comes before them.
    fn begin_document(&mut self) -> Result<()> {
        let are_targets = self.targets.is_none();
        self.push(self.beginning.clone().into_iter(), are_targets)
    }

    fn end_document(&mut self) -> Result<()> {
        self.n_documents += 1;
        self.push(self.end_of_text.into_iter(), true)
    }

    /// Returns the number of documents and the token after each; `None` if there are none.
    fn documents(&self) -> Option<Ends> {
        let ends = |token| Ends { token, documents: self.n_documents };
        self.end_of_text.map(ends)
    }

    /// Number of targets, if they are marked.
    fn n_targets(&self) -> Option<u64> {
        self.targets.as_ref().map(|targets| targets.n)
    }

    fn push(&mut self, ids: impl Iterator<Item = u32>, are_targets: bool) -> Result<()> {
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
    fn finish(self) -> Result<u64> {
        ensure!(self.n_tokens > 0, "the texts have no tokens");
        if let Some(Targets { file, n }) = self.targets {
            ensure!(n > 0, "the texts have only tokens of prompts");
            file.finish()?;
        }
        self.file.finish()?;
        Ok(self.n_tokens)
    }
}
