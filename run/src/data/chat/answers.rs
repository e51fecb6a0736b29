//! The answers in the text of a chat.
//!
//! A template with `{% generation %}` blocks names them. With any other, an answer is what a message
//! of the assistant adds to the text that asks for it.

use anyhow::{Context, Result, ensure};
use minijinja::Value;

use super::marks::{MARKS, unmarked};
use super::{Chat, ChatTemplate, ChatText};

impl ChatTemplate {
    /// Returns the text of a chat, with its answers.
    ///
    /// # Errors
    /// If the template refuses it, fails or does not end, or its answers cannot be found.
    pub fn text(&self, chat: &Chat) -> Result<ChatText> {
        if !self.marks_answers {
            return by_messages(self, chat);
        }
        let messages = chat.messages.iter().map(Value::to_string);
        let is_known = messages.into_iter().all(|message| !message.contains(MARKS));
        ensure!(is_known, "a message has a character that marks answers, U+F8F0 or U+F8F1");
        unmarked(&self.render(chat, false)?)
    }
}

/// Finds the answers by rendering the messages before each of them.
fn by_messages(template: &ChatTemplate, chat: &Chat) -> Result<ChatText> {
    let text = template.render(chat, false)?;
    let mut answers = Vec::new();
    for (nth, message) in chat.messages.iter().enumerate() {
        if !is_answer(message) {
            continue;
        }
        let before = template.render(&chat.first(nth), true);
        let before = before.with_context(|| format!("cannot ask for message {}", nth + 1))?;
        let until = if nth + 1 == chat.messages.len() {
            text.clone()
        } else {
            template.render(&chat.first(nth + 1), false)?
        };
        ensure!(
            until.starts_with(&before) && text.starts_with(&until),
            "its template writes message {} otherwise once others follow, so the answer cannot be found: use a \
             template with {{% generation %}} blocks",
            nth + 1
        );
        answers.push(before.len()..until.len());
    }
    Ok(ChatText { text, answers })
}

fn is_answer(message: &Value) -> bool {
    message.get_attr("role").is_ok_and(|role| role.as_str() == Some("assistant"))
}
