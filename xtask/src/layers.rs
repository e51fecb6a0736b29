//! The modules of a crate form a stack: each uses only modules below it. The order is stated here and checked.
//!
//! Sources are read as tokens, so paths in macros count, and those in comments and documentation do not. Code of
//! tests may use what it likes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::command::root;

/// A crate's folder of sources, and its top-level modules from the lowest to the highest.
struct Stack {
    sources: &'static str,
    modules: &'static [&'static str],
}

const STACKS: [Stack; 2] = [
    Stack {
        sources: "chimera-core/src",
        modules: &[
            // What a schedule says.
            "ids",
            "op",
            "placement",
            "update",
            "timetable",
            "notation",
            // What it means.
            "effects",
            "ledger",
            "residuals",
            "costs",
            "program",
            "interp",
            // What carries it out.
            "fault",
            "collective",
            "shards",
            "device",
            "layers",
            "comm",
            // How it is made, proven and shown.
            "order",
            "schedule",
            "analyze",
            "lower",
            "search",
            "request",
            "interchange",
            "render",
            // How it trains.
            "stage",
            "model",
            "engine",
            "equivalence",
        ],
    },
    Stack {
        sources: "src",
        modules: &["device", "settings", "formats", "data", "plan", "observe", "run", "cli"],
    },
];

/// Refuses any use of a module by one below it.
pub(crate) fn run() -> Result<()> {
    let mut refusals = Vec::new();
    for stack in STACKS {
        let sources = read(&root().join(stack.sources))?;
        let arrows = arrows(&sources)?;
        refusals.extend(unplaced(&stack, &sources)?);
        refusals.extend(arrows.iter().filter_map(|arrow| refusal(&stack, arrow)));
        let n_modules = stack.modules.len();
        eprintln!("{}: {} arrows between {n_modules} modules", stack.sources, arrows.len());
    }
    match refusals.len() {
        0 => Ok(()),
        n => bail!("{}\n{n} in all; the order is in xtask/src/layers.rs", refusals.join("\n")),
    }
}

/// A source file: its path below the crate's sources, and its text.
struct Source {
    path: PathBuf,
    text: String,
}

/// A use of one top-level module by another.
#[derive(Debug, PartialEq)]
struct Arrow {
    file: PathBuf,
    line: usize,
    from: String,
    to: String,
}

/// All Rust files below a folder but those of tests.
fn read(folder: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in
            fs::read_dir(&next).with_context(|| format!("cannot list {}", next.display()))?
        {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs")
                && !path.ends_with("tests.rs")
            {
                let text = fs::read_to_string(&path)?;
                sources.push(Source { path: path.strip_prefix(folder)?.to_path_buf(), text });
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

/// What is wrong with an arrow, unless it points down.
fn refusal(stack: &Stack, arrow: &Arrow) -> Option<String> {
    let height = |module: &str| stack.modules.iter().position(|name| *name == module);
    let Arrow { file, line, from, to } = arrow;
    let place = format!("{}/{}:{line}", stack.sources, file.display());
    match (height(from)?, height(to)) {
        (from, Some(to)) if to <= from => None,
        (_, Some(_)) => Some(format!(
            "{place}: `{from}` uses `{to}`, which stands above it: move what is used into `{from}` or below, or what \
             uses it into `{to}` or above"
        )),
        (_, None) => Some(format!(
            "{place}: `{from}` uses `{to}` of the crate's root, which is no module of the stack: name its module or crate"
        )),
    }
}

/// Modules that the crate has and the list has not, and the other way round.
fn unplaced(stack: &Stack, sources: &[Source]) -> Result<Vec<String>> {
    let library = sources.iter().find(|source| source.path == Path::new("lib.rs"));
    let library = library.with_context(|| format!("{} has no lib.rs", stack.sources))?;
    let declared = declared(tokens(library)?);
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

/// Names of the modules that a file declares, but those for tests.
fn declared(tokens: TokenStream) -> BTreeSet<String> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut modules = BTreeSet::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_for_tests(&tokens[at..]) {
            at += item(&tokens[at..]);
        } else {
            if is(tokens.get(at), "mod") {
                modules.extend(tokens.get(at + 1).map(ToString::to_string));
            }
            at += 1;
        }
    }
    modules
}

/// Arrows between top-level modules in the order of files and lines. The root itself stands above all.
fn arrows(sources: &[Source]) -> Result<Vec<Arrow>> {
    let mut arrows = Vec::new();
    for source in sources {
        let module = module(&source.path);
        let Some(from) = module.first().cloned() else { continue };
        let mut paths = Vec::new();
        uses(tokens(source)?, &module, &mut paths);
        let others = paths.into_iter().filter_map(|(line, path)| {
            let to = path.into_iter().next()?;
            (to != from).then(|| Arrow { file: source.path.clone(), line, from: from.clone(), to })
        });
        arrows.extend(others);
    }
    Ok(arrows)
}

/// The path of the module that a file is.
fn module(file: &Path) -> Vec<String> {
    let names = file.with_extension("");
    let names = names.iter().map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

fn tokens(source: &Source) -> Result<TokenStream> {
    let tokens = source.text.parse();
    tokens.map_err(|error| anyhow!("{}: not Rust: {error}", source.path.display()))
}

/// Collects line and path of all that `tokens` in `module` name from the crate's root on, or from a parent.
fn uses(tokens: TokenStream, module: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if is_for_tests(rest) {
            at += item(rest);
            continue;
        }
        if let [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..] = rest
            && word == "mod"
        {
            uses(body.stream(), &[module, &[name.to_string()]].concat(), found);
            at += 3;
            continue;
        }
        match &tokens[at] {
            TokenTree::Ident(word) if word == "crate" => tree(&rest[1..], &[], found),
            TokenTree::Ident(word)
                if word == "super" && !(at > 0 && is(tokens.get(at - 1), ":")) =>
            {
                tree(rest, module, found);
            }
            TokenTree::Group(group) => uses(group.stream(), module, found),
            _ => {}
        }
        at += 1;
    }
}

/// Collects the paths of a tree that follows `base`: `::a::{b, c::d}`, or `super::a`.
fn tree(tokens: &[TokenTree], base: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    let tokens = if is_path(tokens) { &tokens[2..] } else { tokens };
    match tokens.first() {
        Some(TokenTree::Ident(word)) if word == "super" => {
            let parent = &base[..base.len().saturating_sub(1)];
            tree(&tokens[1..], parent, found);
        }
        Some(TokenTree::Ident(name)) => {
            let path = [base, &[name.to_string()]].concat();
            match is_path(&tokens[1..]) {
                true => tree(&tokens[1..], &path, found),
                false => found.push((name.span().start().line, path)),
            }
        }
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            inner.split(|token| is(Some(token), ",")).for_each(|branch| tree(branch, base, found));
        }
        Some(token) if !base.is_empty() => found.push((token.span().start().line, base.to_vec())),
        _ => {}
    }
}

/// Whether tokens begin with `::`.
fn is_path(tokens: &[TokenTree]) -> bool {
    is(tokens.first(), ":") && is(tokens.get(1), ":")
}

fn is(token: Option<&TokenTree>, text: &str) -> bool {
    token.is_some_and(|token| token.to_string() == text)
}

/// Whether tokens begin with an attribute by which what follows is built for tests alone.
fn is_for_tests(tokens: &[TokenTree]) -> bool {
    let [sign, TokenTree::Group(attribute), ..] = tokens else { return false };
    let words = attribute.stream().to_string().replace(' ', "");
    is(Some(sign), "#") && (words == "cfg(test)" || words.starts_with("cfg(all(test,"))
}

/// The length of the item at the head of `tokens`, its attributes included.
fn item(tokens: &[TokenTree]) -> usize {
    let is_statement = tokens.iter().find_map(|token| match token.to_string().as_str() {
        "use" | "const" | "static" | "type" => Some(true),
        "mod" | "fn" | "impl" | "struct" | "enum" | "trait" => Some(false),
        _ => None,
    });
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => {
            is_statement != Some(true) && group.delimiter() == Delimiter::Brace
        }
        _ => is(Some(token), ";"),
    };
    tokens.iter().position(ends).map_or(tokens.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: Stack = Stack { sources: "src", modules: &["low", "middle", "high"] };

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into() }
    }

    /// Lines and targets of the arrows of a file.
    fn targets(path: &str, text: &str) -> Vec<(usize, String)> {
        let arrows = arrows(&[source(path, text)]).unwrap();
        arrows.into_iter().map(|arrow| (arrow.line, arrow.to)).collect()
    }

    #[test]
    fn an_arrow_upward_is_refused_and_one_downward_is_not() {
        let refused = |path, text| {
            let arrows = arrows(&[source(path, text)]).unwrap();
            arrows.iter().find_map(|arrow| refusal(&STACK, arrow))
        };
        assert_eq!(refused("high/mod.rs", "use crate::low::Thing;"), None);
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
    fn groups_parents_macros_and_inline_modules_are_followed() {
        let text =
            "use crate::{\n    low::{self, a},\n    middle as m,\n};\nfn f() { g!(crate::low::b) }";
        let wanted = [(2, "low"), (2, "low"), (3, "middle"), (5, "low")];
        assert_eq!(targets("high.rs", text), wanted.map(|(line, to)| (line, to.to_string())));
        assert_eq!(targets("high/part.rs", "use super::super::low::a;"), [(1, "low".into())]);
        assert_eq!(
            targets("high.rs", "mod part { use super::super::low::*; }"),
            [(1, "low".into())]
        );
        let inside = "use super::part; pub(super) use self::a; pub(crate) fn f() {}";
        assert_eq!(targets("high/mod.rs", inside), [(1, "part".into())]);
    }

    #[test]
    fn comments_and_code_of_tests_do_not_count() {
        let text = "//! [`a`](crate::high::a)\n#[cfg(test)]\nuse crate::high::{a};\n\
                    #[cfg(test)]\n#[allow(unused)]\nmod tests { use crate::high::b; }\nuse crate::low::c;";
        assert_eq!(targets("middle.rs", text), [(7, "low".into())]);
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
