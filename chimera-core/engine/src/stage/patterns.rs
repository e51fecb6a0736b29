//! Patterns that select parameters by name.

use std::fmt;
use std::str::FromStr;

/// Patterns of parameter names, in text separated by `;`. In a pattern `*` stands for any
/// characters and `?` for one; it matches whole names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParamPatterns(pub Vec<String>);

impl ParamPatterns {
    /// Returns true if there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if a pattern matches `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches_name(pattern, name))
    }

    /// Returns the first pattern that matches none of these names.
    pub fn unused<'n>(&self, names: impl Iterator<Item = &'n str> + Clone) -> Option<&str> {
        let is_unused = |pattern: &&String| !names.clone().any(|name| matches_name(pattern, name));
        self.0.iter().find(is_unused).map(String::as_str)
    }
}

impl FromStr for ParamPatterns {
    type Err = String;

    fn from_str(text: &str) -> Result<ParamPatterns, String> {
        let patterns = text.split(';').map(str::trim).filter(|pattern| !pattern.is_empty());
        let patterns: Vec<String> = patterns.map(str::to_owned).collect();
        if patterns.is_empty() {
            return Err(
                "there is no pattern: patterns of names are written as in `wte.*; h.0.*`".into()
            );
        }
        Ok(ParamPatterns(patterns))
    }
}

impl fmt::Display for ParamPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

/// Returns true if a pattern matches a whole name.
pub(crate) fn matches_name(pattern: &str, name: &str) -> bool {
    let (mut wanted, mut rest) = (pattern.chars(), name.chars());
    // The pattern after the last `*`, and the rest of the name after what the `*` took.
    let mut last = None;
    loop {
        match wanted.next() {
            Some('*') => {
                last = Some((wanted.clone(), rest.clone()));
                continue;
            }
            Some(c) if rest.next().is_some_and(|next| c == '?' || c == next) => continue,
            None if rest.as_str().is_empty() => return true,
            _ => {}
        }
        // An earlier `*` need not take more characters: the last one can take them.
        let Some((behind, left)) = &mut last else { return false };
        if left.next().is_none() {
            return false;
        }
        (wanted, rest) = (behind.clone(), left.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, name, wanted) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("**", "ab", true),
            ("?", "", false),
            ("?*", "ä", true),
            ("a*", "ba", false),
            ("*a", "aba", true),
            ("*a", "ab", false),
            ("*ab", "aab", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("*a?b", "aaab", true),
            ("a*?", "a", false),
        ] {
            assert_eq!(matches_name(pattern, name), wanted, "{pattern} {name}");
        }
    }

    /// Each `*` could match any part of the name.
    #[test]
    fn many_stars_take_no_time() {
        let (pattern, name) = ("*a".repeat(1000), "a".repeat(5000));
        assert!(matches_name(&pattern, &name));
        assert!(!matches_name(&format!("{pattern}*b"), &name));
    }

    #[test]
    fn patterns_are_read_and_written() {
        let patterns: ParamPatterns = " wte.*;h.0.* ; ".parse().unwrap();
        assert_eq!(patterns.to_string(), "wte.*; h.0.*");
        assert_eq!(patterns.to_string().parse(), Ok(patterns.clone()));
        assert!(patterns.matches("h.0.attn.bias") && !patterns.matches("h.1.attn.bias"));
        let names = ["wte.weight", "h.1.attn.bias"];
        assert_eq!(patterns.unused(names.into_iter()), Some("h.0.*"));
        assert_eq!(ParamPatterns::default().unused(names.into_iter()), None);
        assert!(" ; ".parse::<ParamPatterns>().unwrap_err().contains("there is no pattern"));
    }
}
