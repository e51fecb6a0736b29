//! Many small timelines, one below the other, on one scale of time, each next to its figures.

use super::{CHAR, MARGIN, Sheet};
use crate::analyze::Timeline;
use crate::render::number;
use crate::render::xml::{horizontal, text, vertical};

const WIDTH: f64 = 1200.0;
/// Font sizes of names and figures.
const NAME: f64 = 14.0;
const FIGURE: f64 = 12.0;
/// Room for a makespan to the right of the longest timeline.
const END: f64 = 56.0;
/// Height of all rows of one timeline, with few workers and with more.
const ROWS: f64 = 48.0;
const GAP: f64 = 20.0;
/// The most characters of a name.
const LONGEST: usize = 30;

/// One timeline and its figures.
pub struct Compared<'a> {
    /// Name of the timeline. The text after the first space goes on a line below.
    pub name: &'a str,
    /// Figures of the timeline, one for each column.
    pub figures: Vec<String>,
    /// The timeline to draw.
    pub timeline: &'a Timeline,
}

/// A table of timelines under a title, with a column of figures for each of `heads`, and lines of
/// `notes` below. A timeline much longer than most is cut off, so that the others remain visible.
pub fn compare(
    (title, subtitle): (&str, &str),
    heads: &[&str],
    entries: &[Compared],
    notes: &[String],
) -> String {
    let columns = Columns::of(heads, entries);
    let makespans = entries.iter().map(|e| e.timeline.makespan()).collect();
    let span = (columns.end + 28.0, WIDTH - MARGIN - END);
    let mut sheet = Sheet::new(WIDTH, span, longest(makespans));
    text(&mut sheet.blocks, (MARGIN, 34.0), "title ink", title);
    text(&mut sheet.blocks, (MARGIN, 54.0), "soft", subtitle);
    sheet.y = 84.0;
    for (right, head) in columns.rights.iter().zip(heads) {
        text(&mut sheet.blocks, (*right, sheet.y), "soft end", head);
    }
    sheet.y += 10.0;
    let top = sheet.y;
    for entry in entries {
        sheet.entry(&columns, entry);
    }
    horizontal(&mut sheet.grid, sheet.y, (MARGIN, WIDTH - MARGIN), "grid");
    sheet.axis(top);
    sheet.legend(sheet.span.0);
    for note in notes {
        text(&mut sheet.blocks, (MARGIN, sheet.y + 6.0), "soft", note);
        sheet.y += 18.0;
    }
    if !notes.is_empty() {
        sheet.y += 8.0;
    }
    let about = entries.iter().map(|e| {
        let figures = heads.iter().zip(&e.figures).map(|(head, figure)| format!("{head} {figure}"));
        format!("{}: {}.", e.name, figures.collect::<Vec<_>>().join(", "))
    });
    sheet.finish(title, &about.collect::<Vec<_>>().join(" "))
}

/// The longest drawn time: the longest entry, without entries that take more than twice the median.
fn longest(mut makespans: Vec<f64>) -> f64 {
    makespans.sort_by(f64::total_cmp);
    let median = makespans.get(makespans.len() / 2).copied().unwrap_or(0.0);
    makespans.into_iter().filter(|makespan| *makespan <= 2.0 * median).fold(0.0, f64::max)
}

/// Right ends of columns.
struct Columns {
    rights: Vec<f64>,
    end: f64,
}

impl Columns {
    fn of(heads: &[&str], entries: &[Compared]) -> Columns {
        let lines = entries.iter().flat_map(|e| {
            let (name, options) = parts(e.name);
            [name.chars().count() as f64 * NAME, options.chars().count() as f64 * FIGURE]
        });
        let mut end = MARGIN + lines.fold(0.0, f64::max) * CHAR;
        let mut rights = Vec::new();
        for (column, head) in heads.iter().enumerate() {
            let figures = entries.iter().filter_map(|e| e.figures.get(column));
            let longest = figures.map(|f| f.chars().count()).max();
            let n_chars = longest.unwrap_or(0).max(head.chars().count());
            end += n_chars as f64 * FIGURE * CHAR + 16.0;
            rights.push(end);
        }
        Columns { rights, end }
    }
}

/// A name and the options after it, shortened to the available room. A path keeps its end.
fn parts(name: &str) -> (String, String) {
    let (name, options) = name.split_once(' ').unwrap_or((name, ""));
    (last(name), last(options))
}

fn last(text: &str) -> String {
    match text.chars().count().checked_sub(LONGEST) {
        None | Some(0) => text.to_string(),
        Some(n_more) => std::iter::once('…').chain(text.chars().skip(n_more + 1)).collect(),
    }
}

impl Sheet {
    fn entry(&mut self, columns: &Columns, entry: &Compared) {
        horizontal(&mut self.grid, self.y, (MARGIN, WIDTH - MARGIN), "grid");
        let top = self.y;
        self.y += GAP / 2.0;
        let n_workers = entry.timeline.n_workers.max(1) as f64;
        let gap = if n_workers <= 8.0 { 2.0 } else { 0.5 };
        self.rows(entry.timeline, (ROWS / n_workers - gap).clamp(2.0, 10.0), gap, false);
        self.y = self.y.max(top + GAP / 2.0 + ROWS / 2.0) + GAP / 2.0 - gap;

        let (name, options) = parts(entry.name);
        let middle = (top + self.y) / 2.0 + 4.0;
        let first = if options.is_empty() { middle } else { middle - 8.0 };
        text(&mut self.blocks, (MARGIN, first), "name ink", &name);
        text(&mut self.blocks, (MARGIN, first + 16.0), "soft", &options);
        for (right, figure) in columns.rights.iter().zip(&entry.figures) {
            text(&mut self.blocks, (*right, middle), "ink end", figure);
        }
        let makespan = entry.timeline.makespan();
        let end = self.pixel(makespan);
        let is_whole = makespan <= self.longest;
        if is_whole {
            vertical(&mut self.blocks, end, top + GAP / 4.0, self.y - GAP / 4.0, "last");
        }
        let goes_on = if is_whole { "" } else { "… " };
        text(
            &mut self.blocks,
            (end + 6.0, middle),
            "name ink",
            &(goes_on.to_owned() + &number(makespan)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::{Lowering, lower};
    use crate::schedule::{Shape, find};

    fn timeline(name: &str) -> Timeline {
        let timetable = find(name).expect("known").timetable(&Shape::new(4, 4)).expect("fits");
        let program = lower(&timetable, &Lowering::default()).expect("proven");
        crate::analyze::simulate(&program, &crate::costs::UniformCosts::new(1.0, 2.0, 0.0))
    }

    #[test]
    fn every_entry_has_its_figures_and_one_scale() {
        let (long, short) = (timeline("dapple"), timeline("chimera"));
        let entry = |name, figure: &str, timeline| Compared {
            name,
            figures: vec![figure.to_string()],
            timeline,
        };
        let entries = [entry("chimera --pipes 2", "<16>", &short), entry("dapple", "21", &long)];
        let drawing = compare(("two & two", "below"), &["span"], &entries, &["a note".to_string()]);
        for text in
            ["two &amp; two", ">chimera<", ">--pipes 2<", ">&lt;16&gt;<", ">a note<", ">dapple<"]
        {
            assert!(drawing.contains(text), "{text}: {drawing}");
        }
        let ends: Vec<f64> = (drawing.lines().filter(|l| l.ends_with("class=\"last\"/>")))
            .filter_map(|l| l.split_once("d=\"M")?.1.split(' ').next()?.parse().ok())
            .collect();
        let left = Columns::of(&["span"], &entries).end + 28.0;
        let ratio = (ends[0] - left) / (ends[1] - left);
        assert!((ratio - 16.0 / 21.0).abs() < 1e-3, "{ends:?}");
    }

    #[test]
    fn of_a_long_name_the_end_is_drawn() {
        let path = format!("/{}/mine.json", "folder".repeat(9));
        let (name, options) = parts(&path);
        assert!(name.chars().count() == LONGEST && name.starts_with('…'), "{name}");
        assert!(name.ends_with("r/mine.json") && options.is_empty());
        assert_eq!(parts("hanayo --waves 4"), ("hanayo".into(), "--waves 4".into()));
    }

    #[test]
    fn entries_much_longer_than_most_are_cut_off() {
        assert_eq!(longest(vec![30.0, 75.0, 24.0, 33.0]), 33.0);
        assert_eq!(longest(vec![30.0, 24.0, 59.0]), 59.0);
        assert_eq!(longest(vec![]), 0.0);
    }

    #[test]
    fn nothing_to_compare_is_drawn_too() {
        let drawing = compare(("none", ""), &[], &[], &[]);
        assert!(drawing.ends_with("</svg>\n") && !drawing.contains("NaN"), "{drawing}");
    }
}
