//! From text to a file of token ids.

use std::fs::{File, remove_file, rename};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use rayon::prelude::*;

use super::DataError;
use super::documents::{self, Content, Documents, Text};
use super::prepared::{
    Ends, Prepared, Source, beside, is_prepared, targets_beside, tokenizer_beside,
};
use super::tokenizer::{self, Tokenizer, TokenizerError, pieces};
use super::width::Width;
use crate::formats::files::disk::part_of;
use crate::formats::files::{self, io_fault, open_regular};

/// Bytes of text that are encoded at once, by all threads.
const BLOCK: u64 = 4 << 20;
/// The text that standard input is.
pub const STANDARD_INPUT: &str = "-";

/// How text becomes token ids.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// `bytes`, `gpt2`, or the path of a `tokenizer.json`.
    pub tokenizer: String,
    /// The field of a JSONL file's lines that holds the text.
    pub field: String,
    /// The field that holds a text before it, whose tokens are no targets.
    pub prompt_field: Option<String>,
    /// Token after each document, where it is not the tokenizer's usual one. With it, a file is a document too.
    pub end_of_text: Option<String>,
}

/// Writes the token ids of `texts`, one after another (`-` is standard input), to `out`, and beside it what they are: which
/// tokenizer of which vocabulary, and the tokenizer itself if it is a file. `progress` is told of every
/// few bytes of text that are done.
///
/// A line of a `.jsonl` file and a file of a folder are documents: the end-of-text token stands behind each. With prompts a
/// further file says which tokens are targets.
///
/// The ids are u16, or u32 if the name ends in `.u32.bin`. The data is complete or not there; data that is
/// there already is refused.
pub fn prepare(
    texts: &[PathBuf],
    how: &Preparation,
    out: &Path,
    mut progress: impl FnMut(u64),
) -> Result<Prepared> {
    ensure!(
        how.prompt_field.as_ref() != Some(&how.field),
        "the text and the prompt before it cannot both be in field `{}`: choose another --field or --prompt-field",
        how.field
    );
    let tokenizer = Tokenizer::named(&how.tokenizer)?;
    let mut texts = documents::texts(texts)?;
    if how.end_of_text.is_some() {
        let whole = texts.iter_mut().filter(|text| text.content == Content::Text);
        whole.for_each(|text| text.content = Content::Document);
    }
    let has_documents = texts.iter().any(|text| text.content != Content::Text);
    let end_of_text = has_documents.then(|| tokenizer.end_of_text(how.end_of_text.as_deref()));
    let end_of_text = end_of_text.transpose()?;
    let (width, vocab) = (Width::of(out), tokenizer.vocab());
    let place = out.display();
    ensure!(
        width != Width::U8,
        "the name {place} must end in .bin, or in .u32.bin for ids of four bytes"
    );
    ensure!(
        vocab <= width.n_ids(),
        "the tokenizer has {vocab} ids, more than two bytes hold: let the name {place} end in .u32.bin"
    );
    let (described, copied, targets) = (beside(out), tokenizer_beside(out), targets_beside(out));
    for path in [out, &described, &copied, &targets] {
        ensure!(!path.exists(), "{} is there already: choose another --out", path.display());
    }
    for Text { path, content } in &texts {
        check(path, *content)?;
    }
    let part = part_of(out);
    let marks = how.prompt_field.as_ref().map(|_| targets.as_path());
    let written = Writer::create(&part, width, end_of_text, marks).and_then(|mut writer| {
        let mut sources = Vec::new();
        for Text { path, content } in &texts {
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
            sources.push(Source { path: path.display().to_string(), bytes });
        }
        let (documents, n_targets) = (writer.documents(), writer.n_targets());
        let prepared = Prepared::new(&tokenizer, writer.finish()?, documents, n_targets, sources);
        if let Tokenizer::File(_) = tokenizer {
            tokenizer::copy(Path::new(&how.tokenizer), &copied)?;
        }
        let text = format!("{}\n", serde_json::to_string_pretty(&prepared)?);
        let written = files::write(&described, text.as_bytes());
        written.map_err(|e| io_fault("data", &described, &e))?;
        rename(&part, out).map_err(|e| io_fault("data", out, &e))?;
        Ok(prepared)
    });
    if written.is_err() {
        discard(out);
    }
    written
}

/// Bytes of all that `texts` name, if that is known before they are read.
pub fn n_bytes(texts: &[PathBuf]) -> Option<u64> {
    let size = |text: &Text| text.path.metadata().ok().filter(|it| it.is_file()).map(|it| it.len());
    documents::texts(texts).ok()?.iter().map(size).sum()
}

/// Removes what a [`prepare`] of `out` has written, if it is not done: another thread may call this before it ends
/// the process.
pub fn discard(out: &Path) {
    // Without this file the data can no more become whole. Where it is gone, the data is whole, or none of it there.
    if remove_file(part_of(out)).is_ok() {
        for path in [beside(out), tokenizer_beside(out), targets_beside(out)] {
            let _ = remove_file(part_of(&path)); // often not there
            let _ = remove_file(path);
        }
    }
}

/// Refuses what is no text, and an empty text that is no document: a document may be empty.
fn check(path: &Path, content: Content) -> Result<(), DataError> {
    if path == Path::new(STANDARD_INPUT) {
        return Ok(());
    }
    let path = path.to_path_buf();
    if is_prepared(&path) {
        let reason = "it is prepared already: train on it, or name the texts that it was made of";
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
    match text == Path::new(STANDARD_INPUT) {
        true => Ok(Box::new(io::stdin())),
        false => Ok(Box::new(open_regular(text)?)),
    }
}

fn on_disk(path: &Path, file: BufWriter<File>) -> Result<()> {
    let fault = |e: &dyn ToString| io_fault("data", path, e);
    let file = file.into_inner().map_err(|e| fault(&e.into_error()))?;
    Ok(file.sync_all().map_err(|e| fault(&e))?)
}

/// What is wrong with a byte of a text that stands behind documents.
const ENDS_ONE: &str = "is the byte that stands behind each document: take it out, or choose a --tokenizer, whose end of a text is an id of its own";

/// The file of ids under way.
struct Writer<'p> {
    path: &'p Path,
    file: BufWriter<File>,
    width: Width,
    n_tokens: u64,
    /// What stands behind a document, where there are any.
    end_of_text: Option<u32>,
    n_documents: u64,
    /// Which ids are targets, where that is to be said.
    targets: Option<Targets<'p>>,
}

/// The file that says which ids are targets, under way.
struct Targets<'p> {
    path: &'p Path,
    file: BufWriter<File>,
    n: u64,
}

impl<'p> Writer<'p> {
    fn create(
        path: &'p Path,
        width: Width,
        end_of_text: Option<u32>,
        targets: Option<&'p Path>,
    ) -> Result<Writer<'p>> {
        let file = |path: &Path| match files::replace(path) {
            Ok(file) => Ok(BufWriter::new(file)),
            Err(e) => bail!("cannot write {}: {e}", path.display()),
        };
        let of_targets = |path| Ok::<_, anyhow::Error>(Targets { path, file: file(path)?, n: 0 });
        let targets = targets.map(of_targets).transpose()?;
        let file = file(path)?;
        Ok(Writer { path, file, width, n_tokens: 0, end_of_text, n_documents: 0, targets })
    }

    /// Appends the ids of a text; returns its size.
    fn encode(
        &mut self,
        path: &Path,
        tokenizer: &Tokenizer,
        progress: &mut impl FnMut(u64),
    ) -> Result<u64> {
        let unreadable = |reason| DataError::Unreadable { path: path.to_path_buf(), reason };
        let mut text = open(path).map_err(unreadable)?;
        let (mut left, mut done, mut is_last) = (Vec::new(), 0, false);
        while !is_last {
            let n = text.by_ref().take(BLOCK).read_to_end(&mut left).map_err(unreadable)? as u64;
            is_last = n < BLOCK;
            let n_encoded = match tokenizer {
                Tokenizer::Bytes => {
                    if let Some(at) = left.iter().position(|byte| self.ends(*byte)) {
                        let at = done + at as u64;
                        bail!("byte {at} of {} {}", path.display(), ENDS_ONE);
                    }
                    self.push(left.iter().map(|byte| u32::from(*byte)), true)?;
                    left.len()
                }
                _ => self.encode_text(path, tokenizer, &left, done, is_last)?,
            };
            left.drain(..n_encoded);
            done += n_encoded as u64;
            progress(n);
        }
        Ok(done)
    }

    /// Appends the ids of the bytes from `start` of a text on; returns of how many of them. The rest ends
    /// where the next bytes may change what is a token.
    fn encode_text(
        &mut self,
        path: &Path,
        tokenizer: &Tokenizer,
        bytes: &[u8],
        start: u64,
        is_last: bool,
    ) -> Result<usize> {
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
        let mut pieces: Vec<&str> = pieces(text).collect();
        if !is_last {
            pieces.pop();
        }
        let encoded = pieces.par_iter().map(|piece| tokenizer.encode(piece));
        for ids in encoded.collect::<Result<Vec<_>, TokenizerError>>()? {
            self.push(ids.into_iter(), true)?;
        }
        Ok(pieces.iter().map(|piece| piece.len()).sum())
    }

    /// Appends the documents of a JSONL file; returns its size.
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
        loop {
            let before = documents.bytes;
            let some = documents.next(BLOCK)?;
            if some.is_empty() {
                return Ok(documents.bytes);
            }
            let encoded = some.par_iter().map(|document| {
                let prompt = document
                    .prompt
                    .as_deref()
                    .map_or(Ok(Vec::new()), |text| tokenizer.encode(text));
                Ok((prompt?, tokenizer.encode(&document.text)?))
            });
            for (prompt, text) in encoded.collect::<Result<Vec<_>, TokenizerError>>()? {
                let mut bytes = prompt.iter().chain(&text).filter_map(|id| u8::try_from(*id).ok());
                if matches!(tokenizer, Tokenizer::Bytes) && bytes.any(|byte| self.ends(byte)) {
                    bail!(
                        "a text of document {} of {} {}",
                        self.n_documents,
                        path.display(),
                        ENDS_ONE
                    );
                }
                self.push(prompt.into_iter(), false)?;
                self.push(text.into_iter(), true)?;
                self.end_document()?;
            }
            progress(documents.bytes - before);
        }
    }

    /// Whether a byte of a text is the one that stands behind documents.
    fn ends(&self, byte: u8) -> bool {
        self.end_of_text == Some(byte.into())
    }

    fn end_document(&mut self) -> Result<()> {
        self.n_documents += 1;
        self.push(self.end_of_text.into_iter(), true)
    }

    /// How many documents there are, and what stands behind each; `None` if there is none.
    fn documents(&self) -> Option<Ends> {
        let ends = |token| Ends { token, documents: self.n_documents };
        self.end_of_text.map(ends)
    }

    /// How many ids are targets, if that is said of each.
    fn n_targets(&self) -> Option<u64> {
        self.targets.as_ref().map(|targets| targets.n)
    }

    fn push(&mut self, ids: impl Iterator<Item = u32>, are_targets: bool) -> Result<()> {
        for id in ids {
            let bytes = id.to_le_bytes();
            let written = self.file.write_all(&bytes[..self.width.bytes()]);
            written.map_err(|e| io_fault("data", self.path, &e))?;
            self.n_tokens += 1;
            if let Some(Targets { path, file, n }) = &mut self.targets {
                let written = file.write_all(&[are_targets.into()]);
                written.map_err(|e| io_fault("data", path, &e))?;
                *n += u64::from(are_targets);
            }
        }
        Ok(())
    }

    /// The number of ids, which are then on disk.
    fn finish(self) -> Result<u64> {
        ensure!(self.n_tokens > 0, "the texts have no token");
        if let Some(Targets { path, file, n }) = self.targets {
            ensure!(n > 0, "the texts have no token but those of prompts");
            on_disk(path, file)?;
        }
        on_disk(self.path, self.file)?;
        Ok(self.n_tokens)
    }
}
