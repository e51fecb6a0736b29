//! The modules of most crates form a stack: each uses only modules below it. The order is stated here and
//! checked. In every other crate, and within every folder, there is no order to state, but no circle either.

mod circles;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

use xtask::command::root;

use super::sources::{Source, Use, all_uses, declared, read};

/// A crate's folder of sources, and its top-level modules from the lowest to the highest.
struct Stack {
    sources: &'static str,
    modules: &'static [&'static str],
    /// Modules of crates below it, which its root exports as its own.
    below: &'static [&'static str],
}

/// Of a schedule, the first eight modules are what it says, those up to `shards` what it means, and the others how it is made,
/// proven and shown.
const STACKS: [Stack; 7] = [
    Stack {
        sources: "chimera-core/schedule/src",
        modules: &[
            "ir", "effects", "ledger", "activation_memory", "costs", "partition", "program",
            "interp", "collective", "shards", "order", "schedule", "analyze", "lower", "search",
            "request", "interchange", "render",
        ],
        below: &[],
    },
    Stack {
        sources: "chimera-core/engine/src",
        modules: &["fault", "device", "layers", "comm", "stage", "engine", "trainer"],
        below: &[],
    },
    Stack { sources: "chimera-core/models/src", modules: &["model"], below: &[] },
    Stack {
        sources: "chimera-core/testkit/src",
        modules: &["simulated", "stand_in", "equivalence", "survival"],
        below: &[],
    },
    Stack { sources: "plan/src", modules: &["profile", "plan"], below: &[] },
    Stack { sources: "run/src", modules: &["data", "observe", "run"], below: &[] },
    Stack {
        sources: "src",
        modules: &["device", "transport", "run", "cli"],
        below: &["settings", "formats", "data", "profile", "plan", "observe"],
    },
];

/// Sources of the other crates, whose modules have no stated order.
const WITHOUT_ORDER: [&str; 17] = [
    "adapters/burn/src", "adapters/candle/src", "backend-cpu/src", "backend-cuda/src",
    "backend-wgpu/src", "comm-mpi/src", "comm-nccl/src", "comm-quic/src", "device/src",
    "formats/src", "page/wasm/src", "python/src", "research/src", "settings/src",
    "tests/peers/src", "tests/torture/src", "xtask/src",
];

/// Refuses modules that use one above them, and circles of modules.
pub(crate) fn run() -> Result<()> {
    let mut refusals = Vec::new();
    for stack in STACKS {
        let sources = read(&root().join(stack.sources))?;
        refusals.extend(unplaced(&stack, &sources)?);
        refusals.extend(all_uses(&sources)?.iter().filter_map(|arrow| refusal(&stack, arrow)));
    }
    for folder in STACKS.map(|stack| stack.sources).into_iter().chain(WITHOUT_ORDER) {
        let sources = read(&root().join(folder))?;
        let (n_arrows, circles) = circles::check(folder, &sources, &all_uses(&sources)?);
        refusals.extend(circles);
        eprintln!("{folder}: {n_arrows} arrows between modules");
    }
    match refusals.len() {
        0 => Ok(()),
        n => bail!(
            "{}\n{n} in all; the order is in xtask/src/lint/layers/mod.rs",
            refusals.join("\n")
        ),
    }
}

/// Returns true if a top-level module uses another. The root itself stands above all.
fn is_between_modules(arrow: &Use) -> bool {
    arrow.from.first().is_some_and(|from| arrow.path.first() != Some(from))
}

/// Returns a refusal of an arrow between modules that does not point down.
fn refusal(stack: &Stack, arrow: &Use) -> Option<String> {
    if !is_between_modules(arrow) {
        return None;
    }
    let height = |module: &str| stack.modules.iter().position(|name| *name == module);
    let (from, to) = (arrow.from.first()?, arrow.path.first()?);
    if stack.below.contains(&to.as_str()) {
        return None;
    }
    let place = format!("{}/{}:{}", stack.sources, arrow.file.display(), arrow.line);
    match (height(from)?, height(to)) {
        (low, Some(high)) if low < high => Some(format!(
            "{place}: `{from}` uses `{to}`, which stands above it: move what is used into `{from}` or below, or what \
             uses it into `{to}` or above"
        )),
        (_, None) => Some(format!(
            "{place}: `{from}` uses `{to}` of the crate's root, not of a module in the stack: name its module or crate"
        )),
        _ => None,
    }
}

/// Modules of the crate that are missing in the list, and the reverse.
fn unplaced(stack: &Stack, sources: &[Source]) -> Result<Vec<String>> {
    let library = sources.iter().find(|source| source.path == Path::new("lib.rs"));
    let library = library.with_context(|| format!("{} has no lib.rs", stack.sources))?;
    let declared = declared(library)?.built;
    let listed: BTreeSet<_> = stack.modules.iter().map(ToString::to_string).collect();
    let unlisted = declared.difference(&listed).map(|module| {
        format!(
            "{}/lib.rs: `{module}` has no place in the stack: list it above all that it uses",
            stack.sources
        )
    });
    let gone = listed.difference(&declared).map(|module| {
        format!("{}/lib.rs: there is no module `{module}`: remove it from the list", stack.sources)
    });
    Ok(unlisted.chain(gone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: Stack =
        Stack { sources: "src", modules: &["low", "middle", "high"], below: &["other"] };

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    #[test]
    fn an_arrow_upward_is_refused_and_one_downward_is_not() {
        let refused = |path, text| {
            let arrows = all_uses(&[source(path, text)]).unwrap();
            arrows.iter().find_map(|arrow| refusal(&STACK, arrow))
        };
        assert_eq!(refused("high/mod.rs", "use crate::low::Thing;"), None);
        assert_eq!(refused("low.rs", "use crate::other::Thing;"), None);
        assert!(
            refused("high.rs", "use crate::Thing;")
                .unwrap()
                .contains("`Thing` of the crate's root")
        );
        assert_eq!(
            refused("low/part.rs", "\nuse crate::middle::Thing;").unwrap(),
            "src/low/part.rs:2: `low` uses `middle`, which stands above it: move what is used into `low` or below, \
             or what uses it into `middle` or above"
        );
    }

    #[test]
    fn every_module_has_its_place() {
        let library = "mod low;\npub mod middle;\n#[cfg(feature = \"x\")]\nmod odd;\n#[cfg(test)]\nmod tests;";
        let refusals = unplaced(&STACK, &[source("lib.rs", library)]).unwrap();
        assert_eq!(
            refusals,
            [
                "src/lib.rs: `odd` has no place in the stack: list it above all that it uses",
                "src/lib.rs: there is no module `high`: remove it from the list",
            ]
        );
    }
}
