//! A few values in order.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// A list that is mostly short: up to four values are stored inline.
#[derive(Clone, PartialEq, Eq)]
pub struct Few<T>(SmallVec<[T; 4]>);

impl<T> Few<T> {
    /// An empty list.
    pub fn new() -> Few<T> {
        Few(SmallVec::new())
    }

    /// A list of `n` copies of one value.
    pub fn repeat(value: T, n: usize) -> Few<T>
    where
        T: Clone,
    {
        Few(SmallVec::from_elem(value, n))
    }

    /// Appends a value.
    #[inline]
    pub fn push(&mut self, value: T) {
        self.0.push(value);
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few::new()
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Few<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        self.0.extend(values);
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Few<T> {
        Few(SmallVec::from_iter(values))
    }
}

impl<T: fmt::Debug> fmt::Debug for Few<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    #[inline]
    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self.0.into_iter())
    }
}

impl<'f, T> IntoIterator for &'f Few<T> {
    type Item = &'f T;
    type IntoIter = std::slice::Iter<'f, T>;

    #[inline]
    fn into_iter(self) -> std::slice::Iter<'f, T> {
        self.iter()
    }
}

/// The values of a [`Few`], one after the other.
pub struct IntoIter<T>(smallvec::IntoIter<[T; 4]>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.0.next()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}
