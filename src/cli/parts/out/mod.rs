//! The option `--out` of drawings and reports: a file whose ending is the format.

#[cfg_attr(not(feature = "paper"), path = "no_paper.rs")]
mod paper;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};

use crate::cli::parts::terminal::console::print;
use crate::cli::parts::terminal::output::{deliver, is_standard_output};
use crate::formats::files::write_named;

/// Formats of files by their endings.
const ENDINGS: [(&str, FileFormat); 7] = [
    ("txt", FileFormat::Text),
    ("svg", FileFormat::Svg),
    ("html", FileFormat::Html),
    ("json", FileFormat::Json),
    ("csv", FileFormat::Csv),
    ("png", FileFormat::Png),
    ("pdf", FileFormat::Pdf),
];

/// The format of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileFormat {
    Text,
    Svg,
    Html,
    Json,
    Csv,
    Png,
    Pdf,
}

/// A file for the output of a command.
#[derive(Args, Clone, Default)]
pub(crate) struct OutArg {
    /// File for the output. Its ending is the format: .txt, .svg, .html, .json, .csv, .png or .pdf
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
}

impl OutArg {
    /// Returns the format of the file; `None` without a file, or for standard output.
    pub(crate) fn format(&self) -> Result<Option<FileFormat>> {
        self.out.as_deref().filter(|out| !is_standard_output(out)).map(format_of).transpose()
    }

    /// Writes a text to the file, or to standard output, with a line break at the end.
    pub(crate) fn deliver(&self, text: &str) -> Result<()> {
        deliver(self.out.as_deref(), &format!("{}\n", text.trim_end()))
    }

    /// Writes a drawing to the file in a format of drawings.
    pub(crate) fn draw(&self, format: FileFormat, svg: &str) -> Result<()> {
        draw(self.out.as_deref(), format, svg)
    }
}

/// Returns the format of a file by its ending.
pub(crate) fn format_of(out: &Path) -> Result<FileFormat> {
    let ending = out.extension().unwrap_or_default();
    let found = ENDINGS.iter().find(|(known, _)| ending.eq_ignore_ascii_case(known));
    let Some((_, format)) = found else {
        let known = ENDINGS.map(|(known, _)| format!(".{known}")).join(", ");
        bail!("--out {}: the ending is the format: choose one of {known}", out.display())
    };
    Ok(*format)
}

/// Writes a drawing in a format of drawings.
pub(crate) fn draw(out: Option<&Path>, format: FileFormat, svg: &str) -> Result<()> {
    let bytes = match format {
        FileFormat::Png => paper::png(svg)?,
        FileFormat::Pdf => paper::pdf(svg)?,
        _ => return deliver(out, svg),
    };
    let out = out.context("a picture needs a file")?;
    write_named(out, &bytes).with_context(|| format!("cannot write {}", out.display()))?;
    print(format!("wrote {}", out.display()))
}

/// Returns a page that shows a drawing.
pub(crate) fn page_of(title: &str, svg: &str) -> String {
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>svg {{ width: 100%; height: auto; }}</style>\n</head>\n<body>\n{svg}</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_is_the_format() {
        assert_eq!(format_of(Path::new("a/b.SVG")).unwrap(), FileFormat::Svg);
        assert_eq!(format_of(Path::new("b.x.pdf")).unwrap(), FileFormat::Pdf);
        for path in ["drawing", "a.svgz", ".svg"] {
            let refusal = format_of(Path::new(path)).unwrap_err().to_string();
            assert!(refusal.ends_with("choose one of .txt, .svg, .html, .json, .csv, .png, .pdf"));
        }
        let to_terminal = OutArg { out: Some("-".into()) };
        assert_eq!(to_terminal.format().unwrap(), None);
    }

    #[cfg(not(feature = "paper"))]
    #[test]
    fn pictures_of_a_build_without_paper_say_so() {
        let refusal = draw(Some(Path::new("a.png")), FileFormat::Png, "<svg/>").unwrap_err();
        assert!(refusal.to_string().contains("--features paper"), "{refusal}");
    }
}
