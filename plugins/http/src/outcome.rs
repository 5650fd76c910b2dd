//! One table: what became of a message, or why a request never became one, to the answer.

use bytes::Bytes;
use consign_plugin::prelude::*;
use http_body_util::Full;
use hyper::{
    Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// A short, stable word: the `result` of a 2xx, the `error` of everything else.
    pub code: &'static str,
    /// Why, in a sentence; empty in a 2xx.
    pub reason: String,
    /// Headers beside the content type.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    /// An answer that is not a success.
    pub fn error(status: StatusCode, code: &'static str, reason: impl Into<String>) -> Self {
        Self {
            status,
            code,
            reason: reason.into(),
            headers: Vec::new(),
        }
    }

    /// 503, to be tried again after this many milliseconds.
    pub fn busy(code: &'static str, reason: impl Into<String>, after_ms: u64) -> Self {
        let seconds = after_ms.div_ceil(1000).max(1);
        Self::error(StatusCode::SERVICE_UNAVAILABLE, code, reason)
            .with(RETRY_AFTER, &seconds.to_string())
    }

    /// 405, with what is allowed.
    pub fn not_allowed(methods: &str) -> Self {
        let reason = format!("this path takes {methods}");
        Self::error(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason)
            .with(ALLOW, methods)
    }

    /// 401, with the schemes that would do.
    pub fn unauthorized(bearer: bool, basic: bool) -> Self {
        let reason = "the request has no valid credentials";
        let mut answer = Self::error(StatusCode::UNAUTHORIZED, "unauthorized", reason);
        if bearer {
            answer = answer.with(WWW_AUTHENTICATE, "Bearer realm=\"consign\"");
        }
        if basic {
            answer = answer.with(
                WWW_AUTHENTICATE,
                "Basic realm=\"consign\", charset=\"UTF-8\"",
            );
        }
        answer
    }

    fn with(mut self, name: HeaderName, value: &str) -> Self {
        self.headers
            .extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
        self
    }

    /// The HTTP response.
    pub fn response(self) -> Response<Full<Bytes>> {
        let body = if self.status.is_success() {
            serde_json::json!({ "result": self.code })
        } else {
            serde_json::json!({ "error": self.code, "reason": self.reason })
        };
        let mut response = Response::new(Full::new(Bytes::from(body.to_string() + "\n")));
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(CONTENT_TYPE, json);
        for (name, value) in self.headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}

/// The answer to a message. Only a message that is safe in the host gives a 2xx.
pub fn answer(result: SettleResult, accepted: StatusCode) -> Answer {
    let success = |code| Answer {
        status: accepted,
        code,
        reason: String::new(),
        headers: Vec::new(),
    };
    match result {
        SettleResult::Accepted => success("accepted"),
        SettleResult::Repeat => success("repeat"),
        SettleResult::Refused { reason } => {
            Answer::error(StatusCode::BAD_REQUEST, "refused", reason)
        }
        // It may have reached some destination, and will not reach the others by itself.
        SettleResult::Dropped { reason } => {
            Answer::error(StatusCode::BAD_GATEWAY, "dropped", reason)
        }
        SettleResult::Blocked {
            retry_after_ms,
            reason,
        } => Answer::busy("blocked", reason, retry_after_ms),
        SettleResult::Conflict => Answer::error(
            StatusCode::UNPROCESSABLE_ENTITY,
            "idempotency_conflict",
            "this idempotency key came with another body before",
        ),
        SettleResult::InFlight => Answer::error(
            StatusCode::CONFLICT,
            "in_flight",
            "the first request with this idempotency key is still under way",
        )
        .with(RETRY_AFTER, "1"),
        SettleResult::Released => Answer::busy(
            "stopping",
            "the host stopped before the message was safe",
            1000,
        ),
        // A result this plugin does not know yet is no success.
        _ => Answer::error(
            StatusCode::INTERNAL_SERVER_ERROR,
            "unknown",
            "the host's answer is unknown",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_result_has_its_status_and_only_two_are_a_success() {
        let why = || "why".to_owned();
        let rows = [
            (SettleResult::Accepted, 202, "accepted", None),
            (SettleResult::Repeat, 202, "repeat", None),
            (
                SettleResult::Refused { reason: why() },
                400,
                "refused",
                None,
            ),
            (
                SettleResult::Dropped { reason: why() },
                502,
                "dropped",
                None,
            ),
            (
                SettleResult::Blocked {
                    retry_after_ms: 1500,
                    reason: why(),
                },
                503,
                "blocked",
                Some("2"),
            ),
            (
                SettleResult::Blocked {
                    retry_after_ms: 0,
                    reason: why(),
                },
                503,
                "blocked",
                Some("1"),
            ),
            (SettleResult::Conflict, 422, "idempotency_conflict", None),
            (SettleResult::InFlight, 409, "in_flight", Some("1")),
            (SettleResult::Released, 503, "stopping", Some("1")),
        ];
        for (result, status, code, retry_after) in rows {
            let shown = format!("{result:?}");
            let success = matches!(result, SettleResult::Accepted | SettleResult::Repeat);
            let response = answer(result, StatusCode::ACCEPTED);
            assert_eq!(
                (response.status.as_u16(), response.code),
                (status, code),
                "{shown}"
            );
            assert_eq!(response.status.is_success(), success, "{shown}");
            let response = response.response();
            let header = response
                .headers()
                .get(RETRY_AFTER)
                .map(|v| v.to_str().unwrap());
            assert_eq!(header, retry_after, "{shown}");
        }
    }

    #[test]
    fn a_401_names_every_scheme_and_a_405_every_method() {
        let response = Answer::unauthorized(true, true).response();
        assert_eq!(
            response.headers().get_all(WWW_AUTHENTICATE).iter().count(),
            2
        );
        let response = Answer::not_allowed("POST, PUT").response();
        assert_eq!(response.headers()[ALLOW], "POST, PUT");
    }
}
