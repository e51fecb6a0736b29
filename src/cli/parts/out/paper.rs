//! Drawings as PNG and PDF, for papers and slides, in the font that is built in.

use anyhow::{Context, Result, anyhow};
use resvg::tiny_skia::{Pixmap, Transform};
use svg2pdf::usvg::{Options, Tree};

/// DejaVu Sans: Latin letters, digits and common signs. Its licence stands beside it.
const FONT: &[u8] = include_bytes!("paper/dejavu-sans.ttf");
const FAMILY: &str = "DejaVu Sans";
/// Pixels of a PNG for each unit of the drawing: 192 dots per inch.
const SCALE: f32 = 2.0;
/// The most pixels of a side.
const MOST_PIXELS: f32 = 16_384.0;

/// Converts a drawing to PNG.
pub(crate) fn png(svg: &str) -> Result<Vec<u8>> {
    let tree = tree(svg)?;
    let size = tree.size();
    let scale = SCALE.min(MOST_PIXELS / size.width().max(size.height()));
    let pixels = |length: f32| (length * scale).ceil().max(1.0) as u32;
    let mut picture = Pixmap::new(pixels(size.width()), pixels(size.height()))
        .context("the drawing is too large for a PNG: write .svg or .pdf")?;
    resvg::render(&tree, Transform::from_scale(scale, scale), &mut picture.as_mut());
    Ok(picture.encode_png()?)
}

/// Converts a drawing to PDF, whose text can be selected and scaled.
pub(crate) fn pdf(svg: &str) -> Result<Vec<u8>> {
    let pdf = svg2pdf::to_pdf(&tree(svg)?, Default::default(), Default::default());
    pdf.map_err(|error| anyhow!("the drawing cannot be converted to PDF: {error}"))
}

fn tree(svg: &str) -> Result<Tree> {
    let mut options = Options { font_family: FAMILY.to_string(), ..Options::default() };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family(FAMILY);
    Ok(Tree::from_str(&on_paper(svg), &options)?)
}

/// Removes the colours of dark screens from a drawing, and names the font.
fn on_paper(svg: &str) -> String {
    let Some((before, rest)) = svg.split_once("@media (prefers-color-scheme: dark) {") else {
        return svg.to_string();
    };
    let after = rest.split_once("\n}\n").map_or("", |(_, after)| after);
    let (start, end) = ("font: 12px ", "sans-serif;");
    let font = before.split_once(start).and_then(|(_, rest)| rest.split_once(end));
    let named = format!("font-family: '{FAMILY}'; font-size: 12px;");
    match font {
        Some((families, _)) => before.replace(&format!("{start}{families}{end}"), &named) + after,
        None => format!("{before}{after}"),
    }
}

#[cfg(test)]
mod tests {
    use chimera_core::analyze::simulate;
    use chimera_core::costs::UniformCosts;
    use chimera_core::lower::{Lowering, lower};
    use chimera_core::render::svg;
    use chimera_core::schedule::{Shape, find};

    use super::*;

    fn drawing() -> String {
        let timetable = find("chimera").unwrap().timetable(&Shape::new(4, 4)).unwrap();
        let program = lower(&timetable, &Lowering::default()).unwrap();
        let timeline = simulate(&program, &UniformCosts::new(1.0, 2.0, 0.0));
        svg::step(&program, &timeline, "Chimera, D = 4, N = 4")
    }

    #[test]
    fn a_png_has_the_size_and_the_colours_of_the_drawing() {
        let bytes = png(&drawing()).unwrap();
        let picture = Pixmap::decode_png(&bytes).unwrap();
        let tree = tree(&drawing()).unwrap();
        assert_eq!(picture.width(), (2.0 * tree.size().width()).ceil() as u32);
        let has = |red, green, blue| {
            let mut pixels = picture.pixels().iter();
            pixels.any(|pixel| (pixel.red(), pixel.green(), pixel.blue()) == (red, green, blue))
        };
        assert!(has(0xff, 0xff, 0xff), "the page is white");
        assert!(has(0xc3, 0xdc, 0xf7) && has(0xff, 0xdc, 0xb8), "forwards are blue and orange");
        assert!(has(0x1c, 0x27, 0x33), "text is dark");
    }

    #[test]
    fn a_pdf_holds_the_font_and_no_picture() {
        let bytes = pdf(&drawing()).unwrap();
        let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(bytes.starts_with(b"%PDF-") && holds("DejaVuSans"));
        assert!(!holds("/Subtype /Image") && !holds("/Subtype/Image"));
    }
}
