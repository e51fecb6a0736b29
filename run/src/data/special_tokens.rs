//! The ids that BERT samples have in addition to those of the text.

use super::tokenizer::Tokenizer;

/// Number of special ids in a vocabulary.
pub(super) const MARKS: usize = 4;

/// The ids of special tokens, which stand for no text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    pub(super) pad: u32,
    pub(super) cls: u32,
    pub(super) sep: u32,
    pub(super) mask: u32,
}

impl Marks {
    /// Returns the special tokens of the tokenizer, or the four ids after its last.
    pub fn of(tokenizer: &Tokenizer) -> Marks {
        Marks::known(tokenizer).unwrap_or_else(|| Marks::after(tokenizer.vocab()))
    }

    /// Returns the special tokens of the tokenizer, if it has all of them.
    pub(super) fn known(tokenizer: &Tokenizer) -> Option<Marks> {
        let id = |token| tokenizer.special(token);
        let (pad, cls) = (id("[PAD]")?, id("[CLS]")?);
        Some(Marks { pad, cls, sep: id("[SEP]")?, mask: id("[MASK]")? })
    }

    pub(super) fn after(n_ids: usize) -> Marks {
        let first = n_ids as u32;
        Marks { pad: first, cls: first + 1, sep: first + 2, mask: first + 3 }
    }

    /// The smallest vocabulary that has these ids and those of the text, which are below `n_ids`.
    pub fn vocab(&self, n_ids: usize) -> usize {
        self.all().into_iter().map(|id| id as usize + 1).fold(n_ids, usize::max)
    }

    pub(super) fn all(&self) -> [u32; 4] {
        [self.pad, self.cls, self.sep, self.mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_tokenizer_or_follow_its_ids() {
        assert_eq!(Marks::of(&Tokenizer::Bytes), Marks { pad: 256, cls: 257, sep: 258, mask: 259 });
        assert_eq!(Marks::of(&Tokenizer::Gpt2).vocab(50_257), 50_261);
    }
}
