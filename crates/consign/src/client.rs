//! Speaks to a running host's API.

use crate::cli::Target;
use crate::output::{CliError, Kind};
use consign_runtime::operator::Request;
use serde_json::Value;
use std::time::Duration;

/// How long a host may take to answer one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to act: a lane may have to be given room first, and bodies may be large.
const ACT_TIMEOUT: Duration = Duration::from_secs(300);

fn agent(timeout: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .http_status_as_error(false)
        .build()
        .into()
}

fn url(target: &Target, path: &str) -> String {
    format!("{}{path}", target.host.trim_end_matches('/'))
}

fn unreachable(url: &str, error: &ureq::Error) -> CliError {
    CliError::new(
        Kind::Unreachable,
        format!(
            "no host answers at {url}: {error}; is it running, does its configuration have `console: {{ listen: … }}`, and is --host that address?"
        ),
    )
}

/// `GET` as JSON.
pub fn get(target: &Target, path: &str, query: &[(&str, String)]) -> Result<Value, CliError> {
    let url = url(target, path);
    let mut request = agent(TIMEOUT).get(&url);
    for (name, value) in query {
        request = request.query(name, value);
    }
    if let Some(token) = &target.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let response = request.call().map_err(|error| unreachable(&url, &error))?;
    answer(&url, response)
}

/// A command: what the host answered. Without a token on the command line or in the environment the
/// one that the host keeps in its data folder is used, where this user may read it.
pub fn command(target: &Target, request: &Request) -> Result<Value, CliError> {
    let token = match &target.token {
        Some(token) => Some(token.clone()),
        None => kept_token(target)?,
    };
    let url = url(target, "/api/v1/commands");
    let body = serde_json::to_vec(request).map_err(CliError::failed)?;
    let mut post = agent(ACT_TIMEOUT)
        .post(&url)
        .header("Content-Type", "application/json")
        .header("X-Consign-Operator", who());
    if let Some(token) = token {
        post = post.header("Authorization", format!("Bearer {token}"));
    }
    let response = post
        .send(&body[..])
        .map_err(|error| unreachable(&url, &error))?;
    answer(&url, response)
}

fn kept_token(target: &Target) -> Result<Option<String>, CliError> {
    let login = get(target, "/api/v1/login", &[])?;
    let Some(path) = login.get("token_file").and_then(Value::as_str) else {
        return Ok(None);
    };
    match std::fs::read_to_string(path) {
        Ok(token) => Ok(Some(token.trim().to_owned())),
        Err(error) => Err(CliError::new(
            Kind::Unreachable,
            format!(
                "the host wants a token, which it keeps in {path}: {error}; run this as the host's user, or set CONSIGN_TOKEN"
            ),
        )),
    }
}

/// How the person at this terminal is named in histories.
pub fn who() -> String {
    ["CONSIGN_OPERATOR", "SUDO_USER", "USER", "LOGNAME"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .map(|name| {
            name.chars()
                .filter(char::is_ascii_graphic)
                .collect::<String>()
        })
        .find(|name| !name.is_empty())
        .unwrap_or_else(|| "cli".to_owned())
}

fn answer(url: &str, mut response: ureq::http::Response<ureq::Body>) -> Result<Value, CliError> {
    let status = response.status().as_u16();
    let text = response
        .body_mut()
        .with_config()
        // An export's page of large bodies; the default of 10 MB would cut it.
        .limit(u64::MAX)
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
        400 => Err(CliError::input(sentence(&text))),
        409 => Err(CliError::failed(sentence(&text))),
        413 => Err(CliError::input(
            "that is larger than the host takes at once (64 MiB)",
        )),
        _ => Err(CliError::failed(format!("{url} answered {status}: {text}"))),
    }
}

/// The sentence in an error's document.
fn sentence(text: &str) -> String {
    serde_json::from_str::<Value>(text)
        .ok()
        .and_then(|value| value.get("error")?.as_str().map(str::to_owned))
        .unwrap_or_else(|| text.to_owned())
}
