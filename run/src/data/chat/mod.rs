//! Chats: messages that the template of a model turns into text, of which the answers are trained.

mod answers;
mod json;
mod marks;
mod template;

use std::ops::Range;

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::{Deserialize, Deserializer};

pub use template::{ChatTemplate, copy_template};

/// A line of a file of chats: what its template sees, besides the tokens of the tokenizer.
#[derive(Clone, Deserialize)]
pub struct Chat {
    /// Messages of a `role` with `content`, in order. Keys without a value are left out.
    #[serde(deserialize_with = "without_nulls")]
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

/// Reads messages, and leaves out their keys that are null.
fn without_nulls<'d, D: Deserializer<'d>>(messages: D) -> Result<Vec<Value>, D::Error> {
    let messages: Vec<Value> = Vec::deserialize(messages)?;
    Ok(messages.into_iter().map(|message| with_values(&message).unwrap_or(message)).collect())
}

/// Returns an object without its keys that are null, and `None` for any other value.
fn with_values(message: &Value) -> Option<Value> {
    if message.kind() != ValueKind::Map {
        return None;
    }
    let keys = message.try_iter().ok()?;
    let entries = keys.filter_map(|key| Some((key.clone(), message.get_item(&key).ok()?)));
    Some(Value::from_pairs(entries.filter(|(_, value)| !value.is_none())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_null_are_left_out() {
        let json = r#"{"messages": [{"role": "assistant", "tool_calls": null, "content": "a", "b": [null]}]}"#;
        let chat: Chat = serde_json::from_str(json).unwrap();
        assert_eq!(
            chat.messages[0].to_string(),
            "{'role': 'assistant', 'content': 'a', 'b': [None]}"
        );
    }
}
