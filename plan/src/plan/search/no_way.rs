//! Reasons why no configuration has the requested ranks and batch.

use chimera_settings::ScheduleSettings;
use chimera_settings::{Config, Origin};

use super::ways::{MOST_CELLS, is_free};

/// Explains why `n_ranks` cannot train a model of `n_layers` layers in steps of `batch` samples, in
/// a sentence that names what to change. `size` is the size of micro-batches, if it is fixed.
pub(crate) fn why_none(
    said: &Config,
    n_ranks: usize,
    batch: usize,
    n_layers: usize,
    size: Option<usize>,
) -> String {
    let timetable = ["depth", "micro-batches"].iter().find_map(|key| match said.value(key) {
        Some((_, Origin::Timetable(file))) => Some(file.display().to_string()),
        _ => None,
    });
    let of_file = timetable.map_or_else(String::new, |file| {
        let ScheduleSettings { depth, micro_batches, .. } = said.schedule;
        format!("the timetable in {file} has D = {depth} and N = {micro_batches}, and ")
    });
    of_file + &reason(said, n_ranks, batch, n_layers, size)
}

fn reason(
    said: &Config,
    n_ranks: usize,
    batch: usize,
    n_layers: usize,
    size: Option<usize>,
) -> String {
    let fixed = |key: &str, value: usize| (!is_free(said, key)).then_some(value);
    let (depth, width) = (fixed("depth", said.schedule.depth), fixed("width", said.schedule.width));
    let n = fixed("micro-batches", said.schedule.micro_batches);
    let size = size.or(fixed("micro-batch-size", said.schedule.micro_batch_size));
    if let Some(depth) = depth.filter(|depth| *depth > n_layers) {
        return format!("depth {depth} needs as many layers: choose a smaller depth");
    }
    for (what, has) in [("depth", depth), ("width", width)] {
        if let Some(has) = has.filter(|has| !n_ranks.is_multiple_of(*has)) {
            return format!("--ranks must be a multiple of the {what}, {has}");
        }
    }
    if let (Some(depth), Some(width)) = (depth, width)
        && depth * width != n_ranks
    {
        return format!("--ranks must be W x D = {width} x {depth} = {}", width * depth);
    }
    let wide = width.or(depth.map(|depth| n_ranks / depth));
    if let Some(depth) = wide.map(|width| n_ranks / width.max(1)).filter(|depth| *depth > n_layers)
    {
        return format!(
            "width {} leaves depth {depth}, which needs as many layers: choose a larger width",
            said.schedule.width
        );
    }
    let parts = [("W", wide), ("N", n), ("B", size)];
    let known = parts.iter().filter_map(|(name, part)| Some((*name, (*part)?)));
    let (names, sizes): (Vec<_>, Vec<_>) = known.unzip();
    let product = sizes.iter().fold(1, |product: usize, part| product.saturating_mul(*part));
    let numbers: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let product_is = match numbers.len() {
        1 => format!("{} = {product}", names.join(" x ")),
        _ => format!("{} = {} = {product}", names.join(" x "), numbers.join(" x ")),
    };
    let is_whole = names.len() == parts.len();
    if is_whole && batch != product {
        return format!("--batch must be {product_is}");
    }
    if !batch.is_multiple_of(product) {
        return format!("--batch must be a multiple of {product_is}");
    }
    let samples = size.map_or("B".to_string(), |size| size.to_string());
    format!(
        "W x D must be the ranks, W x N x {samples} the batch, D at most the layers, and N x D at \
        most {MOST_CELLS}, with the given values"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use anyhow::{Error, Result};
    use chimera_core::timetable::Timetable;
    use chimera_settings::{Layers, Outside};

    use super::*;

    /// The timetable that a test has written.
    struct File;

    impl Outside for File {
        fn timetable(&self, path: &Path) -> Result<Timetable> {
            chimera_formats::timetable::read(path).map_err(Error::from)
        }
    }

    fn why(options: &str, n_ranks: usize, batch: usize, size: Option<usize>) -> String {
        let said = Layers::parse(options).unwrap().resolve(&File).unwrap();
        why_none(&said, n_ranks, batch, 4, size)
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_it_must_be() {
        for (options, n_ranks, batch, size, said) in [
            ("--depth 5", 5, 5, None, "depth 5 needs as many layers: choose a smaller depth"),
            ("--depth 3", 8, 8, None, "--ranks must be a multiple of the depth, 3"),
            ("--width 3", 8, 8, None, "--ranks must be a multiple of the width, 3"),
            ("--depth 2 --width 2", 8, 8, None, "--ranks must be W x D = 2 x 2 = 4"),
            (
                "--width 1",
                8,
                8,
                None,
                "width 1 leaves depth 8, which needs as many layers: choose a larger width",
            ),
            ("--depth 4", 8, 7, None, "--batch must be a multiple of W = 2"),
            (
                "--depth 4 --micro-batches 4",
                8,
                10,
                None,
                "--batch must be a multiple of W x N = 2 x 4 = 8",
            ),
            (
                "--depth 4 --micro-batches 4",
                8,
                16,
                Some(1),
                "--batch must be W x N x B = 2 x 4 x 1 = 8",
            ),
            ("", 8, 4, Some(8), "--batch must be a multiple of B = 8"),
        ] {
            assert_eq!(why(options, n_ranks, batch, size), said, "{options}");
        }
        assert!(why("", 8, 8, None).starts_with("W x D must be the ranks, W x N x B the batch, "));
    }

    #[test]
    fn what_a_file_says_is_said_to_be_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.json");
        let shape = chimera_core::schedule::Shape::new(4, 4);
        let timetable = chimera_core::schedule::find("1f1b").unwrap().timetable(&shape).unwrap();
        std::fs::write(&file, chimera_core::interchange::to_json(&timetable)).unwrap();
        let place = file.display();
        assert_eq!(
            why(&format!("--schedule {place}"), 4, 8, Some(1)),
            format!(
                "the timetable in {place} has D = 4 and N = 4, and --batch must be W x N x B = 1 x 4 x 1 = 4"
            )
        );
    }
}
