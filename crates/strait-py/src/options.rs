//! The options of a connection, given as keyword arguments.

use std::time::Duration;

use crate::codec::Settings;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use strait::{Options, Wait};

/// Returns the options from the keyword arguments of a call, and the settings of the Python object.
pub(crate) fn all(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<(Options, Settings)> {
    let (mut options, mut settings) = (Options::new(), Settings::default());
    for (name, value) in keywords.into_iter().flatten() {
        match name.cast::<PyString>()?.to_str()? {
            "trust" => settings.trust = value.extract()?,
            "codec" => settings.set_codec(&value)?,
            name => {
                options = with(options, name, &value)?;
                if name == "max_message" {
                    settings.max_message = Some(value.extract()?);
                }
            }
        }
    }
    Ok((options, settings))
}

/// Returns the options from the keyword arguments of a call.
pub(crate) fn of(keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    Ok(all(keywords)?.0)
}

fn with(options: Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<Options> {
    Ok(match name {
        "max_message" => options.max_message(value.extract()?),
        "max_handles" => options.max_handles(value.extract()?),
        "queue_bytes" => options.queue_bytes(value.extract()?),
        "queue_messages" => options.queue_messages(value.extract()?),
        "queue_handles" => options.queue_handles(value.extract()?),
        "inline_max" => options.inline_max(value.extract()?),
        "ring" => options.ring(value.extract()?),
        "ring_max" => options.ring_max(value.extract()?),
        "pool" => options.pool(value.extract()?),
        "peer_memory" => options.peer_memory(value.extract()?),
        "accept_descriptors" => options.accept_descriptors(value.extract()?),
        "spin" => options.spin(seconds(value)?),
        "wait" => options.wait(strategy(value)?),
        other => return Err(PyTypeError::new_err(format!("there is no option {other:?}"))),
    })
}

pub(crate) fn seconds(value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = value.extract::<f64>()?;
    Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(format!("spin={seconds}: {error}")))
}

pub(crate) fn strategy(value: &Bound<'_, PyAny>) -> PyResult<Wait> {
    match value.cast::<PyString>()?.to_str()? {
        "adaptive" => Ok(Wait::Adaptive),
        "spin" => Ok(Wait::Spin),
        "block" => Ok(Wait::Block),
        other => Err(PyValueError::new_err(format!("wait={other:?}: give \"adaptive\", \"spin\" or \"block\""))),
    }
}
