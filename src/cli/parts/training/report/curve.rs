//! Draws loss curves as SVG.

use std::fmt::Write;

use chimera_core::notation::significant;

/// Width and height of the drawing, and the margins for its axes.
const SIZE: (f64, f64) = (880.0, 260.0);
const LEFT: f64 = 56.0;
const BELOW: f64 = 30.0;
const MARGIN: f64 = 10.0;
/// The least number of parts of an axis.
const N_LINES: usize = 4;
/// The most points of a curve: a screen shows no more.
const MOST_POINTS: usize = 1000;

type Point = (f64, f64);

/// Draws curves by step, each with its class; `None` if there is no point.
pub(super) fn curves(lines: &[(&str, &[Point])]) -> Option<String> {
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let (from, to) = bounds(all().map(|(step, _)| *step))?;
    let (low, high) = bounds(all().map(|(_, loss)| *loss))?;
    let (width, height) = (SIZE.0 - LEFT - MARGIN, SIZE.1 - BELOW - MARGIN);
    let part =
        |x: f64, low: f64, high: f64| if high > low { (x - low) / (high - low) } else { 0.5 };
    let place = |(step, loss): Point| {
        (LEFT + width * part(step, from, to), MARGIN + height * (1.0 - part(loss, low, high)))
    };
    let mut svg = format!(
        "<svg class=\"curve\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"loss by step\">\n",
        SIZE.0, SIZE.1
    );
    let (right, base) = (LEFT + width, MARGIN + height);
    for loss in ticks(low, high, 0.0) {
        let (_, y) = place((from, loss));
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            significant(loss, 4),
        );
    }
    for step in ticks(from, to, 1.0) {
        let ((x, _), y) = (place((step, low)), base + 20.0);
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{step}</text>");
    }
    for (class, points) in lines {
        svg.push_str(&line(class, &thinned(points), place));
    }
    Some(svg + "</svg>\n")
}

fn line(class: &str, points: &[Point], place: impl Fn(Point) -> Point) -> String {
    let mut path = String::new();
    for (nth, point) in points.iter().enumerate() {
        let (x, y) = place(*point);
        let _ = write!(path, "{}{x:.1} {y:.1}", if nth == 0 { "M" } else { "L" });
    }
    match points {
        [] => String::new(),
        [one] => {
            let (x, y) = place(*one);
            format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>\n")
        }
        _ => format!("<path class=\"{class}\" d=\"{path}\"/>\n"),
    }
}

/// Returns the round numbers within a range, at least `least` apart; the only number of an empty
/// range.
fn ticks(low: f64, high: f64, least: f64) -> Vec<f64> {
    let rough = (high - low) / N_LINES as f64;
    if rough <= 0.0 {
        return vec![low];
    }
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0].map(|digit| digit * power);
    let apart =
        round.into_iter().rev().find(|round| *round <= 1.001 * rough).unwrap_or(power).max(least);
    let (first, last) = ((low / apart).ceil() as i64, (high / apart).floor() as i64);
    // A product of a power below 1 would have rounding errors to be seen.
    let each = |nth: i64| if apart < 1.0 { nth as f64 / (1.0 / apart) } else { nth as f64 * apart };
    (first..=last).map(each).collect()
}

/// Reduces the number of points: keeps the lowest and the highest of each part, so that no peak is
/// lost.
fn thinned(points: &[Point]) -> Vec<Point> {
    if points.len() <= MOST_POINTS {
        return points.to_vec();
    }
    let per_part = points.len().div_ceil(MOST_POINTS / 2);
    let extremes = |part: &[Point]| {
        let least = part.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let most = part.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends: Vec<Point> = least.into_iter().chain(most).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends.dedup();
        ends
    };
    points.chunks(per_part).flat_map(extremes).collect()
}

fn bounds(numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let whole = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = numbers.fold(whole, |(low, high), x| (low.min(x), high.max(x)));
    (low <= high).then_some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_few_points_and_keeps_its_peaks() {
        let mut points: Vec<Point> = (0..100_000).map(|step| (f64::from(step), 1.0)).collect();
        points[54_321].1 = 9.0;
        let thin = thinned(&points);
        assert!(thin.len() <= MOST_POINTS && thin.contains(&(54_321.0, 9.0)), "{}", thin.len());
        assert!(thin.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(1.276, 5.541, 0.0), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(ticks(0.0, 899.0, 1.0), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(0.0, 2.0, 1.0), [0.0, 1.0, 2.0]);
        assert_eq!(ticks(1.31, 1.39, 0.0), [1.32, 1.34, 1.36, 1.38]);
        assert_eq!(ticks(2.5, 2.5, 0.0), [2.5]);
    }

    #[test]
    fn one_point_and_none_are_drawn_too() {
        assert_eq!(curves(&[("loss", &[])]), None);
        let one = curves(&[("loss", &[(3.0, 2.5)]), ("validation", &[])]).unwrap();
        assert!(one.contains("<circle class=\"loss\"") && !one.contains("NaN"), "{one}");
    }
}
