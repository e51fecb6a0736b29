//! JSON as Python's `json.dumps` writes it: blanks after colons and commas, no other escapes than
//! needed.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Returns a value as JSON, on one line or with this indent.
pub(super) fn python_json(
    value: &impl Serialize,
    indent: Option<usize>,
) -> Result<String, serde_json::Error> {
    let mut written = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut written, OneLine))?,
        Some(indent) => {
            let blanks = vec![b' '; indent];
            let pretty = PrettyFormatter::with_indent(&blanks);
            value.serialize(&mut Serializer::with_formatter(&mut written, pretty))?;
        }
    }
    Ok(String::from_utf8_lossy(&written).into_owned())
}

/// JSON on one line.
struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { to.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        to.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_that_of_python() {
        let value = serde_json::json!({"a": [1, 2.5, "<é>"], "b": {}, "c": null});
        assert_eq!(
            python_json(&value, None).unwrap(),
            r#"{"a": [1, 2.5, "<é>"], "b": {}, "c": null}"#
        );
        assert_eq!(python_json(&serde_json::json!([1]), Some(2)).unwrap(), "[\n  1\n]");
    }
}
