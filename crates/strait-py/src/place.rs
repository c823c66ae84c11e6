//! Places in the program, for the texts of exceptions.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;

/// The place of a call in the program. As a text, `", at FILE:LINE in FUNCTION"`, or nothing if no Python code is
/// running.
#[derive(Clone, Default)]
pub(crate) struct Place(Option<Arc<str>>);

impl Place {
    /// Returns the place of the innermost running call, without the frames of this package.
    pub(crate) fn of_call(py: Python<'_>) -> Self {
        Self(innermost(py).ok().map(Arc::from))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(place) => write!(f, ", at {place}"),
            None => Ok(()),
        }
    }
}

fn innermost(py: Python<'_>) -> PyResult<String> {
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    loop {
        let module = frame.getattr("f_globals")?.call_method1("get", ("__name__",))?.to_string();
        let before = frame.getattr("f_back")?;
        if !module.starts_with("strait.") || before.is_none() {
            break;
        }
        frame = before;
    }
    let code = frame.getattr("f_code")?;
    let (file, function) = (code.getattr("co_filename")?, code.getattr("co_name")?);
    Ok(format!("{file}:{} in {function}", frame.getattr("f_lineno")?))
}
