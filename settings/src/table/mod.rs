//! The table of all options.

mod choices;
pub(super) mod headings;
pub(super) mod in_vain;
pub(super) mod option;
pub(super) mod options;
pub(super) mod readers;
