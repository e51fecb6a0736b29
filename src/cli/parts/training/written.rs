//! A text that a model continues, written as it grows.

use anyhow::Result;

use crate::cli::parts::terminal::console::{print, write};
use crate::cli::parts::training::stop_strings::Stops;
use crate::data::tokenizer::{Stream, Tokenizer};

/// A prompt with what was added.
pub(crate) struct Continued {
    /// All ids, but for the one that ended the text.
    pub(crate) ids: Vec<u32>,
    /// Unless it was written under way.
    pub(crate) text: Option<String>,
    pub(crate) reason: Reason,
}

/// Why nothing more was added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// As many tokens as were asked for.
    Length,
    /// A stop string.
    Stop,
    /// The token that ends a text.
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

/// Turns the tokens of a text into words, and writes them up to its end.
pub(crate) struct TextWriter<'w> {
    /// The ids that end a text.
    ends: &'w [u32],
    form: TokenForm<'w>,
    text: TextOut,
    reason: Reason,
}

/// What is written of tokens, and before what the text ends.
pub(crate) enum TokenForm<'w> {
    Text(Stream<'w>, Stops<char>),
    Ids(Stops<u32>),
}

impl<'w> TokenForm<'w> {
    /// Text, up to the first of some strings.
    pub(crate) fn text(tokenizer: &'w Tokenizer, stops: &[String]) -> TokenForm<'w> {
        let stops = stops.iter().map(|stop| stop.chars().collect());
        TokenForm::Text(Stream::new(tokenizer), Stops::new(stops.collect()))
    }

    /// Numbers, up to the first of some ids in a row.
    pub(crate) fn ids(stops: &[Vec<u32>]) -> TokenForm<'w> {
        TokenForm::Ids(Stops::new(stops.to_vec()))
    }
}

impl<'w> TextWriter<'w> {
    /// Before the prompt; where the text `is_kept`, it is not written under way.
    pub(crate) fn new(form: TokenForm<'w>, ends: &'w [u32], is_kept: bool) -> TextWriter<'w> {
        let text = TextOut { all: is_kept.then(String::new), ..TextOut::default() };
        TextWriter { ends, form, text, reason: Reason::Length }
    }

    /// Writes the prompt, in which nothing ends the text.
    pub(crate) fn begin(&mut self, prompt: &[u32]) -> Result<()> {
        let text = match &mut self.form {
            TokenForm::Text(stream, _) => stream.push(prompt)?,
            TokenForm::Ids(_) => numbers(prompt),
        };
        self.text.write(&text)
    }

    /// Writes a token, and says whether the text goes on.
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

/// The text, on standard output as far as it is known, or kept.
#[derive(Default)]
struct TextOut {
    /// What is not written yet: blanks, which are left out at the end.
    blanks: String,
    /// All of it, where it is kept.
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

/// The text without control characters, which a terminal obeys.
pub(crate) fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}")
}
