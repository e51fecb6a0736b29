//! The weights that an op reads, in a program's JSON.

use crate::effects::{Version, Weights};

/// Writes the weights that an op reads, if the program changes them meanwhile.
pub(super) fn written_reads(weights: &[Weights]) -> String {
    let each = weights.iter().map(|Weights { stage, version }| match version {
        Version::Newest => format!(r#"{{"stage":{},"version":"newest"}}"#, stage.0),
        Version::Made(made) => format!(r#"{{"stage":{},"version":{made}}}"#, stage.0),
        Version::Predicted(made) => {
            format!(r#"{{"stage":{},"version":{made},"predicted":true}}"#, stage.0)
        }
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() { String::new() } else { format!(r#","reads":[{}]"#, each.join(",")) }
}
