//! One table: the status of an answer, or what broke, to the outcome of a write.
//!
//! Statuses are those of RFC 9110, chapter 15, with 425 (RFC 8470) and 429 (RFC 6585); 409 under an
//! idempotency key means that the first request is still being carried out.

use consign_plugin::prelude::*;
use hyper::StatusCode;
use hyper::header::{HeaderMap, LOCATION, RETRY_AFTER};
use std::time::{Duration, SystemTime};

/// A pause that was asked for without saying how long.
const PAUSE: Duration = Duration::from_secs(5);

/// Bytes of an answer's body that are told to a person.
const TOLD: usize = 300;

/// What is known of the request that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// The path differs from write to write, so that a path that is not there is the write's fault.
    pub own_path: bool,
}

/// The outcome of an answer.
pub fn outcome(asked: Asked, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Outcome {
    let code = format!("http_{}", status.as_u16());
    let detail = (code, words(status, headers, body));
    let pause = retry_after(headers, SystemTime::now());
    match status.as_u16() {
        200..=299 => Outcome::delivered(),
        // It wants to be asked elsewhere; a person decides whether that is right.
        300..=399 => Outcome::denied(detail),
        401 | 407 => Outcome::denied(detail).of_connection(),
        403 | 426 | 451 | 501 | 505 | 511 => Outcome::denied(detail),
        404 | 405 if !asked.own_path => Outcome::denied(detail),
        // The service did not take it, for now.
        408 | 409 | 421 | 423 | 425 => Outcome::retry(detail),
        429 => Outcome::throttled(pause.unwrap_or(PAUSE)).with_detail(detail),
        503 if pause.is_some() => Outcome::throttled(pause.unwrap_or(PAUSE)).with_detail(detail),
        400..=499 => Outcome::refused(detail),
        502..=504 | 507 => Outcome::target_failed(detail),
        // 500, and whatever a later standard or a service of its own makes of the rest.
        _ => Outcome::failed_maybe(detail),
    }
}

/// `Retry-After`, in seconds or as a date (RFC 9110, 10.2.3). A date that has passed is no pause.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The outcome of a request that had no answer: the request may have been applied, unless there was no
/// connection for it.
pub fn unanswered(error: &hyper_util::client::legacy::Error) -> Outcome {
    if error.is_connect() {
        return of_failure(crate::dial::failure(error));
    }
    Outcome::unknown(("connection_lost", chain(error)))
}

/// The outcome of writes for which there is no connection or no token: nothing was sent.
pub fn of_failure(failure: Failure) -> Outcome {
    let detail = (failure.code, failure.message);
    match failure.kind {
        FailureKind::Denied | FailureKind::Config => Outcome::denied(detail).of_connection(),
        _ => Outcome::down(detail),
    }
}

/// An error with its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn words(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> String {
    let mut text = status.to_string();
    if let Some(location) = headers.get(LOCATION).and_then(|value| value.to_str().ok()) {
        text.push_str(&format!("; it points to {location}, which is not followed"));
    }
    let said = String::from_utf8_lossy(body.get(..TOLD).unwrap_or(body));
    let said = said.trim();
    if !said.is_empty() {
        text.push_str("; it says: ");
        text.push_str(said);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::{Advice, Applied, Scope};

    type Axes = (Applied, Scope, Advice);
    const RETRY: Axes = (Applied::No, Scope::Write, Advice::Now);
    const REFUSED: Axes = (Applied::No, Scope::Write, Advice::Never);
    const THROTTLED: Axes = (Applied::No, Scope::Target, Advice::After);
    const DENIED: Axes = (Applied::No, Scope::Target, Advice::NeverAlone);
    const DENIED_ALL: Axes = (Applied::No, Scope::Connection, Advice::NeverAlone);
    const MAYBE: Axes = (Applied::Maybe, Scope::Write, Advice::Now);
    const TARGET: Axes = (Applied::Maybe, Scope::Target, Advice::Now);

    fn of(status: u16, own_path: bool, headers: &HeaderMap) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        outcome(Asked { own_path }, status, headers, b"because")
    }

    #[test]
    fn every_status_has_its_outcome() {
        let none = HeaderMap::new();
        for status in [200, 201, 202, 204, 206] {
            assert_eq!(of(status, true, &none), Outcome::delivered());
        }
        for (statuses, expected) in [
            (&[301, 302, 303, 304, 307, 308][..], DENIED),
            (&[401, 407], DENIED_ALL),
            (&[403, 426, 451, 501, 505], DENIED),
            (&[408, 409, 421, 423, 425], RETRY),
            (&[429], THROTTLED),
            (
                &[
                    400, 402, 404, 405, 406, 410, 411, 412, 413, 414, 415, 418, 422, 424, 428, 431,
                    499,
                ],
                REFUSED,
            ),
            (&[502, 503, 504, 507], TARGET),
            (&[500, 506, 508, 599, 600], MAYBE),
        ] {
            for status in statuses {
                let outcome = of(*status, true, &none);
                let axes = (outcome.applied(), outcome.scope(), outcome.advice());
                assert_eq!(
                    (axes, outcome.code()),
                    (expected, &*format!("http_{status}"))
                );
            }
        }
        for status in [404, 405] {
            let outcome = of(status, false, &none);
            assert_eq!(
                (outcome.scope(), outcome.advice()),
                (Scope::Target, Advice::NeverAlone)
            );
        }
    }

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_with_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let after = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers, now)
        };
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(
            after("Sun, 06 Nov 1994 08:50:37 GMT"),
            Some(Duration::from_secs(60))
        );
        assert_eq!(after("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(after("soon"), None);
        assert_eq!(after("-1"), None);
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "7".parse().unwrap());
        for status in [429, 503] {
            assert_eq!(
                of(status, true, &headers).after(),
                Some(Duration::from_secs(7))
            );
        }
        assert_eq!(of(429, true, &HeaderMap::new()).after(), Some(PAUSE));
    }

    #[test]
    fn a_person_is_told_what_the_service_said_and_where_it_points() {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, "https://b/".parse().unwrap());
        let message = of(301, true, &headers).detail().unwrap().message.clone();
        assert!(message.contains("301"), "{message}");
        assert!(
            message.contains("https://b/, which is not followed"),
            "{message}"
        );
        assert!(message.ends_with("it says: because"), "{message}");
    }
}
