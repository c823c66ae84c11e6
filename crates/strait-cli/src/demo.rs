//! `strait demo`.
use std::process::ExitCode;
use crate::trouble::Result;
pub(crate) fn run() -> Result<ExitCode> { Ok(ExitCode::SUCCESS) }
pub(crate) fn companion() -> Result<()> { Ok(()) }
