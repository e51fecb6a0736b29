//! Replaces `chat` in a build without templates of chats.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Deserialize;

/// A chat; no template turns it into text in this build.
#[derive(Clone, Deserialize)]
pub struct Chat {}

impl Chat {
    /// Returns a chat of one message, from a user.
    pub fn of_user(_: &str) -> Chat {
        Chat {}
    }
}

/// The text of a chat.
pub struct ChatText {
    /// The whole text.
    pub text: String,
    /// The bytes of the answers, ascending.
    pub answers: Vec<Range<usize>>,
}

/// The template of chats; it cannot exist in this build.
pub enum ChatTemplate {}

impl ChatTemplate {
    /// Refuses any template.
    pub fn read(_: Option<&Path>, _: Option<&Path>) -> Result<ChatTemplate> {
        bail!("this build reads no templates of chats: build with `--features chat`")
    }

    /// Returns the text of a chat.
    pub fn text(&self, _: &Chat) -> Result<ChatText> {
        match *self {}
    }

    /// Returns the text of a chat that asks for an answer.
    pub fn question(&self, _: &Chat) -> Result<String> {
        match *self {}
    }
}

/// Copies nothing: such a build has no use for templates.
pub fn copy_template(_: &Path, _: &Path) -> Result<()> {
    Ok(())
}
