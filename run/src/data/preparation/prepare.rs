//! Preparation of data: from text to a file of token ids.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use chimera_device::start_threads;

use super::documents::{self, Content, Text};
use super::parameters::{Preparation, STANDARD_INPUT};
use super::prepared::{Ends, MAX_BYTES, Prepared, Source, is_prepared};
use super::prepared_files::PreparedFiles;
use super::writer::Writer;
use crate::data::DataError;
use crate::data::chat::ChatTemplate;
use crate::data::tokenizer::Tokenizer;
use crate::data::width::Width;

/// The field with the text in the lines of a JSONL file, unless another is named.
pub const TEXT_FIELD: &str = "text";

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
    check_names(texts, how)?;
    let tokenizer = Tokenizer::named(&how.tokenizer)?;
    // Folders and patterns also find files that a dead process left.
    let texts: Vec<PathBuf> = texts.iter().filter(|path| !out.is_part(path)).cloned().collect();
    let mut files = files(&texts, how, out)?;
    let chats = chats(how, &files)?;
    let has_documents = how.end_of_text.is_some()
        || how.begin_of_text
        || chats.is_none() && files.iter().any(|text| text.content != Content::Text);
    if has_documents {
        // A text without an end would be part of the next document.
        let whole = files.iter_mut().filter(|text| text.content == Content::Text);
        whole.for_each(|text| text.content = Content::Document);
    }
    let (beginning, end_of_text) = marks(&tokenizer, how, has_documents)?;
    let has_targets = how.prompt_field.is_some() || how.chat;
    let longest = {
        let documents = end_of_text.map(|token| Ends { token, documents: u64::MAX });
        let targets = has_targets.then_some(u64::MAX);
        Prepared::new(&tokenizer, u64::MAX, documents, targets, sources(&texts, u64::MAX))
    };
    let width = check_out(out, &tokenizer, &longest)?;
    for Text { path, content, .. } in &files {
        ensure!(
            !out.is_beside(path),
            "{} has the name of a file that belongs to {}, so it is not a text: choose another --out",
            path.display(),
            out.data().display()
        );
        check(path, *content)?;
    }
    let written = out.begin(has_targets).and_then(|(ids, targets)| {
        let mut writer = Writer::new(ids, width, (beginning, end_of_text), targets);
        let mut sources = sources(&texts, 0);
        for text in &files {
            sources[text.argument].bytes +=
                write(&mut writer, text, how, chats.as_ref(), &tokenizer, &mut progress)?;
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

/// Refuses one field for two texts, and a second standard input.
fn check_names(texts: &[PathBuf], how: &Preparation) -> Result<()> {
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
    Ok(())
}

/// Lists the files of the texts, without those that belong to `out`.
fn files(texts: &[PathBuf], how: &Preparation, out: &PreparedFiles) -> Result<Vec<Text>> {
    let mut files = documents::texts(texts)?;
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
    Ok(files)
}

/// Returns the template of the texts, if they are chats.
fn chats(how: &Preparation, files: &[Text]) -> Result<Option<ChatTemplate>> {
    if !how.chat {
        return Ok(None);
    }
    if let Some(other) = files.iter().find(|text| text.content != Content::Lines) {
        bail!(
            "{} is no file of chats: these are lines of .jsonl files, each with `messages`",
            other.path.display()
        );
    }
    let tokenizer = Path::new(&how.tokenizer);
    let file = tokenizer.extension().is_some().then_some(tokenizer);
    let template = ChatTemplate::read(how.chat_template.as_deref(), file)?;
    Ok(Some(template))
}

/// Returns the tokens before each document, and the one after it.
fn marks(
    tokenizer: &Tokenizer,
    how: &Preparation,
    has_documents: bool,
) -> Result<(Vec<u32>, Option<u32>)> {
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
    Ok((beginning, end_of_text))
}

/// Returns the width of the ids in `out`. Refuses a name that does not fit the tokenizer, and a
/// description that could become too long.
fn check_out(out: &PreparedFiles, tokenizer: &Tokenizer, longest: &Prepared) -> Result<Width> {
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
    ensure!(
        longest.text()?.len() as u64 <= MAX_BYTES,
        "the description of {place} would need more than {MAX_BYTES} bytes for the names of {} texts: name their \
         folder instead",
        longest.sources.len()
    );
    Ok(width)
}

/// Writes the ids of a text; returns the number of encoded bytes.
fn write(
    writer: &mut Writer,
    Text { path, content, .. }: &Text,
    how: &Preparation,
    chats: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    progress: &mut impl FnMut(u64),
) -> Result<u64> {
    if *content == Content::Document {
        writer.begin_document()?;
    }
    let bytes = match (content, chats) {
        (Content::Lines, Some(template)) => {
            writer.encode_chats(path, template, tokenizer, progress)?
        }
        (Content::Lines, None) => writer.encode_lines(path, how, tokenizer, progress)?,
        _ => writer.encode(path, tokenizer, progress)?,
    };
    if bytes == 0 && *content == Content::Text {
        return Err(DataError::Empty { path: path.clone() }.into());
    }
    if *content == Content::Document {
        writer.end_document()?;
    }
    Ok(bytes)
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
