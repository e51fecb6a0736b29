//! Writes the text that a model generates as it grows.

use anyhow::Result;

use crate::cli::parts::terminal::console::{print, write};
use crate::cli::parts::training::stop_strings::Stops;
use crate::data::tokenizer::{Stream, Tokenizer};

/// A prompt with its continuation.
pub(crate) struct Continued {
    /// All ids, except the one that ended the text.
    pub(crate) ids: Vec<u32>,
    /// The text, unless it has already been written.
    pub(crate) text: Option<String>,
    pub(crate) reason: Reason,
}

/// The reason why the text ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The requested number of tokens was reached.
    Length,
    /// A stop string occurred.
    Stop,
    /// The token that ends a text occurred.
    EndOfText,
}

impl Reason {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Length => "length",
            Reason::Stop => "stop",
            Reason::EndOfText => "end-of-text",
        }
    }
}

/// Converts tokens to text, and writes it up to its end.
pub(crate) struct TextWriter<'w> {
    /// The ids that end a text.
    ends: &'w [u32],
    form: TokenForm<'w>,
    text: TextOut,
    reason: Reason,
}

/// The output form of tokens, with the stop strings or ids.
pub(crate) enum TokenForm<'w> {
    Text(Stream<'w>, Stops<char>),
    Ids(Stops<u32>),
}

impl<'w> TokenForm<'w> {
    /// Writes text, up to the first of some strings.
    pub(crate) fn text(tokenizer: &'w Tokenizer, stops: &[String]) -> TokenForm<'w> {
        let stops = stops.iter().map(|stop| stop.chars().collect());
        TokenForm::Text(Stream::new(tokenizer), Stops::new(stops.collect()))
    }

    /// Writes numbers, up to the first of some sequences of ids.
    pub(crate) fn ids(stops: &[Vec<u32>]) -> TokenForm<'w> {
        TokenForm::Ids(Stops::new(stops.to_vec()))
    }
}

impl<'w> TextWriter<'w> {
    /// Starts before the prompt. If the text `is_kept`, it is only returned at the end.
    pub(crate) fn new(form: TokenForm<'w>, ends: &'w [u32], is_kept: bool) -> TextWriter<'w> {
        let text = TextOut { all: is_kept.then(String::new), ..TextOut::default() };
        TextWriter { ends, form, text, reason: Reason::Length }
    }

    /// Writes the prompt, which cannot end the text.
    pub(crate) fn begin(&mut self, prompt: &[u32]) -> Result<()> {
        let text = match &mut self.form {
            TokenForm::Text(stream, _) => stream.push(prompt)?,
            TokenForm::Ids(_) => numbers(prompt),
        };
        self.text.write(&text)
    }

    /// Writes a token. Returns true if the text goes on.
    pub(crate) fn push(&mut self, id: u32) -> Result<bool> {
        if self.ends.contains(&id) {
            self.reason = Reason::EndOfText;
            return Ok(false);
        }
        let (text, stops) = match &mut self.form {
            TokenForm::Text(stream, stops) => {
                let (text, stops) = stops.push(stream.push(&[id])?.chars());
                (String::from_iter(text), stops)
            }
            TokenForm::Ids(stops) => {
                let (ids, stops) = stops.push([id]);
                (numbers(&ids), stops)
            }
        };
        self.text.write(&text)?;
        if stops {
            self.reason = Reason::Stop;
        }
        Ok(!stops)
    }

    pub(crate) fn end(mut self, mut ids: Vec<u32>) -> Result<Continued> {
        if self.reason == Reason::EndOfText {
            ids.pop();
        }
        if self.reason != Reason::Stop {
            let rest = match self.form {
                TokenForm::Text(stream, mut stops) => {
                    let (mut text, is_stop) = stops.push(stream.rest()?.chars());
                    if is_stop {
                        self.reason = Reason::Stop;
                    } else {
                        text.extend(stops.rest());
                    }
                    String::from_iter(text)
                }
                TokenForm::Ids(stops) => numbers(&stops.rest()),
            };
            self.text.write(&rest)?;
        }
        Ok(Continued { ids, text: self.text.end()?, reason: self.reason })
    }
}

fn numbers(ids: &[u32]) -> String {
    ids.iter().map(|id| format!("{id} ")).collect()
}

/// The output of text: to standard output as soon as it is known, or kept.
#[derive(Default)]
struct TextOut {
    /// Trailing blanks that are not written yet; those at the end are dropped.
    blanks: String,
    /// All of the text, if it is kept.
    all: Option<String>,
}

impl TextOut {
    fn write(&mut self, text: &str) -> Result<()> {
        if let Some(all) = &mut self.all {
            all.push_str(text);
            return Ok(());
        }
        self.blanks += &shown(text);
        let end = self.blanks.trim_end().len();
        write(&[&self.blanks[..end]])?; // a line may take long
        self.blanks.drain(..end);
        Ok(())
    }

    fn end(self) -> Result<Option<String>> {
        if self.all.is_none() {
            print("")?;
        }
        Ok(self.all)
    }
}

/// Replaces control characters, which a terminal would obey.
pub(crate) fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}
