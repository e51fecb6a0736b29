//! Lines of Rust: of files without their tests, and of functions.

use std::path::Path;

use anyhow::Result;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::lint::sources::{Source, is, is_for_tests, item, tokens, without_tests};

/// Folders whose files are not part of the product.
const BESIDE: [&str; 7] = ["tests", "testkit", "benches", "examples", "fuzz", "xtask", "research"];

/// Lines of the product's files.
#[derive(Default)]
pub(super) struct Code {
    /// All lines except those of tests.
    pub(super) n_lines: usize,
    /// Files with all of their lines.
    pub(super) files: Vec<(String, usize)>,
    /// Functions with their lines, from `fn` to the closing brace.
    pub(super) functions: Vec<(String, usize)>,
}

/// Returns true if a file is part of the product.
pub(super) fn is_product(path: &Path) -> bool {
    !path.iter().any(|part| BESIDE.iter().any(|beside| part == *beside))
}

impl Code {
    /// Counts files whose paths begin at the root of the repository. Files of test modules are left out.
    pub(super) fn count(sources: Vec<Source>) -> Result<Code> {
        let mut code = Code::default();
        for source in without_tests(sources)? {
            let name = source.path.display().to_string();
            let n_lines = source.text.lines().count();
            let n_test_lines = code.scan(&name, tokens(&source)?);
            code.n_lines += n_lines - n_test_lines;
            code.files.push((name, n_lines));
        }
        Ok(code)
    }

    /// Collects functions, and returns the number of lines of test modules.
    fn scan(&mut self, file: &str, tokens: TokenStream) -> usize {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let (mut at, mut n_test_lines) = (0, 0);
        while at < tokens.len() {
            let rest = &tokens[at..];
            if is_for_tests(rest) {
                let item = &rest[..item(rest)];
                if item.iter().any(|token| is(Some(token), "mod")) {
                    n_test_lines += lines(item);
                }
                at += item.len();
                continue;
            }
            if let [TokenTree::Ident(word), TokenTree::Ident(name), ..] = rest
                && word == "fn"
                && let Some(end) = rest.iter().position(is_end)
                && !is(Some(&rest[end]), ";")
            {
                let place = format!("{file}:{} {name}", word.span().start().line);
                self.functions.push((place, lines(&rest[..=end])));
            }
            if let TokenTree::Group(group) = &tokens[at] {
                n_test_lines += self.scan(file, group.stream());
            }
            at += 1;
        }
        n_test_lines
    }
}

/// Returns true for the body of a function, or the semicolon of one without a body.
fn is_end(token: &TokenTree) -> bool {
    match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => is(Some(token), ";"),
    }
}

/// The number of lines from the first to the last of some tokens.
fn lines(tokens: &[TokenTree]) -> usize {
    let [first, .., last] = tokens else { return tokens.len() };
    last.span().end().line + 1 - first.span().start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_do_not_count_and_functions_do() {
        let text = "fn one() {\n    two()\n}\n\ntrait T {\n    fn none(&self);\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        let sources =
            [("a.rs", text), ("b.rs", "#[cfg(test)]\nmod tests;\n"), ("b/tests.rs", "\n")];
        let source = |(path, text): (&str, &str)| Source { path: path.into(), text: text.into() };
        let code = Code::count(sources.map(source).into()).unwrap();
        assert_eq!(code.n_lines, 8);
        assert_eq!(code.files, [("a.rs".into(), 12), ("b.rs".into(), 2)]);
        assert_eq!(code.functions, [("a.rs:1 one".into(), 3)]);
    }

    #[test]
    fn files_beside_the_product_are_known_by_their_folders() {
        assert!(is_product(Path::new("src/cli/testing.rs")));
        assert!(!is_product(Path::new("chimera-core/testkit/src/lib.rs")));
        assert!(!is_product(Path::new("backend-cuda/tests/cuda.rs")));
    }
}
