//! Speaks to a running host's API.

use crate::cli::Target;
use crate::output::{CliError, Kind};
use serde_json::Value;
use std::time::Duration;

/// How long a host may take to answer one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// `GET` as JSON.
pub fn get(target: &Target, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
    let url = format!("{}{path}", target.host.trim_end_matches('/'));
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .build()
        .into();
    let mut request = agent.get(&url);
    for (name, value) in query {
        request = request.query(name, value);
    }
    if let Some(token) = &target.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut response = request.call().map_err(|error| {
        CliError::new(
            Kind::Unreachable,
            format!("no host answers at {url}: {error}; is it running, does its configuration have `console: {{ listen: … }}`, and is --host that address?"),
        )
    })?;
    let status = response.status().as_u16();
    let text = response
        .body_mut()
        .read_to_string()
        .map_err(|error| CliError::new(Kind::Unreachable, format!("{url}: {error}")))?;
    match status {
        200 => serde_json::from_str(&text).map_err(|error| {
            CliError::failed(format!("{url} answered something else than JSON: {error}"))
        }),
        401 | 403 => Err(CliError::new(
            Kind::Unreachable,
            format!("{url} refused the login; set CONSIGN_TOKEN to the host's console.token"),
        )),
        400 => Err(CliError::input(text)),
        _ => Err(CliError::failed(format!("{url} answered {status}: {text}"))),
    }
}
