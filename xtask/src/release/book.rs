//! The book: the pages of `docs/` as HTML from mdBook, with a search and without broken links.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use xtask::command::{cargo, files, program, root, run as run_command, target};

/// The mdBook version that builds the book.
const MDBOOK: &str = "0.5.4";
/// A word of the pages that the search must find.
const SEARCHED: &str = "deadlock";

/// Builds the book into `target/book/html`, and checks its links and its search.
pub(crate) fn run() -> Result<()> {
    let stage = target()?.join("book");
    let pages = stage_pages(&stage)?;
    run_command(Command::new(mdbook()?).arg("build").arg(&stage))?;
    let html = stage.join("html");
    let n_links = check_links(&html)?;
    check_search(&html)?;
    eprintln!("{} pages, {n_links} links that lead somewhere", pages.len());
    eprintln!("{}", html.join("index.html").display());
    Ok(())
}

/// mdBook, installed below `target` first if it is missing.
fn mdbook() -> Result<PathBuf> {
    let folder = target()?.join("mdbook");
    let path = folder.join("bin").join(program("mdbook"));
    if !path.exists() {
        // Without its server and its watcher, which are not needed.
        let what = ["install", "--locked", "mdbook", "--version", MDBOOK, "--no-default-features"];
        let mut install = cargo(what);
        install.args(["--features", "search"]).arg("--root").arg(&folder);
        run_command(install.env("CARGO_TARGET_DIR", folder.join("build")))?;
    }
    Ok(path)
}

/// Copies the pages that the summary lists, and the files they link to, each to its path in the repository, so that
/// links between them stay as they are. Returns the paths of the pages.
fn stage_pages(stage: &Path) -> Result<BTreeSet<PathBuf>> {
    if stage.exists() {
        fs::remove_dir_all(stage).with_context(|| format!("emptying {}", stage.display()))?;
    }
    let docs = Path::new("docs");
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md"))?;
    let pages: BTreeSet<PathBuf> = links(&summary).map(|link| below(docs, link)).collect();
    let unlisted = files(&root().join(docs))?.into_iter().find(|path| {
        let path = path.strip_prefix(root()).unwrap_or(path);
        let is_page = path.extension().is_some_and(|end| end == "md");
        is_page && !path.ends_with("SUMMARY.md") && !pages.contains(path)
    });
    if let Some(page) = unlisted {
        bail!("docs/SUMMARY.md does not list {}", page.display());
    }
    let mut wanted = pages.clone();
    for page in &pages {
        let folder = page.parent().unwrap_or(Path::new(""));
        let text = fs::read_to_string(root().join(page))
            .with_context(|| format!("docs/SUMMARY.md lists {}", page.display()))?;
        let linked = links(&text).map(|link| below(folder, link));
        wanted.extend(linked.filter(|path| root().join(path).is_file()));
    }
    for path in &wanted {
        let to = stage.join("src").join(path);
        fs::create_dir_all(to.parent().unwrap_or(stage))?;
        fs::copy(root().join(path), to)?;
    }
    let summary = summary.replace("](../", "](<>").replace("](", "](docs/").replace("docs/<>", "");
    fs::write(stage.join("src/SUMMARY.md"), summary)?;
    for name in ["book.toml", "book.css"] {
        fs::copy(root().join(docs).join(name), stage.join(name))?;
    }
    Ok(pages)
}

/// Files that the links of a page name, without their sections. Links to other sites are left out.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).map(|rest| rest.split([')', '#']).next().unwrap_or(rest));
    links.filter(|link| {
        !link.is_empty() && !link.contains(':') && !link.contains(char::is_whitespace)
    })
}

/// The path of `link` on a page in `folder`.
fn below(folder: &Path, link: &str) -> PathBuf {
    folder.join(link).components().fold(PathBuf::new(), |mut path, part| {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
        path
    })
}

/// Checks that every link of the built pages leads to a file, and to one of its sections if it
/// names one.
fn check_links(html: &Path) -> Result<usize> {
    // Pages of mdBook's own, whose links have another base.
    let is_own = |path: &PathBuf| {
        ["404.html", "print.html", "toc.html"].iter().any(|name| path == &html.join(name))
    };
    let is_page = |path: &PathBuf| path.extension().is_some_and(|end| end == "html");
    let mut pages = BTreeMap::new();
    for path in files(html)?.into_iter().filter(|path| is_page(path) && !is_own(path)) {
        let text = fs::read_to_string(&path)?;
        pages.insert(path, text);
    }
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, text)| (path, attributes(text, "id").collect())).collect();
    let (mut n_links, mut broken) = (0, Vec::new());
    for (path, text) in &pages {
        let folder = path.parent().unwrap_or(html);
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if link.is_empty() || link.contains(':') || link.starts_with("//") {
                continue; // another site
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() { path.clone() } else { below(folder, file) };
            let has_section = || ids.get(&to).is_none_or(|ids| ids.contains(section));
            if !to.exists() || !(section.is_empty() || has_section()) {
                broken.push(format!("{}: {link}", path.display()));
            }
            n_links += 1;
        }
    }
    match broken.len() {
        0 => Ok(n_links),
        n => bail!("{}\n{n} broken links", broken.join("\n")),
    }
}

/// The values of an attribute in a page.
fn attributes<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    let start = format!(" {name}=\"");
    let values = text.match_indices(&start).map(|(at, start)| &text[at + start.len()..]);
    let values = values.filter_map(|rest| rest.split_once('"'));
    values.map(|(value, _)| value).collect::<Vec<_>>().into_iter()
}

/// Checks that the search has an index, and that it finds a word of the pages.
fn check_search(html: &Path) -> Result<()> {
    let is_index = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("searchindex"))
    };
    let index = files(html)?.into_iter().find(is_index).context("the book has no search")?;
    if !fs::read_to_string(index)?.contains(SEARCHED) {
        bail!("the search of the book does not know `{SEARCHED}`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_files_of_the_repository() {
        let text = "[a](b.md#c) [d](https://e) ![f](g/h.svg) `x[0](y z)` [i](#j)";
        let found: Vec<_> = links(text).map(|link| below(Path::new("docs"), link)).collect();
        assert_eq!(found, [Path::new("docs/b.md"), Path::new("docs/g/h.svg")]);
        assert_eq!(below(Path::new("docs"), "../README.md"), Path::new("README.md"));
    }

    #[test]
    fn a_link_to_a_missing_section_is_broken() {
        let html = tempfile::tempdir().unwrap();
        let page = |name: &str, text: &str| fs::write(html.path().join(name), text).unwrap();
        page("a.html", r##"<h2 id="there"></h2><a href="#there"></a><a href="b.html#here"></a>"##);
        page("b.html", r#"<p id="here"></p><a href="https://elsewhere"></a>"#);
        assert_eq!(check_links(html.path()).unwrap(), 2);
        page("b.html", "");
        assert!(check_links(html.path()).unwrap_err().to_string().contains("b.html#here"));
    }
}
