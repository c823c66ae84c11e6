//! The drawing backend for the library plotters: SVG whose elements have classes in place of colours.
//!
//! The page gives the classes their colours, with other colours on a dark page and in print, so one drawing serves
//! all three. Each mark can have a text, which a browser shows when the reader points at the mark.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write;
use std::rc::Rc;

use askama::filters::{Escaper, Html};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontStyle,
};

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

/// The number of drawing units in a unit of the page. Plotters rounds to whole units; without finer units curves
/// would look like stairs.
pub(crate) const FINE: i32 = 10;

/// The drawing and its current pen, shared by the backend and the code that changes the pen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sheet(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    drawn: String,
    class: String,
    words: String,
}

impl Sheet {
    /// Gives all further elements this class, and this text, shown when the reader points at an element.
    pub(crate) fn pen(&self, class: &str, words: &str) {
        let mut state = self.0.borrow_mut();
        state.class = class.to_owned();
        state.words = escaped(words);
    }

    /// Returns the SVG elements drawn so far.
    pub(crate) fn drawn(&self) -> String {
        self.0.borrow().drawn.clone()
    }

    fn element(&self, tag: &str, kind: &str, attributes: std::fmt::Arguments<'_>) {
        let state = &mut *self.0.borrow_mut();
        let State { drawn, class, words } = state;
        // Writing to a string cannot fail.
        let _ = write!(drawn, "<{tag} class=\"{kind} {class}\" {attributes}");
        let _ = match words.as_str() {
            "" => drawn.write_str("/>"),
            words => write!(drawn, "><title>{words}</title></{tag}>"),
        };
    }
}

/// Returns `words` escaped for HTML, also for an attribute.
pub(crate) fn escaped(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    let _ = Html.write_escaped_str(&mut out, words);
    out
}

/// The plotters backend that draws on a [`Sheet`].
#[derive(Debug)]
pub(crate) struct Ink {
    sheet: Sheet,
    size: (u32, u32),
}

impl Ink {
    /// Returns a backend for a sheet of this size, in fine units.
    pub(crate) fn new(sheet: Sheet, size: (u32, u32)) -> Self {
        Self { sheet, size }
    }
}

fn points(path: impl IntoIterator<Item = BackendCoord>) -> String {
    let mut out = String::new();
    for (x, y) in path {
        let _ = write!(out, "{}{x},{y}", if out.is_empty() { "" } else { " " });
    }
    out
}

fn is_seen<S: BackendStyle>(style: &S) -> bool {
    style.color().alpha > 0.0
}

impl DrawingBackend for Ink {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        self.size
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> Drawn {
        if color.alpha > 0.0 {
            self.sheet.element("rect", "d", format_args!("x=\"{x}\" y=\"{y}\" width=\"1\" height=\"1\""));
        }
        Ok(())
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if is_seen(style) {
            self.sheet.element("polyline", "l", format_args!("points=\"{}\"", points(path)));
        }
        Ok(())
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (left, top): BackendCoord,
        (right, bottom): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let path = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)];
        if fill { self.fill_polygon(path, style) } else { self.draw_path(path, style) }
    }

    fn draw_circle<S: BackendStyle>(&mut self, (x, y): BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        if is_seen(style) {
            let kind = if fill { "d" } else { "l" };
            self.sheet.element("circle", kind, format_args!("cx=\"{x}\" cy=\"{y}\" r=\"{radius}\""));
        }
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        if is_seen(style) {
            self.sheet.element("polygon", "d", format_args!("points=\"{}\"", points(path)));
        }
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
        let anchor = match style.anchor().h_pos {
            HPos::Left => "start",
            HPos::Center => "middle",
            HPos::Right => "end",
        };
        let down = match style.anchor().v_pos {
            VPos::Top => "0.76em",
            VPos::Center => "0.33em",
            VPos::Bottom => "-0.24em",
        };
        let (size, text) = (style.size(), escaped(text));
        let bold = if matches!(style.style(), FontStyle::Bold) { " font-weight=\"700\"" } else { "" };
        let state = &mut *self.sheet.0.borrow_mut();
        let _ = write!(
            state.drawn,
            "<text class=\"{}\" x=\"{x}\" y=\"{y}\" dy=\"{down}\" text-anchor=\"{anchor}\" font-size=\"{size}\"{bold}>{text}</text>",
            state.class
        );
        Ok(())
    }

    fn estimate_text_size<T: BackendTextStyle>(
        &self,
        text: &str,
        style: &T,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        Ok(((0.55 * style.size() * text.chars().count() as f64) as u32, style.size() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn nothing_gets_out_of_an_attribute() {
        let words = escaped("\"><script>'&");
        assert!(!words.contains(['"', '<', '>', '\'']), "{words}");
    }
}
