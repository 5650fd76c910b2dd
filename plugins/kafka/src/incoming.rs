//! A record as it came, and what of it the host gets.

use crate::config::ConsumeConfig;
use crate::raw;
use crate::tracker::{Key, Place};
use base64::Engine as _;
use consign_plugin::prelude::*;
use rdkafka::message::{BorrowedMessage, Message as _};

/// Headers that carry a login; passed on only when `include_headers` names them.
const AUTHENTICATING: [&str; 4] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
];

/// A record as it came.
pub(crate) struct Record {
    pub key: Key,
    pub offset: i64,
    time_unix_ms: i64,
    record_key: Option<Vec<u8>>,
    headers: Vec<(String, Vec<u8>)>,
    value: Option<Vec<u8>>,
}

impl Record {
    pub(crate) fn of(message: &BorrowedMessage<'_>) -> Self {
        Self {
            key: (message.topic().into(), message.partition()),
            offset: message.offset(),
            time_unix_ms: message.timestamp().to_millis().unwrap_or_default(),
            record_key: message.key().map(<[u8]>::to_vec),
            headers: raw::headers(message),
            value: message.payload().map(<[u8]>::to_vec),
        }
    }

    /// The record for the host.
    pub(crate) fn message(
        &self,
        partition: &str,
        config: &ConsumeConfig,
        place: Place,
    ) -> SourceMessage {
        let (topic, number) = (&*self.key.0, self.key.1);
        let mut message = SourceMessage::new(self.value.clone().unwrap_or_default())
            .identity(format!(
                "{topic}/{number}/{}@{}",
                self.offset, self.time_unix_ms
            ))
            .partition(partition)
            .offset(u64::try_from(self.offset).unwrap_or_default())
            .routing_key(topic)
            .time_unix_ms(self.time_unix_ms)
            .attribute("topic", topic)
            .attribute("partition", number)
            .attribute("offset", self.offset)
            .token(place);
        if self.value.is_none() {
            message = message.attribute("tombstone", true);
        }
        match self.record_key.as_deref().map(std::str::from_utf8) {
            None => {}
            Some(Ok(text)) => message = message.attribute("key", text),
            Some(Err(_)) => {
                let bytes = self.record_key.as_deref().unwrap_or_default();
                let text = base64::engine::general_purpose::STANDARD.encode(bytes);
                message = message.attribute("key_base64", text);
            }
        }
        for (name, value) in &self.headers {
            if name.eq_ignore_ascii_case("content-type")
                && let Ok(text) = std::str::from_utf8(value)
            {
                message = message.content_type(text);
            }
            if passes(name, config) {
                message = message.header(name, value.clone());
            }
        }
        message
    }
}

fn passes(header: &str, config: &ConsumeConfig) -> bool {
    let is = |name: &str| name.eq_ignore_ascii_case(header);
    !AUTHENTICATING.into_iter().any(is) || config.include_headers.iter().any(|name| is(name))
}
