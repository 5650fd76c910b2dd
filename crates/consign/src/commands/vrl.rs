//! `consign vrl`: one expression, compiled and run on one message.

use crate::commands::message;
use crate::output::{CliError, Kind, Output};
use crate::problems;
use consign_config::Text;
use consign_pipeline::Message;

pub fn run(out: Output, expression: &str, text: Option<&str>) -> Result<(), CliError> {
    let message = match text {
        Some(text) => message(text)?,
        None => Message {
            time_unix_ms: super::now_unix_ms(),
            ..Message::default()
        },
    };
    // The result is JSON already, numbers of any size included; reading it into a value might change them.
    let result = consign_pipeline::try_expression(&Text::from(expression), &message).map_err(
        |problems| {
            // The expression came from the command line: there is no file to point into.
            let text: Vec<&str> = problems
                .iter()
                .map(|problem| problem.message.as_str())
                .collect();
            CliError::problems(Kind::Input, text.join("\n"), problems::values(&problems))
        },
    )?;
    out.text(&result)
}
