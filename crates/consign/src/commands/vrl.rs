//! `consign vrl`: one expression, compiled and run on one message.

use crate::commands::message;
use crate::output::{CliError, Output};
use crate::problems;
use consign_config::Text;
use consign_pipeline::Message;

pub fn run(out: Output, expression: &str, text: Option<&str>) -> Result<(), CliError> {
    let message = match text {
        Some(text) => message(text)?,
        None => Message::default(),
    };
    // The result is JSON already, numbers of any size included; reading it into a value might change them.
    let result = consign_pipeline::try_expression(&Text::from(expression), &message)
        .map_err(|problems| problems::error(&problems))?;
    out.text(&result)
}
