//! Chats: messages that the template of a model turns into text, of which the answers are trained.

mod answers;
mod json;
mod marks;
mod template;

use std::ops::Range;

use minijinja::Value;
use serde::Deserialize;

pub use template::{ChatTemplate, copy_template};

/// A line of a file of chats: what its template sees, besides the tokens of the tokenizer.
#[derive(Clone, Deserialize)]
pub struct Chat {
    /// Messages of a `role` with `content`, in order.
    pub messages: Vec<Value>,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Option<Value>,
}

/// The text of a chat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChatText {
    /// The whole text.
    pub text: String,
    /// The bytes of the answers, ascending.
    pub answers: Vec<Range<usize>>,
}

impl Chat {
    /// Returns a chat of one message, from a user.
    pub fn of_user(message: &str) -> Chat {
        let message = Value::from_pairs([("role", "user"), ("content", message)]);
        Chat { messages: vec![message], tools: None }
    }

    /// Returns the chat of its first messages.
    fn first(&self, n_messages: usize) -> Chat {
        Chat { messages: self.messages[..n_messages].to_vec(), tools: self.tools.clone() }
    }
}
