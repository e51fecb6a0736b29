//! Strings that end a text which is written as it comes.

/// Passes on a text up to the first of some strings, and holds back what could begin one.
#[derive(Debug, Default)]
pub(crate) struct StopStrings {
    strings: Vec<String>,
    held: String,
}

impl StopStrings {
    pub(crate) fn new(strings: Vec<String>) -> StopStrings {
        StopStrings { strings, held: String::new() }
    }

    /// What `text` adds to what may be written, and whether one of the strings has come.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held += text;
        if let Some(at) = self.strings.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins_one =
            |rest: &str| self.strings.iter().any(|stop| !rest.is_empty() && stop.starts_with(rest));
        let starts = self.held.char_indices().map(|(at, _)| at);
        let held = starts.into_iter().find(|at| begins_one(&self.held[*at..]));
        let rest = self.held.split_off(held.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, where no text comes any more.
    pub(crate) fn rest(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written of some pieces, and how many of them it takes.
    fn written(stops: &[&str], pieces: &[&str]) -> (String, usize) {
        let mut stops = StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut all = String::new();
        for (n, piece) in pieces.iter().enumerate() {
            let (text, is_over) = stops.push(piece);
            all += &text;
            if is_over {
                return (all, n + 1);
            }
        }
        (all + &stops.rest(), pieces.len())
    }

    #[test]
    fn a_text_ends_before_the_first_string() {
        assert_eq!(written(&[], &["ab", "c"]), ("abc".into(), 2));
        assert_eq!(written(&["\n\n"], &["one\n", "two\n", "\nthree"]), ("one\ntwo".into(), 3));
        assert_eq!(written(&["END", "x"], &["a E", "N", "Dx"]), ("a ".into(), 3));
        assert_eq!(written(&["END"], &["a E", "N", "d"]), ("a ENd".into(), 3));
        assert_eq!(written(&["END"], &["a EN"]), ("a EN".into(), 1));
        assert_eq!(written(&["aab"], &["a", "a", "a", "b", "c"]), ("a".into(), 4));
        assert_eq!(written(&["é"], &["naïv", "é"]), ("naïv".into(), 2));
    }
}
