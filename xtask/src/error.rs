//! What can go wrong in the automation, and the exit code each thing has.

use std::fmt;

/// Result of every command here.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a command, with the sentence a person reads.
#[derive(Debug)]
pub enum Error {
    /// The work was tried and failed: exit code 1.
    Failed(String),
    /// The request was wrong (an unknown service, a broken service file): exit code 2.
    Input(String),
    /// A person interrupted the command: exit code 130, as a shell would report it.
    Interrupted,
}

impl Error {
    /// The process exit code for this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Failed(_) => 1,
            Error::Input(_) => 2,
            Error::Interrupted => 130,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Failed(text) | Error::Input(text) => f.write_str(text),
            Error::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// Shorthand for [`Error::Failed`].
pub fn failed<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Failed(text.into()))
}

/// Adds what was being done to an error of the standard library or of a crate.
pub trait Context<T> {
    /// Turns the error into [`Error::Failed`] with `what` in front.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::Failed(format!("{}: {error}", what())))
    }
}
