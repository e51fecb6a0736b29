//! Comparison of settings between ranks.

use chimera_schedule::ids::{Rank, listed};

/// Settings of a training as names and values, which must be equal on all ranks.
pub type Fields = Vec<(String, String)>;

/// Returns a line such as `name: rank 0 = 8, ranks 1-3 = 16` for each field that differs.
pub(super) fn differences(all: &[Fields]) -> Vec<String> {
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let line = |name: &String| {
        let mut values: Vec<(&str, Vec<Rank>)> = Vec::new();
        for (rank, fields) in (0..).map(Rank).zip(all) {
            let field = fields.iter().find(|(known, _)| known == name);
            let value = field.map_or("not set", |(_, value)| value);
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, ranks)) => ranks.push(rank),
                None => values.push((value, vec![rank])),
            }
        }
        let each = values.iter().map(|(value, ranks)| format!("{} = {value}", listed(ranks)));
        (values.len() > 1).then(|| format!("{name}: {}", each.collect::<Vec<_>>().join(", ")))
    };
    names.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_listed() {
        let fields = |pairs: &[(&str, &str)]| -> Fields {
            pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
        };
        let eight = fields(&[("version", "1"), ("micro-batches", "8")]);
        let sixteen = fields(&[("version", "1"), ("micro-batches", "16"), ("clip", "1.0")]);
        let all = [&eight, &eight, &eight, &sixteen, &sixteen, &eight].map(Clone::clone);
        let want = [
            "micro-batches: ranks 0-2, 5 = 8, ranks 3-4 = 16",
            "clip: ranks 0-2, 5 = not set, ranks 3-4 = 1.0",
        ];
        assert_eq!(differences(&all), want);
        assert_eq!(
            differences(&[eight.clone(), sixteen][..])[0],
            "micro-batches: rank 0 = 8, rank 1 = 16"
        );
        assert!(differences(&[eight.clone(), eight]).is_empty());
    }
}
