//! Ends a generated text at certain strings or ids.

/// Passes on a sequence up to the first of several stop sequences, and holds back a suffix that may
/// begin one.
#[derive(Debug)]
pub(crate) struct Stops<T> {
    stops: Vec<Vec<T>>,
    held: Vec<T>,
}

impl<T: PartialEq> Stops<T> {
    /// Makes a filter; none of `stops` may be empty.
    pub(crate) fn new(stops: Vec<Vec<T>>) -> Stops<T> {
        Stops { stops, held: Vec::new() }
    }

    /// Returns the further output after `more`, and true if a stop sequence has occurred.
    pub(crate) fn push(&mut self, more: impl IntoIterator<Item = T>) -> (Vec<T>, bool) {
        self.held.extend(more);
        let first = |stop: &Vec<T>| self.held.windows(stop.len()).position(|part| part == stop);
        if let Some(at) = self.stops.iter().filter_map(first).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins_one = |at: &usize| {
            let rest = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(rest))
        };
        let held = (0..self.held.len()).find(begins_one).unwrap_or(self.held.len());
        let rest = self.held.split_off(held);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Returns what was held back, after the last input.
    pub(crate) fn rest(self) -> Vec<T> {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the output for some pieces, and the number of pieces it takes.
    fn written(stops: &[&str], pieces: &[&str]) -> (String, usize) {
        let mut stops = Stops::new(stops.iter().map(|s| s.chars().collect()).collect());
        let mut all = String::new();
        for (n, piece) in pieces.iter().enumerate() {
            let (text, is_over) = stops.push(piece.chars());
            all.extend(text);
            if is_over {
                return (all, n + 1);
            }
        }
        all.extend(stops.rest());
        (all, pieces.len())
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

    #[test]
    fn ids_are_compared_whole() {
        let mut stops = Stops::new(vec![vec![2], vec![7, 8]]);
        assert_eq!(stops.push([32, 20, 7]), (vec![32, 20], false));
        assert_eq!(stops.push([9]), (vec![7, 9], false));
        assert_eq!(stops.push([7, 8, 2]), (vec![], true));
    }
}
