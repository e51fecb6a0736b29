//! Text in HTML. Text from the run's files is escaped: a path or an error may contain anything.

use std::fmt::{self, Display, Write};

/// Text that HTML and SVG show unchanged.
pub(super) struct Escaped<'t>(pub(super) &'t str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                // HTML does not allow control characters, and some reorder the text.
                c if c.is_control() && c != '\n' && c != '\t' => f.write_str("\u{fffd}")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Renders a note about missing or important information.
pub(super) fn note(text: &str) -> String {
    format!("<p class=\"note\">{}</p>\n", Escaped(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_markup() {
        let text = "<script>alert(\"1\")</script> & 'x'\u{1b}\u{9b}";
        let escaped = Escaped(text).to_string();
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; &#39;x&#39;\u{fffd}\u{fffd}"
        );
    }
}
