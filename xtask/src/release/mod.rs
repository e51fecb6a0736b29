//! Publishing.

pub(crate) mod book;
pub(crate) mod publish;
