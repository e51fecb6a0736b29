//! Sources as tokens: the paths that a file names, its modules, and its functions. Names in macros
//! count; those in comments, documentation and test code do not.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use xtask::command::rust_files;

/// A source file: its path below the crate's sources, and its text.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// A path in a file that begins at the crate's root or at a parent.
pub(super) struct Use {
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// The module that names it.
    pub(super) from: Vec<String>,
    /// The path, from the crate's root on.
    pub(super) path: Vec<String>,
}

/// All Rust files below a folder, except those of test modules.
pub(super) fn read(folder: &Path) -> Result<Vec<Source>> {
    let source = |file: PathBuf| {
        let text = fs::read_to_string(&file)?;
        Ok(Source { path: file.strip_prefix(folder)?.to_path_buf(), text })
    };
    let sources = rust_files(folder)?.into_iter().map(source).collect::<Result<_>>()?;
    without_tests(sources)
}

/// Leaves out the files of test modules, and the files below them.
pub(super) fn without_tests(mut sources: Vec<Source>) -> Result<Vec<Source>> {
    let mut for_tests = Vec::new();
    for source in &sources {
        let parent = module(&source.path);
        let names = declared(source)?.for_tests.into_iter();
        for_tests.extend(names.map(|name| [&parent[..], &[name]].concat()));
    }
    let is_for_tests = |path: Vec<String>| for_tests.iter().any(|tests| path.starts_with(tests));
    sources.retain(|source| !is_for_tests(module(&source.path)));
    Ok(sources)
}

/// All paths of all files, in order of files and lines.
pub(super) fn all_uses(sources: &[Source]) -> Result<Vec<Use>> {
    let mut all = Vec::new();
    for source in sources {
        let (from, mut paths) = (module(&source.path), Vec::new());
        uses(tokens(source)?, &from, &mut paths);
        let file = &source.path;
        all.extend(paths.into_iter().map(|(line, path)| Use {
            file: file.clone(),
            line,
            from: from.clone(),
            path,
        }));
    }
    Ok(all)
}

/// Names of the modules that a file declares.
#[derive(Default)]
pub(super) struct Declared {
    /// Part of every build.
    pub(super) built: BTreeSet<String>,
    /// Built for tests only.
    pub(super) for_tests: BTreeSet<String>,
}

/// Collects the modules that a file declares.
pub(super) fn declared(source: &Source) -> Result<Declared> {
    let tokens: Vec<_> = tokens(source)?.into_iter().collect();
    let mut found = Declared::default();
    let mut at = 0;
    while at < tokens.len() {
        let rest = &tokens[at..];
        if is_for_tests(rest) {
            let item = &rest[..item(rest)];
            let names = item.windows(2).filter(|pair| is(pair.first(), "mod"));
            found.for_tests.extend(names.map(|pair| pair[1].to_string()));
            at += item.len();
        } else {
            if is(rest.first(), "mod") {
                found.built.extend(rest.get(1).map(ToString::to_string));
            }
            at += 1;
        }
    }
    Ok(found)
}

/// The path of the module that a file is.
pub(super) fn module(file: &Path) -> Vec<String> {
    let names = file.with_extension("");
    let names = names.iter().map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !["mod", "lib", "main"].contains(&name.as_str())).collect()
}

pub(super) fn tokens(source: &Source) -> Result<TokenStream> {
    let tokens = source.text.parse();
    tokens.map_err(|error| anyhow!("{}: not Rust: {error}", source.path.display()))
}

/// Collects line and path of everything that `tokens` in `module` name from the crate's root on, or
/// from a parent.
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
            if is_path(&tokens[1..]) {
                tree(&tokens[1..], &path, found)
            } else {
                found.push((name.span().start().line, path))
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

/// Returns true if tokens begin with `::`.
fn is_path(tokens: &[TokenTree]) -> bool {
    is(tokens.first(), ":") && is(tokens.get(1), ":")
}

pub(super) fn is(token: Option<&TokenTree>, text: &str) -> bool {
    token.is_some_and(|token| token.to_string() == text)
}

/// Returns true if tokens begin with an attribute that builds the next item only for tests.
pub(super) fn is_for_tests(tokens: &[TokenTree]) -> bool {
    let [sign, TokenTree::Group(attribute), ..] = tokens else { return false };
    let words = attribute.stream().to_string().replace(' ', "");
    is(Some(sign), "#") && (words == "cfg(test)" || words.starts_with("cfg(all(test,"))
}

/// The length of the item at the start of `tokens`, including its attributes.
pub(super) fn item(tokens: &[TokenTree]) -> usize {
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

    /// Lines and top-level modules of the names in a file, without its own module.
    fn targets(path: &str, text: &str) -> Vec<(usize, String)> {
        let uses = all_uses(&[Source { path: path.into(), text: text.into() }]).unwrap();
        let others = uses.into_iter().filter(|other| other.path[0] != other.from[0]);
        others.map(|mut other| (other.line, other.path.swap_remove(0))).collect()
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
    fn files_of_modules_for_tests_do_not_count() {
        let source = |(path, text): (&str, &str)| Source { path: path.into(), text: text.into() };
        let files = [
            ("lib.rs", "mod a;\n#[cfg(test)]\nmod whole;\n#[cfg(test)]\nfn f() {}\nmod b;"),
            ("a.rs", "#[cfg(test)]\nmod tests;"),
            ("a/tests.rs", ""),
            ("b.rs", ""),
            ("whole/mod.rs", ""),
            ("whole/part.rs", ""),
        ];
        let left = without_tests(files.map(source).into()).unwrap();
        let left: Vec<_> = left.iter().map(|source| source.path.display().to_string()).collect();
        assert_eq!(left, ["lib.rs", "a.rs", "b.rs"]);
    }
}
