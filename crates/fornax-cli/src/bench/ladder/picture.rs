//! The ladder as a picture: the time of each token's forward by its position, a line a rung.
//!
//! Writes SVG by hand: axes, lines and names. Must not know how anything was measured.

use std::fmt::Write;

use super::Climbed;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// Least distance between the names of two lines.
const LINE_HEIGHT: f64 = 18.0;
/// Told apart by people who see fewer colours, too (Okabe & Ito 2008).
const COLOURS: [&str; 8] = [
    "#D55E00", "#E69F00", "#009E73", "#0072B2", "#CC79A7", "#000000", "#56B4E9", "#7F7F00",
];

/// The picture. Both axes fit what there is; that of time is logarithmic.
pub fn svg(title: &str, climbed: &[Climbed]) -> String {
    let axes = Axes::around(climbed);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"17\">{}</text>\n",
        escaped(title)
    );
    axes.draw(&mut svg);
    let mut names: Vec<(f64, usize)> = Vec::new();
    for (index, rung) in climbed.iter().enumerate() {
        let points: Vec<(f64, f64)> = rung
            .forwards
            .iter()
            .map(|&(position, time)| (axes.x(position as f64), axes.y(time.as_secs_f64() * 1e3)))
            .collect();
        let colour = COLOURS[index % COLOURS.len()];
        let line: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-linejoin=\"round\"/>",
            line.join(" ")
        );
        if let Some(&(x, y)) = points.last() {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
            );
            names.push((y, index));
        }
    }
    name_lines(&mut svg, &axes, names, climbed);
    svg + "</svg>\n"
}

/// Names at the right edge, moved apart where lines end near one another, each joined to its line.
fn name_lines(svg: &mut String, axes: &Axes, mut names: Vec<(f64, usize)>, climbed: &[Climbed]) {
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut places: Vec<f64> = Vec::new();
    for &(y, _) in &names {
        let above = places.last().map_or(TOP, |above| above + LINE_HEIGHT);
        places.push(y.max(above));
    }
    // What was pushed out at the bottom pushes back.
    let mut limit = HEIGHT - BOTTOM;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE_HEIGHT;
    }
    for (&(y, index), place) in names.iter().zip(places) {
        let rung = &climbed[index];
        let colour = COLOURS[index % COLOURS.len()];
        let end = rung.forwards.last().map_or(0, |&(position, _)| position);
        let (from, to) = (axes.x(end as f64) + 5.0, WIDTH - RIGHT + 22.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{from:.1},{y:.1} L{:.1},{place:.1} L{to:.1},{place:.1}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"0.8\" stroke-dasharray=\"2 3\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            to - 12.0,
            to + 4.0,
            place + 4.0,
            escaped(rung.name)
        );
    }
}

/// From positions and milliseconds to places.
struct Axes {
    /// The last position shown.
    end: f64,
    /// Powers of ten of the least and the greatest time shown.
    low: f64,
    high: f64,
}

impl Axes {
    fn around(climbed: &[Climbed]) -> Self {
        let forwards = climbed.iter().flat_map(|rung| &rung.forwards);
        let (mut end, mut least, mut greatest) = (1.0_f64, f64::INFINITY, 0.0_f64);
        for &(position, time) in forwards {
            let milliseconds = time.as_secs_f64() * 1e3;
            end = end.max(position as f64);
            least = least.min(milliseconds);
            greatest = greatest.max(milliseconds);
        }
        if greatest <= 0.0 {
            (least, greatest) = (1.0, 10.0);
        }
        let low = least.max(1e-4).log10().floor();
        let high = greatest.log10().ceil().max(low + 1.0);
        Self { end, low, high }
    }

    fn x(&self, position: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * position / self.end
    }

    fn y(&self, milliseconds: f64) -> f64 {
        let part = (milliseconds.max(1e-4).log10() - self.low) / (self.high - self.low);
        HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part
    }

    fn draw(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for power in self.low as i32..=self.high as i32 {
            let value = 10_f64.powi(power);
            let y = self.y(value);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT},{y:.1} H{right}\" stroke=\"#ccc\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value} ms</text>",
                LEFT - 8.0,
                y + 4.0
            );
        }
        let step = tick(self.end);
        let mut position = 0.0;
        while position <= self.end {
            let x = self.x(position);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1},{bottom} v5\" stroke=\"#666\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{position}</text>",
                bottom + 20.0
            );
            position += step;
        }
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT},{TOP} V{bottom} H{right}\" fill=\"none\" stroke=\"#666\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">position of the token</text>\n\
             <text x=\"{LEFT}\" y=\"{}\">time of its forward</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 14.0,
            TOP - 8.0
        );
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides `end` into at most eight.
fn tick(end: f64) -> f64 {
    let mut power = 1.0;
    loop {
        for factor in [1.0, 2.0, 5.0] {
            if end / (power * factor) <= 8.0 {
                return power * factor;
            }
        }
        power *= 10.0;
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rung(name: &'static str, milliseconds: &[u64]) -> Climbed {
        let forwards = milliseconds.iter().enumerate();
        Climbed {
            name,
            backend: String::new(),
            prompt: 1,
            first_token: Duration::ZERO,
            forwards: forwards
                .map(|(at, &time)| (at + 9, Duration::from_millis(time)))
                .collect(),
        }
    }

    /// The heights of all names, in order of the rungs' names in the text.
    fn heights(svg: &str, name: &str) -> f64 {
        let line = svg
            .lines()
            .find(|line| line.ends_with(&format!(">{name}</text>")));
        let (_, rest) = line.unwrap().rsplit_once(" y=\"").unwrap();
        rest.split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn slower_is_higher_and_names_keep_apart() {
        let svg = svg(
            "a < b",
            &[
                rung("slow", &[900, 1000]),
                rung("fast", &[2, 2]),
                rung("faster", &[2, 2]),
            ],
        );
        assert!(svg.contains("a &lt; b"));
        assert_eq!(svg.matches("<polyline").count(), 3);
        assert!(heights(&svg, "slow") < heights(&svg, "fast"));
        let apart = (heights(&svg, "fast") - heights(&svg, "faster")).abs();
        assert!(apart >= LINE_HEIGHT - 0.1, "{apart}");
        for label in [">1 ms<", ">10 ms<", ">1000 ms<", ">10<"] {
            assert!(svg.contains(label), "{label}");
        }
    }

    #[test]
    fn nothing_measured_is_still_a_picture() {
        assert!(svg("", &[]).ends_with("</svg>\n"));
        assert!(svg("", &[rung("one", &[5])]).contains("<polyline"));
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(
            [tick(1.0), tick(8.0), tick(9.0), tick(136.0)],
            [1.0, 1.0, 2.0, 20.0]
        );
    }
}
