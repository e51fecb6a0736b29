//! Circles of modules in one folder. Paths determine the modules: items that a folder itself
//! exports count as the folder's.

use std::collections::{BTreeMap, BTreeSet};

use crate::lint::sources::{Source, Use, module};

/// A module, by its path.
type Module<'m> = &'m [String];

/// Returns the number of uses between modules of one folder, and a refusal of each that is part of a circle.
pub(super) fn check(folder: &str, sources: &[Source], uses: &[Use]) -> (usize, Vec<String>) {
    let modules: BTreeSet<Vec<String>> = sources.iter().map(|s| module(&s.path)).collect();
    let inner: Vec<_> =
        uses.iter().filter_map(|arrow| Some((siblings(&modules, arrow)?, arrow))).collect();
    let mut below: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for ((from, to), _) in &inner {
        below.entry(from).or_default().insert(to);
    }
    let circular = inner.iter().filter(|((from, to), _)| reaches(&below, to, from));
    let refusals = circular.map(|((from, to), arrow)| {
        format!(
            "{folder}/{}:{}: `{}` uses `{}`, which comes back to it: move what both need into a module of its own",
            arrow.file.display(),
            arrow.line,
            from.join("::"),
            to.join("::")
        )
    });
    (inner.len(), refusals.collect())
}

/// The two modules of one folder that an arrow connects.
fn siblings<'m>(
    modules: &BTreeSet<Vec<String>>,
    arrow: &'m Use,
) -> Option<(Module<'m>, Module<'m>)> {
    let known = (1..=arrow.path.len()).rev().find(|n| modules.contains(&arrow.path[..*n]))?;
    let (from, to) = (&arrow.from[..], &arrow.path[..known]);
    let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let is_between = shared < from.len() && shared < to.len();
    is_between.then(|| (&from[..=shared], &to[..=shared]))
}

/// Returns true if arrows lead from one module to another.
fn reaches(below: &BTreeMap<Module, BTreeSet<Module>>, from: Module, to: Module) -> bool {
    let (mut open, mut seen) = (vec![from], BTreeSet::new());
    while let Some(next) = open.pop() {
        if next == to {
            return true;
        }
        if seen.insert(next) {
            open.extend(below.get(next).into_iter().flatten());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lint::sources::all_uses;

    fn refusals(texts: &[(&str, &str)]) -> Vec<String> {
        let source = |&(path, text): &(&str, &str)| Source { path: path.into(), text: text.into() };
        let sources: Vec<Source> = texts.iter().map(source).collect();
        check("src", &sources, &all_uses(&sources).unwrap()).1
    }

    #[test]
    fn circles_are_refused_where_they_pass_through_others() {
        let folder = ("a/mod.rs", "mod x; mod y; mod z;");
        let down = [folder, ("a/x.rs", "use super::y::f;"), ("a/y.rs", "use crate::a::z::g;")];
        assert_eq!(refusals(&[&down[..], &[("a/z.rs", "use crate::b::f;")]].concat()), [""; 0]);
        let circle = refusals(&[&down[..], &[("a/z.rs", "use super::x;")]].concat());
        assert_eq!(circle.len(), 3);
        assert_eq!(
            circle[2],
            "src/a/z.rs:1: `a::z` uses `a::x`, which comes back to it: move what both need into a module of its own"
        );
    }

    #[test]
    fn circles_of_the_crates_own_modules_are_refused() {
        let circle = [("a/mod.rs", "use crate::b::f;"), ("b.rs", "use crate::a::x::g;")];
        assert_eq!(refusals(&circle).len(), 2);
        assert_eq!(refusals(&circle[..1]), [""; 0]);
    }

    #[test]
    fn a_module_may_use_its_folder() {
        assert_eq!(refusals(&[("a/mod.rs", "mod x;"), ("a/x.rs", "use super::Thing;")]), [""; 0]);
    }
}
