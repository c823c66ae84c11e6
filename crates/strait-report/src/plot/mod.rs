//! Plots, drawn by the library plotters: lines over an axis, and a list with a dot in each row.
//!
//! A plot is as wide as a phone, and stands beside others on a larger screen, so its words never get small.

mod axis;
mod ink;

use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::coord::Shift;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement, Rectangle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{BLACK, Color, FontStyle, IntoFont, TRANSPARENT, TextStyle};

pub(crate) use self::axis::{Axis, Unit, short_bytes};
pub(crate) use self::ink::escaped;
use self::ink::{FINE, Ink, Sheet};

const WIDTH: i32 = 340;
const TEXT: i32 = 11;

/// One point of a series.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The words that are shown when the reader points at the mark.
    pub(crate) words: String,
    /// Whether the figure is in doubt, shown as a hollow mark.
    pub(crate) doubtful: bool,
}

/// The points of a single mechanism.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// The CSS class for the colour of the series.
    pub(crate) class: String,
    pub(crate) title: String,
    pub(crate) points: Vec<Point>,
    /// Whether the points are joined by a line.
    pub(crate) line: bool,
    /// Whether the points are marked.
    pub(crate) marks: bool,
}

/// The units and the names of the two axes of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) across: Unit,
    pub(crate) across_name: &'static str,
    pub(crate) up: Unit,
    pub(crate) up_name: &'static str,
}

/// A row of a list.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) class: String,
    pub(crate) title: String,
    pub(crate) value: f64,
    pub(crate) interval: [f64; 2],
    pub(crate) shown: String,
    pub(crate) doubtful: bool,
    pub(crate) bold: bool,
}

type Area = DrawingArea<Ink, Shift>;

fn fine(units: i32) -> i32 {
    units * FINE
}

fn sheet(height: i32) -> (Sheet, Area) {
    let sheet = Sheet::default();
    let size = (fine(WIDTH) as u32, fine(height) as u32);
    let area = Ink::new(sheet.clone(), size).into_drawing_area();
    (sheet, area)
}

fn svg(sheet: &Sheet, height: i32, said: &str) -> String {
    let (width, height) = (fine(WIDTH), fine(height));
    let said = escaped(said);
    let drawn = sheet.drawn();
    format!("<svg role=\"img\" aria-label=\"{said}\" viewBox=\"0 0 {width} {height}\">{drawn}</svg>")
}

fn text(size: i32, across: HPos, down: VPos, bold: bool) -> TextStyle<'static> {
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    TextStyle::from(("sans-serif", fine(size), style).into_font()).pos(Pos::new(across, down))
}

/// The panic message of drawing calls. They cannot fail, because the sheet is a string.
const DRAWN: &str = "drawing into memory";

/// Returns a plot of the series over an axis; `None` if nothing can be drawn. `said` describes the plot for blind
/// readers.
pub(crate) fn lines(frame: Frame, series: &[Series], said: &str) -> Option<String> {
    const HEIGHT: i32 = 250;
    let points = || series.iter().flat_map(|series| &series.points);
    let is_drawn = |point: &&Point| frame.across.place(point.x).is_some() && frame.up.place(point.y).is_some();
    let across = Axis::over(frame.across, 5, points().filter(is_drawn).map(|point| point.x))?;
    let up = Axis::over(frame.up, 6, points().filter(is_drawn).map(|point| point.y))?;

    let (sheet, area) = sheet(HEIGHT);
    sheet.pen("t", "");
    let name = text(TEXT, HPos::Left, VPos::Top, false);
    area.draw_text(frame.up_name, &name, (fine(2), fine(1))).expect(DRAWN);
    let name = text(TEXT, HPos::Right, VPos::Bottom, false);
    area.draw_text(frame.across_name, &name, (fine(WIDTH - 2), fine(HEIGHT - 1))).expect(DRAWN);

    let mut chart = ChartBuilder::on(&area)
        .margin_top(fine(20))
        .margin_right(fine(14))
        .margin_bottom(fine(16))
        .set_label_area_size(LabelAreaPosition::Left, fine(44))
        .set_label_area_size(LabelAreaPosition::Bottom, fine(18))
        .build_cartesian_2d(across.clone(), up.clone())
        .expect(DRAWN);
    sheet.pen("g", "");
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK)
        .axis_style(BLACK)
        .set_all_tick_mark_size(fine(3))
        .x_label_formatter(&|place| across.words(*place))
        .y_label_formatter(&|place| up.words(*place))
        .label_style(text(TEXT, HPos::Center, VPos::Top, false))
        .draw()
        .expect(DRAWN);

    for series in series {
        let places: Vec<((f64, f64), &Point)> = series
            .points
            .iter()
            .filter_map(|point| Some(((across.place(point.x)?, up.place(point.y)?), point)))
            .collect();
        sheet.pen(&series.class, &series.title);
        if series.line && places.len() > 1 {
            let mut path: Vec<_> = places.iter().map(|(place, _)| *place).collect();
            if !series.marks {
                straighten(&mut path);
            }
            chart.draw_series([PathElement::new(path, BLACK)]).expect(DRAWN);
        }
        for (place, point) in places.iter().filter(|_| series.marks) {
            sheet.pen(&doubt(&series.class, point.doubtful), &point.words);
            chart.draw_series([Circle::new(*place, fine(3), BLACK.filled())]).expect(DRAWN);
        }
    }
    Some(svg(&sheet, HEIGHT, said))
}

/// Returns a list of times with a dot in each row, in the given order; `None` if nothing can be drawn. `said`
/// describes the list for blind readers.
pub(crate) fn list(rows: &[Row], said: &str) -> Option<String> {
    const ROW: i32 = 20;
    const ROOM: i32 = 58;
    let rows: Vec<&Row> = rows.iter().filter(|row| Unit::Time.place(row.value).is_some()).collect();
    // Names get as much room as they need, as long as there is room for the dots.
    let letters = rows.iter().map(|row| row.title.chars().count() as i32).max()?;
    let names = (12 + letters * 13 / 2).clamp(90, 200);
    let ends = rows.iter().flat_map(|row| [row.value, row.interval[0], row.interval[1]]);
    let across = Axis::over(Unit::Time, 3, ends)?;
    // Rows are counted from the bottom.
    let up = Axis::over(Unit::Rows, 0, [0.0, rows.len() as f64 - 1.0])?;
    let height = ROW * rows.len() as i32 + 34;

    let (sheet, area) = sheet(height);
    let mut chart = ChartBuilder::on(&area)
        .margin_top(fine(4))
        .margin_right(fine(ROOM))
        .margin_bottom(fine(6))
        .set_label_area_size(LabelAreaPosition::Left, fine(names))
        .set_label_area_size(LabelAreaPosition::Bottom, fine(18))
        .build_cartesian_2d(across.clone(), up)
        .expect(DRAWN);
    sheet.pen("g", "");
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK)
        .axis_style(TRANSPARENT)
        .set_all_tick_mark_size(fine(3))
        .disable_y_mesh()
        .x_label_formatter(&|place| across.words(*place))
        .label_style(text(TEXT, HPos::Center, VPos::Top, false))
        .draw()
        .expect(DRAWN);

    for (index, row) in rows.iter().enumerate() {
        let at = (rows.len() - 1 - index) as f64;
        let Some(place) = across.place(row.value) else { continue };
        let words = format!("{}: {}", row.title, row.shown);
        sheet.pen(&format!("i {}", row.class), &words);
        if let [Some(low), Some(high)] = row.interval.map(|end| across.place(end)) {
            let bar = Rectangle::new([(low, at - 0.14), (high, at + 0.14)], BLACK.filled());
            chart.draw_series([bar]).expect(DRAWN);
        }
        sheet.pen(&doubt(&row.class, row.doubtful), &words);
        chart.draw_series([Circle::new((place, at), fine(5), BLACK.filled())]).expect(DRAWN);
        sheet.pen(if row.bold { "t b" } else { "t" }, "");
        let (_, y) = chart.backend_coord(&(place, at));
        let name = text(TEXT, HPos::Right, VPos::Center, row.bold);
        area.draw_text(&row.title, &name, (fine(names - 6), y)).expect(DRAWN);
        let figure = text(TEXT, HPos::Right, VPos::Center, row.bold);
        area.draw_text(&row.shown, &figure, (fine(WIDTH - 2), y)).expect(DRAWN);
    }
    Some(svg(&sheet, height, said))
}

/// Removes points too near to the line through both neighbours to be noticed by a reader.
fn straighten(path: &mut Vec<(f64, f64)>) {
    let mut index = 1;
    while index + 1 < path.len() {
        let ((x0, y0), (x, y), (x1, y1)) = (path[index - 1], path[index], path[index + 1]);
        let on_line = if x1 > x0 { y0 + (y1 - y0) * (x - x0) / (x1 - x0) } else { y };
        if (y - on_line).abs() < 0.004 {
            path.remove(index);
        }
        // Two neighbouring points are never both left out: small steps would add up.
        index += 1;
    }
}

fn doubt(class: &str, doubtful: bool) -> String {
    if doubtful { format!("x {class}") } else { class.to_owned() }
}
