//! The template of a model's chats, as `transformers` renders it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use chimera_formats::files::{self, text_regular};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde_json::Value as Json;

use super::Chat;
use super::json::python_json;
use super::marks::{MARKS, with_marks};

/// Files that hold a template, beside the `tokenizer.json`.
const TEMPLATE: &str = "chat_template.jinja";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Larger files are refused before they are read.
const MAX_BYTES: u64 = 4 << 20;
/// Instructions of a template for one chat: loops without an end come to theirs.
const FUEL: u64 = 50_000_000;
/// The name of the template in its environment.
const NAME: &str = "chat";

/// A template of chats, with the tokens that it may name.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Tokens by the names that templates have for them, such as `bos_token`.
    tokens: BTreeMap<String, String>,
    /// True if it has blocks that mark answers.
    pub(super) marks_answers: bool,
}

impl ChatTemplate {
    /// Reads the template in the file `named`, or else the one beside a `tokenizer.json`, which also
    /// has the tokens that it may name.
    ///
    /// # Errors
    /// If there is none, or it cannot be read; the error names the file and the line.
    pub fn read(named: Option<&Path>, tokenizer: Option<&Path>) -> Result<ChatTemplate> {
        let folder = tokenizer.and_then(Path::parent);
        let config = folder.map(config_in).transpose()?.unwrap_or_default();
        let (path, source) = match (named, folder) {
            (Some(path), _) => (path.to_path_buf(), in_file(path)?),
            (None, Some(folder)) => beside(folder, &config)?,
            (None, None) => bail!(
                "chats need a template: name its file by --chat-template, or a tokenizer.json that has one beside it"
            ),
        };
        let source = source.with_context(|| format!("{} does not exist", path.display()))?;
        let tokens = config.as_object().into_iter().flatten().filter_map(|(name, token)| {
            let token = token.as_str().or_else(|| token.get("content")?.as_str())?;
            name.ends_with("_token").then(|| (name.clone(), token.to_owned()))
        });
        let template = ChatTemplate::new(&source, tokens.collect());
        template.with_context(|| path.display().to_string())
    }

    /// Makes a template of its text.
    ///
    /// # Errors
    /// If it is none; the error names the line.
    pub fn new(source: &str, tokens: BTreeMap<String, String>) -> Result<ChatTemplate> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax?);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        // As Python's Jinja does.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let marked = with_marks(&source);
        let marks_answers = marked.is_some();
        let source = marked.unwrap_or(source);
        environment.add_template_owned(NAME, source).map_err(plain)?;
        Ok(ChatTemplate { environment, tokens, marks_answers })
    }

    /// Returns the text of a chat that asks for an answer.
    ///
    /// # Errors
    /// If the template refuses it, fails or does not end.
    pub fn question(&self, chat: &Chat) -> Result<String> {
        Ok(self.render(chat, true)?.replace(MARKS, ""))
    }

    pub(super) fn render(&self, chat: &Chat, asks: bool) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(plain)?;
        let of_chat = context! {
            messages => chat.messages.clone(), tools => chat.tools.clone(), add_generation_prompt => asks,
        };
        let tokens = Value::from(self.tokens.clone());
        template.render(context! { ..of_chat, ..tokens }).map_err(plain)
    }
}

/// Copies the files that hold a template from the folder of one model to that of another, unless they
/// are there.
///
/// # Errors
/// If one cannot be read or written.
pub fn copy_template(from: &Path, to: &Path) -> Result<()> {
    for name in [TEMPLATE, TOKENIZER_CONFIG] {
        let file = to.join(name);
        if let Some(text) = text_of(&from.join(name))?
            && !file.exists()
        {
            let written = files::write(&file, text.as_bytes());
            written.with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    Ok(())
}

/// Returns the settings beside a `tokenizer.json`, if there are any.
fn config_in(folder: &Path) -> Result<Json> {
    let path = folder.join(TOKENIZER_CONFIG);
    let Some(text) = text_of(&path)? else { return Ok(Json::Null) };
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// Returns the template in a file that is one, or in the settings of a tokenizer.
fn in_file(path: &Path) -> Result<Option<String>> {
    let text = text_of(path)?;
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    if !is_json {
        return Ok(text);
    }
    let Some(text) = text else { return Ok(None) };
    let config: Json = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    let template = template_of(&config);
    template.map(Some).with_context(|| format!("{} has no `chat_template`", path.display()))
}

/// Returns the template in the settings of a tokenizer: the only one, or the one named `default`.
fn template_of(config: &Json) -> Option<String> {
    match &config["chat_template"] {
        Json::String(text) => Some(text.clone()),
        Json::Array(templates) => {
            let default = templates.iter().find(|template| template["name"] == "default");
            default?["template"].as_str().map(str::to_owned)
        }
        _ => None,
    }
}

/// Returns the path and the text of the template beside a tokenizer.
fn beside(folder: &Path, config: &Json) -> Result<(PathBuf, Option<String>)> {
    let file = folder.join(TEMPLATE);
    if let Some(text) = text_of(&file)? {
        return Ok((file, Some(text)));
    }
    let path = folder.join(TOKENIZER_CONFIG);
    let text = template_of(config);
    if text.is_none() {
        bail!(
            "the tokenizer has no template of chats: neither {} nor `chat_template` in {}: name one by --chat-template",
            file.display(),
            path.display()
        );
    }
    Ok((path, text))
}

fn text_of(path: &Path) -> Result<Option<String>> {
    if !path.exists() {
        return Ok(None);
    }
    let text = text_regular(path, MAX_BYTES);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    let large = || anyhow!("{} is larger than {MAX_BYTES} bytes", path.display());
    Ok(Some(text.ok_or_else(large)?))
}

/// Says what failed in a template, and in which line.
fn plain(error: Error) -> anyhow::Error {
    let line = error.line().map(|line| format!(" in line {line} of the template"));
    let line = line.unwrap_or_default();
    match error.kind() {
        ErrorKind::OutOfFuel => anyhow!("the template does not end{line}"),
        kind => anyhow!("{}{line}", error.detail().map_or_else(|| kind.to_string(), str::to_owned)),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Formats the present time, in UTC.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let written = jiff::fmt::strtime::format(format, &now);
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Writes JSON as Python does.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let text = python_json(value, indent);
    let text = text.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(Value::from_safe_string(text))
}

#[cfg(test)]
mod tests {
    use std::fs::write;

    use super::*;

    fn question(template: &ChatTemplate) -> String {
        template.question(&Chat::of_user("hi")).unwrap()
    }

    #[test]
    fn ends_of_lines_are_those_of_unix() {
        let template = ChatTemplate::new("a\r\n{% if true %}\r\nb\r{% endif %}", BTreeMap::new());
        assert_eq!(question(&template.unwrap()), "a\nb\n");
    }

    #[test]
    fn a_template_is_taken_out_of_json() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer_config.json");
        for text in [
            r#"{"chat_template": "<{{ messages[0].content }}>"}"#,
            r#"{"chat_template": [{"name": "tool_use", "template": "no"},
                {"name": "default", "template": "<{{ messages[0].content }}>"}]}"#,
        ] {
            write(&file, text).unwrap();
            let template = ChatTemplate::read(Some(&file), None).unwrap();
            assert_eq!(question(&template), "<hi>");
        }
        for (text, refusal) in [
            ("{}", "tokenizer_config.json has no `chat_template`"),
            ("{{ messages }}", "tokenizer_config.json"),
        ] {
            write(&file, text).unwrap();
            let error = ChatTemplate::read(Some(&file), None).err().unwrap().to_string();
            assert!(error.ends_with(refusal), "{error}");
        }
    }
}
