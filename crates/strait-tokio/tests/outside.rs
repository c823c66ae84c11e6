//! Errors of calls outside of a tokio runtime, or in a runtime without I/O, name the line of the call.

use std::panic::Location;
use std::sync::Mutex;

use strait::wait::WaitSet;
use strait_tokio::{AsyncWaitSet, Listener, NoRuntime, Reactor};

#[test]
fn a_call_outside_of_a_runtime_fails_and_names_the_line_of_the_caller() {
    let name = format!("outside-{}", std::process::id());
    let failures = [
        (line!(), Reactor::new().map(drop)),
        (line!(), Reactor::with_spin(Reactor::SPIN).map(drop)),
        (line!(), AsyncWaitSet::new(WaitSet::new().unwrap()).map(drop)),
        (line!(), Listener::bind(&name).map(drop)),
    ];
    for (line, failed) in failures {
        let failed = failed.unwrap_err();
        let text = failed.to_string();
        let NoRuntime { caller, .. } = failed.downcast().unwrap();
        assert_eq!((caller.file(), caller.line()), (file!(), line), "{text}");
        assert!(text.contains(&caller.to_string()), "{text}");
    }
}

static PANICKED: Mutex<Option<(String, u32)>> = Mutex::new(None);

#[test]
fn a_panic_in_a_runtime_without_io_names_the_line_of_the_caller() {
    std::panic::set_hook(Box::new(|panic| {
        let location = panic.location().map(|at: &Location<'_>| (at.file().to_owned(), at.line()));
        *PANICKED.lock().unwrap() = location;
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    #[allow(clippy::redundant_closure, reason = "the closure makes the call in this file")]
    let (line, made) = (line!(), std::panic::catch_unwind(|| Reactor::new()));
    assert!(made.is_err());
    drop(std::panic::take_hook());
    assert_eq!(PANICKED.lock().unwrap().take(), Some((file!().to_owned(), line)));
}
