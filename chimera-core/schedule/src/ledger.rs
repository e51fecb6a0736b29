//! The live tokens of a worker, each with its value.

use rustc_hash::FxHashMap;

use crate::effects::Token;

/// A map of live tokens. The type `T` decides what a token carries: a version of the weights, a
/// time, or a tensor.
#[derive(Clone, Debug)]
pub struct Ledger<T> {
    live: FxHashMap<Token, T>,
}

impl<T> Default for Ledger<T> {
    fn default() -> Ledger<T> {
        Ledger { live: FxHashMap::default() }
    }
}

impl<T> Ledger<T> {
    /// Adds a token. Returns the value as an error if the token is already live.
    pub fn make(&mut self, token: Token, value: T) -> Result<(), T> {
        match self.live.insert(token, value) {
            None => Ok(()),
            Some(earlier) => self.live.insert(token, earlier).map_or(Ok(()), Err),
        }
    }

    /// Removes a token.
    pub fn eat(&mut self, token: &Token) -> Option<T> {
        self.live.remove(token)
    }

    /// Returns true if the token is live.
    pub fn is_live(&self, token: &Token) -> bool {
        self.live.contains_key(token)
    }

    /// The live tokens in order.
    pub fn tokens(&self) -> Vec<Token> {
        let mut tokens: Vec<Token> = self.live.keys().copied().collect();
        tokens.sort_unstable();
        tokens
    }
}
