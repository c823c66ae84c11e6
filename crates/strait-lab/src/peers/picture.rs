//! Draws the comparison: horizontal bars on a logarithmic axis, as SVG.

use std::fmt::Write;

use super::results::{Figure, PeerResults, Run};
use super::row::{Form, Row, Spot};
use crate::stats::time;

/// One panel of the picture: what it shows, and of which row.
type Panel = (&'static str, Row, fn(&Run) -> Option<f64>);

const PANELS: [Panel; 3] = [
    ("round trip of 64 B: median time", Row::RoundTrip(64), |run| run.p50),
    ("round trip of 64 B: CPU time of both processes", Row::RoundTrip(64), |run| run.cpu),
    ("round trip of 1 MiB, copied: median time", Row::RoundTrip(1 << 20), |run| run.p50),
];

const WIDTH: f64 = 860.0;
const LABELS: f64 = 250.0;
const VALUES: f64 = 80.0;
const LINE: f64 = 22.0;

/// Returns the picture of the default forms, unpinned, as SVG. Rows without figures are left out; floors are not shown.
pub fn svg(results: &PeerResults) -> String {
    let mut body = String::new();
    let mut y = 64.0;
    for (title, row, field) in PANELS {
        let mut figures: Vec<(&Figure, f64)> = results
            .ranked((Form::Default, row, Spot::Free))
            .into_iter()
            .filter(|figure| !figure.is_floor())
            .filter_map(|figure| Some((figure, figure.median(field)?)))
            .collect();
        figures.sort_by(|a, b| a.1.total_cmp(&b.1));
        if !figures.is_empty() {
            panel(&mut body, &mut y, title, &figures);
        }
    }
    let height = y + 30.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"DejaVu Sans, \
         sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"16\" y=\"26\" \
         font-size=\"17\" font-weight=\"bold\" fill=\"#1a1a1a\">Two processes, the first example of each \
         documentation</text>\n<text x=\"16\" y=\"46\" fill=\"#555555\">defaults, unpinned, one run; shorter is better; \
         logarithmic axis</text>\n{body}<text x=\"16\" y=\"{}\" font-size=\"11\" fill=\"#555555\">{}; medians of {} runs: \
         strait bench peers</text>\n</svg>\n",
        height - 12.0,
        escaped(&results.machine.words()),
        results.runs(),
    )
}

/// Draws a panel at the height `y`, and moves `y` below the panel.
fn panel(body: &mut String, y: &mut f64, title: &str, figures: &[(&Figure, f64)]) {
    let least = figures.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
    let most = figures.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    // The shortest bar has a tenth of the room, so that each bar can be seen.
    let begin = least.ln() - 0.1 * (most / least).ln().max(1.0);
    let room = WIDTH - LABELS - VALUES - 16.0;
    let scale = room / (most.ln() - begin);
    let _ = writeln!(body, "<text x=\"16\" y=\"{}\" font-weight=\"bold\" fill=\"#1a1a1a\">{title}</text>", *y + 16.0);
    *y += 26.0;
    for (figure, value) in figures {
        let (color, weight) = if figure.program == "strait" { ("#0072b2", "bold") } else { ("#b0b0b0", "normal") };
        let width = (value.ln() - begin) * scale;
        let _ = writeln!(
            body,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" font-weight=\"{weight}\" fill=\"#1a1a1a\">{}</text>\
             <rect x=\"{LABELS}\" y=\"{}\" width=\"{width:.1}\" height=\"14\" fill=\"{color}\"/>\
             <text x=\"{:.1}\" y=\"{}\" font-weight=\"{weight}\" fill=\"#1a1a1a\">{}</text>",
            LABELS - 8.0,
            *y + 12.0,
            escaped(&figure.title),
            *y + 1.0,
            LABELS + width + 6.0,
            *y + 12.0,
            time(*value),
        );
        *y += LINE;
    }
    *y += 10.0;
}

/// Returns a text with the characters of XML's own syntax replaced.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::svg;
    use crate::machine::Machine;
    use crate::peers::{Figure, Form, PeerResults, Row, Run, Spot};

    #[test]
    fn longer_times_have_longer_bars_and_floors_have_none() {
        let figure = |program: &str, title: &str, p50: f64| Figure {
            program: program.into(),
            title: title.into(),
            does: String::new(),
            form: Form::Default,
            row: Row::RoundTrip(64),
            spot: Spot::Free,
            runs: vec![Run { p50: Some(p50), ..Run::default() }],
            lacking: None,
            failed: Vec::new(),
        };
        let results = PeerResults {
            machine: Machine::default(),
            repetitions: 1,
            milliseconds: 1,
            seed: 0,
            complete: true,
            seconds: 1.0,
            began: 0,
            commit: None,
            figures: vec![
                figure("a", "A & B", 90_000.0),
                figure("strait", "Strait", 400.0),
                figure("flag", "floor: flag", 100.0),
            ],
        };
        let text = svg(&results);
        assert!(text.contains("A &amp; B") && !text.contains("floor"), "{text}");
        let widths: Vec<f64> = text
            .split("width=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .filter(|width| *width > 0.0)
            .collect();
        assert_eq!(widths.len(), 2, "{text}");
        assert!(widths[0] < widths[1] && widths[0] > 10.0, "{widths:?}");
    }
}
