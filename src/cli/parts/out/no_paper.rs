//! PNG and PDF in a build without the feature `paper`.

use anyhow::{Result, bail};

const NOT_HERE: &str = "this build writes no PNG and no PDF: build chimera with `--features paper`, \
                        or write .svg and convert it, e.g. with rsvg-convert";

/// Refuses to convert a drawing.
pub(crate) fn png(_svg: &str) -> Result<Vec<u8>> {
    bail!(NOT_HERE)
}

/// Refuses to convert a drawing.
pub(crate) fn pdf(_svg: &str) -> Result<Vec<u8>> {
    bail!(NOT_HERE)
}
