//! Words and sentences of pages.

/// The words of pages, including code, and the sentences of their text.
#[derive(Default)]
pub(super) struct Prose {
    pub(super) n_words: usize,
    n_sentences: usize,
    n_words_in_sentences: usize,
}

impl Prose {
    /// Counts a page. Its code, tables, headings and items without a full stop have no sentences.
    pub(super) fn add(&mut self, page: &str) {
        self.n_words += page.split_whitespace().count();
        let (mut is_code, mut n_open) = (false, 0);
        for line in page.lines() {
            let text = line.trim_start();
            is_code ^= text.starts_with("```");
            let is_item = ["- ", "* ", "> "].iter().any(|mark| text.starts_with(mark));
            let is_text = !is_code && !text.is_empty() && !text.starts_with(['#', '|', '`']);
            if is_item || !is_text {
                n_open = 0; // text without a full stop is not a sentence
            }
            if !is_text {
                continue;
            }
            for word in text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric))
            {
                n_open += 1;
                if word.trim_end_matches([')', '*', '_', '"']).ends_with(['.', '!', '?']) {
                    self.n_sentences += 1;
                    self.n_words_in_sentences += std::mem::take(&mut n_open);
                }
            }
        }
    }

    /// The mean number of words in a sentence.
    pub(super) fn mean_sentence(&self) -> f64 {
        self.n_words_in_sentences as f64 / self.n_sentences.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_points() {
        let mut prose = Prose::default();
        prose.add("# A heading\n\nOne two\nthree. Four (five six):\n\n- seven\n- Eight nine.\n\n```sh\na b c\n```\n| x | y |\n");
        assert_eq!((prose.n_sentences, prose.n_words_in_sentences), (2, 5));
        assert_eq!(prose.mean_sentence(), 2.5);
    }
}
