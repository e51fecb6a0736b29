//! Pieces of SVG as text; coordinates are pixels with two decimals.

use std::fmt::{self, Display, Write};

/// A rectangle.
#[derive(Clone, Copy)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Area {
    /// Makes an area from its upper left corner and its size.
    pub(super) fn new((x, y): (f64, f64), (width, height): (f64, f64)) -> Area {
        Area { x, y, width, height }
    }

    /// The upper and the lower half.
    pub(super) fn halves(self) -> [Area; 2] {
        let height = self.height / 2.0;
        [self.y, self.y + height].map(|y| Area { y, height, ..self })
    }
}

impl Display for Area {
    /// Writes the area as attributes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#"x="{:.2}" y="{:.2}" "#, self.x, self.y)?;
        write!(f, r#"width="{:.2}" height="{:.2}""#, self.width, self.height)
    }
}

pub(super) fn rect(into: &mut String, area: Area, class: &str) {
    let _ = writeln!(into, r#"<rect {area} class="{class}"/>"#);
}

pub(super) fn vertical(into: &mut String, x: f64, from: f64, to: f64, class: &str) {
    let path = format!("M{x:.2} {from:.2}V{to:.2}");
    let _ = writeln!(into, r#"<path d="{path}" class="{class}"/>"#);
}

pub(super) fn horizontal(into: &mut String, y: f64, (from, to): (f64, f64), class: &str) {
    let path = format!("M{from:.2} {y:.2}H{to:.2}");
    let _ = writeln!(into, r#"<path d="{path}" class="{class}"/>"#);
}

pub(super) fn text(into: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    let text = Escaped(text);
    let _ = writeln!(into, r#"<text x="{x:.2}" y="{y:.2}" class="{class}">{text}</text>"#);
}

/// Text for XML; control characters, which XML cannot hold, are left out.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\u{fffe}' | '\u{ffff}' => {}
                c if c.is_control() => {}
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}
